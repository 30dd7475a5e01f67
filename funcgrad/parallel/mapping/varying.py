"""Over which mesh axes the values of a per-device program vary, and what derivatives need of it.

`annotate` goes through a program in order. Where an op joins values that vary over different axes,
it puts a `pvary` before those that vary over less; a psum becomes `psum_invariant`, whose result
doesn't vary. Each op's operands then vary alike, and transposing it op by op is right: what is the
same on all devices gets the sum of their cotangents, once. Programs within programs are followed,
loops to a fixed point. To annotate an annotated program again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn, Jaxpr, Literal, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.rewriting import Writer
from funcgrad.ops.collective.reductions import axis_index_p, pmax_p, pmin_p, psum_p
from funcgrad.ops.collective.varying import assume_invariant_p, psum_invariant_p, pvary_p
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.parallel.mapping import varying_programs as programs
from funcgrad.parallel.mapping.varying_pass import Annotated, Axes, Pass, annotated, join
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.custom_call import custom_jvp_call_p, custom_vjp_tangent_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p
from funcgrad.transforms.derivatives.pullback import pullback_p


def annotate(
    jaxpr: Jaxpr,
    in_varying: Sequence[Axes],
    manual: Iterable[str],
    at_least: Sequence[Axes] | None = None,
) -> Annotated:
    """The program with explicit `pvary`s and `psum_invariant`s; see above.

    in_varying: over which of the `manual` axes each input varies; at_least: over which axes each
    result shall vary. The axes must be named in the context.
    """
    return annotated(jaxpr, in_varying, frozenset(manual), at_least, _rule)


# ---- ops of one device


def _pointwise(p: Pass, eqn: Eqn) -> None:
    """All operands vary alike, and the results as they do."""
    axes = join(map(p.of, eqn.ins))
    p.vary(eqn, [axes] * len(eqn.outs), [p.widen(a, axes) for a in eqn.ins])


def _side_by_side(p: Pass, eqn: Eqn) -> None:
    """Each result varies as the operand in its place."""
    p.vary(eqn, [p.of(a) for a in eqn.ins], [p.read(a) for a in eqn.ins])


# ---- collectives


def _split_axes(p: Pass, eqn: Eqn) -> tuple[tuple, tuple, tuple]:
    """A reduction's axes: those its operand varies over, the other manual ones, and the rest."""
    names, axes = eqn.params["axis_name"], p.of(eqn.ins[0])
    mine = [n for n in names if n in p.manual]
    return (
        tuple(n for n in mine if n in axes),
        tuple(n for n in mine if n not in axes),
        tuple(n for n in names if n not in p.manual),
    )


def _psum(p: Pass, eqn: Eqn) -> None:
    over, flat, rest = _split_axes(p, eqn)
    varying = p.of(eqn.ins[0]) - frozenset(over)
    if not flat and not rest and eqn.prim is psum_invariant_p:
        p.vary(eqn, [varying], [p.read(eqn.ins[0])])
        return
    x = p.read(eqn.ins[0])
    if over:
        x = p.add(psum_invariant_p, [x], x.aval, axis_name=over)
    if rest:
        x = p.add(eqn.prim, [x], x.aval, axis_name=rest)
    if flat:
        # The sum of n equal values needs no exchange.
        n = np.prod([context.current().axes[a] for a in flat], dtype=np.int64)
        if isinstance(x, Literal):
            x = Literal((x.value * n).astype(x.value.dtype), x.aval)
        else:
            factor = np.asarray(n).astype(x.aval.dtype)
            x = p.add(mul, [x, Literal(factor, ShapedArray((), x.aval.dtype))], x.aval)
    p.alias(eqn, x, varying)


def _extremum(p: Pass, eqn: Eqn) -> None:
    over, _, rest = _split_axes(p, eqn)
    x = p.read(eqn.ins[0])
    if over + rest:
        x = p.add(eqn.prim, [x], x.aval, axis_name=over + rest)
    p.alias(eqn, x, p.of(eqn.ins[0]) - frozenset(over))


def _exchange(p: Pass, eqn: Eqn) -> None:
    """Gathers, scatters and permutations: the operand must vary over the axes, the result does."""
    axes = p.of(eqn.ins[0]) | (frozenset(eqn.params["axis_name"]) & p.manual)
    p.vary(eqn, [axes], [p.widen(eqn.ins[0], axes), *map(p.read, eqn.ins[1:])])


def _axis_index(p: Pass, eqn: Eqn) -> None:
    p.vary(eqn, [frozenset(eqn.params["axis_name"]) & p.manual], [])


def _pvary(p: Pass, eqn: Eqn) -> None:
    (atom,), names = eqn.ins, frozenset(eqn.params["axis_name"])
    axes = p.of(atom)
    missing, rest = (names & p.manual) - axes, names - p.manual
    x = p.read(atom)
    if missing:
        x = p.pvary(x, missing)
    if rest and isinstance(x, Var):
        others = tuple(n for n in eqn.params["axis_name"] if n in rest)
        x = p.add(pvary_p, [x], x.aval, axis_name=others)
    p.alias(eqn, x, axes | missing)


def _assume_invariant(p: Pass, eqn: Eqn) -> None:
    over, _, rest = _split_axes(p, eqn)
    x = p.read(eqn.ins[0])
    if over + rest:
        x = p.add(assume_invariant_p, [x], x.aval, axis_name=over + rest)
    p.alias(eqn, x, p.of(eqn.ins[0]) - frozenset(over))


def erase(jaxpr: Jaxpr) -> Jaxpr:
    """The program without the marks of what varies: no more derivatives are taken of it, its
    collectives are the plain ones."""
    return jaxpr.derive("unmarked", lambda: _Eraser().write(jaxpr))


class _Eraser(Writer):
    def within(self, jaxpr: Jaxpr) -> Jaxpr:
        return erase(jaxpr)

    def equation(self, eqn: Eqn, ins: list) -> None:
        if eqn.prim in (pvary_p, assume_invariant_p):
            self.define(eqn, ins)
        elif eqn.prim is psum_invariant_p:
            self.keep(eqn, ins, prim=psum_p)
        else:
            self.keep(eqn, ins)


_RULES: dict[Primitive, Callable[[Pass, Eqn], None]] = {
    psum_p: _psum,
    psum_invariant_p: _psum,
    pmax_p: _extremum,
    pmin_p: _extremum,
    axis_index_p: _axis_index,
    pvary_p: _pvary,
    assume_invariant_p: _assume_invariant,
    programs.settle_p: programs.settle,
    pullback_p: programs.pullback,
    custom_jvp_call_p: programs.custom_jvp,
    custom_vjp_tangent_p: programs.custom_vjp_tangent,
    cond_p: programs.cond,
    scan_p: programs.scan,
    while_p: programs.while_loop,
}


def _rule(eqn: Eqn) -> Callable[[Pass, Eqn], None]:
    if eqn.prim in _RULES:
        return _RULES[eqn.prim]
    if isinstance(eqn.params.get("jaxpr"), Jaxpr):
        return programs.call
    if eqn.prim.collective:
        return _exchange
    return _side_by_side if eqn.prim.identity else _pointwise
