"""How attention is cut into tasks: by shapes alone, so that threads never change a result."""

from __future__ import annotations

from typing import NamedTuple

from funcgrad.backends.lower.attention import sizes_of
from funcgrad.backends.program import AttentionSizes, Ref
from funcgrad.core.ir import Eqn

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


class Cut(NamedTuple):
    """How attention is cut into tasks: an `AttentionStep`'s `cut`.

    block: queries a task of the forward pass has
    ranges: in how many ranges of keys the backward pass is cut
    shared: of how many of the batch, and of how many key heads, a task of the backward pass is
    scratch: room for what `scratch_size` counts, in the dtype of sums; None forward
    """

    block: int
    ranges: int
    shared: tuple[int, int] = (1, 1)
    scratch: Ref | None = None


def cut_of(eqn: Eqn) -> Cut:
    """How an equation is cut."""
    sizes = sizes_of(eqn)
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
    return Cut(min(block, -(-sizes.queries // BLOCK) * BLOCK), ranges, shared)


def scratch_size(s: AttentionSizes, ranges: int, joint: bool = False) -> int:
    """How many elements of temporary memory the backward pass needs: a number a row, and the sums
    of dq of each range, unless tasks have them."""
    own = ranges == 1 and s.queries * (s.heads // s.key_heads) <= PACKED
    if joint or own:
        return s.batch * s.heads * s.queries
    row = max(-(-s.features // c) * c for c in COLUMNS)
    items = s.batch * s.heads
    return items * s.queries + ranges * items * (s.queries + ROWS) * row
