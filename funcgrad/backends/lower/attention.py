"""Attention as steps of programs: which axes its operands have in memory, how it is cut into tasks.

The cut depends on shapes alone, so the number of threads never changes a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.lower.primitives import key_of
from funcgrad.backends.program import AttentionSizes
from funcgrad.core.ir import Eqn, Var
from funcgrad.transforms.attention.attention import attention_backward_p, attention_p
from funcgrad.transforms.attention.operands import Given, wide_dtype

# The operands with batch, place, head and feature, and where those that may be given begin.
ARRAYS = {
    "attention": (0, 1, 2),
    "attention_backward": (0, 1, 2, 3, 5),
    "attention_joint": (0, 1, 2, 3),
}
GIVEN = {"attention": 3, "attention_backward": 6, "attention_joint": 4}
_KINDS = {attention_p: "attention", attention_backward_p: "attention_backward"}
# How many of the results, the first ones, are written where they are wanted, at any strides.
RESULTS = {"attention": 1, "attention_backward": 3, "attention_joint": 4}
# A task of the forward pass has so many queries, where there are so many tasks then, or BLOCK: the
# more queries, the less often keys and values are packed.
BLOCKS, BLOCK = ((1024, 32), (512, 16), (256, 16)), 128
TASKS = 16  # of the backward pass, at least, if possible
# Keys of the backward pass fall into ranges, of no fewer than RANGE, so that there are tasks.
RANGE, SHARED_RANGE = 512, 128
# Queries of up to so many places and heads are packed once for all keys, and their sums of dq are a
# task's own where a head is one range; others are packed with each block.
PACKED = 1 << 14
# Rows of sums of dq are rounded up to a register tile's columns, which these are on some processor;
# there are up to ROWS rows more than queries.
COLUMNS, ROWS = (8, 12, 16, 32), 32


class Shape(NamedTuple):
    """Sizes, and how they are cut."""

    sizes: AttentionSizes
    block: int
    ranges: int
    shared: tuple[int, int] = (1, 1)


def kind_of(eqn: Eqn) -> str:
    """Which of `ARRAYS` an equation is; "" for others."""
    if key_of(eqn.prim) == "attention_joint":
        return "attention_joint"
    return _KINDS.get(eqn.prim, "")


def given_numbers(eqn: Eqn) -> Given:
    """The numbers of the operands that are given."""
    numbers = range(GIVEN[kind_of(eqn)], len(eqn.ins))
    pairs = [i for i in numbers if eqn.ins[i].aval.ndim == 4]
    masks = [i for i in pairs if eqn.ins[i].aval.dtype == dtypes.BOOL]
    biases = [i for i in pairs if i not in masks]
    lengths = tuple(i for i in numbers if i not in pairs)
    return Given(lengths, next(iter(biases), None), next(iter(masks), None))


def strided(eqn: Eqn) -> tuple[int, ...]:
    """The operands that are read where they lie, at any strides: the others are contiguous."""
    if not kind_of(eqn):
        return ()
    return *ARRAYS[kind_of(eqn)], *(x for x in given_numbers(eqn)[1:] if x is not None)


def strided_results(eqn: Eqn) -> Sequence[Var]:
    """The results that are written at any strides: the others are contiguous."""
    return eqn.outs[: RESULTS.get(kind_of(eqn), 0)]


def attention_shape(eqn: Eqn) -> Shape:
    """The sizes of an equation's operands, and how they are cut."""
    q, k = (a.aval.shape for a in eqn.ins[:2])
    sizes = AttentionSizes(q[0], q[1], k[1], q[2], k[2], q[3])
    items = sizes.batch * sizes.heads
    block = BLOCK
    for size, tasks in BLOCKS:
        if items * -(-sizes.queries // size) >= tasks:
            block = size
            break
    shared, most = (1, 1), max(1, sizes.keys // RANGE)
    if eqn.params.get("bias_too"):
        # The sums of the bias's cotangents are a task's own.
        b, n, _, s = eqn.outs[3].aval.shape
        shared = (sizes.batch if b == 1 else 1, sizes.key_heads if n == 1 else 1)
        most = most if shared == (1, 1) else max(1, sizes.keys // SHARED_RANGE)
        most = 1 if s == 1 else most
    tasks = sizes.batch // shared[0] * (sizes.key_heads // shared[1])
    ranges = min(most, -(-TASKS // tasks))
    # A forward task's memory needn't hold more queries than there are.
    return Shape(sizes, min(block, -(-sizes.queries // BLOCK) * BLOCK), ranges, shared)


def spans(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides of a bias or mask: 0 along axes of size 1.

    >>> spans((1, 2, 1, 5), (10, 5, 5, 1))
    (0, 5, 0, 1)
    """
    return tuple(0 if n == 1 else x for n, x in zip(shape, strides, strict=True))


def scratch_size(shape: Shape, joint: bool = False) -> int:
    """How many elements of temporary memory the backward pass needs: a number a row, and the sums
    of dq of each range, unless tasks have them."""
    s = shape.sizes
    own = shape.ranges == 1 and s.queries * (s.heads // s.key_heads) <= PACKED
    if joint or own:
        return s.batch * s.heads * s.queries
    row = max(-(-s.features // c) * c for c in COLUMNS)
    items = s.batch * s.heads
    return items * s.queries + shape.ranges * items * (s.queries + ROWS) * row


def dtypes_of(eqn: Eqn) -> tuple[np.dtype, np.dtype]:
    """The dtype of the operands, and the one that sums are in."""
    dtype = eqn.ins[0].aval.dtype
    return dtype, wide_dtype(dtype)
