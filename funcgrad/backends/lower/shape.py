"""Elements of structural ops: where each element of the result comes from."""

from __future__ import annotations

import numpy as np

from funcgrad.backends.loops.builder import ZERO, add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Operand
from funcgrad.backends.lower.pull import Indices, Pull, Rule
from funcgrad.core.ir import Atom, Eqn, Var

BOOL = np.dtype(bool)


def _broadcast(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    (x,), shape = eqn.ins, eqn.params["shape"]
    dims = eqn.params["broadcast_dimensions"]
    sizes = zip(x.aval.shape, dims, strict=True)
    return pull.read(x, [at[d] if n == shape[d] else ZERO for n, d in sizes])


def _reshape(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    return pull.read_flat(eqn.ins[0], pull.builder.flatten(at, eqn.outs[0].aval.shape))


def _transpose(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    source = [ZERO] * len(at)
    for i, p in enumerate(eqn.params["permutation"]):
        source[p] = at[i]
    return pull.read(eqn.ins[0], source)


def _slice(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    moved = [scale_index(i, s, a) for i, a, s in zip(at, starts, strides, strict=True)]
    return pull.read(eqn.ins[0], moved)


def _rev(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    (x,), dims = eqn.ins, eqn.params["dimensions"]
    return pull.read(
        x,
        [scale_index(i, -1, n - 1) if d in dims else i
         for d, (i, n) in enumerate(zip(at, x.aval.shape, strict=True))],
    )  # fmt: skip


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


RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "rev": _rev,
    "pad": _pad,
    "concatenate": _concatenate,
    "iota": _iota,
}

# Ops that only rename the elements of their operand: inlining them costs nothing.
VIEWS = frozenset({"broadcast_in_dim", "reshape", "transpose", "slice", "rev"})
