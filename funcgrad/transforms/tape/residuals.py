"""Which values a compiled forward program leaves to its backward program.

Partial evaluation keeps what the backward pass reads. Of compiled programs that would be more
memory traffic than arithmetic: what is elementwise in values that are in memory anyway (operands,
the result, results of sums, products and what they multiply) is cheaper computed anew, in the loop
that needs it.
"""

from __future__ import annotations

from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var


def fewer_residuals(forward: Jaxpr, backward: Jaxpr, n_results: int = 1) -> tuple[Jaxpr, Jaxpr]:
    """The same two programs with less between them: the first inputs of `backward` are what
    `forward` gives behind its results.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> forward = fg.make_jaxpr(lambda x: (fnp.sin(x), fnp.cos(x)))(1.0).jaxpr
    >>> backward = fg.make_jaxpr(lambda r, ct: (r * ct,))(1.0, 1.0).jaxpr
    >>> fewer_residuals(forward, backward)
    ({ lambda ; a:f32[] . let
        b:f32[] = sin a
      in (b, a) }, { lambda ; a:f32[] b:f32[] . let
        c:f32[] = cos a
        d:f32[] = mul c b
      in (d,) })
    """
    results, residuals = forward.outs[:n_results], forward.outs[n_results:]
    eqn_of = {v: e for e in forward.eqns for v in e.outs}

    def source(var: Var) -> Var:
        while (made := eqn_of.get(var)) is not None and made.prim.view is not None:
            if not isinstance(made.ins[0], Var):
                break
            var = made.ins[0]
        return var

    anchors = {*forward.ins, *results}
    for e in forward.eqns:
        if not _is_cheap(e):
            anchors.update(e.outs)
        if e.prim.contraction:
            anchors.update(source(a) for a in e.ins if isinstance(a, Var))
    again: dict[Eqn, None] = {}
    kept: dict[Var, None] = {}

    def visit(atom: Atom) -> None:
        if not isinstance(atom, Var):
            return
        if atom in anchors:
            kept[atom] = None
        elif (eqn := eqn_of[atom]) not in again:
            for a in eqn.ins:
                visit(a)
            again[eqn] = None

    for r in residuals:
        visit(r)
    n = len(residuals)
    given = dict(zip(backward.ins[:n], residuals, strict=True))
    eqns = [e.replace(ins=[given.get(a, a) for a in e.ins]) for e in backward.eqns]  # type: ignore
    outs = [given.get(a, a) for a in backward.outs]  # type: ignore
    lean = Jaxpr([*kept, *backward.ins[n:]], [*again, *eqns], outs)
    ends = [*results, *kept]
    return Jaxpr(forward.ins, dce_eqns(forward.eqns, ends), ends), lean


def _is_cheap(eqn: Eqn) -> bool:
    return eqn.prim.elementwise or eqn.prim.view is not None or not eqn.ins
