"""Before lowering: a program without calls, unused equations, and a few ops written as others.

Calls of programs are replaced by their equations. Reductions to few results go in two steps
(`reductions`), contractions and convolutions become matrix products or sums (`products`), scatters
of one update selections (`scatters`), collectives exchanges of contiguous blocks (`exchanges`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from funcgrad.backends.late import late
from funcgrad.backends.lower.primitives import product_p
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core import context
from funcgrad.core.dce import dce_eqns, has_effect
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import formula_of
from funcgrad.core.views import in_order
from funcgrad.ops.collective.exchanges import all_to_all_p, ppermute_p
from funcgrad.ops.collective.reductions import (
    all_gather_p,
    axis_index_p,
    pmax_p,
    pmin_p,
    psum_p,
    psum_scatter_p,
)
from funcgrad.ops.collective.varying import assume_invariant_p, psum_invariant_p, pvary_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.convolution.pooling import select_and_scatter_add_p, window_sum_p
from funcgrad.ops.cumulative import cummax_p, cummin_p, cumprod_p, cumsum_p
from funcgrad.ops.indexing.gather import scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_mul_p, scatter_p
from funcgrad.ops.sort import sort_p
from funcgrad.transforms.control.scan import scan_p
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
        parts = _scan(eqn) if eqn.prim is scan_p else None
        if eqn.prim.call or parts is not None:
            self.inline(eqn, ins, parts)
            return
        if eqn.prim.identity:
            self.define(eqn, ins)
            return
        rewrite = _REWRITES.get(eqn.prim) or _by_trait(eqn.prim)
        out = rewrite(self, eqn, ins) if rewrite else None
        if out is None:
            self.keep(eqn, ins)
        else:
            self.define(eqn, out if eqn.prim.multiple else [out])


def _scan(eqn: Eqn) -> Jaxpr | None:
    """A scan in blocks, or whose products are apart or read panels; None if it stays."""
    return scan_blocks.blocked(eqn) or scans.spread(eqn) or panels.panelled(eqn)


def _by_trait(prim: Primitive) -> Callable | None:
    """How an op is written that isn't known by itself."""
    if prim.reduction:
        return _reduction
    if prim.view is in_order:
        return _reshape
    return _formula if prim.formula else None


def _reduction(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    return reductions.reduction(flat, eqn, ins)


def _reshape(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    return flat.reshape(ins[0], eqn.outs[0].aval.shape)


def _formula(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Any:
    """An op as its formula says, of other ops; None for attention that fills register tiles."""
    if eqn.prim.strided and min(x.aval.shape[1] for x in ins[:2]) >= FEW_PLACES:
        return None
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
    if by_rows is not None or eqn.prim is scatter_mul_p:
        return by_rows
    return scatters.single_scatter(flat, eqn, ins) or elements.element_scatter(flat, eqn, ins)


def _collective(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Any:
    return exchanges.REWRITES[eqn.prim](flat, eqn, ins)


def _running(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    return running.running(flat, eqn, ins)


_REWRITES: dict[Primitive, Callable] = {
    dot_general_p: lambda flat, eqn, ins: products.dot(flat, eqn, ins),
    conv_general_dilated_p: lambda flat, eqn, ins: products.convolve(flat, eqn, ins),
    **dict.fromkeys((scatter_p, scatter_add_p, scatter_mul_p), _scatter),
    window_sum_p: lambda flat, eqn, ins: scatters.window_spread(flat, eqn, ins),
    select_and_scatter_add_p: lambda flat, eqn, ins: scatters.window_scatter(flat, eqn, ins),
    **dict.fromkeys((cumsum_p, cumprod_p, cummax_p, cummin_p), _running),
    **dict.fromkeys((psum_p, psum_invariant_p, pvary_p, assume_invariant_p), _collective),
    **dict.fromkeys((pmax_p, pmin_p, all_gather_p, psum_scatter_p), _collective),
    **dict.fromkeys((all_to_all_p, ppermute_p, axis_index_p), _collective),
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
        made: dict[Any, Eqn] = {v: e for e in flat.eqns for v in e.outs}
        change = lambda e, used: shuffles.shuffle(e, used, made) or e  # noqa: E731
    eqns: Sequence[Eqn] = dce_eqns(flat.eqns, outs, change)
    if any(e.prim is product_p for e in eqns):
        eqns = products.absorb_transposes(eqns, outs)
    if sum(e.prim.strided for e in eqns) > 1:
        eqns = attention_joint.join_attention(eqns, outs, has_effect)
    return Jaxpr(ins, eqns, outs, jaxpr.names)
