"""An array turned along one axis, as `roll`: of blocks, only the rows that change devices move."""

from __future__ import annotations

from typing import Any

from funcgrad.core import dims as dims_
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.ops.collective.exchanges import ppermute_p
from funcgrad.ops.indexing.windows_at import slice_in_dim
from funcgrad.ops.shape import concatenate
from funcgrad.parallel.partitioner.reshard import extent
from funcgrad.parallel.partitioner.site import Site

_LAST = NoRule("partitioning makes it, after all derivatives have been taken")

# Row i of the result is row i + offset of the operand, counted in a circle.
shift_p: Primitive = Primitive(
    name="shift",
    abstract=lambda x, *, axis, offset: x,
    impl=lambda xp, x, *, axis, offset: xp.roll(x, -offset, axis),
    jvp=_LAST,
    transpose=_LAST,
    batch=_LAST,
    dims=lambda x, *, axis, offset: dims_.pointwise(x),
)


def shift_block(site: Site, x: Any) -> Any:
    """A device's block of a shifted array: rows of two neighbouring blocks, one of which may be its
    own; what it lacks comes by permutations."""
    axis, (whole,) = site.params["axis"], site.ins
    block = aval_of(x).shape[axis]
    axes = site.assigned.get(dims_.letters(whole.ndim)[axis], ())
    count = extent(axes, site.sizes)
    ahead, rows = divmod(centered(site.params["offset"], whole.shape[axis]), block)

    def taken(start: int, stop: int, blocks: int) -> Any:
        part = slice_in_dim(x, start, stop, axis=axis)
        if blocks % count == 0:
            return part
        pairs = tuple(((d + blocks) % count, d) for d in range(count))
        return ppermute_p.bind(part, axis_name=axes, perm=pairs)

    first = taken(rows, block, ahead)
    return concatenate([first, taken(0, rows, ahead + 1)], axis) if rows else first


def centered(offset: int, n: int) -> int:
    """An offset in a circle of n, the shorter way around.

    >>> centered(7, 8), centered(-2, 8), centered(4, 8)
    (-1, -2, 4)
    """
    offset %= n
    return offset - n if 2 * offset > n else offset
