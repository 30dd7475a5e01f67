"""Collectives over named axes that exchange data: all_to_all, and permutations of lanes.

Several named axes count as one, row-major. Where `vmap` maps one of them away, what it does to the
others remains as exchanges over these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShapeError
from funcgrad.ops.arguments import integers, items_of
from funcgrad.ops.base import batch_front, full, move_axis, transpose_p, zeros
from funcgrad.ops.collective.reductions import (
    AxisName,
    axis_number,
    axis_size,
    checked,
    linear,
    merged,
    some_axes,
    split_in,
)
from funcgrad.ops.elementwise.convert import select_n
from funcgrad.ops.indexing.windows_at import slice_in_dim
from funcgrad.ops.shape import concatenate, reshape


def _all_to_all_abstract(x: ShapedArray, *, axis_name: tuple, split: int, concat: int):
    n = axis_size(axis_name)
    if x.shape[split] % n:
        raise ShapeError(
            f"all_to_all over {axis_name}: axis {split} of {x} must have a size divisible by {n}"
        )
    shape = list(x.shape)
    shape[split] //= n
    shape[concat] *= n
    return x.update(shape=tuple(shape))


def _all_to_all_batch(ax: Any, args: Any, dims: Any, *, axis_name: tuple, split: int, concat: int):
    (x,), (d,) = args, dims
    if ax.name not in axis_name:
        moved = {"split": split + (d <= split), "concat": concat + (d <= concat)}
        return all_to_all_p.bind(x, axis_name=axis_name, **moved), d
    if len(axis_name) == 1:
        x = batch_front(x, d, ax.size)
        # Block j of lane i becomes block i of lane j.
        blocks = split_in(x, split + 1, ax.size)
        lanes_last = move_axis(blocks, split + 1, 0)
        sources = move_axis(lanes_last, 1, concat + 1)
        return merged(sources, concat + 1), 0
    return _one_of_several(ax, batch_front(x, d, ax.size), axis_name, split, concat), 0


def _one_of_several(ax: Any, x: Any, axis_name: tuple, split: int, concat: int) -> Any:
    """An exchange over several axes, lanes of one of them in front. Blocks have as many indices as
    there are axes; each axis exchanges its own: the lanes here, the others as an exchange."""
    k = axis_name.index(ax.name)
    rest = (*axis_name[:k], *axis_name[k + 1 :])
    before, after = axis_size(axis_name[:k]), axis_size(axis_name[k + 1 :])
    n, at = ax.size, split + 1
    x = split_in(split_in(x, at, before * n * after), at, before * n)
    # Lanes, …, blocks by `before` (at), by this axis (at + 1), by `after` (at + 2), ….
    x = split_in(x, at, before)
    order = list(range(aval_of(x).ndim))
    order[0], order[at + 1] = at + 1, 0
    x = transpose_p.bind(x, permutation=tuple(order))
    x = merged(move_axis(x, at + 1, at + 2), at)
    x = all_to_all_p.bind(x, axis_name=rest, split=at, concat=at)
    x = merged(merged(move_axis(split_in(x, at, before), at + 2, at + 1), at), at)
    return merged(move_axis(x, at, concat + 1), concat + 1)


all_to_all_p: Primitive = linear(
    "all_to_all",
    _all_to_all_abstract,
    _all_to_all_batch,
    lambda ct, x, *, axis_name, split, concat: [
        all_to_all_p.bind(ct, axis_name=axis_name, split=concat, concat=split)
    ],
    collective="all_to_all",
)


def all_to_all(
    x: Any, axis_name: AxisName, split_axis: int, concat_axis: int, *, tiled: bool = False
) -> Any:
    """Each lane cuts x (a pytree) along `split_axis`, sends part j to lane j, and joins what it
    gets along `concat_axis`; over several named axes lanes count row-major. Without `tiled`,
    `split_axis` has the size of the named axis and disappears, and `concat_axis` is new.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> x = fnp.arange(4.0).reshape(2, 2)
    >>> fg.vmap(lambda r: fg.lax.all_to_all(r, "i", 0, 0, tiled=True), axis_name="i")(x)
    Array([[0., 2.],
           [1., 3.]], dtype=float32)
    """
    names = some_axes("all_to_all", axis_name)
    n = axis_size(names)

    def exchange(v: Any) -> Any:
        split = axis_number("all_to_all", split_axis, v, False)
        concat = axis_number("all_to_all", concat_axis, v, False)
        if tiled:
            return all_to_all_p.bind(v, axis_name=names, split=split, concat=concat)
        aval = aval_of(v)
        if aval.shape[split] != n:
            raise ShapeError(
                f"all_to_all over {names}: axis {split} of {aval} must have size {n}; pass "
                "tiled=True to cut it in blocks"
            )
        # The split axis goes, an axis of size 1 comes where the parts are joined.
        moved = move_axis(v, split, concat)
        wide = reshape(moved, (*aval_of(moved).shape[: concat + 1], 1,
                               *aval_of(moved).shape[concat + 1 :]))  # fmt: skip
        out = all_to_all_p.bind(wide, axis_name=names, split=concat, concat=concat + 1)
        shape = aval_of(out).shape
        return reshape(out, (*shape[:concat], *shape[concat + 1 :]))

    return tree.map(exchange, x)


def _permute_batch(ax: Any, args: Any, dims: Any, *, axis_name: tuple, perm: tuple) -> tuple:
    (x,), (d,) = args, dims
    if ax.name not in axis_name:
        return ppermute_p.bind(x, axis_name=axis_name, perm=perm), d
    x = batch_front(x, d, ax.size)
    if len(axis_name) > 1:
        return _permuted_in_parts(ax, x, axis_name, perm), 0
    source = {to: fro for fro, to in perm}
    rows, start = [], 0
    for end in range(1, ax.size + 1):
        # Lanes that come from neighbours are one slice: a ring's step has two.
        if start in source:
            if end < ax.size and source.get(end) == source[start] + end - start:
                continue
            rows.append(slice_in_dim(x, source[start], source[start] + end - start))
        else:
            rows.append(_nothing(x))
        start = end
    return concatenate(rows, 0), 0


def _row(x: Any, i: int) -> Any:
    return slice_in_dim(x, i, i + 1)


def _nothing(x: Any) -> Any:
    aval = aval_of(x)
    return zeros(aval.update(shape=(1, *aval.shape[1:])))


def _permuted_in_parts(ax: Any, x: Any, axis_name: tuple, perm: tuple) -> Any:
    """A permutation over several axes, lanes of one of them in front: from each lane to each one,
    the permutation of what is left."""
    k = axis_name.index(ax.name)
    rest = (*axis_name[:k], *axis_name[k + 1 :])
    after = axis_size(axis_name[k + 1 :])
    parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair in perm:
        lanes = tuple(i // after % ax.size for i in pair)
        others = tuple(i // (after * ax.size) * after + i % after for i in pair)
        parts.setdefault(lanes, []).append(others)
    rows = [_nothing(x)] * ax.size
    filled: set[int] = set()
    for (source, to), pairs in sorted(parts.items()):
        there = {"axis_name": rest, "perm": tuple(pairs)}
        part = ppermute_p.bind(_row(x, source), **there)
        if to in filled:
            # Who gets a value: where the others are sent nothing, their values are from elsewhere.
            gets = ppermute_p.bind(full((), True), **there)
            part = select_n(gets, rows[to], part)
        rows[to] = part
        filled.add(to)
    return concatenate(rows, 0)


ppermute_p: Primitive = linear(
    "ppermute",
    lambda x, *, axis_name, perm: checked(x, axis_name),
    _permute_batch,
    lambda ct, x, *, axis_name, perm: [
        ppermute_p.bind(ct, axis_name=axis_name, perm=tuple((b, a) for a, b in perm))
    ],
    collective="permute",
)


def ppermute(x: Any, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> Any:
    """x (a pytree) sent from lane to lane: `perm` lists pairs (source, destination); lanes that
    are no destination get zeros. Over several named axes lanes count row-major, in the order of
    the names, as `axis_index` does.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> shift = lambda x: fg.lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)])
    >>> fg.vmap(shift, axis_name="i")(fnp.array([1.0, 2.0, 3.0]))
    Array([3., 1., 2.], dtype=float32)
    """
    names = some_axes("ppermute", axis_name)
    n = axis_size(names)
    pairs = tuple(integers("ppermute", "perm", p) for p in items_of("perm", perm))
    sources, targets = [p[0] for p in pairs], [p[-1] for p in pairs]
    ok = all(len(p) == 2 and all(0 <= i < n for i in p) for p in pairs)
    if not ok or len(set(sources)) != len(pairs) or len(set(targets)) != len(pairs):
        raise ValueError(
            f"ppermute over {names}: perm must pair distinct lanes below {n}, got {pairs}"
        )
    return tree.map(lambda v: ppermute_p.bind(v, axis_name=names, perm=pairs), x)


def pshuffle(x: Any, axis_name: AxisName, perm: Sequence[int]) -> Any:
    """x (a pytree) rearranged: lane i gets the value of lane perm[i].

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> flip = lambda x: fg.lax.pshuffle(x, "i", [1, 0])
    >>> fg.vmap(flip, axis_name="i")(fnp.array([1.0, 2.0]))
    Array([2., 1.], dtype=float32)
    """
    return ppermute(x, axis_name, [(fro, to) for to, fro in enumerate(items_of("perm", perm))])
