"""How attention is cut into tasks."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.llvm.drafts.cuts import cut_of, scratch_size
from funcgrad.backends.lower.attention import sizes_of
from funcgrad.transforms.attention.attention import attention


def test_cut_by_shapes_alone():
    eqn = fg.make_jaxpr(lambda q, k: attention(q, k, k, scale=1))(
        np.ones((1, 3000, 1, 8), "f4"), np.ones((1, 40000, 1, 8), "f4")
    ).jaxpr.eqns[0]
    cut = cut_of(eqn)
    assert (cut.block, cut.ranges) == (128, 16)
    assert scratch_size(sizes_of(eqn), cut.ranges) < 17 * 4000 * 32


@pytest.mark.parametrize(
    ("heads", "queries", "block"),
    [(32, 1024, 1024), (31, 1024, 512), (2, 4096, 512), (4, 512, 128), (32, 5, 128)],
)
def test_blocks_are_as_long_as_leaves_tasks(heads, queries, block):
    eqn = fg.make_jaxpr(lambda q: attention(q, q, q, scale=1))(
        fg.ShapeDtypeStruct((1, queries, heads, 8), "float32")
    ).jaxpr.eqns[0]
    assert cut_of(eqn).block == block
