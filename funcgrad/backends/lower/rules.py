"""How each op is lowered: the table of rules for elements, and what reductions combine with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.late import late
from funcgrad.backends.loops.ir import Const, Operand
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.lower import shape
from funcgrad.backends.lower.pull import Indices, Pull, Rule
from funcgrad.core.ir import Eqn
from funcgrad.ops.reduce import highest, lowest

convolution, index, windows = late("funcgrad.backends.lower", "convolution", "index", "windows")

_OVER_WINDOWS = ("argmax", "argmin", "reduce_window_sum", "reduce_window_max", "reduce_window_min")
# Ops that few programs have, and the modules whose `RULES` lower them.
_RARE: dict[str, Any] = {
    **dict.fromkeys(("dynamic_slice", "gather"), index),
    **dict.fromkeys(("patches", "windows"), convolution),
    **dict.fromkeys(_OVER_WINDOWS, windows),
}


def _rare(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    name = eqn.prim.name
    return _RARE[name].RULES[name](pull, eqn, at)


RULES: dict[str, Rule] = {**shape.RULES, **dict.fromkeys(_RARE, _rare)}
VIEWS = shape.VIEWS | {"windows"}

_COSTS = {"patches": 16, "pad": 3, "concatenate": 4, "dynamic_slice": 1, "gather": 4}


def rule_cost(eqn: Eqn) -> int | None:
    """What an element costs by the op's rule, beside its operands."""
    name = eqn.prim.name
    if name in _OVER_WINDOWS:
        return windows.cost(eqn)
    if name == "concatenate":
        return 4 * len(eqn.ins)
    return _COSTS.get(name, 0)


class Reduction(NamedTuple):
    """The scalar op that combines elements, and the dtype it is done in."""

    op: str
    dtype: np.dtype
    start: Const


_OPS = {
    "reduce_sum": "add", "reduce_prod": "multiply", "reduce_max": "maximum",
    "reduce_min": "minimum", "reduce_and": "bitwise_and", "reduce_or": "bitwise_or",
    "reduce_xor": "bitwise_xor",
}  # fmt: skip
REDUCTIONS = frozenset(_OPS)
_BOOL_OPS = {"maximum": "bitwise_or", "minimum": "bitwise_and"}


def reduction(eqn: Eqn) -> Reduction:
    """How a reduction combines; narrow floats are summed in float32."""
    op, dtype = _OPS[eqn.prim.name], eqn.ins[0].aval.dtype
    if dtype in HALVES:
        dtype = np.dtype(np.float32)
    if dtype == np.bool_:
        op = _BOOL_OPS.get(op, op)
    start = {
        "add": 0, "multiply": 1, "maximum": lowest(dtype), "minimum": highest(dtype),
        "bitwise_and": True if dtype == np.bool_ else -1, "bitwise_or": 0, "bitwise_xor": 0,
    }[op]  # fmt: skip
    if op == "bitwise_and" and dtype.kind == "u":
        start = np.iinfo(dtype).max
    return Reduction(op, dtype, Const(start, dtype))
