"""Collectives for lowering: five exchanges of contiguous blocks, and how native code asks for them.

`normalize` writes each collective as an exchange in which the devices' blocks lie along the first
axis, with transposes and reshapes around it that fuse with what is near. Axes of size 1 need none.
A communicator's *context* is a struct of 64-bit words in memory: the addresses of the functions
for the five kinds, `i32 (ptr context, ptr descriptor)`, then its rank, its size, and what else it
needs. The *descriptor* (`DESCRIPTOR`, 64-bit words) says what to exchange; a result other than 0
means that it failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal
from funcgrad.core.primitive import Primitive
from funcgrad.ops.collective.blocks import communicator
from funcgrad.ops.collective.exchanges import all_to_all_p, ppermute_p
from funcgrad.ops.collective.reductions import (
    all_gather_p,
    axis_index_p,
    axis_size,
    pmax_p,
    pmin_p,
    psum_p,
    psum_scatter_p,
)
from funcgrad.ops.collective.varying import assume_invariant_p, psum_invariant_p, pvary_p
from funcgrad.ops.reduce import max_p, min_p

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
OPS = ("sum", "max", "min")
DTYPES = dtypes.ALL

# Words of a context: one a kind, then these; and those of a descriptor. `count` are the elements of
# a block (of the whole array, for all_reduce and permute), `width` an element's bytes; op and dtype
# are positions in OPS and DTYPES. `perm` points at two words for each rank: whom it sends to, and
# whom it receives from, or -1.
RANK, SIZE = len(KINDS), len(KINDS) + 1
DESCRIPTOR = ("kind", "op", "dtype", "width", "count", "source", "to", "perm")

# What has no sum of its own is summed as this.
WIDER = dict.fromkeys(dtypes.FLOAT8, np.dtype(np.float32)) | {
    np.dtype(dtypes.int4): np.dtype(np.int8),
    np.dtype(dtypes.uint4): np.dtype(np.uint8),
}


def _abstract(
    x: ShapedArray, *, kind: str, op: str, axis_name: tuple, size: int, perm: tuple
) -> ShapedArray:
    if kind == "all_gather":
        return x.update(shape=(size, *x.shape))
    return x.update(shape=x.shape[1:]) if kind == "reduce_scatter" else x


def exchange_arrays(comm: Any, kind: str, op: str, perm: tuple, x: np.ndarray) -> np.ndarray:
    """An exchange of a numpy array through a communicator."""
    if kind in ("all_reduce", "reduce_scatter"):
        return getattr(comm, kind)(x, op)
    return comm.permute(x, perm) if kind == "permute" else getattr(comm, kind)(x)


def _impl(xp: Any, x: Any, *, kind: str, op: str, axis_name: tuple, size: int, perm: tuple) -> Any:
    return exchange_arrays(communicator(kind, axis_name), kind, op, perm, x)


# An exchange of contiguous blocks along the first axis.
exchange_p = lowered("exchange", _abstract, _impl)
# The device's number along named axes, row-major.
lane_p = lowered(
    "lane",
    lambda *, axis_name, size: ShapedArray((), np.int32),
    lambda xp, *, axis_name, size: np.int32(communicator("lane", axis_name).rank),
)


# ---- collectives as exchanges: `flat` is the flattener of `normalize`


def _axes(eqn: Eqn) -> tuple[tuple, int]:
    """The named axes of a collective whose sizes aren't 1, and the product of their sizes."""
    names = eqn.params["axis_name"]
    return tuple(n for n in names if axis_size(n) != 1), axis_size(names)


def _exchange(
    flat: Equations, eqn: Eqn, x: Atom, kind: str, op: str = "sum", perm: tuple = ()
) -> Atom:
    names, size = _axes(eqn)
    params: dict[str, Any] = {
        "kind": kind,
        "op": op,
        "axis_name": names,
        "size": size,
        "perm": perm,
    }
    return flat.add(exchange_p, [x], _abstract(x.aval.strong(), **params), **params)


def _reduction(op: str, local: Primitive | None) -> Callable:
    def rewrite(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
        (x,) = ins
        if not _axes(eqn)[0]:
            return x
        dtype = x.aval.dtype
        if dtypes.is_complex(dtype) and local is not None:
            return flat.reduce(local, _exchange(flat, eqn, x, "all_gather"), (0,))
        wide = flat.convert(x, WIDER.get(dtype, dtype))
        return flat.convert(_exchange(flat, eqn, wide, "all_reduce", op), dtype)

    return rewrite


def _to_front(flat: Equations, x: Atom, axis: int) -> Atom:
    rest = [i for i in range(x.aval.ndim) if i != axis]
    return flat.transpose(x, [axis, *rest])


def _from_front(flat: Equations, x: Atom, axis: int) -> Atom:
    order = list(range(1, x.aval.ndim))
    order.insert(axis, 0)
    return flat.transpose(x, order)


def _cut(flat: Equations, x: Atom, axis: int, n: int) -> Atom:
    """An axis as n blocks and what is in them."""
    shape = x.aval.shape
    return flat.reshape(x, (*shape[:axis], n, shape[axis] // n, *shape[axis + 1 :]))


def _all_gather(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    (x,), axis = ins, eqn.params["axis"]
    shape = eqn.outs[0].aval.shape
    if not _axes(eqn)[0]:
        return flat.reshape(x, shape)
    parts = _from_front(flat, _exchange(flat, eqn, x, "all_gather"), axis)
    return flat.reshape(parts, shape)


def _psum_scatter(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    (x,), axis = ins, eqn.params["axis"]
    names, size = _axes(eqn)
    if not names:
        return flat.reshape(x, eqn.outs[0].aval.shape)
    dtype = x.aval.dtype
    x = flat.convert(x, WIDER.get(dtype, dtype))
    blocks = _cut(flat, x, axis, size) if eqn.params["tiled"] else x
    return flat.convert(
        _exchange(flat, eqn, _to_front(flat, blocks, axis), "reduce_scatter"), dtype
    )


def _all_to_all(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    (x,), split, concat = ins, eqn.params["split"], eqn.params["concat"]
    names, size = _axes(eqn)
    if not names:
        return x
    blocks = _to_front(flat, _cut(flat, x, split, size), split)
    parts = _from_front(flat, _exchange(flat, eqn, blocks, "all_to_all"), concat)
    return flat.reshape(parts, eqn.outs[0].aval.shape)


def _ppermute(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    (x,) = ins
    perm = eqn.params["perm"]
    if not _axes(eqn)[0]:
        zero = Literal(np.zeros((), x.aval.dtype), ShapedArray((), x.aval.dtype))
        return x if perm else flat.broadcast(zero, x.aval.shape, ())
    return _exchange(flat, eqn, x, "permute", perm=perm)


def _axis_index(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    names, size = _axes(eqn)
    aval = ShapedArray((), np.int32)
    if not names:
        return Literal(np.zeros((), np.int32), aval)
    return flat.add(lane_p, [], aval, axis_name=names, size=size)


REWRITES: dict[Primitive, Callable] = {
    psum_p: _reduction("sum", None),
    psum_invariant_p: _reduction("sum", None),
    pvary_p: lambda flat, eqn, ins: ins[0],
    assume_invariant_p: lambda flat, eqn, ins: ins[0],
    pmax_p: _reduction("max", max_p),
    pmin_p: _reduction("min", min_p),
    all_gather_p: _all_gather,
    psum_scatter_p: _psum_scatter,
    all_to_all_p: _all_to_all,
    ppermute_p: _ppermute,
    axis_index_p: _axis_index,
}


def rewrite(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Any:
    """A collective as an exchange."""
    return REWRITES[eqn.prim](flat, eqn, ins)
