"""block_until_ready and device_get: any tree, its other leaves as they are."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp


def test_block_until_ready():
    tree = {"a": fnp.ones(2), "b": [np.ones(2), 3.0, None, "text"]}
    assert fg.block_until_ready(tree) is tree
    x = fg.jit(lambda x: fg.block_until_ready(x) * 2)(fnp.ones(2))
    assert fg.block_until_ready(x) is x


def test_device_get():
    got = fg.device_get({"a": fnp.ones(2, "bfloat16"), "b": [2, None, "text"]})
    assert type(got["a"]) is np.ndarray
    assert got["a"].dtype == fnp.bfloat16
    assert got["b"] == [2, None, "text"]
