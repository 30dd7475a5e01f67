"""Batching without `jit`: what rules do is found out once for types, and done as NumPy calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.eager.numpy_calls import numpy_calls
from funcgrad.core.primitive import Primitive, exact_params
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.trace import Tracer
from funcgrad.core.types import Value, Values
from funcgrad.transforms.batching.trace import (
    BatchTrace,
    BatchTracer,
    batched_by,
    of_a_lane,
)
from funcgrad.transforms.passes.simplify import simplify
from funcgrad.transforms.recorded import (
    AS_IT_IS,
    MET,
    NUMBERS,
    add_static,
    program,
    takes_numbers,
)

_BATCHED = "batched"  # what the keys of rules begin with, among what a context knows of types


def _kind(value: Value, dim: int | None) -> tuple | None:
    """The type and batch axis of an operand in the keys of rules; None for what is no Array."""
    if type(value) is not Array:
        return None
    x = value._value
    return x.shape, x.dtype, value.weak_type, dim


class BatchedRule(NamedTuple):
    """An operation on operands of certain types and batch axes: run(*values) → [the result], its
    type, its batch axis (None: it is the same for all), and the type of a lane."""

    run: Callable[..., Sequence]
    aval: ShapedArray
    dim: int | None
    lane: ShapedArray


class ReplayingBatchTrace(BatchTrace):
    """A `BatchTrace` whose parent evaluates at once, of an axis of which only the size matters."""

    def known(
        self, prim: Primitive, args: tuple, params: dict, values: list, dims: list
    ) -> Value | None:
        if prim.partial is not None or prim.multiple or prim.effect:
            return None
        key = [_BATCHED, prim, *map(_kind, values, dims)]
        if params:
            key += exact_params(params)
        return self._found(key, prim.bind, args, params, values, dims)

    def ready1(self, ctx: context.Context, of: Primitive | Callable, x: Value) -> Value | None:
        if type(x) is not BatchTracer or x._trace is not self:
            return None
        return self._applied(ctx, ctx.types.get((_BATCHED, of, _kind(x.value, x.dim))), (x.value,))

    def ready2(
        self, ctx: context.Context, of: Primitive | Callable, x: Value, y: Value
    ) -> Value | None:
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

    def _seen_in_key(self, x: Value) -> tuple[Value, tuple | None]:
        """A value and its type in keys."""
        if type(x) is BatchTracer and x._trace is self:
            return x.value, _kind(x.value, x.dim)
        return x, _kind(x, None)

    def replayed(self, fun: Callable, args: tuple, kwargs: dict) -> Value | None:
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
    ) -> Value | None:
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

    def _applied(self, ctx: context.Context, rule: object, values: Values) -> Value | None:
        """The result by a rule; None where there is none, or it may not be used."""
        if type(rule) is not BatchedRule or ctx.checks:
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
        return made if rule.dim is None else BatchTracer(self, made, rule.dim, rule.lane)

    def _rule(
        self, fun: Callable, args: tuple, kwargs: dict, values: list, dims: list
    ) -> BatchedRule | None:
        operand = [isinstance(a, Array | Tracer) for a in args]
        out_dims: list = []

        def batched(*xs: Any) -> Value:
            def lane(*lanes: Any) -> list:
                given = iter(lanes)
                whole = (next(given) if m else a for a, m in zip(args, operand, strict=True))
                return [fun(*whole, **kwargs)]

            inner = BatchTrace(context.current().trace, self.axis)
            (out,), out_dims[:] = batched_by(inner, lane, xs, dims)
            return out

        jaxpr = program(batched, values, {})
        if jaxpr is None:
            return None
        (dim,), aval = out_dims, jaxpr.outs[0].aval
        lane = aval if dim is None else of_a_lane(aval, dim)
        return BatchedRule(numpy_calls(simplify(jaxpr)), aval, dim, lane)
