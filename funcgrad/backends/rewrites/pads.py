"""Sums of padded arrays that don't overlap, written as concatenations.

The gradient of cutting an array in pieces is such a sum: each piece's gradient, with zeros around
it. An element of the concatenation is read from one piece alone.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.late import Late
from funcgrad.backends.lower.primitives import product_p
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.ops.families import add
from funcgrad.ops.shape import concatenate_p, pad_p, reshape_p, transpose_p

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
    return _Joiner(jaxpr, strips).write(jaxpr)


class _Joiner(Equations):
    def __init__(self, jaxpr: Jaxpr, strips: dict[Atom, Strip]):
        super().__init__()
        self.strips = strips
        self.made = {v: e for e in jaxpr.eqns for v in e.outs}
        # What is read not only to be added to other strips.
        self.whole = {x for s in strips.values() for _, _, x in s.pieces}.union(
            jaxpr.outs, *(e.ins for e in jaxpr.eqns if not e.outs or e.outs[0] not in strips)
        )

    def equation(self, eqn: Eqn, ins: list) -> None:
        if eqn.prim is add and eqn.outs[0] in self.strips and eqn.outs[0] in self.whole:
            self.define(eqn, [self.joined(eqn.outs[0].aval, self.strips[eqn.outs[0]])])
        else:
            self.keep(eqn, ins)

    def joined(self, out: ShapedArray, strip: Strip) -> Atom:
        """The concatenation in place of the last sum."""
        zero = Literal(np.zeros((), out.dtype), ShapedArray((), out.dtype))
        row: list[Atom] = []
        at = 0
        for start, stop, x in (*strip.pieces, (out.shape[strip.axis],) * 2 + (None,)):
            if start > at:
                shape = (*out.shape[: strip.axis], start - at, *out.shape[strip.axis + 1 :])
                row.append(self.broadcast(zero, shape, ()))
            if x is not None:
                # The sum makes 0.0 of -0.0.
                sums = not dtypes.is_inexact(out.dtype) or _is_sum(x, self.made)
                row.append(self.read(x) if sums else self.add(add, [self.read(x), zero]))
            at = stop
        return self.add(concatenate_p, row, out.strong(), dimension=strip.axis)


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
