"""Before lowering: a program without calls, unused equations, and a few ops written as others.

Calls of programs are replaced by their equations; which others are written in another way, the
target says (`backends.target`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from funcgrad.backends.lower.primitives import key_of
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.target import Rewrite, Target
from funcgrad.core import context
from funcgrad.core.dce import dce_eqns, has_effect
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import formula_of
from funcgrad.core.views import in_order
from funcgrad.ops.contract import dot_general_p
from funcgrad.transforms.passes.simplify import simplify


class _Flattener(Equations):
    """Writes equations of a program and of those it calls into one list."""

    def called(self, jaxpr: Jaxpr, ins: Sequence[Atom]) -> list:
        read = Counter(x for e in jaxpr.eqns if e.prim is dot_general_p for x in e.ins)
        self.shared |= {x for x, times in read.items() if times > 1}
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
        if eqn.prim.call:
            self.inline(eqn, ins)
            return
        if eqn.prim.identity:
            self.define(eqn, ins)
            return
        rewrite = self.target.rewrites.get(key_of(eqn.prim)) or self.by_trait(eqn.prim)
        out = rewrite(self, eqn, ins) if rewrite else None
        if out is None:
            self.keep(eqn, ins)
        else:
            self.define(eqn, out if eqn.prim.multiple else [out])

    def by_trait(self, prim: Primitive) -> Rewrite | None:
        """How an op is written that the target doesn't know by itself."""
        if prim.reduction:
            return self.target.reduction
        if prim.view is in_order:
            return _reshaped
        return by_formula if prim.formula else None


def _reshaped(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    return flat.reshape(ins[0], eqn.outs[0].aval.shape)


def by_formula(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Any:
    """An op as its formula says, of other ops."""
    outs = flat.called(simplify(formula_of(eqn.prim, [x.aval for x in ins], eqn.params)), ins)
    return outs if eqn.prim.multiple else outs[0]


def normalize(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """The program written for lowering: see the module's docstring.

    >>> import funcgrad as fg
    >>> closed = fg.make_jaxpr(fg.jit(lambda x: x + 1))(1.0)
    >>> (
    ...     [e.prim.name for e in closed.jaxpr.eqns],
    ...     [e.prim.name for e in normalize(closed.jaxpr, Target("any")).eqns],
    ... )
    (['jit'], ['add'])
    """
    # The rewriting of collectives depends on the axes' sizes.
    axes = tuple(context.current().axes.items())
    return jaxpr.derive(("normalized", target, axes), lambda: _normalize(jaxpr, target))


def _normalize(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    flat = _Flattener(target)
    ins = [Var(v.aval) for v in jaxpr.ins]
    outs = flat.called(jaxpr, ins)
    eqns: Sequence[Eqn] = dce_eqns(flat.eqns, outs)
    for change in target.passes:
        eqns = change(eqns, outs)
    return Jaxpr(ins, eqns, outs, jaxpr.names)
