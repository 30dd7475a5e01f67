"""Libraries that take our arrays, as far as the tests' environment has them."""

import importlib.util

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp


def test_the_package_has_what_opt_einsum_looks_for():
    assert (fg.einsum, fg.tensordot, fg.transpose) == (fnp.einsum, fnp.tensordot, fnp.transpose)


@pytest.mark.skipif(importlib.util.find_spec("einops") is not None, reason="einops is there")
def test_registering_needs_the_library():
    with pytest.raises(ImportError, match="einops"):
        fg.interop.register_einops()
