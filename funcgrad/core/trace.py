"""Traces and tracers: how a transform sees the operations of a running Python function.

The current trace gets every operation. It unpacks the tracers that are its own, applies its rule,
and leaves the operations of that rule to its parent; the root trace evaluates. A tracer that meets
a trace it doesn't belong to is a value like any other, unless its own trace has ended: a leak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context, source
from funcgrad.core.aval import ShapedArray, scalar_dtype
from funcgrad.core.methods import ArrayMethods, fact
from funcgrad.core.primitive import Primitive
from funcgrad.core.types import CustomCall, DTypeLike, Result, Scalar, Value
from funcgrad.errors import (
    ConcretizationError,
    DifferentiationError,
    LeakedTracerError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    asked,
)

if TYPE_CHECKING:
    from funcgrad.core.refs import Cell, Ref


class Trace:
    """One active transformation; `parent` gets the operations of its rules."""

    what = "a transformation"
    # Of a trace that writes a program, the cells of mutable arrays from outside (see `refs`).
    cells: dict[int, Cell] | None = None

    def __init__(self, parent: Trace | None):
        self.parent = parent
        self.live = True
        self._seen: context.Context | None = None
        self._below: Any = None

    def process(self, prim: Primitive, args: tuple, params: dict) -> Result:
        """Apply `prim` to values and tracers as this transformation means it."""
        raise NotImplementedError

    def process_custom(self, call: CustomCall, args: tuple) -> list:
        """Apply a function that has its own derivative rule (see `transforms.derivatives.custom`):
        where nothing is differentiated, just the function."""
        with self.current():
            return call.fun(*args)

    def ready1(self, ctx: context.Context, of: Primitive | Callable, x: Value) -> Value | None:
        """The result of an operation without parameters, or of a recorded function, on one operand
        as a user gave it, where this trace has found out what it does with such; else None. `ctx`
        is the current context, whose trace this is."""
        return None

    def ready2(
        self, ctx: context.Context, of: Primitive | Callable, x: Value, y: Value
    ) -> Value | None:
        """As `ready1`, of two operands, one of which may be a number."""
        return None

    def owns_value(self, x: Value) -> bool:
        """Whether a value means something only under this trace."""
        return isinstance(x, Tracer) and x._trace is self

    def cell_of(self, ref: Ref) -> Cell:
        """The cell of a mutable array from outside, where this trace writes a program."""
        raise NotImplementedError

    def replayed(self, fun: Callable, args: tuple, kwargs: dict) -> Value | None:
        """The result of a function of the library that this trace knows as one operation (see
        `transforms.recorded`); None where it is to be traced op by op."""
        return None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current trace for a block, after which its tracers are dead."""
        try:
            with self.current():
                yield
        finally:
            self.end()

    def end(self) -> None:
        """Let the tracers be dead: after the block of `active`, which an interrupt can't keep from
        it in a `finally`, as it can with a `with`."""
        self.live = False
        self._seen = self._below = None  # they hold the trace, and so all that it holds

    def below(self) -> context.Context:
        """The current context under the parent trace: that of this trace's rules."""
        ctx = context.current()
        if ctx is not self._seen:
            self._below, self._seen = ctx.with_trace(self.parent), ctx  # type: ignore[arg-type]
        return self._below

    def current(self) -> AbstractContextManager[None]:
        """Make this the current trace for a block: for the operations of a rule."""
        return context.under(context.current().with_trace(self))


class Tracer(ArrayMethods):
    """A value inside a transformation: behaves like an array, knows its shape and dtype."""

    __slots__ = ("__weakref__", "_trace", "aval", "source")

    _trace: Trace
    aval: ShapedArray
    source: source.Source | None

    shape = fact("shape", lambda self: self.aval.shape)
    dtype = fact("dtype", lambda self: self.aval.dtype)
    ndim = fact("ndim", lambda self: len(self.aval.shape))
    size = fact("size", lambda self: self.aval.size)
    nbytes = fact("nbytes", lambda self: self.aval.nbytes)
    weak_type = fact("weak_type", lambda self: self.aval.weak_type)

    def concrete(self) -> Value | None:
        """The array behind the tracer where its value is known, else None."""
        return None

    def origin(self) -> str:
        """A sentence on where the value comes from, for errors."""
        return f"The value is traced by {self._trace.what}."

    def _known(self, error: type[ConcretizationError], wanted: str, instead: str) -> Value:
        if not self._trace.live:
            raise leak_error(self)
        value = self.concrete()
        if value is not None:
            return value
        raise error(
            f"{wanted}, but the value {self.aval} is unknown while the function is traced. "
            f"{self.origin()}{_place()}\n{instead}"
        )

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of a 0-d array")
        return self.aval.shape[0]

    def __bool__(self) -> bool:
        return bool(
            self._known(
                TracerBoolConversionError,
                "Python needs True or False (an if, while, and, or, not, assert)",
                "Use fnp.where, lax.select, lax.cond or lax.while_loop for a choice on values, or "
                "make the argument static: jit(f, static_argnames=...).",
            )
        )

    def _converted(self, kind: type, error: type = ConcretizationError) -> Scalar:
        advice = f"For an array of another dtype, try using `x.astype({kind.__name__})`. {_STATIC}"
        return kind(self._known(error, f"{kind.__name__}() needs a value", advice))

    def __int__(self) -> int:
        return self._converted(int, TracerIntegerConversionError)

    def __index__(self) -> int:
        wanted = "Python needs an integer (an index, a length, range())"
        value = self._known(TracerIntegerConversionError, wanted, _STATIC)
        return value.__index__()

    def __float__(self) -> float:
        return self._converted(float)

    def __complex__(self) -> complex:
        return self._converted(complex)

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray:
        # Also where the value is known: what NumPy computed of it would have no derivative.
        if not self._trace.live:
            raise leak_error(self)
        raise TracerArrayConversionError(
            f"NumPy was given the value {self.aval}, which it can't follow. {self.origin()}"
            f"{_place()}\nUse funcgrad.numpy in place of numpy inside transformed functions, and "
            "x.astype(dtype) in place of fnp.float32(x)."
        )

    def item(self, *args: Any) -> Scalar:
        """The element as a Python scalar, where its value is known."""
        value = self._known(ConcretizationError, "item() needs a value", _STATIC)
        return np.asarray(value).item(*args)

    def tolist(self) -> Scalar | list:
        """The elements as nested lists, where their values are known."""
        value = self._known(ConcretizationError, "tolist() needs values", _STATIC)
        return np.asarray(value).tolist()

    def __format__(self, spec: str) -> str:
        value = self.concrete() if self._trace.live and spec else None
        return repr(self) if value is None else format(value, spec)

    def __repr__(self) -> str:
        return f"Traced<{self.aval}> by {self._trace.what}"

    def __deepcopy__(self, memo: dict) -> Tracer:
        return self

    def __copy__(self) -> Tracer:
        return self


def _place() -> str:
    """A line on where the user's program stands, for errors."""
    return f"\nAt {place}: {place.text}" if (place := source.here()) else ""


_STATIC = (
    "Pass the argument as static (jit(f, static_argnums=...) or static_argnames=...) if the "
    "program may depend on its value, or stay within funcgrad.numpy."
)


def leak_error(tracer: Tracer) -> LeakedTracerError:
    """The error for a tracer used after its transformation ended, naming variable and line."""
    held = f"the variable `{n}`" if (n := source.variable_holding(tracer)) else "a variable"
    origin, place = tracer.source, source.here()
    made = f" It was created on line {origin}: {origin.text}." if origin else ""
    used = f" It is used at {place}: {place.text}." if place else ""
    return LeakedTracerError(
        f"{held} holds a tracer {tracer.aval} that leaked out of {tracer._trace.what}, which has "
        f"ended.{made}{used}\nReturn the value from the transformed function instead of storing "
        "it outside (in a global, a closure, an attribute or a list)."
    )


def captured_error(tracer: Tracer) -> DifferentiationError:
    """The error for a live tracer that a rule's function closes over, below its transformation."""
    name = source.variable_holding(tracer)
    return DifferentiationError(
        f"a function with a custom derivative rule, or a solver, closes over "
        f"{f'the variable `{name}`' if name else 'a value'} ({tracer.aval}) that is traced by "
        f"{tracer._trace.what}; the rule can't see it. Pass it as an argument "
        "(funcgrad.closure_convert makes captured values arguments)."
    )


def is_known(value: Value) -> bool:
    """Whether a value can be looked at: no tracer, or one whose value is there (under grad).

    >>> is_known(3.0)
    True
    """
    return not isinstance(value, Tracer) or value.concrete() is not None


def aval_of(value: Value) -> ShapedArray:
    """The abstract value of an array, tracer, numpy array or Python scalar."""
    try:
        return value.aval
    except AttributeError:
        pass
    if isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic):
        return ShapedArray((), scalar_dtype(value), weak_type=type(value) is not bool)
    if isinstance(value, np.ndarray | np.generic):
        return ShapedArray(value.shape, value.dtype, type(value) in dtypes.NUMBERS)
    raise TypeError(f"{asked(value)}not an array, a scalar or a tracer: {value!r} of {type(value)}")
