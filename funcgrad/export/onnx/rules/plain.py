"""Elementwise ops that ONNX has under a name of its own, for the types that it has them for.

Others (None from here) are written as their `impl` says, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.core.ir import Eqn
from funcgrad.export.onnx import functions
from funcgrad.export.onnx.graph import Graph, Tensor
from funcgrad.export.onnx.kernels import F4, F8
from funcgrad.ops.elementwise.arithmetic import div, rem, sign
from funcgrad.ops.elementwise.special import erf
from funcgrad.ops.elementwise.transcendental import logistic

Ins = Sequence[Tensor]


def _floats(kind: str, types: Sequence[np.dtype]) -> Callable:
    def rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor] | None:
        return [g.elementwise(kind, *ins)] if ins[0].dtype in types else None

    return rule


def quotient(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor] | None:
    """x / y; of integers towards zero, with all bits set where y is 0."""
    x, y = ins
    if x.dtype.kind == "f":
        return [g.elementwise("Div", x, y)] if x.dtype in (F4, F8) else None
    if eqn.outs[0].aval.dtype != x.dtype:
        return None  # of four bits
    known = y.constant is not None
    safe = functions.nonzero(g, y)
    if x.dtype.kind == "i" and not (known and np.all(y.constant != -1)):
        # The least number has no negative: its quotient by -1 traps.
        minus = g.compare("Equal", y, g.constant(-1, y.dtype))
        safe = g.where(minus, g.constant(1, y.dtype), safe)
        q = g.where(minus, g.elementwise("Neg", x), g.elementwise("Div", x, safe))
    else:
        q = g.elementwise("Div", x, safe)
    if known and np.all(y.constant):
        return [q]
    zero = g.compare("Equal", y, g.constant(0, y.dtype))
    bits = -1 if x.dtype.kind == "i" else np.iinfo(x.dtype).max
    return [g.where(zero, g.constant(bits, x.dtype), q)]


def remainder(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor] | None:
    """What x / y leaves, with the sign of x; x where y is an integer 0."""
    x, y = ins
    if x.dtype.kind == "f":
        return [functions.fmod(g, x, y)] if x.dtype in (F4, F8) else None
    if y.constant is None or not np.all((y.constant != 0) & (y.constant != -1)):
        return None
    return [g.elementwise("Mod", x, y, fmod=1)]


def signs(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor] | None:
    """-1, 0 or 1; zeros and NaN stay."""
    (x,) = ins
    if x.dtype not in (F4, F8):
        return None
    kept = g.compare("Equal", x, g.constant(0, x.dtype))
    kept = g.elementwise("Or", kept, functions.isnan(g, x))
    return [g.where(kept, x, g.elementwise("Sign", x))]


RULES = {
    div: quotient,
    rem: remainder,
    sign: signs,
    erf: _floats("Erf", [F4]),
    logistic: _floats("Sigmoid", [F4, F8]),
}
