"""What a tape does with cotangents: pulls them back through what is no rule of one operation, and
adds them up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import Linear, Zero
from funcgrad.core.eager.large import LARGE
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.types import Cotangent, Cotangents, Value
from funcgrad.ops.families import add
from funcgrad.transforms.autodiff.partial_eval import Linearized
from funcgrad.transforms.autodiff.transpose import backward_pass
from funcgrad.transforms.tape.fused import JointRule
from funcgrad.transforms.tape.linear_rule import order_of
from funcgrad.transforms.tape.sliced import Pieces, in_one

ndarray, asarray = np.ndarray, np.asarray


def pulled(
    how: Linearized | JointRule, residuals: Sequence, cts: Cotangents
) -> list[tuple[int, Cotangent]]:
    """The cotangents of what varies, by position, in the order in which they are to be added, from
    those of several results (None for zero)."""
    given = tuple([c is not None for c in cts])
    if True not in given:
        return []
    if isinstance(how, JointRule):
        return _jointly(how, residuals, cts, given)
    return _linearly(how, cts)


def _linearly(lin: Linearized, cts: Cotangents) -> list[tuple[int, Cotangent]]:
    n = len(lin.residuals)
    args = [*lin.residuals, *(Linear(v.aval) for v in lin.jaxpr.ins[n:])]
    given = [Array(c) if type(c) is ndarray else c for c in cts]
    found = backward_pass(lin.jaxpr, args, given)[n:]
    order = order_of(lin.jaxpr, len(found))
    return [(i, found[i]) for i in order if type(found[i]) is not Zero]


def _jointly(
    rule: JointRule, residuals: Sequence, cts: Cotangents, given: tuple[bool, ...]
) -> list[tuple[int, Cotangent]]:
    pull, backward, positions = rule.pulled(given)
    values = [c for c in cts if c is not None]
    if not all(type(c) is ndarray for c in values):
        whole = [Array(c) if type(c) is ndarray else c for c in (*residuals, *values)]
        return [*zip(positions, eval_jaxpr(backward, *whole), strict=True)]
    before = errors()
    try:
        quiet()
        return [*zip(positions, pull(*residuals, *values), strict=True)]
    finally:
        loud(before)


def add_to(cts: dict[int, Cotangent], place: int, ct: Cotangent) -> None:
    """Add a cotangent to what there is at its place; arrays in one piece are held as NumPy's."""
    if type(ct) is Array:
        ct = ct._value
    held = cts.get(place)
    if held is None:
        cts[place] = ct
    elif not (type(held) is type(ct) is Pieces and held.add(ct)):
        cts[place] = _sum(in_one(held), in_one(ct))


def _sum(x: Value, y: Value) -> Value:
    if type(x) is ndarray and type(y) is ndarray:
        if x.nbytes < LARGE:
            return asarray(add.impl(np, x, y))
        kind = x.shape, x.dtype, False
        known = context.current().types.get((add, *kind, *kind))  # as `evaluated2` finds it
        if known is not None and x.shape == y.shape and x.dtype == y.dtype:
            return known[1](np, x, y)
    out = add.bind(*(Array(a) if type(a) is ndarray else a for a in (x, y)))
    return out._value if type(out) is Array else out
