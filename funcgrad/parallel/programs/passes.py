"""Passes over per-device programs: when sums over devices are done, and how many at once.

`sums_early` does each as soon as its operand is known, so that what is scattered is not kept whole.
`in_buckets` joins small ones that nothing in between needs; `gathers_once` merges equal gathers.
Programs in equations are passed through, too. See `overlap` for those that run beside other work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from funcgrad.core import context
from funcgrad.core.ir import Eqn, Jaxpr, Var, sub_jaxprs
from funcgrad.core.primitive import Primitive
from funcgrad.core.rewriting import Writer, everywhere, makers, uses
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import transpose_p
from funcgrad.ops.collective.reductions import all_gather_p, psum_p, psum_scatter_p
from funcgrad.ops.shape import concatenate, reshape, slice_p
from funcgrad.parallel.programs.overlap import overlapped
from funcgrad.parallel.programs.program import SpmdProgram

BUCKET_BYTES = 25 * 2**20
# What is scattered is whole until its bucket goes, beside the one part of it that is kept.
SCATTER_BYTES = 2**18


def scheduled(
    program: SpmdProgram,
    bucket_bytes: int = BUCKET_BYTES,
    scatter_bytes: int = SCATTER_BYTES,
    overlap: bool = False,
) -> SpmdProgram:
    """The program with its collectives as they are run: early, in buckets, beside other work.

    bucket_bytes, scatter_bytes: how much is summed, and how much summed and scattered, at once;
        0: each array by itself
    overlap: collectives have starts and ends, with work in between where there is some. A CPU all
    of whose cores compute gains nothing from it.
    """
    jaxpr = sums_early(program.jaxpr)
    jaxpr = in_buckets(jaxpr, program.mesh.shape, bucket_bytes, scatter_bytes)
    if overlap:
        jaxpr = overlapped(jaxpr)
    return SpmdProgram(jaxpr, program.mesh, program.in_cuts, program.out_cuts)


# ---- sums as early as can be


def sums_early(jaxpr: Jaxpr) -> Jaxpr:
    """Each sum over devices right after what it sums is computed, with the operations that prepare
    it. A gradient that is scattered is then never whole beside the other ones."""
    return everywhere(jaxpr, _sums_early)


def _sums_early(jaxpr: Jaxpr) -> Jaxpr:
    made, used = makers(jaxpr), uses(jaxpr)
    early: set[int] = set()
    for i in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[i]
        if eqn.prim in (psum_p, psum_scatter_p):
            early.add(i)
        elif _prepares(eqn):
            after = used.get(eqn.outs[0], [])
            if len(after) == 1 and after[0] in early:
                early.add(i)
    # An early equation goes where the last of those stands that make its operands.
    place: list[int] = []
    for i, eqn in enumerate(jaxpr.eqns):
        before = [place[made[a]] for a in eqn.ins if isinstance(a, Var) and a in made]
        place.append(max(before, default=-1) if i in early else i)
    order = sorted(range(len(jaxpr.eqns)), key=lambda i: (place[i], i))
    return Jaxpr(jaxpr.ins, [jaxpr.eqns[i] for i in order], jaxpr.outs, jaxpr.names)


def _prepares(eqn: Eqn) -> bool:
    """Whether an operation may be done early with the sum that alone needs it: one that makes
    nothing larger."""
    cheap = eqn.prim.elementwise or eqn.prim.view is not None
    return cheap and eqn.outs[0].aval.size <= max(a.aval.size for a in eqn.ins)


# ---- gathers


def gathers_once(jaxpr: Jaxpr) -> Jaxpr:
    """The program with equal gathers done once. It is for what users write in a `shard_map`: where
    partitioning repeats gathers, it saves memory. What a checkpoint does again stays apart."""
    return everywhere(jaxpr, lambda j: _Gathers().write(j)) if _gathers(jaxpr) > 1 else jaxpr


def _gathers(jaxpr: Jaxpr) -> int:
    own = sum(eqn.prim is all_gather_p for eqn in jaxpr.eqns)
    return own + sum(_gathers(j) for eqn in jaxpr.eqns for j in sub_jaxprs(eqn))


class _Gathers(Writer):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Any, Var] = {}

    def equation(self, eqn: Eqn, ins: list) -> None:
        if eqn.prim is all_gather_p and isinstance(ins[0], Var):
            key = (ins[0], tuple(sorted(eqn.params.items())))
            first = self.known.setdefault(key, eqn.outs[0])
            if first is not eqn.outs[0]:
                self.define(eqn, [first])
                return
        self.keep(eqn, ins)


# ---- buckets


def in_buckets(
    jaxpr: Jaxpr,
    sizes: Mapping[str, int],
    bucket_bytes: int = BUCKET_BYTES,
    scatter_bytes: int = SCATTER_BYTES,
) -> Jaxpr:
    """Sums of one dtype over the same axes done together, until a bucket is full or something needs
    a result; likewise sums that are scattered.

    sizes: of the mesh's axes. bucket_bytes, scatter_bytes: a bucket (of sums that are scattered)
    that has as many takes no more, and an array that has as many is summed by itself, without a
    copy.
    """
    room = {psum_p: bucket_bytes, psum_scatter_p: scatter_bytes}
    with context.scoped(axes=dict(sizes)):
        return everywhere(jaxpr, lambda j: _Buckets(sizes, room).write(j))


class _Buckets(Writer):
    def __init__(self, sizes: Mapping[str, int], room: Mapping[Primitive, int]):
        super().__init__()
        self.sizes = sizes
        self.room = room
        self.buckets: dict[Any, list[Eqn]] = {}
        self.waiting: dict[Any, Any] = {}

    def walk(self, jaxpr: Jaxpr) -> list:
        super().walk(jaxpr)
        for key in list(self.buckets):
            self.close(key)
        return [self.read(a) for a in jaxpr.outs]

    def equation(self, eqn: Eqn, ins: list) -> None:
        for a in eqn.ins:
            if a in self.waiting:
                self.close(self.waiting[a])
        if not self.may_join(eqn):
            self.keep(eqn, map(self.read, eqn.ins))
            return
        key = (eqn.prim, eqn.params["axis_name"], eqn.ins[0].aval.dtype)
        members = self.buckets.setdefault(key, [])
        members.append(eqn)
        self.waiting[eqn.outs[0]] = key
        if sum(e.ins[0].aval.nbytes for e in members) >= self.room[eqn.prim]:
            self.close(key)

    def may_join(self, eqn: Eqn) -> bool:
        """Whether an equation is a sum of few bytes."""
        small = eqn.ins and eqn.ins[0].aval.nbytes < self.room.get(eqn.prim, 0)
        return bool(small) and eqn.params.get("tiled", True)

    def close(self, key: Any) -> None:
        """Write one sum in place of those of a bucket."""
        members = self.buckets.pop(key)
        for e in members:
            del self.waiting[e.outs[0]]
        if len(members) == 1:
            self.keep(members[0], map(self.read, members[0].ins))
            return
        prim, axis_name = members[0].prim, members[0].params["axis_name"]
        scatters = prim is psum_scatter_p
        n = self.sizes[axis_name[0]] if scatters else 1
        along: dict[str, Any] = {"axis": 0, "tiled": True} if scatters else {}
        parts = [self.value(self.read(e.ins[0])) for e in members]
        rows = [_rows(x, n, e.params.get("axis", 0)) for x, e in zip(parts, members, strict=True)]
        total = prim.bind(concatenate(rows, 1), axis_name=axis_name, **along)
        at = 0
        for e, row in zip(members, rows, strict=True):
            end = at + aval_of(row).shape[1]
            part = slice_p.bind(total, start_indices=(0, at), limit_indices=(1, end), strides=None)
            self.define(e, [reshape(part, e.outs[0].aval.shape)])
            at = end


def _rows(x: Any, n: int, axis: int) -> Any:
    """x as n rows, of which row i holds block i along an axis."""
    aval = aval_of(x)
    if n == 1:
        return reshape(x, (1, aval.size))
    shape = aval.shape
    blocks = reshape(x, (*shape[:axis], n, shape[axis] // n, *shape[axis + 1 :]))
    order = (axis, *(i for i in range(aval.ndim + 1) if i != axis))
    front = blocks if axis == 0 else transpose_p.bind(blocks, permutation=order)
    return reshape(front, (n, aval.size // n))
