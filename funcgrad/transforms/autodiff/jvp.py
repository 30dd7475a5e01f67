"""Forward mode: each value carries a tangent, each op pushes tangents forward by its jvp rule.

Under `JVPTrace` a tracer is a pair (primal, tangent). The rules run under the parent trace, so that
nesting gives higher derivatives. Tangents that are known to be zero are never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.core import context
from funcgrad.core.aval import Zero, with_zeros
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import Trace, Tracer, aval_of
from funcgrad.core.types import CustomCall, Result, Tangent, Tangents, Value, Values
from funcgrad.ops.base import instantiate
from funcgrad.transforms.arguments import FlatFunction


class JVPTracer(Tracer):
    """A value and its tangent."""

    __slots__ = ("primal", "tangent")

    def __init__(self, trace: Trace, primal: Value, tangent: Tangent):
        self._trace = trace
        self.aval = aval_of(primal)
        self.primal = primal
        self.tangent = tangent
        self.source = None

    def concrete(self) -> Value | None:
        known = getattr(self.primal, "concrete", None)
        return self.primal if known is None else known()

    def origin(self) -> str:
        return self.primal.origin() if isinstance(self.primal, Tracer) else super().origin()


class JVPTrace(Trace):
    """Differentiates every operation in the direction of the tangents."""

    what = "a differentiated function"

    def unpack(self, x: Value) -> tuple[Value, Tangent]:
        """A value's primal and tangent as this trace sees them."""
        if type(x) is JVPTracer and x._trace is self:
            return x.primal, x.tangent
        return x, Zero(aval_of(x).tangent())

    def primal(self, x: Value) -> Value:
        """A value without its tangent."""
        return x.primal if type(x) is JVPTracer and x._trace is self else x

    def pack(self, primal: Value, tangent: Tangent) -> Value:
        """A tracer, or the primal alone where the tangent is zero."""
        return primal if type(tangent) is Zero else JVPTracer(self, primal, tangent)

    def process(self, prim: Primitive, args: tuple, params: dict) -> Result:
        for a in args:
            if type(a) is JVPTracer and a._trace is self:
                break
        else:
            assert self.parent is not None
            return self.parent.process(prim, args, params)
        primals, tangents = [], []
        for a in args:
            if type(a) is JVPTracer and a._trace is self:
                primals.append(a.primal)
                tangents.append(a.tangent)
            else:
                primals.append(a)
                tangents.append(Zero(aval_of(a).tangent()))
        before = context.current()
        try:
            context.switch(self.below())
            out, out_tangents = prim.differentiate(primals, tangents, params)
        finally:
            context.switch(before)
        if prim.multiple:
            return [self.pack(p, t) for p, t in zip(out, out_tangents, strict=True)]
        return out if type(out_tangents) is Zero else JVPTracer(self, out, out_tangents)

    def process_custom(self, call: CustomCall, args: tuple) -> list:
        pairs = [self.unpack(a) for a in args]
        primals = [p for p, _ in pairs]
        tangents = [t for _, t in pairs]
        assert self.parent is not None
        if all(type(t) is Zero for t in tangents):
            return self.parent.process_custom(call, tuple(primals))
        with self.parent.current():
            outs, out_tangents = call.differentiate(primals, tangents)
        return [self.pack(p, t) for p, t in zip(outs, out_tangents, strict=True)]


def jvp_flat(fun: Callable[..., Values], primals: Values, tangents: Tangents) -> tuple[list, list]:
    """Results and their tangents (or `Zero`) of a function of flat arguments."""
    before = context.current()
    trace = JVPTrace(before.trace)
    try:
        context.switch(before.with_trace(trace))
        outs = fun(*(trace.pack(p, t) for p, t in zip(primals, tangents, strict=True)))
        pairs = [trace.unpack(o) for o in outs]
        if isinstance(fun, FlatFunction):
            fun.lower_aux(trace.primal)
    finally:
        context.switch(before)
        trace.end()
    return [p for p, _ in pairs], [t for _, t in pairs]


def jvp_jaxpr(
    jaxpr: Jaxpr, nonzero: Sequence[bool], instantiate_out: Sequence[bool] | bool = False
) -> tuple[Jaxpr, list[bool]]:
    """The program of primals, then tangents where `nonzero`, to results, then their tangents.

    Only tangents that are not zero come out (all where `instantiate_out`); the mask tells which.
    """
    wanted = (
        (instantiate_out,) * len(jaxpr.outs)
        if isinstance(instantiate_out, bool)
        else tuple(instantiate_out)
    )
    key = ("jvp", tuple(nonzero), wanted)
    return jaxpr.derive(key, lambda: _jvp_jaxpr(jaxpr, nonzero, wanted))


def _jvp_jaxpr(
    jaxpr: Jaxpr, nonzero: Sequence[bool], wanted: Sequence[bool]
) -> tuple[Jaxpr, list[bool]]:
    n = len(jaxpr.ins)
    mask: list[bool] = []

    def fun(*args: Any) -> list:
        tangents = with_zeros(args[n:], nonzero, jaxpr.in_avals)
        outs, outs_t = jvp_flat(lambda *xs: eval_jaxpr(jaxpr, *xs), args[:n], tangents)
        outs_t = [instantiate(t) if w else t for t, w in zip(outs_t, wanted, strict=True)]
        mask.extend(type(t) is not Zero for t in outs_t)
        return [*outs, *(t for t in outs_t if type(t) is not Zero)]

    avals = [*jaxpr.in_avals]
    avals += [v.aval.tangent() for v, nz in zip(jaxpr.ins, nonzero, strict=True) if nz]
    return stage_closed(fun, avals, "a jvp"), mask
