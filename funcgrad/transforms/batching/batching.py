"""Batching: each value may carry a batch axis, each op maps over it by its batching rule.

Under `BatchTrace` a tracer is a value with an axis more than it shows. Named axes are how
collectives (`psum`, `axis_index`, …) reach across the batch. What the rule of an operation met
again makes of its operands' types is found ready, as a list of NumPy calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.eager.numpy_calls import numpy_calls
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.primitive import Primitive, exact_params
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.staging import stage, stage_closed
from funcgrad.core.trace import Trace, Tracer, aval_of
from funcgrad.errors import ConcretizationError
from funcgrad.ops.base import batch_front
from funcgrad.transforms.passes.simplify import simplify
from funcgrad.transforms.recorded import (
    AS_IT_IS,
    MET,
    NUMBERS,
    add_static,
    at_root,
    program,
    takes_numbers,
)

_BATCHED = "batched"  # what the keys of rules begin with, among what a context knows of types


class BatchAxis(NamedTuple):
    """The axis that is mapped: its name (or None) and size, and the mesh axes that cut it."""

    name: Any
    size: int
    spmd: tuple[str, ...] = ()


class BatchTracer(Tracer):
    """One lane's view of a value that has a batch axis."""

    __slots__ = ("dim", "kind", "value")

    def __init__(self, trace: Trace, value: Any, dim: int, rule: BatchedRule | None = None):
        self._trace = trace
        self.value = value
        self.dim = dim
        self.source = None
        if rule is None:
            self.aval = _of_a_lane(aval_of(value), dim)
            self.kind = _kind(value, dim)
        else:
            self.aval, self.kind = rule.lane, rule.kind

    def origin(self) -> str:
        return f"It differs along the axis that {self._trace.what} maps."


def _of_a_lane(full: ShapedArray, dim: int) -> ShapedArray:
    return ShapedArray(full.shape[:dim] + full.shape[dim + 1 :], full.dtype, full.weak_type)


def _kind(value: Any, dim: int | None) -> tuple | None:
    """The type and batch axis of an operand in the keys of rules; None for what is no Array."""
    if type(value) is not Array:
        return None
    x = value._value
    return x.shape, x.dtype, value.weak_type, dim


class BatchedRule(NamedTuple):
    """An operation on operands of certain types and batch axes: run(*values) → [the result], its
    type, its batch axis (None: it is the same for all), the type of a lane, and both in keys."""

    run: Callable[..., Sequence]
    aval: ShapedArray
    dim: int | None
    lane: ShapedArray
    kind: tuple | None


class BatchTrace(Trace):
    """Maps every operation over the batch axis."""

    what = "vmap"

    def __init__(self, parent: Trace, axis: BatchAxis):
        super().__init__(parent)
        self.axis = axis
        # Whether operations are evaluated at once, and know no more of the axis than its size.
        self._plain = at_root() and axis.name is None and not axis.spmd

    def unpack(self, x: Any) -> tuple[Any, int | None]:
        """A value and its batch axis as this trace sees them."""
        if type(x) is BatchTracer and x._trace is self:
            return x.value, x.dim
        return x, None

    def pack(self, value: Any, dim: int | None) -> Any:
        """A tracer, or the value alone where it is the same for all lanes."""
        return value if dim is None else BatchTracer(self, value, dim)

    def process(self, prim: Primitive, args: tuple, params: dict) -> Any:
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
        if self._plain and prim.partial is None and not (prim.multiple or prim.effect):
            key = [_BATCHED, prim, *map(_kind, values, dims)]
            if params:
                key += exact_params(params)
            out = self._found(key, prim.bind, args, params, values, dims)
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

    def ready1(self, ctx: context.Context, of: Any, x: Any) -> Any:
        if not self._plain or type(x) is not BatchTracer or x._trace is not self:
            return None
        return self._applied(ctx, ctx.types.get((_BATCHED, of, x.kind)), (x.value,))

    def ready2(self, ctx: context.Context, of: Any, x: Any, y: Any) -> Any:
        if not self._plain:
            return None
        x, first = self._seen_in_key(x)
        y, second = self._seen_in_key(y)
        try:
            if second is None and type(y) in NUMBERS and takes_numbers(first):
                y, second = Array(np.asarray(y, first[1])), ((), first[1], False, None)
            elif first is None and type(x) in NUMBERS and takes_numbers(second):
                x, first = Array(np.asarray(x, second[1])), ((), second[1], False, None)
        except OverflowError:  # a number that the dtype can't hold, of which others tell
            return None
        if first is None or second is None or (first[3] is None and second[3] is None):
            return None
        return self._applied(ctx, ctx.types.get((_BATCHED, of, first, second)), (x, y))

    def _seen_in_key(self, x: Any) -> tuple[Any, Any]:
        """A value and its type in keys."""
        if type(x) is BatchTracer and x._trace is self:
            return x.value, x.kind
        return x, _kind(x, None)

    def replayed(self, fun: Callable, args: tuple, kwargs: dict) -> Any:
        if not self._plain:
            return None
        key: list[Any] = [_BATCHED, fun]
        values, dims = [], []
        for a in args:
            if type(a) is BatchTracer or type(a) is Array:
                value, dim = self.unpack(a)
                values.append(value)
                dims.append(dim)
                key.append(_kind(value, dim))
            elif not add_static(key, a):
                return None
        for name, a in kwargs.items():
            key.append(name)
            if not add_static(key, a):
                return None
        if dims.count(None) == len(dims):
            return None
        return self._found(key, fun, args, kwargs, values, dims)

    def _found(
        self, key: list, fun: Callable, args: tuple, kwargs: dict, values: list, dims: list
    ) -> Any:
        """The result of what has a key and is `fun`, by its rule; None where that isn't known, as
        of what wasn't met before."""
        found, ctx = tuple(key), context.current()
        try:
            rule = ctx.types.get(found)
        except TypeError:  # a parameter that has no hash
            return None
        if type(rule) is not BatchedRule:
            if rule is AS_IT_IS or not all(type(v) is Array and v._gone is None for v in values):
                return None
            below = self.below()
            if rule is None:
                below.keep(found, MET)
                return None
            before = context.current()
            try:
                context.switch(below)
                rule = self._rule(fun, args, kwargs, values, dims)
            finally:
                context.switch(before)
            below.keep(found, AS_IT_IS if rule is None else rule)
        return self._applied(ctx, rule, values)

    def _applied(self, ctx: context.Context, rule: Any, values: Sequence[Any]) -> Any:
        """The result by a rule; None where there is none, or it may not be used."""
        if type(rule) is not BatchedRule or ctx.debug_nans:
            return None
        for v in values:
            if v._gone is not None:
                return None
        before = errors()
        try:
            quiet()
            out = rule.run(*[v._value for v in values])[0]
        finally:
            loud(before)
        made = Array(out, rule.aval.weak_type, rule.aval)
        return made if rule.dim is None else BatchTracer(self, made, rule.dim, rule)

    def _rule(
        self, fun: Callable, args: tuple, kwargs: dict, values: list, dims: list
    ) -> BatchedRule | None:
        operand = [isinstance(a, Array | Tracer) for a in args]
        out_dims: list = []

        def batched(*xs: Any) -> Any:
            def lane(*lanes: Any) -> list:
                given = iter(lanes)
                whole = (next(given) if m else a for a, m in zip(args, operand, strict=True))
                return [fun(*whole, **kwargs)]

            (out,), out_dims[:] = batch_flat(lane, self.axis, xs, dims)
            return out

        jaxpr = program(batched, values, {})
        if jaxpr is None:
            return None
        (dim,), aval = out_dims, jaxpr.outs[0].aval
        lane = aval if dim is None else _of_a_lane(aval, dim)
        kind = aval.shape, aval.dtype, aval.weak_type, dim
        return BatchedRule(numpy_calls(simplify(jaxpr)), aval, dim, lane, kind)

    def process_custom(self, call: Any, args: tuple) -> list:
        pairs = [self.unpack(a) for a in args]
        dims = [d for _, d in pairs]
        assert self.parent is not None
        if all(d is None for d in dims) and not self._reached_by(call, args):
            return self.parent.process_custom(call, args)
        outs = self.parent.process_custom(call.batched(self.axis, dims), tuple(v for v, _ in pairs))
        return [self.pack(o, 0) for o in outs]

    def _reached_by(self, call: Any, args: tuple) -> bool:
        """Whether a function of arguments that aren't mapped depends on the axis by its name."""
        if self.axis.name is None:
            return False
        try:
            jaxpr, _ = stage(call.fun, [aval_of(a) for a in args])
        except ConcretizationError:
            return False
        return self.axis.name in jaxpr_axis_names(jaxpr)


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


def batch_flat(
    fun: Callable[..., Sequence[Any]],
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
) -> tuple[list, list]:
    """Map a function of flat arguments; results with their batch axes (None: the same for all)."""
    before = ctx = context.current()
    trace = BatchTrace(before.trace, axis)
    if axis.name is not None:
        ctx = ctx.replace(axes={**ctx.axes, axis.name: axis.size})
    try:
        context.switch(ctx.with_trace(trace))
        outs = fun(*[trace.pack(a, d) for a, d in zip(args, dims, strict=True)])
        pairs = [trace.unpack(o) for o in outs]
    finally:
        context.switch(before)
        trace.end()
    return [v for v, _ in pairs], [d for _, d in pairs]


def batch_jaxpr(
    jaxpr: Jaxpr,
    axis: BatchAxis,
    dims: Sequence[int | None],
    force: Sequence[bool] | bool = False,
) -> tuple[Jaxpr, list[bool]]:
    """The program of batched inputs. Batched results have the batch axis first; a mask tells which
    are (those of `force` are made so)."""
    forced = (force,) * len(jaxpr.outs) if isinstance(force, bool) else tuple(force)
    key = ("batch", axis, tuple(dims), forced)
    return jaxpr.derive(key, lambda: _batch_jaxpr(jaxpr, axis, dims, forced))


def _batch_jaxpr(jaxpr: Jaxpr, axis: BatchAxis, dims: Any, forced: Any) -> tuple:
    mask: list[bool] = []

    def fun(*args: Any) -> list:
        outs, out_dims = batch_flat(lambda *xs: eval_jaxpr(jaxpr, *xs), axis, args, dims)
        mask.extend(f or d is not None for f, d in zip(forced, out_dims, strict=True))
        return [
            batch_front(o, d, axis.size) if m else o
            for o, d, m in zip(outs, out_dims, mask, strict=True)
        ]

    avals = [
        a if d is None else a.update(shape=(*a.shape[:d], axis.size, *a.shape[d:]))
        for a, d in zip(jaxpr.in_avals, dims, strict=True)
    ]
    return stage_closed(fun, avals, "a batched program"), mask
