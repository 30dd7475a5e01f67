"""Reductions along axes, running ones, positions of extrema, and sorting.

Runtimes' maxima may lose NaN, which here is asked for beside them. Unsigned integers of 64 bits are
ordered as signed ones by turning their first bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.core.ir import Eqn
from funcgrad.export.onnx import functions
from funcgrad.export.onnx.dims import Dim, is_static, product
from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable
from funcgrad.export.onnx.kernels import BOOL, F4, I8, held
from funcgrad.export.onnx.rules.origins import known
from funcgrad.export.onnx.rules.structure import joined
from funcgrad.ops.base import sum_p
from funcgrad.ops.cumulative import cumlogsumexp_p, cummax_p, cummin_p, cumprod_p, cumsum_p
from funcgrad.ops.reduce import (
    and_p,
    argmax_p,
    argmin_p,
    highest,
    lowest,
    max_p,
    min_p,
    or_p,
    prod_p,
    xor_p,
)
from funcgrad.ops.sort import sort_p, top_k_p

Ins = Sequence[Tensor]
U8 = np.dtype("u8")
_TURN = np.iinfo(np.int64).min


def ordered(g: Graph, x: Tensor) -> Tensor:
    """x, or numbers of a type with kernels that are ordered as x is."""
    if x.dtype != U8:
        return g.cast(x, F4) if x.dtype == np.dtype("f2") else x
    return g.elementwise("BitwiseXor", g.cast(x, I8), g.constant(_TURN, I8))


def unordered(g: Graph, x: Tensor, dtype: np.dtype) -> Tensor:
    """What `ordered` was given."""
    if dtype != U8:
        return g.cast(x, dtype)
    return g.cast(g.elementwise("BitwiseXor", x, g.constant(_TURN, I8)), U8)


def _sum(kind: str, empty: int) -> Callable:
    def rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
        (x,), shape = ins, eqn.outs[0].aval.shape
        if 0 in map(int, x.shape):
            return [g.full(shape, empty, x.dtype)]
        if x.dtype.kind in "iu" and (value := known(x)) is not None:  # stored codes
            return [g.constant(eqn.prim.impl(np, value, **eqn.params), x.dtype)]
        return [g.reduce(kind, x, eqn.params["axes"])]

    return rule


def _extremum(kind: str, identity: Callable) -> Callable:
    def rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
        (x,), axes, aval = ins, eqn.params["axes"], eqn.outs[0].aval
        if 0 in map(int, x.shape):
            return [g.full(aval.shape, identity(aval.dtype).astype(x.dtype), x.dtype)]
        found = unordered(g, g.reduce(kind, ordered(g, x), axes), x.dtype)
        if x.dtype.kind == "f":
            nan = g.reduce("ReduceMax", functions.isnan(g, x), axes)
            found = g.where(nan, g.constant(np.nan, x.dtype), found)
        return [found]

    return rule


def _bitwise(name: str) -> Callable:
    on_bool = {"and": "ReduceMin", "or": "ReduceMax"}

    def rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
        (x,), axes, shape = ins, eqn.params["axes"], eqn.outs[0].aval.shape
        if 0 in map(int, x.shape):
            value = ~np.zeros((), x.dtype) if name == "and" else np.zeros((), x.dtype)
            return [g.full(shape, value, x.dtype)]
        if x.dtype == BOOL and name in on_bool:
            return [g.reduce(on_bool[name], x, axes)]
        if x.dtype == BOOL:
            odd = g.reduce("ReduceSum", g.cast(x, np.dtype("i4")), axes)
            odd = g.elementwise("BitwiseAnd", odd, g.constant(1, odd.dtype))
            return [g.cast(odd, BOOL)]
        kept = [i for i in range(x.rank) if i not in axes]
        n = product([x.shape[i] for i in axes])
        last = g.reshape(g.transpose(x, [*kept, *axes]), (*shape, n))
        kind = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}[name]
        return [g.reshape(_halved(g, last, kind), shape)]

    return rule


def _halved(g: Graph, x: Tensor, kind: str) -> Tensor:
    """The last axis combined: its halves with each other, until there is one."""
    axis = x.rank - 1
    if isinstance(x.shape[axis], Dim):
        raise Untranslatable("a bitwise reduction along an axis whose size isn't known")
    while (n := x.shape[axis]) > 1:
        h = n // 2
        both = g.elementwise(kind, g.slice(x, axis, 0, h), g.slice(x, axis, h, 2 * h))
        rest = [g.slice(x, axis, 2 * h, n)] if n % 2 else []
        x = joined(g, [both, *rest], axis, (*x.shape[:axis], h + n % 2))
    return x


def _position(kind: str) -> Callable:
    def rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
        (x,), shape = ins, eqn.outs[0].aval.shape
        (axis,) = eqn.params["axes"]

        def at(op: str, y: Tensor) -> Tensor:
            return g.op(op, y, axis=int(axis), keepdims=0, shape=shape, dtype=I8)

        found = at(kind, ordered(g, x))
        if x.dtype.kind == "f":
            nan = functions.isnan(g, x)
            first = at("ArgMax", g.cast(nan, np.dtype("u1")))
            found = g.where(g.reduce("ReduceMax", nan, [axis]), first, found)
        return [g.cast(found, held(eqn.outs[0].aval.dtype))]

    return rule


# ---- running reductions


def cumsum(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Sums of all elements up to each."""
    (x,), p = ins, eqn.params
    axis = g.constant(p["axis"], I8)
    return [g.op("CumSum", x, axis, reverse=int(p["reverse"]), shape=x.shape, data=[0])]


def _running(combine: Callable[[Graph, Tensor, Tensor], Tensor]) -> Callable:
    """In log₂ n steps, each combining elements with those 2ᵏ before (Hillis and Steele, "Data
    parallel algorithms", 1986)."""

    def rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
        (x,), axis = ins, eqn.params["axis"]
        backwards, own = eqn.params["reverse"], x.dtype
        if not is_static(x.shape[axis : axis + 1]):
            raise Untranslatable("a running reduction along an axis whose size isn't known")
        x = g.cast(x, F4) if own == np.dtype("f2") else x
        n, step = x.shape[axis], 1
        while step < n:
            far, near = g.slice(x, axis, 0, n - step), g.slice(x, axis, step, n)
            both = combine(g, far, near)
            if backwards:
                parts = [both, g.slice(x, axis, n - step, n)]
            else:
                parts = [g.slice(x, axis, 0, step), both]
            x = joined(g, parts, axis, x.shape)
            step *= 2
        return [g.cast(x, own)]

    return rule


def _greatest(kind: str) -> Callable[[Graph, Tensor, Tensor], Tensor]:
    def combine(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        if x.dtype == BOOL:
            return g.elementwise("Or" if kind == "Max" else "And", x, y)
        return g.elementwise(kind, x, y)

    return combine


# ---- sorting


def _along(g: Graph, x: Tensor, order: Tensor, axis: int) -> Tensor:
    return g.op("GatherElements", x, order, axis=axis, shape=order.shape, data=[0])


def _order(g: Graph, key: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """A key in ascending order, and where each element was; equal ones stay in order."""
    return _top(g, key, axis, key.shape[axis], largest=0)


def _top(g: Graph, x: Tensor, axis: int, k: int, largest: int) -> tuple[Tensor, Tensor]:
    own = x.dtype
    wide = ordered(g, x)
    wide = g.cast(wide, np.dtype("u1")) if own == BOOL else wide
    wide = g.cast(wide, np.dtype("i4")) if own == np.dtype("u2") else wide
    wide = g.cast(wide, I8) if own == np.dtype("u4") else wide
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    attrs = {"axis": axis, "largest": largest, "sorted": 1}
    values, places = g.node("TopK", [wide.name, g.size(k).name], attrs, 2)
    found = unordered(g, Tensor(g, values, wide.dtype, shape), own)
    return found, Tensor(g, places, I8, shape)


def sort(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Arrays in the order of the first ones: sorted stably by each key, the last one first."""
    axis, keys = int(eqn.params["dimension"]), eqn.params["num_keys"]
    if 0 in map(int, ins[0].shape):
        return list(ins)
    if len(ins) == 1:
        return [_order(g, ins[0], axis)[0]]
    order: Tensor | None = None
    for key in reversed(ins[:keys]):
        _, inner = _order(g, key if order is None else _along(g, key, order, axis), axis)
        order = inner if order is None else _along(g, order, inner, axis)
    assert order is not None
    return [_along(g, x, order, axis) for x in ins]


def top_k(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """The greatest elements of the last axis, and where they are."""
    x = ins[0]
    values, places = _top(g, x, x.rank - 1, eqn.params["k"], largest=1)
    return [values, g.cast(places, held(eqn.outs[1].aval.dtype))]


RULES = {
    sum_p: _sum("ReduceSum", 0),
    prod_p: _sum("ReduceProd", 1),
    max_p: _extremum("ReduceMax", lowest),
    min_p: _extremum("ReduceMin", highest),
    and_p: _bitwise("and"),
    or_p: _bitwise("or"),
    xor_p: _bitwise("xor"),
    argmax_p: _position("ArgMax"),
    argmin_p: _position("ArgMin"),
    cumsum_p: cumsum,
    cumprod_p: _running(functions.mul),
    cummax_p: _running(_greatest("Max")),
    cummin_p: _running(_greatest("Min")),
    cumlogsumexp_p: _running(functions.logaddexp),
    sort_p: sort,
    top_k_p: top_k,
}
