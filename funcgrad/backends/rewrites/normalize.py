"""Before lowering: a program without calls, unused equations, and a few ops written as others.

Calls of programs are replaced by their equations; which others are written in another way, the
target says (`backends.target`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.target import Target
from funcgrad.core import context
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.staging import formula_of
from funcgrad.transforms.passes.simplify import simplify


class _Flattener(Equations):
    """Writes equations of a program and of those it calls into one list."""

    def inline(self, jaxpr: Jaxpr, args: Iterable[Atom]) -> list[Atom]:
        """The outputs of a program on these operands, its equations added."""
        outer, rewrites = self.source, self.target.rewrites
        env: dict[Atom, Atom] = {
            v: a if v.aval.size else self.empty(v.aval)
            for v, a in zip(jaxpr.ins, args, strict=True)
        }
        for eqn in jaxpr.eqns:
            self.source = eqn.source or outer
            ins = [env.get(a, a) for a in eqn.ins]
            for v in eqn.outs:
                if not v.aval.size:
                    env[v] = self.empty(v.aval)
            if eqn.outs and all(v in env for v in eqn.outs) and not acts(eqn):
                continue
            if eqn.prim.call:
                env.update(zip(eqn.outs, self.inline(eqn.params["jaxpr"], ins), strict=True))
                continue
            if eqn.prim.identity:
                env.update(zip(eqn.outs, ins, strict=True))
                continue
            rewrite = rewrites.get(eqn.prim.name, by_formula if eqn.prim.formula else None)
            out = rewrite(self, eqn, ins) if rewrite else None
            if out is not None:
                env.update(zip(eqn.outs, out if eqn.prim.multiple else [out], strict=True))
                continue
            outs = [Var(v.aval) for v in eqn.outs]
            env.update((v, o) for v, o in zip(eqn.outs, outs, strict=True) if v.aval.size)
            self.append(Eqn(eqn.prim, ins, outs, eqn.params, eqn.source, eqn.scopes))
        return [env.get(a, a) for a in jaxpr.outs]


def by_formula(flat: _Flattener, eqn: Eqn, ins: list[Atom]) -> Any:
    """An op as its formula says, of other ops."""
    outs = flat.inline(simplify(formula_of(eqn.prim, [x.aval for x in ins], eqn.params)), ins)
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
    outs = flat.inline(jaxpr, ins)
    eqns: Sequence[Eqn] = needed(flat.eqns, outs)
    for change in target.passes:
        eqns = change(eqns, outs)
    return Jaxpr(ins, eqns, outs, jaxpr.names)


def needed(
    eqns: Sequence[Eqn], outs: Sequence[Atom], change: Callable[[Eqn, set[Var]], Eqn] | None = None
) -> list[Eqn]:
    """The equations that results need, and those that do more than to give some.

    change: gives the equation to take, from one and the values that later equations need
    """
    used = {a for a in outs if type(a) is Var}
    kept = []
    for eqn in reversed(eqns):
        if any(v in used for v in eqn.outs) or acts(eqn):
            eqn = eqn if change is None else change(eqn, used)
            used.update(a for a in eqn.ins if type(a) is Var)
            kept.append(eqn)
    return kept[::-1]


def acts(eqn: Eqn) -> bool:
    """Whether an equation does more than to give results."""
    if eqn.prim.effect:
        return True
    params = (q for p in eqn.params.values() for q in (p if type(p) is tuple else (p,)))
    return any(type(q) is Jaxpr and q.has_effects for q in params)
