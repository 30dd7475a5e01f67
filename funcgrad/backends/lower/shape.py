"""Elements of structural ops that are more than views of one operand."""

from __future__ import annotations

import numpy as np

from funcgrad.backends.loops.builder import ZERO, add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Operand
from funcgrad.backends.lower.pull import Indices, Pull, Rule
from funcgrad.core.ir import Atom, Eqn, Var
from funcgrad.core.primitive import Primitive
from funcgrad.ops.shape import concatenate_p, iota_p, pad_p

BOOL = np.dtype(bool)


def _pad(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    b = pull.builder
    x, value = eqn.ins
    conditions: list[Operand | None] = []
    source = []
    for i, n, (low, _, interior) in zip(
        at, x.aval.shape, eqn.params["padding_config"], strict=True
    ):
        position = add_indices(i, scale_index(ZERO, 0, -low))
        if interior:
            position, rest = b.divide(position, interior + 1)
            conditions.append(b.compare("less", rest, 1))
        conditions.append(b.compare("greater_equal", position, 0))
        conditions.append(b.compare("less", position, n))
        source.append(position)
    return inside_or(pull, b.all_of(conditions), x, source, pull.read(value, ()))


def inside_or(
    pull: Pull, inside: Operand | None, x: Atom, source: Indices, otherwise: Operand
) -> Operand:
    """x[source] where the condition holds, else a value; x is read only there."""
    if inside is None:
        return pull.read(x, source)
    b = pull.builder
    if type(inside) is Const:
        return pull.read(x, source) if inside.value else otherwise
    with b.guarded(inside):
        value = pull.read(x, source)
    # A guarded load gives 0 by itself where nothing is read.
    zero = type(otherwise) is Const and not any(otherwise.value.tobytes())
    if zero and type(x) is Var and x not in pull.inlined:
        return value
    return b.op("where", value.dtype, inside, value, otherwise)


def _concatenate(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    b, d = pull.builder, eqn.params["dimension"]
    start, pieces = 0, []
    for x in eqn.ins:
        n = x.aval.shape[d]
        if n:
            pieces.append((x, start, start + n))
        start += n
    total: Operand | None = None
    for x, low, high in reversed(pieces):
        after = b.compare("greater_equal", at[d], low)
        before = b.compare("less", at[d], high)
        source = [scale_index(i, 1, -low) if k == d else i for k, i in enumerate(at)]
        with b.guarded(b.all_of([after, before])):
            value = pull.read(x, source)
        if total is None or before is None:
            total = value
        else:
            total = b.op("where", value.dtype, before, value, total)
    assert total is not None
    return total


def _iota(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    return pull.builder.integer(at[eqn.params["dimension"]], eqn.outs[0].aval.dtype)


RULES: dict[Primitive, Rule] = {pad_p: _pad, concatenate_p: _concatenate, iota_p: _iota}
