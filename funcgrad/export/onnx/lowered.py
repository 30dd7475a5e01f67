"""The program that is translated: real, without calls, and with formulas in place of their ops.

Complex numbers become pairs of real ones, and ops that are made of others (attention, products of
ragged groups) what they are made of. This is done before traces of several sizes are compared, as
formulas compute with sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from funcgrad.backends.rewrites.complex_pairs import as_pairs
from funcgrad.core import source
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.rewriting import Writer, uses
from funcgrad.core.staging import stage
from funcgrad.errors import FuncgradError
from funcgrad.export.onnx.linalg import FORMULAS
from funcgrad.export.onnx.rules import RULES
from funcgrad.export.onnx.rules.attention import has_node
from funcgrad.transforms.passes.simplify import simplify

NEVER = 1 << 62  # multiplications from which a product of complex numbers is one of pairs


def lowered(jaxpr: Jaxpr, attention: bool = False) -> Jaxpr:
    """The program as it is translated; `attention`: it may have that op."""
    jaxpr = simplify(jaxpr)
    if jaxpr.has_complex:
        jaxpr = simplify(as_pairs(jaxpr, NEVER))
    return simplify(_Formulas(attention).write(jaxpr))


class _Formulas(Writer):
    """Ops that have no rule, but a formula, written as that."""

    def __init__(self, attention: bool):
        super().__init__("a program for ONNX")
        self.attention = attention
        self.used: Container[Var] = ()

    def within(self, jaxpr: Jaxpr) -> Jaxpr:
        return _Formulas(self.attention).write(jaxpr)

    def walk(self, jaxpr: Jaxpr) -> list:
        outer, self.used = self.used, uses(jaxpr)
        outs = super().walk(jaxpr)
        self.used = outer
        return outs

    def equation(self, eqn: Eqn, ins: list) -> None:
        found = None
        formula = FORMULAS.get(eqn.prim, eqn.prim.formula)
        if self.attention and has_node(eqn) and eqn.outs[1] not in self.used:
            formula = None
        if formula is not None and eqn.prim not in RULES:
            found = _formula(eqn, formula)
        if found is None:
            self.keep(eqn, ins)
        else:
            self.inline(eqn, ins, found)


def _formula(eqn: Eqn, formula: Callable) -> Jaxpr | None:
    """The program of an op that is made of others; None if it has none for these operands."""
    prim = eqn.prim

    def call(*args: Any) -> Sequence[Any]:
        out = formula(*args, **eqn.params)
        return out if prim.multiple else [out]

    try:
        with source.unplaced():
            jaxpr, consts = stage(call, [a.aval for a in eqn.ins], f"the formula of {prim}")
    except FuncgradError:
        return None
    return None if consts else jaxpr
