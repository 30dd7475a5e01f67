"""Modules that are imported when they are used."""

import inspect
import subprocess
import sys

import pytest

from funcgrad.backends.late import Late
from funcgrad.backends.lower import gemms

ADD = """
import sys
import numpy as np
import funcgrad as fg
fg.jit(lambda x: x + 1)(np.arange(3.0))
here = "funcgrad.backends."
print(*(name.removeprefix(here) for name in sys.modules if name.startswith(here)))
print(*(name for name in sys.modules if name.startswith("llvmlite.")))
"""


def test_the_module_is_imported_at_its_use():
    name = "funcgrad.backends.numpy_eval"
    before = sys.modules.pop(name, None)
    try:
        module = Late(name)
        assert name not in sys.modules
        assert module.BACKEND.name == "numpy"
        assert name in sys.modules
    finally:
        if before is not None:
            sys.modules[name] = before


def test_a_look_at_it_imports_nothing():
    """Tools that walk through a module's names ask each what it wraps, and what it is called."""
    module = Late("funcgrad.backends.no_such_module")
    assert not hasattr(module, "__wrapped__")
    assert inspect.unwrap(module) is module


def test_names_are_read_at_each_use(monkeypatch):
    module = Late("funcgrad.backends.lower.gemms")
    assert module.gemm_shape.__name__ == "gemm_shape"
    monkeypatch.setattr(gemms, "gemm_shape", "another")
    assert module.gemm_shape == "another"


def test_missing_names_are_named():
    with pytest.raises(AttributeError, match="no_such_name"):
        Late("funcgrad.backends.lower.gemms").no_such_name  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        Late("funcgrad.backends.no_such_module").name  # noqa: B018


def test_a_small_program_loads_no_family_that_it_does_not_use(tmp_path, monkeypatch):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "cache"))
    run = subprocess.run(
        [sys.executable, "-c", ADD], capture_output=True, text=True, check=True, timeout=240
    )
    ours, llvmlite = run.stdout.splitlines()
    families = ("attention", "gemm", "matrix", "sort", "vecmath")
    assert "llvm.build" in ours.split()
    assert [x for x in ours.split() if x.startswith(tuple(f"llvm.{f}" for f in families))] == []
    assert "llvmlite.binding" not in llvmlite.split()
