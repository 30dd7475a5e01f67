"""Dead code elimination: keep the equations on which results or effects depend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, sub_jaxprs


def has_effect(eqn: Eqn) -> bool:
    """Whether an equation must run even if nothing uses its results."""
    return eqn.prim.effect or any(j.has_effects for j in sub_jaxprs(eqn))


def dce_eqns(
    eqns: Sequence[Eqn], outs: Iterable[Atom], change: Callable[[Eqn, set], Eqn] | None = None
) -> list[Eqn]:
    """The equations that `outs` need, themselves slimmed where they hold programs.

    change(eqn, needed) → what stands in place of an equation, where later ones need these values
    """
    needed = {a for a in outs if isinstance(a, Var)}
    kept: list[Eqn] = []
    for eqn in reversed(eqns):
        used = [v in needed for v in eqn.outs]
        if not any(used) and not has_effect(eqn):
            continue
        if eqn.prim.dce is not None and not all(used):
            eqn = eqn.prim.dce(used, eqn)
        if change is not None:
            eqn = change(eqn, needed)
        needed.update(a for a in eqn.ins if isinstance(a, Var))
        kept.append(eqn)
    return kept[::-1]


def dce_jaxpr(
    jaxpr: Jaxpr, used_outs: Sequence[bool], keep_ins: Sequence[bool] | bool = False
) -> tuple[Jaxpr, list[bool]]:
    """The program of the results that are used, with the inputs it still needs (a mask tells
    which), and those of `keep_ins` anyway."""
    keep = [keep_ins] * len(jaxpr.ins) if isinstance(keep_ins, bool) else list(keep_ins)
    key = ("dce", tuple(used_outs), tuple(keep))
    return jaxpr.derive(key, lambda: _dce_jaxpr(jaxpr, used_outs, keep))


def _dce_jaxpr(jaxpr: Jaxpr, used_outs: Sequence[bool], keep: Sequence[bool]) -> tuple:
    outs = [a for a, u in zip(jaxpr.outs, used_outs, strict=True) if u]
    eqns = dce_eqns(jaxpr.eqns, outs)
    read = {a for e in eqns for a in e.ins if isinstance(a, Var)}
    read.update(a for a in outs if isinstance(a, Var))
    used_ins = [k or v in read for v, k in zip(jaxpr.ins, keep, strict=True)]
    ins = [v for v, u in zip(jaxpr.ins, used_ins, strict=True) if u]
    names = jaxpr.names and [n for n, u in zip(jaxpr.names, used_ins, strict=True) if u]
    return Jaxpr(ins, eqns, outs, names), used_ins
