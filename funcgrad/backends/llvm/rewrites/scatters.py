"""Which way a scatter goes: as a selection, row by row, by elements, or as it is."""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.rewrites import elements, rows
from funcgrad.backends.rewrites import scatters
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.ir import Atom, Eqn
from funcgrad.ops.indexing.scatter import scatter_mul_p


def rewrite(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Any:
    """A scatter in another way, of narrow floats in float32; None if it stays."""
    found = _special(flat, eqn, ins)
    wide = scatters.wide_scatter(flat, eqn, ins) if found is None else None
    if wide is None:
        return found
    total = _special(flat, *wide)
    if total is None:
        flat.append(wide[0])
        total = wide[0].outs[0]
    return flat.convert(total, eqn.outs[0].aval.dtype)


def _special(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Any:
    by_rows = rows.row_scatter(flat, eqn, ins)
    if by_rows is not None or eqn.prim is scatter_mul_p:
        return by_rows
    return scatters.single_scatter(flat, eqn, ins) or elements.element_scatter(flat, eqn, ins)
