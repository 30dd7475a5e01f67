"""The trace that batches: each value may carry a batch axis, each op maps over it by its rule.

Under `BatchTrace` a tracer is a value with an axis more than it shows. Named axes are how
collectives (`psum`, `axis_index`, …) reach across the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import stage
from funcgrad.core.trace import Trace, Tracer, aval_of
from funcgrad.core.types import BatchDims, CustomCall, Result, Value, Values
from funcgrad.errors import ConcretizationError


class BatchAxis(NamedTuple):
    """The axis that is mapped: its name (or None) and size, and the mesh axes that cut it."""

    name: Any
    size: int
    spmd: tuple[str, ...] = ()


class BatchTracer(Tracer):
    """One lane's view of a value that has a batch axis."""

    __slots__ = ("dim", "value")

    def __init__(self, trace: Trace, value: Value, dim: int, lane: ShapedArray | None = None):
        self._trace = trace
        self.value = value
        self.dim = dim
        self.source = None
        self.aval = of_a_lane(aval_of(value), dim) if lane is None else lane

    def origin(self) -> str:
        return f"It differs along the axis that {self._trace.what} maps."


def of_a_lane(full: ShapedArray, dim: int) -> ShapedArray:
    """The type of a lane, without the batch axis."""
    return ShapedArray(full.shape[:dim] + full.shape[dim + 1 :], full.dtype, full.weak_type)


class BatchTrace(Trace):
    """Maps every operation over the batch axis."""

    what = "vmap"

    def __init__(self, parent: Trace, axis: BatchAxis):
        super().__init__(parent)
        self.axis = axis

    def unpack(self, x: Value) -> tuple[Value, int | None]:
        """A value and its batch axis as this trace sees them."""
        if type(x) is BatchTracer and x._trace is self:
            return x.value, x.dim
        return x, None

    def pack(self, value: Value, dim: int | None) -> Value:
        """A tracer, or the value alone where it is the same for all lanes."""
        return value if dim is None else BatchTracer(self, value, dim)

    def process(self, prim: Primitive, args: tuple, params: dict) -> Result:
        values: list[Any] = []
        dims: list[int | None] = []
        mapped = False
        for a in args:
            if type(a) is BatchTracer and a._trace is self:
                values.append(a.value)
                dims.append(a.dim)
                mapped = True
            else:
                values.append(a)
                dims.append(None)
        assert self.parent is not None
        if not mapped and self.axis.name not in axis_names(params):
            return self.parent.process(prim, args, params)
        out = self.known(prim, args, params, values, dims)
        if out is not None:
            return out
        before = context.current()
        try:
            context.switch(self.below())
            out, out_dims = prim.batched(self.axis, values, dims, params)
        finally:
            context.switch(before)
        if prim.multiple:
            return [self.pack(v, d) for v, d in zip(out, out_dims, strict=True)]
        return self.pack(out, out_dims)

    def known(
        self, prim: Primitive, args: tuple, params: dict, values: list, dims: list
    ) -> Value | None:
        """The result of an operation that was met before, where what its rule does is known (see
        `replay`); None where the rule is to be applied."""
        return None

    def process_custom(self, call: CustomCall, args: tuple) -> list:
        pairs = [self.unpack(a) for a in args]
        dims = [d for _, d in pairs]
        assert self.parent is not None
        if all(d is None for d in dims) and not self._reached_by(call, args):
            return self.parent.process_custom(call, args)
        outs = self.parent.process_custom(call.batched(self.axis, dims), tuple(v for v, _ in pairs))
        return [self.pack(o, 0) for o in outs]

    def _reached_by(self, call: CustomCall, args: tuple) -> bool:
        """Whether a function of arguments that aren't mapped depends on the axis by its name."""
        if self.axis.name is None:
            return False
        try:
            jaxpr, _ = stage(call.fun, [aval_of(a) for a in args])
        except ConcretizationError:
            return False
        return self.axis.name in jaxpr_axis_names(jaxpr)


def batched_by(
    trace: BatchTrace, fun: Callable, args: Values, dims: BatchDims
) -> tuple[list, list]:
    """Results of a function of flat arguments under a trace, with their batch axes."""
    before = ctx = context.current()
    if trace.axis.name is not None:
        ctx = ctx.replace(axes={**ctx.axes, trace.axis.name: trace.axis.size})
    try:
        context.switch(ctx.with_trace(trace))
        outs = fun(*[trace.pack(a, d) for a, d in zip(args, dims, strict=True)])
        pairs = [trace.unpack(o) for o in outs]
    finally:
        context.switch(before)
        trace.end()
    return [v for v, _ in pairs], [d for _, d in pairs]


def axis_names(params: dict) -> frozenset:
    """The named axes that an op with these parameters reaches, itself or in its programs."""
    names = set(params.get("axis_name", ()))
    for p in params.values():
        for j in p if isinstance(p, tuple) else (p,):
            if isinstance(j, Jaxpr):
                names |= jaxpr_axis_names(j)
    names.discard(None)
    return frozenset(names)


def jaxpr_axis_names(jaxpr: Jaxpr) -> frozenset:
    """The named axes that a program reaches."""
    return jaxpr.derive(
        "axis_names", lambda: frozenset().union(*(axis_names(e.params) for e in jaxpr.eqns))
    )
