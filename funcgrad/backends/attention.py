"""Attention as steps of programs: which axes its operands have in memory, how it is cut into tasks.

The cut depends on shapes alone, so the number of threads never changes a result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from funcgrad.backends.program import AttentionSizes
from funcgrad.core.ir import Eqn
from funcgrad.transforms.attention_operands import wide_dtype

# The operands that are read where they lie, at any strides: the others are contiguous.
STRIDED = {"attention": (0, 1, 2), "attention_backward": (0, 1, 2, 3, 5)}
# A task of the forward pass has so many queries, or fewer where there would be few tasks.
BLOCKS, TASKS = (512, 256, 128), 16
# Keys of the backward pass fall into ranges, of no fewer than RANGE, so that there are tasks.
RANGE = 512
# Rows of sums of dq are rounded up to a register tile's columns, which these are on some processor;
# there are up to ROWS rows more than queries.
COLUMNS, ROWS = (8, 12, 16, 32), 32


class Shape(NamedTuple):
    """Sizes, and how they are cut."""

    sizes: AttentionSizes
    block: int
    ranges: int


def attention_shape(eqn: Eqn) -> Shape:
    """The sizes of an equation's operands, and how they are cut."""
    q, k = (a.aval.shape for a in eqn.ins[:2])
    sizes = AttentionSizes(q[0], q[1], k[1], q[2], k[2], q[3])
    items = sizes.batch * sizes.heads
    block = BLOCKS[-1]
    for size in BLOCKS:
        if items * -(-sizes.queries // size) >= TASKS:
            block = size
            break
    most = max(1, sizes.keys // RANGE)
    ranges = min(most, -(-TASKS // (sizes.batch * sizes.key_heads)))
    # A forward task's memory needn't hold more queries than there are.
    return Shape(sizes, min(block, -(-sizes.queries // BLOCKS[-1]) * BLOCKS[-1]), ranges)


def scratch_size(shape: Shape) -> int:
    """How many elements of temporary memory the backward pass needs: a number a row, and the sums
    of dq of each range."""
    s = shape.sizes
    row = max(-(-s.features // c) * c for c in COLUMNS)
    items = s.batch * s.heads
    return items * s.queries + shape.ranges * items * (s.queries + ROWS) * row


def dtypes_of(eqn: Eqn) -> tuple[np.dtype, np.dtype]:
    """The dtype of the operands, and the one that sums are in."""
    dtype = eqn.ins[0].aval.dtype
    return dtype, wide_dtype(dtype)
