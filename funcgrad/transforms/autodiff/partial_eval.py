"""Partial evaluation: split what is computed from known values from what awaits unknown ones.

`linearize` is a jvp whose tangents are unknown: the primal part runs, the tangent part is written
down as a linear program, and what it needs of the primal part are its residuals. On programs the
same split makes of one jaxpr two, joined by residuals; ops that hold programs split recursively.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core import context
from funcgrad.core.aval import Zero
from funcgrad.core.backend import explicit
from funcgrad.core.dce import dce_eqns, has_effect
from funcgrad.core.ir import Eqn, Jaxpr, Literal, Var, literal_value
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import JaxprTrace, JaxprTracer
from funcgrad.core.trace import Trace, aval_of
from funcgrad.core.types import CustomCall, Result, Value, Values
from funcgrad.transforms.arguments import FlatFunction, as_array
from funcgrad.transforms.autodiff.jvp import JVPTrace


class Split(NamedTuple):
    """An equation in two: `known` makes known results and residuals, `unknown` the rest.

    Each reads operands of the original equation or residuals; each binds residuals or results of
    the original. Results that neither binds don't exist.
    """

    known: Eqn | None
    unknown: Eqn | None


class LinearTrace(Trace):
    """Runs what is known in the parent trace, records the rest on `tape`."""

    what = "a linearized function"

    def __init__(self, parent: Trace):
        super().__init__(parent)
        self.tape = JaxprTrace(self.what)

    def is_unknown(self, x: Value) -> bool:
        """Whether a value is recorded rather than known."""
        return type(x) is JaxprTracer and x._trace is self.tape

    def owns_value(self, x: Value) -> bool:
        return self.is_unknown(x)

    def process(self, prim: Primitive, args: tuple, params: dict) -> Result:
        assert self.parent is not None
        tape = self.tape
        for a in args:
            if type(a) is JaxprTracer and a._trace is tape:
                break
        else:
            return self.parent.process(prim, args, params)
        if prim.partial is None:
            return tape.process(prim, args, params)
        unknown = [self.is_unknown(a) for a in args]
        ins = [Var(aval_of(a)) for a in args]
        out_avals = prim.abstract(*(v.aval for v in ins), **params)
        outs = [Var(a) for a in (out_avals if prim.multiple else [out_avals])]
        split = prim.partial(unknown, Eqn(prim, ins, outs, params))
        env: dict[Any, Any] = dict(zip(ins, args, strict=True))
        for trace, eqn in ((self.parent, split.known), (self.tape, split.unknown)):
            if eqn is None:
                continue
            operands = tuple(
                literal_value(a) if isinstance(a, Literal) else env[a] for a in eqn.ins
            )
            results = trace.process(eqn.prim, operands, eqn.params)
            env.update(zip(eqn.outs, results if eqn.prim.multiple else [results], strict=True))
        return [env[v] for v in outs] if prim.multiple else env[outs[0]]

    def process_custom(self, call: CustomCall, args: tuple) -> list:
        assert self.parent is not None
        if any(self.is_unknown(a) for a in args):
            if getattr(call, "transpose", None) is not None:
                return self.tape.process_custom(call, args)
            return super().process_custom(call, args)
        return self.parent.process_custom(call, args)


class Linearized(NamedTuple):
    """A linear program of the tangents of flat arguments, and the residuals it begins with.

    Inside of a shard_map the last residuals are the arguments themselves, which the program
    doesn't read: its transpose has to know over which mesh axes they vary (`derivatives.pullback`).
    """

    jaxpr: Jaxpr
    residuals: list
    out_nonzero: list[bool]
    in_nonzero: list[bool]
    manual: bool = False


def linearize_flat(
    fun: Callable[..., Values], primals: Values, wrt: Sequence[bool] | None = None
) -> tuple[list, Linearized]:
    """Results of `fun` on flat primals, and its derivative there as a linear program.

    `wrt` masks the arguments that vary; arguments without tangents never do.
    """
    # A number takes part as the array it stands for; so each operation needn't convert it.
    primals = [as_array(p) if not isinstance(p, np.ndarray) else p for p in primals]
    before = context.current()
    linear = LinearTrace(before.trace)
    jvp = JVPTrace(linear)
    avals = [aval_of(p).tangent() for p in primals]
    varies = [a.dtype.kind != "V" or a.dtype.names is None for a in avals]
    if wrt is not None:
        varies = [v and w for v, w in zip(varies, wrt, strict=True)]
    try:
        context.switch(before.with_trace(jvp))
        args = [
            jvp.pack(p, linear.tape.new_arg(a) if v else Zero(a))
            for p, a, v in zip(primals, avals, varies, strict=True)
        ]
        if before.mesh is not None and before.mesh.explicit_axes:
            args = explicit().typed(args)  # and so are the cotangents cut
        pairs = [jvp.unpack(o) for o in fun(*args)]
        if isinstance(fun, FlatFunction):
            fun.lower_aux(jvp.primal)
        context.switch(before)
        outs = [p for p, _ in pairs]
        tangents = [t for _, t in pairs if type(t) is not Zero]
        jaxpr, residuals = linear.tape.finish(tangents)
        nonzero = [type(t) is not Zero for _, t in pairs]
    finally:
        context.switch(before)
        jvp.end()
        linear.live = linear.tape.live = False
    manual = bool(context.current().manual)
    if manual:
        n = len(residuals)
        likes = [p for p, v in zip(primals, varies, strict=True) if v]
        unread = [Var(aval_of(p)) for p in likes]
        jaxpr = Jaxpr([*jaxpr.ins[:n], *unread, *jaxpr.ins[n:]], jaxpr.eqns, jaxpr.outs)
        residuals = [*residuals, *likes]
    return outs, Linearized(jaxpr, residuals, nonzero, varies, manual)


class PartialJaxpr(NamedTuple):
    """A program in two. known: known inputs → known results and `n_residuals` residuals;
    unknown: residuals and then unknown inputs → unknown results. Residuals that are inputs of the
    original program aren't computed: `forwarded` gives the index of the known input."""

    known: Jaxpr
    unknown: Jaxpr
    out_unknown: list[bool]
    residuals: list[Var]
    forwarded: list[int | None]


def partial_eval_jaxpr(
    jaxpr: Jaxpr,
    unknown_in: Sequence[bool],
    force_out: Sequence[bool] | bool = False,
    saveable: Callable[[Eqn], bool] | None = None,
) -> PartialJaxpr:
    """Split a program by which inputs are unknown.

    Results in `force_out` count as unknown. With `saveable`, equations whose results may not be
    saved are computed again on the unknown side: rematerialization.
    """
    force = [force_out] * len(jaxpr.outs) if isinstance(force_out, bool) else list(force_out)
    if saveable is not None:
        return _partial_eval_jaxpr(jaxpr, unknown_in, force, saveable)
    key = ("partial", tuple(unknown_in), tuple(force))
    return jaxpr.derive(key, lambda: _partial_eval_jaxpr(jaxpr, unknown_in, force, None))


def _split_eqns(jaxpr: Jaxpr, unknown_in: Sequence[bool]) -> tuple[list, list, set]:
    unknown = {v for v, u in zip(jaxpr.ins, unknown_in, strict=True) if u}
    known_eqns: list[Eqn] = []
    unknown_eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        mask = [a in unknown for a in eqn.ins]
        if not any(mask):
            known_eqns.append(eqn)
        elif eqn.prim.partial is None:
            unknown_eqns.append(eqn)
            unknown.update(eqn.outs)
        else:
            split = eqn.prim.partial(mask, eqn)
            if split.known is not None:
                known_eqns.append(split.known)
            if split.unknown is not None:
                unknown_eqns.append(split.unknown)
                unknown.update(split.unknown.outs)
    return known_eqns, unknown_eqns, unknown


def _partial_eval_jaxpr(jaxpr: Jaxpr, unknown_in: Sequence[bool], force: Sequence[bool],
                        saveable: Callable[[Eqn], bool] | None) -> PartialJaxpr:  # fmt: skip
    known_eqns, unknown_eqns, unknown = _split_eqns(jaxpr, unknown_in)
    out_unknown = [a in unknown or f for a, f in zip(jaxpr.outs, force, strict=True)]
    unknown_outs = [a for a, u in zip(jaxpr.outs, out_unknown, strict=True) if u]
    if saveable is not None:
        # Known equations stand on the unknown side too, but their saved results are inputs there.
        saved = {v for e in known_eqns if saveable(e) for v in e.outs}
        again = [e for e in known_eqns if not any(v in saved for v in e.outs) and not has_effect(e)]
        unknown_eqns = [*again, *unknown_eqns]
    unknown_eqns = dce_eqns(unknown_eqns, unknown_outs)

    unknown_ins = [v for v, u in zip(jaxpr.ins, unknown_in, strict=True) if u]
    known_ins = [v for v, u in zip(jaxpr.ins, unknown_in, strict=True) if not u]
    bound = {*unknown_ins, *(v for e in unknown_eqns for v in e.outs)}
    residuals: dict[Var, None] = {}
    for atom in [*(a for e in unknown_eqns for a in e.ins), *unknown_outs]:
        if isinstance(atom, Var) and atom not in bound:
            residuals[atom] = None
    position = {v: i for i, v in enumerate(known_ins)}
    forwarded = [position.get(v) for v in residuals]
    computed = [v for v in residuals if v not in position]
    known_outs = [a for a, u in zip(jaxpr.outs, out_unknown, strict=True) if not u]
    outs = [*known_outs, *computed]
    known = Jaxpr(known_ins, dce_eqns(known_eqns, outs), outs)
    return PartialJaxpr(
        known,
        Jaxpr([*residuals, *unknown_ins], unknown_eqns, unknown_outs),
        out_unknown,
        list(residuals),
        forwarded,
    )
