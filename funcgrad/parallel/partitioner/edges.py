"""Ops that take rows of a cut axis or put rows together, on runs of rows (`windows`).

Each handler does an equation for a `HaloPass` (`halos`) and says whether it did; else the equation
is written as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from funcgrad.core.ir import Atom, Eqn, Literal
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.indexing.windows_at import dynamic_slice_p, dynamic_update_slice_p
from funcgrad.ops.shape import reshape_p
from funcgrad.ops.slicing import concatenate_p, pad_p, slice_p
from funcgrad.parallel.partitioner.reshard import extent
from funcgrad.parallel.partitioner.windows import Later, Piece, Run, resized

if TYPE_CHECKING:
    from funcgrad.parallel.partitioner.halos import HaloPass


def _each(run: Run, change: Callable[[Any], Any], aval: Any) -> Run:
    """A run of whose sources, but numbers, each is changed beside its axis."""
    pieces = [
        p if not aval_of(p.source).ndim else Piece(change(p.source), p.start, p.length, p.carrier)
        for p in run.pieces
    ]
    return run.with_pieces(pieces, aval)


# ---- ops that take rows and put them together


def _slice(p: HaloPass, eqn: Eqn) -> bool:
    (x,), aval = eqn.ins, eqn.outs[0].aval
    start, stop = eqn.params["start_indices"], eqn.params["limit_indices"]
    steps = eqn.params["strides"] or (1,) * aval.ndim
    shape = x.aval.shape
    run = p.of_cut(x, lambda d: (start[d], stop[d], steps[d]) != (0, shape[d], 1))
    if run is None or not aval.size:
        return False
    axis, step = run.axis, steps[run.axis]
    native = step > 1 and start[axis] < step and shape[axis] == aval.shape[axis] * step
    if native and not p.run_of(x):
        return False
    length = (aval.shape[axis] - 1) * step + 1
    if length > run.n:
        return False if p.run_of(x) is None else _long_slice(p, eqn, run, start[axis], step)
    run = p.taken(x, run, start[axis], length)
    others = _slice_others(run, start, stop, steps)
    run = _each(run, others, resized(aval, axis, length))
    return p.hold(eqn.outs[0], run) if step == 1 else _strided(p, eqn, run, step)


def _dynamic_slice(p: HaloPass, eqn: Eqn) -> bool:
    """A slice that is in a known place."""
    x, *starts = eqn.ins
    sizes = eqn.params["slice_sizes"]
    at = _known_starts(starts, x.aval.shape, sizes)
    if at is None:
        return False
    stops = tuple(i + n for i, n in zip(at, sizes, strict=True))
    params = {"start_indices": tuple(at), "limit_indices": stops, "strides": None}
    return _slice(p, eqn.replace(ins=(x,), params=params))


def _known_starts(
    starts: Sequence[Atom], shape: Sequence[int], part: Sequence[int]
) -> list[int] | None:
    """Where a part of an array begins, if the program says so."""
    found = []
    for s, n, m in zip(starts, shape, part, strict=True):
        if not isinstance(s, Literal):
            return None
        found.append(max(0, min(int(s.value), n - m)))
    return found


def _slice_others(run: Run, start: Sequence[int], stop: Sequence[int], steps: Sequence[int]) -> Any:
    """The function that slices the axes beside a run's."""

    def others(source: Any) -> Any:
        shape, d = aval_of(source).shape, run.axis
        low, high, by = list(start), list(stop), list(steps)
        low[d], high[d], by[d] = 0, shape[d], 1
        if (low, tuple(high)) == ([0] * len(shape), shape) and max(by) == 1:
            return source
        strides = tuple(by) if max(by) > 1 else None
        return slice_p.bind(
            source, start_indices=tuple(low), limit_indices=tuple(high), strides=strides
        )

    return others


def _long_slice(p: HaloPass, eqn: Eqn, run: Run, start: int, step: int) -> bool:
    """A slice of more rows than a carrier has."""
    (x,), aval = eqn.ins, eqn.outs[0].aval
    same = (*x.aval.shape[: run.axis], *x.aval.shape[run.axis + 1 :])
    if step > 1 or same != (*aval.shape[: run.axis], *aval.shape[run.axis + 1 :]):
        return False
    if isinstance(p.run_of(x), Later):
        return False
    return p.hold(eqn.outs[0], run.window(start, aval.shape[run.axis]))


def _strided(p: HaloPass, eqn: Eqn, run: Run, step: int) -> bool:
    """Each `step`-th row of a run: blocks give as many each, once the first one is in place."""
    axis, parts = run.axis, extent(run.cut, p.plan.sizes)
    if run.n % (step * parts):
        return False
    at = run.place - run.place % step
    x = p.carriers.put(run, at)
    shape = aval_of(x).shape
    strides = tuple(step if d == axis else 1 for d in range(len(shape)))
    thin = slice_p.bind(x, start_indices=(0,) * len(shape), limit_indices=shape, strides=strides)
    p.gained = True
    n = run.n // step
    piece = Piece(thin, at // step, eqn.outs[0].aval.shape[axis], True)
    return p.hold(eqn.outs[0], Run(axis, n, run.cut, (piece,), eqn.outs[0].aval))


def _pad(p: HaloPass, eqn: Eqn) -> bool:
    (x, value), config = eqn.ins, eqn.params["padding_config"]
    aval = eqn.outs[0].aval
    run = p.of_cut(x, lambda d: config[d] != (0, 0, 0))
    if run is None or not aval.size or not x.aval.size:
        return False
    low, high, inner = config[run.axis]
    native = inner and low >= 0 and high >= 0 and low + high == inner
    if (native and not p.run_of(x)) or (inner and run.length > run.n):
        return False
    number = p.made(value)
    start, stop = max(0, -low), (run.length - 1) * (inner + 1) + 1 - max(0, -high)
    if start >= stop:
        return False
    if not inner:
        late = isinstance(p.run_of(x), Later)
        if late and stop - start > run.n:
            return False
        run = p.taken(x, run, start, stop - start)
    beside = tuple(c if d != run.axis else (0, 0, 0) for d, c in enumerate(config))
    if any(c != (0, 0, 0) for c in beside):
        if any(not aval_of(q.source).ndim for q in run.pieces):
            return False
        padded = partial(_padded, number=number, config=beside)
        run = _each(run, padded, resized(aval, run.axis, run.length))
    if inner:
        run = _spread(p, run, number, inner).window(start, stop - start)
    ends = [Piece(number, 0, max(0, k), False) for k in (low, high)]
    return p.hold(eqn.outs[0], run.with_pieces([ends[0], *run.pieces, ends[1]]))


def _padded(x: Any, number: Any, config: Any) -> Any:
    return pad_p.bind(x, number, padding_config=config)


def _spread(p: HaloPass, run: Run, number: Any, inner: int) -> Run:
    """A run with numbers between its rows: its carrier's are spread, in each block alike."""
    at, step = run.place, inner + 1
    x = p.carriers.put(run, at)
    shape = aval_of(x).shape
    config = tuple((0, inner, inner) if d == run.axis else (0, 0, 0) for d in range(len(shape)))
    wide = pad_p.bind(x, number, padding_config=config)
    length = (run.length - 1) * step + 1
    aval = resized(run.aval, run.axis, length)
    return Run(run.axis, run.n * step, run.cut, (Piece(wide, at * step, length, True),), aval)


def _concatenate(p: HaloPass, eqn: Eqn) -> bool:
    axis = eqn.params["dimension"]
    known = [p.run_of(a) for a in eqn.ins]
    runs = [r for r in known if isinstance(r, Run) and r.axis == axis]
    first = runs[0] if runs else None
    for a in eqn.ins:
        if first is None and p.run_of(a) is None and p.cut_of(a, axis):
            first = p.of_cut(a, lambda d: d == axis)
    if first is None:
        return False
    pieces = [q for a in eqn.ins for q in p.as_run(a, first).pieces]
    return p.hold(eqn.outs[0], first.with_pieces(pieces, eqn.outs[0].aval))


def _update(p: HaloPass, eqn: Eqn) -> bool:
    """An update at a known place: what lies before it, it, and what lies after."""
    x, update, *starts = eqn.ins
    shape, part = x.aval.shape, update.aval.shape
    at, known = _known_starts(starts, shape, part), p.run_of(update)
    if p.run_of(x) or at is None or not update.aval.size or isinstance(known, Later):
        return False
    axes = [known.axis] if known else range(len(shape))
    axis = next((d for d in axes if part[d] < shape[d] and p.cut_of(x, d)), None)
    if axis is None:
        return False
    whole = p.of_cut(x, lambda d: d == axis)
    assert whole is not None
    own = p.as_run(update, whole)
    if own.n != whole.n:
        return False
    end = [i + m for i, m in zip(at, part, strict=True)]
    others = _slice_others(whole, at, end, [1] * len(at))
    beside = _each(whole, others, resized(update.aval, axis, whole.n))
    pieces = [
        *beside.window(0, at[axis]).pieces,
        *own.pieces,
        *beside.window(end[axis], whole.n - end[axis]).pieces,
    ]
    rows = p.carriers.put(whole.with_pieces(pieces, update.aval), 0)
    p.gained = True
    if aval_of(rows).shape == shape:
        out = rows
    else:
        places = [np.int32(0 if d == axis else i) for d, i in enumerate(at)]
        out = eqn.prim.bind(p.made(x), rows, *places)
    p.define(eqn, [out])
    p.more[eqn.outs[0]] = {axis: whole.cut}
    return True


def _broadcast(p: HaloPass, eqn: Eqn) -> bool:
    (x,), aval = eqn.ins, eqn.outs[0].aval
    run = p.run_of(x)
    if not isinstance(run, Run) or run.length > run.n:
        return False
    axis = eqn.params["broadcast_dimensions"][run.axis]
    if aval.shape[axis] != run.length:
        return False
    at = run.place
    shape = resized(aval, axis, run.n).shape
    wide = broadcast_p.bind(
        p.carriers.put(run, at), shape=shape,
        broadcast_dimensions=eqn.params["broadcast_dimensions"],
    )  # fmt: skip
    piece = Piece(wide, at, run.length, True)
    return p.hold(eqn.outs[0], Run(axis, run.n, run.cut, (piece,), aval))


def _reshape(p: HaloPass, eqn: Eqn) -> bool:
    (x,), new = eqn.ins, eqn.params["new_sizes"]
    run = p.run_of(x)
    if not isinstance(run, Run) or run.length > run.n:
        return False
    before = math.prod(x.aval.shape[: run.axis])
    axis = next(
        (d for d, n in enumerate(new) if n == run.length and math.prod(new[:d]) == before), None
    )
    if axis is None:
        return False
    at, aval = run.place, eqn.outs[0].aval
    x = eqn.prim.bind(p.carriers.put(run, at), new_sizes=resized(aval, axis, run.n).shape)
    piece = Piece(x, at, run.length, True)
    return p.hold(eqn.outs[0], Run(axis, run.n, run.cut, (piece,), aval))


def _barrier(p: HaloPass, eqn: Eqn) -> bool:
    """What is followed passes as its carrier."""
    runs = [r if isinstance(r := p.run_of(a), Run) and r.length < r.n else None for a in eqn.ins]
    if not any(runs):
        return False
    values = [
        p.made(a) if r is None else p.carriers.put(r, r.place)
        for a, r in zip(eqn.ins, runs, strict=True)
    ]
    outs = eqn.prim.bind(*values, **eqn.params)
    for v, x, r in zip(eqn.outs, outs, runs, strict=True):
        if r is None:
            p.same[v] = x
        else:
            p.runs[v] = r.with_pieces([Piece(x, r.place, r.length, True)])
    return True


Handler = Callable[["HaloPass", Eqn], bool]
# Of what makes one size of an axis another.
EDGES: dict[Primitive, Handler] = {
    slice_p: _slice,
    pad_p: _pad,
    concatenate_p: _concatenate,
    dynamic_slice_p: _dynamic_slice,
    dynamic_update_slice_p: _update,
}
_OTHERS: dict[Primitive, Handler] = {broadcast_p: _broadcast, reshape_p: _reshape}


def handler_of(prim: Primitive) -> Handler | None:
    """What does an op's equations on runs; None for those that may treat rows alike."""
    barrier = _barrier if prim.identity and prim.multiple else None
    return EDGES.get(prim) or _OTHERS.get(prim, barrier)
