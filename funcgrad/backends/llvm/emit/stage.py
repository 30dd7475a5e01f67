"""Tiles that are read in long strides: each is transposed into a small array first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from funcgrad.backends.llvm.emit.schedule import Level, coefficient
from funcgrad.backends.llvm.emit.text import memory_type
from funcgrad.backends.llvm.emit.transpose import declare_transpose, tile_size
from funcgrad.backends.loops.ir import Load, Loop, Store

if TYPE_CHECKING:
    from funcgrad.backends.llvm.emit.emitter import Emitter


def stage(e: Emitter, outer: Level, inner: Level) -> None:
    """Transpose into small arrays what the tile in hand would read in long strides."""
    shared = {e.kernel.params[i] for pair in e.kernel.in_place for i in pair}
    outside = {level.axis for level in e.plan.levels} | e.plan.fixed
    (u, u_end), (v, v_end) = e.bounds[outer.axis], e.bounds[inner.axis]
    for s in e.kernel.body:
        if not isinstance(s, Load) or s.guard is not None or s.buffer.role != "in":
            continue
        step = coefficient(s.index, inner.axis)
        if abs(step) < 2 or coefficient(s.index, outer.axis) != 1 or s.buffer in shared:
            continue
        if any(value not in outside for _, value in s.index.terms):
            continue
        width = s.buffer.dtype.itemsize
        name, tile = declare_transpose(e.module, width), tile_size(width)
        array = e.f.alloca(memory_type(s.buffer.dtype), tile * tile)
        e.env.update({outer.axis: u, inner.axis: v})
        place = e.address(s.buffer, s.index)
        rows, columns = (
            e.f.let(f"sub nsw i64 {end}, {begin}") for begin, end in ((v, v_end), (u, u_end))
        )
        _call(e, name, place, step, array, tile, rows, columns)
        e.staged[s] = (array, tile, (outer.axis, u), (inner.axis, v))


def staged(e: Emitter, s: Load) -> str:
    """A load from the small array that a tile was transposed into."""
    array, tile, *axes = e.staged[s]
    row, column = (e.f.let(f"sub nsw i64 {e.env[axis]}, {low}") for axis, low in axes)
    offset = e.f.let(f"add nsw i64 {e.f.let(f'mul nsw i64 {row}, {tile}')}, {column}")
    kind = memory_type(s.buffer.dtype)
    return e.f.let(f"getelementptr inbounds {kind}, ptr {array}, i64 {offset}")


def turned(e: Emitter, outer: Loop, inner: Loop) -> bool:
    """Write two loops as a transposition, if they copy lines of one array to columns of another."""
    if not inner.parallel or inner.carries or outer.carries or len(inner.body) != 2:
        return False
    load, store = inner.body
    if not (isinstance(load, Load) and isinstance(store, Store) and store.value is load.out):
        return False
    step, one, unit, stride = (
        coefficient(x.index, s.axis) for x in (load, store) for s in (outer, inner)
    )
    if load.guard or store.guard or (one, unit) != (1, 1) or min(step, stride) < 2:
        return False
    if load.buffer.role != "scratch" or store.buffer.role != "scratch":
        return False
    name = declare_transpose(e.module, load.buffer.dtype.itemsize)
    e.env.update({outer.axis: "0", inner.axis: "0"})
    places = [e.address(x.buffer, x.index) for x in (load, store)]
    sizes = [str(s.size) for s in (outer, inner)]
    _call(e, name, places[0], step, places[1], stride, *sizes)
    return True


def _call(e: Emitter, name: str, place: str, step: int, to: str, stride: int, m: str, n: str):
    types = ["ptr", "i64", "ptr", "i64", "i64", "i64"]
    e.f.call(name, "void", types, [place, str(step), to, str(stride), m, n])
