"""Sums of padded arrays that don't overlap, written as concatenations.

The gradient of cutting an array in pieces is such a sum: each piece's gradient, with zeros around
it. An element of the concatenation is read from one piece alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.late import Late
from funcgrad.backends.lower.primitives import product_p
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.families import add
from funcgrad.ops.shape import concatenate_p, pad_p, reshape_p, transpose_p

if TYPE_CHECKING:
    from funcgrad.backends.lower import attention
else:
    attention = Late("funcgrad.backends.lower.attention")


class Strip(NamedTuple):
    """An array with zeros around it: pieces (start, stop, what stands there) along an axis."""

    axis: int
    pieces: tuple[tuple[int, int, Atom], ...]


def join_pads(jaxpr: Jaxpr) -> Jaxpr:
    """The program with concatenations for sums of pads that don't overlap."""
    strips = _strips(jaxpr)
    if not any(e.prim is add and e.outs[0] in strips for e in jaxpr.eqns):
        return jaxpr
    made = {v: e for e in jaxpr.eqns for v in e.outs}
    used = set(jaxpr.outs)
    eqns: list[Eqn] = []
    for eqn in reversed(jaxpr.eqns):
        out = eqn.outs[0] if eqn.outs else None
        if out in strips and out not in used:
            continue
        new = [eqn]
        if eqn.prim is add and out in strips:
            new = list(_joined(eqn, strips[out], made))
        used.update(a for e in new for a in e.ins)
        eqns += reversed(new)
    return Jaxpr(jaxpr.ins, eqns[::-1], jaxpr.outs, jaxpr.names)


def _strips(jaxpr: Jaxpr) -> dict[Atom, Strip]:
    """What is a pad by zeros along one axis, or a sum of such that don't overlap."""
    strips: dict[Atom, Strip] = {}
    for eqn in jaxpr.eqns:
        strip = None
        if eqn.prim is pad_p:
            strip = _padded(eqn)
        elif eqn.prim is add and eqn.ins[0] in strips and eqn.ins[1] in strips:
            strip = _both(strips[eqn.ins[0]], strips[eqn.ins[1]])
        if strip is not None:
            strips[eqn.outs[0]] = strip
    return strips


def _padded(eqn: Eqn) -> Strip | None:
    x, value = eqn.ins
    zero = type(value) is Literal and not any(np.asarray(value.value).tobytes())
    wide = [(i, c) for i, c in enumerate(eqn.params["padding_config"]) if c != (0, 0, 0)]
    if not zero or len(wide) != 1 or not x.aval.size:
        return None
    axis, (low, high, between) = wide[0]
    if low < 0 or high < 0 or between:
        return None
    return Strip(axis, ((low, low + x.aval.shape[axis], x),))


def _both(a: Strip, b: Strip) -> Strip | None:
    pieces = sorted((*a.pieces, *b.pieces), key=lambda p: p[0])
    apart = all(p[1] <= q[0] for p, q in itertools.pairwise(pieces))
    return Strip(a.axis, tuple(pieces)) if apart and a.axis == b.axis else None


def _joined(eqn: Eqn, strip: Strip, made: dict[Var, Eqn]) -> Iterator[Eqn]:
    """The equations of the concatenation in place of the last sum."""
    (out,) = eqn.outs
    shape, dtype = out.aval.shape, out.aval.dtype
    zero = Literal(np.zeros((), dtype), ShapedArray((), dtype))
    row: list[Atom] = []

    def zeros(n: int) -> Eqn:
        sizes = (*shape[: strip.axis], n, *shape[strip.axis + 1 :])
        row.append(var := Var(ShapedArray(sizes, dtype)))
        return Eqn(broadcast_p, [zero], [var], {"shape": sizes, "broadcast_dimensions": ()})

    at = 0
    for start, stop, x in strip.pieces:
        if start > at:
            yield zeros(start - at)
        if dtypes.is_inexact(dtype) and not _is_sum(x, made):
            # The sum makes 0.0 of -0.0.
            row.append(var := Var(x.aval.strong()))
            yield Eqn(add, [x, zero], [var], {}, eqn.source, eqn.scopes)
        else:
            row.append(x)
        at = stop
    if at < shape[strip.axis]:
        yield zeros(shape[strip.axis] - at)
    yield Eqn(concatenate_p, row, [out], {"dimension": strip.axis}, eqn.source, eqn.scopes)


def _is_sum(x: Atom, made: dict[Var, Eqn]) -> bool:
    """Whether an array is a matrix product, or one of attention's, which begins at 0.0 itself: it
    is -0.0 at most where all of it underflows."""
    eqn = made.get(x)  # type: ignore[arg-type]
    while eqn is not None and eqn.prim in (reshape_p, transpose_p):
        x = eqn.ins[0]
        eqn = made.get(x)  # type: ignore[arg-type]
    if eqn is None or not eqn.prim.strided:
        return eqn is not None and eqn.prim is product_p
    return x in attention.strided_results(eqn)
