"""A program as an ONNX graph, equation by equation.

Each primitive has a rule (`rules`), or is elementwise and written as its `impl` says (`scalars`).
What has neither is noted, with the user's line, and the
walk goes on, so that one error tells all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal
from funcgrad.core.rewriting import called_program
from funcgrad.errors import ExportError
from funcgrad.export.onnx.dynamic import SizeLiteral
from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable, same_shape
from funcgrad.export.onnx.kernels import HELD, ONNX_NAMES, held
from funcgrad.export.onnx.rules import KEPT, MOVES, RULES, WITH_PROGRAMS
from funcgrad.export.onnx.scalars import elementwise
from funcgrad.ops.elementwise import arithmetic, compare, rounding

# What asks how wide a type is: types that are held in wider ones would give other results.
_BY_WIDTH = frozenset((
    arithmetic.mulhi, compare.clz, compare.population_count, compare.shift_right_arithmetic,
    compare.shift_right_logical, rounding.nextafter,
))  # fmt: skip


class Translator:
    """Programs written into graphs; `lacks` says which equations could not be."""

    def __init__(self) -> None:
        self.lacks: dict[str, list[str]] = {}

    def program(self, g: Graph, jaxpr: Jaxpr, ins: Sequence[Tensor]) -> list[Tensor]:
        """Write a program's equations into a graph, on these operands; its results."""
        env: dict[Atom, Tensor] = dict(zip(jaxpr.ins, ins, strict=True))

        def read(atom: Atom) -> Tensor:
            if isinstance(atom, SizeLiteral):
                size = g.root.reshape(g.root.size(atom.size), ())
                return g.root.cast(size, held(atom.aval.dtype))
            if isinstance(atom, Literal):
                dtype = atom.aval.dtype
                return g.constant(np.asarray(atom.value, dtype).astype(held(dtype)))
            return env[atom]

        for eqn in jaxpr.eqns:
            outer = g.scope
            g.scope = outer + "".join(f"{s}/" for s in eqn.scopes)
            ins = [read(a) for a in eqn.ins]
            outs = self.equation(g, eqn, ins)
            g.scope = outer
            for x in outs:
                if x.constant is None and x.stored is None and x.origin is None and x not in ins:
                    x.origin = (eqn, ins)
            env.update(zip(eqn.outs, outs, strict=True))
        return [read(a) for a in jaxpr.outs]

    def equation(self, g: Graph, eqn: Eqn, ins: Sequence[Tensor]) -> list[Tensor]:
        """Write an equation; its results, with the types that values are held in."""
        try:
            outs = self._written(g, eqn, ins)
        except Untranslatable as e:
            self._lacks(eqn, str(e))
            known = {v: held(v.aval.dtype) for v in eqn.outs}
            outs = [g.full(v.aval.shape, 0, known[v]) for v in eqn.outs]
        # A formula of scalars alone has their shape, where the result may have another's.
        spread = zip(outs, eqn.outs, strict=True)
        outs = [
            x if same_shape(x.shape, v.aval.shape) else g.broadcast(
                x, v.aval.shape, range(len(v.aval.shape) - x.rank, len(v.aval.shape))
            ) for x, v in spread
        ]  # fmt: skip
        if eqn.prim in MOVES and eqn.params.get("new_dtype") is None:
            return outs
        return [rounded(g, x, v.aval.dtype) for x, v in zip(outs, eqn.outs, strict=True)]

    def _written(self, g: Graph, eqn: Eqn, ins: Sequence[Tensor]) -> list[Tensor]:
        prim = eqn.prim
        for a in (*eqn.ins, *eqn.outs):
            if a.aval.dtype not in ONNX_NAMES:
                raise Untranslatable(f"ONNX has no element type {a.aval.dtype}")
        if prim in WITH_PROGRAMS:
            return WITH_PROGRAMS[prim](g, eqn, ins, self.program)
        if prim in RULES and (found := RULES[prim](g, eqn, ins)) is not None:
            return found
        if prim in KEPT:
            return KEPT[prim](g, eqn, ins)
        if prim.call:
            return self.program(g, called_program(eqn), ins)
        types = [v.aval.dtype for v in eqn.outs]
        if prim.elementwise and not any(callable(p) for p in eqn.params.values()):
            narrow = [a.aval.dtype for a in eqn.ins if a.aval.dtype in HELD]
            if prim in _BY_WIDTH and narrow:
                raise Untranslatable(f"{prim} of {narrow[0]}")
            return elementwise(g, prim, eqn.params, ins, [held(t) for t in types])
        raise Untranslatable("ONNX has nothing like it")

    def _lacks(self, eqn: Eqn, why: str) -> None:
        line = "" if eqn.source is None else f" at {eqn.source}: {eqn.source.text}"
        places = self.lacks.setdefault(f"{eqn.prim.name} ({why})", [])
        if line not in places:
            places.append(line)

    def check(self, what: str) -> None:
        """Raise ExportError if something could not be written."""
        if self.lacks:
            lines = [f"  {name}{place}" for name, places in self.lacks.items() for place in places]
            raise ExportError(
                f"to_onnx: {what} can't be written in ONNX, as it has operations without a "
                "translation:\n" + "\n".join(lines)
            )


def rounded(g: Graph, x: Tensor, dtype: np.dtype) -> Tensor:
    """A value that is held in a wider type than its own, rounded to its own (or wrapped)."""
    if dtype not in HELD:
        return x
    if dtype.name == "uint4":
        return g.elementwise("BitwiseAnd", x, g.constant(15, x.dtype))
    if dtype.name == "int4":
        low = g.elementwise("BitwiseAnd", x, g.constant(15, x.dtype))
        eight = g.constant(8, x.dtype)
        return g.elementwise("Sub", g.elementwise("BitwiseXor", low, eight), eight)
    if x.constant is not None:
        with np.errstate(all="ignore"):
            return g.constant(x.constant.astype(dtype).astype(x.dtype))
    return g.cast(g.cast(x, dtype, saturate=False), x.dtype)
