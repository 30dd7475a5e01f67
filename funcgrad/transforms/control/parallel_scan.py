"""`associative_scan`, in logarithmically many steps, and `map`, one element at a time.

The scan combines neighbours, scans the half as long list of pairs, and fills in the other half
(Blelloch, "Prefix sums and their applications", 1990).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from funcgrad import tree
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree, Value
from funcgrad.errors import ControlFlowError
from funcgrad.ops.arguments import check_callable, integer
from funcgrad.ops.elementwise.compare import bitwise_or
from funcgrad.ops.families import add
from funcgrad.ops.indexing.windows_at import slice_in_dim
from funcgrad.ops.shape import reshape, rev
from funcgrad.ops.slicing import concatenate, pad
from funcgrad.transforms.arguments import name_of
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.control.scan import scan


@boundary
def associative_scan(fn: Callable, elems: Tree, reverse: bool = False, axis: int = 0) -> Tree:
    """All prefix combinations of `elems` (a pytree) along an axis: x0, fn(x0, x1), …

    fn(a, b): associative, of pytrees like elems, elementwise along the axis (it is given slices
    with many elements there at once). reverse: scan from the end, fn(x[-1], x[-2]) and so on.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad import lax
    >>> lax.associative_scan(lax.mul, fnp.arange(1, 5))
    Array([ 1,  2,  6, 24], dtype=int32)
    """
    if not callable(fn):
        raise TypeError(f"associative_scan: the first argument must be a function, got {fn!r}")
    leaves, treedef = tree.flatten(elems)
    if not leaves:
        return elems
    axis = integer("axis", axis)
    avals = [aval_of(x) for x in leaves]
    sizes = {a.shape[axis] if -a.ndim <= axis < a.ndim else None for a in avals}
    if len(sizes) != 1 or None in sizes:
        listed = ", ".join(str(a) for a in avals)
        raise ControlFlowError(
            f"associative_scan with {name_of(fn)}: the arrays must have one size along axis "
            f"{axis}, got {listed}"
        )
    axes = [axis % a.ndim for a in avals]

    def combine(a: list, b: list) -> list:
        return tree.leaves(fn(treedef.unflatten(a), treedef.unflatten(b)))

    if reverse:
        leaves = [rev(x, (d,)) for x, d in zip(leaves, axes, strict=True)]
    outs = _scan(combine, leaves, axes)
    if reverse:
        outs = [rev(x, (d,)) for x, d in zip(outs, axes, strict=True)]
    return treedef.unflatten(outs)


def _every_other(xs: list, axes: list[int], start: int, stop: int | None = None) -> list:
    return [slice_in_dim(x, start, stop, 2, d) for x, d in zip(xs, axes, strict=True)]


def _part(xs: list, axes: list[int], start: int, stop: int | None) -> list:
    return [slice_in_dim(x, start, stop, 1, d) for x, d in zip(xs, axes, strict=True)]


def _scan(combine: Callable, xs: list, axes: list[int]) -> list:
    n = aval_of(xs[0]).shape[axes[0]]
    if n < 2:
        return xs
    pairs = combine(_every_other(xs, axes, 0, n - n % 2), _every_other(xs, axes, 1))
    odd = _scan(combine, pairs, axes)
    later = _every_other(xs, axes, 2)
    known = _part(odd, axes, 0, aval_of(later[0]).shape[axes[0]])
    even = combine(known, later) if aval_of(later[0]).shape[axes[0]] else later
    first = _part(xs, axes, 0, 1)
    even = [concatenate([f, e], d) for f, e, d in zip(first, even, axes, strict=True)]
    return [_interleave(e, o, d) for e, o, d in zip(even, odd, axes, strict=True)]


def _interleave(even: Value, odd: Value, axis: int) -> Value:
    """even[0], odd[0], even[1], …: even is as long as odd, or longer by one."""
    a, b = aval_of(even), aval_of(odd)
    extra = a.shape[axis] - b.shape[axis]
    nothing = np.zeros((), a.dtype)
    spread = [(0, 0, 0)] * a.ndim
    spread[axis] = (0, 1 - extra, 1)
    left = pad(even, nothing, spread)
    spread[axis] = (1, extra, 1)
    right = pad(odd, nothing, spread)
    return bitwise_or(left, right) if a.dtype == np.bool_ else add(left, right)


@boundary
def map(f: Callable, xs: Tree, *, batch_size: int | None = None) -> Tree:
    """`f` of each element along the first axis of xs (a pytree), one after the other, stacked.

    Unlike `vmap` it needs memory for one element only; batch_size: so many at once by `vmap`, 0
    for all.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad import lax
    >>> lax.map(lambda x: x + 1, fnp.arange(3))
    Array([1, 2, 3], dtype=int32)
    """
    check_callable("f", f)
    if batch_size is None:
        return scan(lambda _, x: (None, f(x)), None, xs)[1]
    if integer("batch_size", batch_size) < 0:
        raise ValueError(f"map: batch_size must not be negative, got {batch_size}")
    leaves = tree.leaves(xs)
    if not leaves:
        raise ControlFlowError(f"map of {name_of(f)}: xs has no arrays to map over")
    n = aval_of(leaves[0]).shape[0]
    whole = n - n % batch_size if batch_size else 0

    def batches(x: Value) -> Value:
        shape = aval_of(x).shape
        head = slice_in_dim(x, 0, whole)
        return reshape(head, (whole // batch_size, batch_size, *shape[1:]))

    def flat(y: Value) -> Value:
        shape = aval_of(y).shape
        return reshape(y, (shape[0] * shape[1], *shape[2:]))

    parts = []
    if whole:
        _, ys = scan(lambda _, x: (None, vmap(f)(x)), None, tree.map(batches, xs))
        parts.append(tree.map(flat, ys))
    if whole < n or not n:
        parts.append(vmap(f)(tree.map(lambda x: slice_in_dim(x, whole, n), xs)))
    if len(parts) == 1:
        return parts[0]
    return tree.map(lambda a, b: concatenate([a, b], 0), *parts)
