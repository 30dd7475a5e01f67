"""Reading one element of a value: through the equations that define it, down to memory.

Every fusable op has a rule that says what an element of its result is, given elements of its
operands at indices computed from the result's (the tables are in `rules` and its neighbours). So
inlining a producer is calling its rule, and an index map of any depth is one affine index in the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.loops import scalars
from funcgrad.backends.loops.builder import ZERO, Builder, add_indices, index_key, scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand, Value
from funcgrad.backends.target import Limits
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.core.primitive import Primitive

Indices = Sequence[Index]
Rule = Callable[["Pull", Eqn, Indices], Operand]


class Pull:
    """Reads elements into a builder.

    rules: those of fusable ops; elementwise ops and views need none
    limits: the target's, for rules that choose
    inlined: the equation of each variable that is computed where it is read
    leaf: reads the others: leaf(variable, row-major index)
    dry: follow indices only; elementwise ops leave no code
    """

    def __init__(
        self,
        builder: Builder,
        rules: Mapping[Primitive, Rule],
        limits: Limits,
        inlined: dict[Var, Eqn],
        leaf: Callable[[Var, Index], Operand],
        dry: bool = False,
    ):
        self.builder = builder
        self.rules = rules
        self.limits = limits
        self.inlined = inlined
        self.leaf = leaf
        self.dry = dry

    def read(self, atom: Atom, indices: Indices) -> Operand:
        """The element of a value at these indices."""
        if type(atom) is Literal:
            return Const(atom.value, atom.aval.dtype)
        eqn = self.inlined.get(atom)  # type: ignore[arg-type]
        if eqn is None:
            return self.leaf(atom, self.builder.flatten(indices, atom.aval.shape))  # type: ignore
        return self._remembered(atom, eqn, indices)

    def read_flat(self, atom: Atom, flat: Index) -> Operand:
        """The element of a value at a row-major position."""
        if type(atom) is Var and atom not in self.inlined:
            return self.leaf(atom, flat)
        return self.read(atom, self.builder.unflatten(flat, atom.aval.shape))

    def _remembered(self, var: Any, eqn: Eqn, indices: Indices) -> Operand:
        blocks = self.builder.blocks
        key = (var, self.builder.guard, *map(index_key, indices))
        for block in reversed(blocks):
            known = block.memo.get(key)
            if known is not None:
                return known
        depth = len(blocks)
        value = self.evaluate(eqn, indices, eqn.outs.index(var))
        blocks[depth - 1].memo[key] = value
        return value

    def evaluate(self, eqn: Eqn, indices: Indices, out: int = 0) -> Operand:
        """The element at these indices of an equation's result."""
        rule = self.rules.get(eqn.prim)
        if rule is not None:
            return rule(self, eqn, indices)
        if eqn.prim.view is not None:
            return self._viewed(eqn, indices)
        args = [self.read(a, indices if a.aval.shape else ()) for a in eqn.ins]
        aval = eqn.outs[out].aval
        if self.dry:
            value = Value(aval.dtype)
            self.builder.depth[value] = 0
            return value
        dtypes = [a.aval.dtype for a in eqn.ins]
        return scalars.trace(self.builder, eqn.prim, eqn.params, args, dtypes, aval.dtype, out)

    def _viewed(self, eqn: Eqn, at: Indices) -> Operand:
        """The element of a view."""
        x = eqn.ins[0]
        places = eqn.prim.view(x.aval, **eqn.params)  # type: ignore[misc]
        if places is None:
            return self.read_flat(x, self.builder.flatten(at, eqn.outs[0].aval.shape))
        source = []
        for start, terms in places:
            moved = [scale_index(at[d], step) for step, d in terms]
            alone = not start and len(moved) == 1
            source.append(moved[0] if alone else add_indices(Index(start), *moved))
        return self.read(x, source)

    def start(self, atom: Atom, indices: Indices, limit: int) -> Index:
        """A scalar element of an integer value as an index, moved into [0, limit]."""
        if limit <= 0:
            return ZERO
        value = self.read(atom, indices)
        if type(value) is Const:
            return Index(max(0, min(int(value.value), limit)))
        b = self.builder
        if value.dtype == np.uint64:
            value = b.op("minimum", value.dtype, value, Const(limit, value.dtype))
        wide = b.convert(value, np.dtype(np.int64))
        low = b.op("maximum", wide.dtype, wide, Const(0, wide.dtype))
        inside = b.op("minimum", wide.dtype, low, Const(limit, wide.dtype))
        return b.value_index(inside, 0, limit)
