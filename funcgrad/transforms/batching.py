"""Batching: each value may carry a batch axis, each op maps over it by its batching rule.

Under `BatchTrace` a tracer is a value with an axis more than it shows. Named axes are how
collectives (`psum`, `axis_index`, …) reach across the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import stage, stage_closed
from funcgrad.core.trace import Trace, Tracer, aval_of
from funcgrad.errors import ConcretizationError
from funcgrad.ops.base import batch_front


class BatchAxis(NamedTuple):
    """The axis that is mapped: its name (or None) and size, and the mesh axes that cut it."""

    name: Any
    size: int
    spmd: tuple[str, ...] = ()


class BatchTracer(Tracer):
    """One lane's view of a value that has a batch axis."""

    __slots__ = ("dim", "value")

    def __init__(self, trace: Trace, value: Any, dim: int):
        self._trace = trace
        self.value = value
        self.dim = dim
        full = aval_of(value)
        shape = full.shape[:dim] + full.shape[dim + 1 :]
        self.aval = ShapedArray(shape, full.dtype, full.weak_type)
        self.source = None

    def origin(self) -> str:
        return f"It differs along the axis that {self._trace.what} maps."


class BatchTrace(Trace):
    """Maps every operation over the batch axis."""

    what = "vmap"

    def __init__(self, parent: Trace, axis: BatchAxis):
        super().__init__(parent)
        self.axis = axis

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
        token = context.push(self.below())
        try:
            out, out_dims = prim.batched(self.axis, values, dims, params)
        finally:
            context.pop(token)
        if prim.multiple:
            return [self.pack(v, d) for v, d in zip(out, out_dims, strict=True)]
        return self.pack(out, out_dims)

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
    ctx = context.current()
    trace = BatchTrace(ctx.trace, axis)
    if axis.name is not None:
        ctx = ctx.replace(axes={**ctx.axes, axis.name: axis.size})
    token = context.push(ctx)
    try:
        with trace.active():
            outs = fun(*(trace.pack(a, d) for a, d in zip(args, dims, strict=True)))
            pairs = [trace.unpack(o) for o in outs]
    finally:
        context.pop(token)
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
