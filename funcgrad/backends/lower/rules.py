"""How each op is lowered: the table of rules for elements, and what reductions combine with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.late import late
from funcgrad.backends.loops.ir import Const, Operand
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.lower import shape
from funcgrad.backends.lower.primitives import patches_p
from funcgrad.backends.lower.pull import Indices, Pull, Rule
from funcgrad.core.ir import Eqn
from funcgrad.core.primitive import Primitive
from funcgrad.ops.convolution.pooling import window_max_p, window_min_p, window_sum_p
from funcgrad.ops.indexing.gather import gather_p
from funcgrad.ops.indexing.windows_at import dynamic_slice_p
from funcgrad.ops.reduce import argmax_p, argmin_p, highest, lowest
from funcgrad.ops.shape import concatenate_p, pad_p

convolution, index, windows = late("funcgrad.backends.lower", "convolution", "index", "windows")

# Ops that few programs have, and the modules whose `RULES` lower them.
_RARE: dict[Primitive, Any] = {
    **dict.fromkeys((dynamic_slice_p, gather_p), index),
    **dict.fromkeys((argmax_p, argmin_p, window_sum_p, window_max_p, window_min_p), windows),
    patches_p: convolution,
}


def _rare(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    return _RARE[eqn.prim].RULES[eqn.prim](pull, eqn, at)


RULES: dict[Primitive, Rule] = {**shape.RULES, **dict.fromkeys(_RARE, _rare)}
_COSTS = {patches_p: 16, pad_p: 3, dynamic_slice_p: 1, gather_p: 4}


def rule_cost(eqn: Eqn) -> int | None:
    """What an element costs by the op's rule, beside its operands; None where it has none."""
    if eqn.prim in _RARE and _RARE[eqn.prim] is windows:
        return windows.cost(eqn)
    if eqn.prim is concatenate_p:
        return 4 * len(eqn.ins)
    known = eqn.prim in RULES or eqn.prim.view is not None
    return _COSTS.get(eqn.prim, 0) if known else None


class Reduction(NamedTuple):
    """The scalar op that combines elements, and the dtype it is done in."""

    op: str
    dtype: np.dtype
    start: Const


_OPS = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
_BOOL_OPS = {"maximum": "bitwise_or", "minimum": "bitwise_and"}


def reduction(eqn: Eqn) -> Reduction:
    """How a reduction combines; narrow floats are summed in float32."""
    op, dtype = _OPS[eqn.prim.reduction], eqn.ins[0].aval.dtype
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
