"""Before lowering: a program without calls, unused equations, and a few ops written as others.

Calls of programs are replaced by their equations. Reductions to few results go in two steps
(`reductions`), contractions and convolutions become matrix products or sums (`products`), scatters
of one update selections (`scatters`), collectives exchanges of contiguous blocks (`exchanges`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from funcgrad.backends.late import late
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core import context
from funcgrad.core.dce import dce_eqns, has_effect
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.staging import formula_of
from funcgrad.ops.sort import sort_p
from funcgrad.transforms.passes.simplify import simplify

if TYPE_CHECKING:
    from funcgrad.backends.llvm.rewrites import (
        elements,
        panels,
        rows,
        running,
        scan_blocks,
        shuffles,
    )
    from funcgrad.backends.rewrites import (
        attention_joint,
        exchanges,
        products,
        reductions,
        scans,
        scatters,
    )
else:
    attention_joint, exchanges, products, reductions, scans, scatters = late(
        "funcgrad.backends.rewrites",
        *("attention_joint", "exchanges", "products", "reductions", "scans", "scatters"),
    )
    elements, panels, rows, running, scan_blocks, shuffles = late(
        "funcgrad.backends.llvm.rewrites",
        *("elements", "panels", "rows", "running", "scan_blocks", "shuffles"),
    )

REDUCTIONS = frozenset(f"reduce_{how}" for how in ("sum", "max", "min", "prod", "and", "or", "xor"))
RUNNING = ("cumsum", "cumprod", "cummax", "cummin")
COLLECTIVES = (
    *("psum", "psum_invariant", "pvary", "assume_invariant", "pmax", "pmin", "all_gather"),
    *("psum_scatter", "all_to_all", "ppermute", "axis_index"),
)
# Attention of fewer queries or keys fills no register tiles: 16 take twice the time of the formula,
# 32 less (one core).
FEW_PLACES = 32


class _Flattener(Equations):
    """Writes equations of a program and of those it calls into one list."""

    def called(self, jaxpr: Jaxpr, ins: Sequence[Atom]) -> list:
        pairs = zip(jaxpr.ins, ins, strict=True)
        return super().called(jaxpr, [a if v.aval.size else self.empty(v.aval) for v, a in pairs])

    def equation(self, eqn: Eqn, ins: list) -> None:
        full = not eqn.outs or any(v.aval.size for v in eqn.outs)
        if full or has_effect(eqn):
            self.flatten(eqn, ins)
        for v in eqn.outs:
            if not v.aval.size:
                self.same[v] = self.empty(v.aval)

    def flatten(self, eqn: Eqn, ins: list) -> None:
        """Write what stands for an equation that has results or effects."""
        parts = _scan(eqn) if eqn.prim.name == "scan" else None
        if eqn.prim.call or parts is not None:
            self.inline(eqn, ins, parts)
            return
        if eqn.prim.identity:
            self.define(eqn, ins)
            return
        rewrite = _REWRITES.get(eqn.prim.name, _formula if eqn.prim.formula else None)
        out = rewrite(self, eqn, ins) if rewrite else None
        if out is None:
            self.keep(eqn, ins)
        else:
            self.define(eqn, out if eqn.prim.multiple else [out])


def _scan(eqn: Eqn) -> Jaxpr | None:
    """A scan in blocks, or whose products are apart or read panels; None if it stays."""
    return scan_blocks.blocked(eqn) or scans.spread(eqn) or panels.panelled(eqn)


def _attention(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Any:
    """Attention of few queries or keys by its formula."""
    (_, queries, *_), (_, keys, *_) = (x.aval.shape for x in ins[:2])
    return None if min(queries, keys) >= FEW_PLACES else _formula(flat, eqn, ins)


def _formula(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Any:
    """An op as its formula says, of other ops."""
    outs = flat.called(simplify(formula_of(eqn.prim, [x.aval for x in ins], eqn.params)), ins)
    return outs if eqn.prim.multiple else outs[0]


def _scatter(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Any:
    """As a selection, by elements, of narrow floats in float32, or as it is (None)."""
    found = _special_scatter(flat, eqn, ins)
    wide = scatters.wide_scatter(flat, eqn, ins) if found is None else None
    if wide is None:
        return found
    total = _special_scatter(flat, *wide)
    if total is None:
        flat.append(wide[0])
        total = wide[0].outs[0]
    return flat.convert(total, eqn.outs[0].aval.dtype)


def _special_scatter(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Any:
    by_rows = rows.row_scatter(flat, eqn, ins)
    if by_rows is not None or eqn.prim.name == "scatter_mul":
        return by_rows
    return scatters.single_scatter(flat, eqn, ins) or elements.element_scatter(flat, eqn, ins)


_REWRITES = {
    **dict.fromkeys(("attention", "attention_backward"), _attention),
    "dot_general": lambda flat, eqn, ins: products.dot(flat, eqn, ins),
    "conv_general_dilated": lambda flat, eqn, ins: products.convolve(flat, eqn, ins),
    "reshape": lambda flat, eqn, ins: flat.reshape(ins[0], eqn.outs[0].aval.shape),
    "scatter": _scatter,
    "scatter_add": _scatter,
    "scatter_mul": _scatter,
    "reduce_window_sum": lambda flat, eqn, ins: scatters.window_spread(flat, eqn, ins),
    "select_and_scatter_add": lambda flat, eqn, ins: scatters.window_scatter(flat, eqn, ins),
    **dict.fromkeys(REDUCTIONS, lambda flat, eqn, ins: reductions.reduction(flat, eqn, ins)),
    **dict.fromkeys(RUNNING, lambda flat, eqn, ins: running.running(flat, eqn, ins)),
    **dict.fromkeys(
        COLLECTIVES, lambda flat, eqn, ins: exchanges.REWRITES[eqn.prim.name](flat, eqn, ins)
    ),
}


def normalize(jaxpr: Jaxpr) -> Jaxpr:
    """The program written for lowering: see the module's docstring.

    >>> import funcgrad as fg
    >>> closed = fg.make_jaxpr(fg.jit(lambda x: x + 1))(1.0)
    >>> (
    ...     [e.prim.name for e in closed.jaxpr.eqns],
    ...     [e.prim.name for e in normalize(closed.jaxpr).eqns],
    ... )
    (['jit'], ['add'])
    """
    # The rewriting of collectives depends on the axes' sizes.
    axes = tuple(context.current().axes.items())
    return jaxpr.derive(("normalized", axes), lambda: _normalize(jaxpr))


def _normalize(jaxpr: Jaxpr) -> Jaxpr:
    flat = _Flattener()
    ins = [Var(v.aval) for v in jaxpr.ins]
    outs = flat.called(jaxpr, ins)
    change = None
    if any(e.prim is sort_p for e in flat.eqns):
        made = {v: e for e in flat.eqns for v in e.outs}
        change = lambda e, used: shuffles.shuffle(e, used, made) or e  # noqa: E731
    eqns: Sequence[Eqn] = dce_eqns(flat.eqns, outs, change)
    if any(e.prim.name == "product" for e in eqns):
        eqns = products.absorb_transposes(eqns, outs)
    if any(e.prim.name == "attention_backward" for e in eqns):
        eqns = attention_joint.join_attention(eqns, outs)
    return Jaxpr(ins, eqns, outs, jaxpr.names)
