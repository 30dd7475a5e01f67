"""Functions of the library that are written down once for each type of their operands.

Such a function is of arrays alone, beside static arguments, and does the same whatever their values
are. Where it is evaluated op by op, what it does is recorded at its second call with operands like
these (at the first one with large operands, when it may be compiled, unless it was for many other
static arguments), and then replayed; a gradient's tape takes it as one operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import with_constants
from funcgrad.core.display.tracebacks import hide_frames
from funcgrad.core.eager.calls import calls, is_large
from funcgrad.core.eager.functions import MOMENTS, EagerFunction, Recipe, consider, counter
from funcgrad.core.evaluation import EvalTrace
from funcgrad.core.ir import Jaxpr, Literal
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.staging import stage
from funcgrad.core.trace import Tracer
from funcgrad.core.types import Param, Value, Values
from funcgrad.errors import FuncgradError
from funcgrad.transforms.passes.simplify import simplify

MET, AS_IT_IS = "met once", "as it is"  # what is known of a function beside its recording
MOST_COMPILED = 16  # static arguments with which a function of such large operands is recorded
_COMPILED = "compiled"  # begins keys of how many there were
_ALONE = "_alone"  # an attribute of functions
_APART = EvalTrace(None)  # evaluates as the root does, but recorded functions are just run
_PLAIN = frozenset({type(None), bool, int, str, type})


class Recording(NamedTuple):
    """What a function does with operands of certain types: run(*values) → [the result]."""

    aval: ShapedArray
    run: Callable[..., Sequence]
    jaxpr: Jaxpr


def at_root() -> bool:
    """Whether nothing but evaluation goes on, of arrays in one piece."""
    ctx = context.current()
    return ctx.trace is context.ROOT.trace and not (
        ctx.checks or ctx.axes or ctx.manual or ctx.communicators
    )


def recorded(fun: Callable, alone: bool = False) -> Callable:
    """Decorates a function of the library with one result: its operands are the arrays among its
    positional arguments, and no operation that it does depends on their values. `alone` tells of a
    function that is one operation: it is not compiled, and calls no other recorded function.

    >>> import funcgrad.numpy as fnp
    >>> @recorded
    ... def add(x, n):
    ...     print("run")
    ...     return x + n
    >>> x = fnp.ones(1)
    >>> add(x, 2), add(x, 2), add(x, 2)
    run
    run
    (Array([3.], dtype=float32), Array([3.], dtype=float32), Array([3.], dtype=float32))
    """
    vars(fun)[_ALONE] = alone

    def by_python(*args: Any, **kwargs: Any) -> Value:
        ctx = context.current()
        if ctx.trace is context.ROOT.trace:
            out = _replayed(ctx, fun, args, kwargs)
        else:
            out = None
            if not kwargs:  # the most frequent calls, of operands alone: a number may be static
                if len(args) == 1:
                    out = ctx.trace.ready1(ctx, fun, args[0])
                elif (
                    len(args) == 2 and type(args[0]) not in NUMBERS and type(args[1]) not in NUMBERS
                ):
                    out = ctx.trace.ready2(ctx, fun, *args)
            if out is None:
                out = ctx.trace.replayed(fun, args, kwargs)
        return fun(*args, **kwargs) if out is None else out

    swift = EagerFunction(by_python, functools.partial(recipe, fun))

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Value:
        try:
            return swift.call(*args, **kwargs)
        except Exception as e:
            hide_frames(e)
            raise

    vars(call)["swift"] = swift
    return call


def _replayed(ctx: context.Context, fun: Callable, args: tuple, kwargs: dict) -> Array | None:
    values: Sequence[np.ndarray] = ()
    found: tuple = ()
    if not kwargs and len(args) == 1 and type(x := args[0]) is Array:  # the most frequent calls
        a = x._value
        found, values = (fun, a.shape, a.dtype, x.weak_type), (a,)
        alive = x._gone is None
    elif not kwargs and len(args) == 2 and type(x := args[0]) is type(y := args[1]) is Array:
        a, b = x._value, y._value
        found = (fun, a.shape, a.dtype, x.weak_type, b.shape, b.dtype, y.weak_type)
        values = (a, b)
        alive = x._gone is None and y._gone is None
    else:
        key: list[Any] = [fun]
        if not _add_all(key, args, kwargs):
            return None
        operands = [x for x in args if type(x) is Array]
        found, values = tuple(key), [x._value for x in operands]
        alive = all(x._gone is None for x in operands)
    try:
        known = ctx.types.get(found)
    except TypeError:  # a static argument that has no hash
        return None
    if not alive or not values or ctx.checks:
        return None
    if type(known) is not Recording:
        known = _met(ctx, found, known, fun, args, kwargs)
        if not isinstance(known, Recording):
            return known
    if next(counter) in MOMENTS:
        consider()
    aval, run, _ = known
    before = errors()
    try:
        quiet()
        out = run(*values)[0]
    finally:
        loud(before)
    return Array(out, aval.weak_type, aval)


def recipe(fun: Callable, ctx: context.Context, args: tuple, kwargs: dict) -> Recipe | None:
    """What a function that is `recorded` does with such arguments, if it met them before."""
    key: list[Any] = [fun]
    try:
        known = ctx.types.get(tuple(key)) if _add_all(key, args, kwargs) else None
    except TypeError:  # a static argument that has no hash
        return None
    if type(known) is not Recording:
        return None
    places = [i for i, x in enumerate(args) if type(x) is Array]
    jaxpr = known.jaxpr
    if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].outs != jaxpr.outs or is_large(jaxpr.in_avals):
        return Recipe(known.aval, places, run=known.run)
    (eqn,) = jaxpr.eqns
    if eqn.prim.multiple:
        return Recipe(known.aval, places, run=known.run)
    at = dict(zip(jaxpr.ins, places, strict=True))
    operands = [a.value if isinstance(a, Literal) else at[a] for a in eqn.ins]
    aval, impl = ctx.evaluation(eqn.prim, [a.aval for a in eqn.ins], eqn.params)
    if aval.update(weak_type=known.aval.weak_type) != known.aval:
        return Recipe(known.aval, places, run=known.run)
    # What stood around the operation may have settled whether the result is of a weak type.
    return Recipe(known.aval, operands, impl, eqn.params)


def _add_all(key: list, args: tuple, kwargs: dict) -> bool:
    for x in args:
        if type(x) is Array:
            key += x._value.shape, x._value.dtype, x.weak_type
        elif not add_static(key, x):
            return False
    for name, x in kwargs.items():
        key.append(name)
        if not add_static(key, x):
            return False
    return True


def _met(
    ctx: context.Context, key: tuple, known: object, fun: Callable, args: tuple, kwargs: dict
) -> Recording | Array | None:
    """The recording of a function that was met before, or whose operands are large; else the result
    of its first call, or None where it is just to be run."""
    alone = vars(fun)[_ALONE]
    if known is None and (alone or not is_large(x._value for x in args if type(x) is Array)):
        ctx.keep(key, MET)
        if alone:
            return None
        # Those that it calls may have large operands and be compiled, when it won't be.
        before = context.current()
        try:
            context.switch(ctx.with_trace(_APART))
            return fun(*args, **kwargs)
        finally:
            context.switch(before)
    if known is not AS_IT_IS:
        traced = None if not alone and _changes(ctx, fun, args) else program(fun, args, kwargs)
        if traced is not None:
            compiling = not alone and is_large(traced.in_avals)
            jaxpr = simplify(traced)
            run = calls(jaxpr, compiling, fun.__name__)
            return ctx.keep(key, Recording(traced.outs[0].aval, run, jaxpr))
        ctx.keep(key, AS_IT_IS)
    return None


def _changes(ctx: context.Context, fun: Callable, args: tuple) -> bool:
    """Whether a function was compiled so often for large operands like these that its static
    arguments, a number that follows a schedule perhaps, seem to differ from call to call."""
    avals = [x.aval for x in args if type(x) is Array]
    if not is_large(avals):
        return False
    key = (_COMPILED, fun, *avals)
    times = ctx.types.get(key, 0)
    if times < MOST_COMPILED:
        ctx.keep(key, times + 1)
    return times >= MOST_COMPILED


# Numbers that beside an operand of floats, whose dtype isn't weak, take that dtype.
NUMBERS = frozenset({float, int})


def takes_numbers(kind: tuple | None) -> TypeGuard[tuple]:
    """Whether an operand of a type (shape, dtype, weak) gives its dtype to a number beside it."""
    return kind is not None and kind[1].kind in "fc" and not kind[2]


def add_static(key: list, argument: Param) -> bool:
    """Add an argument that is no operand to a key; False where it can't be part of one."""
    kind = type(argument)
    if kind in _PLAIN:
        key += kind, argument
    elif kind is float:
        key.append(argument.hex())  # which tells -0.0 from 0.0, and makes NaN equal to itself
    elif kind is tuple:  # item by item: (1,) == (1.0,) == (True,)
        key += tuple, len(argument)
        return all(add_static(key, x) for x in argument)
    elif isinstance(argument, np.dtype):
        key += np.dtype, argument
    else:
        return False
    return True


def program(fun: Callable, args: Values, kwargs: dict[str, object]) -> Jaxpr | None:
    """What a function does with operands like the arrays among these arguments, None where that
    depends on their values."""
    operands = [isinstance(a, Array | Tracer) for a in args]

    def flat(*xs: Any) -> list:
        given = iter(xs)
        whole = (next(given) if m else a for a, m in zip(args, operands, strict=True))
        return [fun(*whole, **kwargs)]

    avals = [a.aval for a, m in zip(args, operands, strict=True) if m]
    try:
        jaxpr, captured = stage(flat, avals, "a recording")
    except FuncgradError:
        return None
    if any(isinstance(c, Tracer) for c in captured):
        return None
    return with_constants(jaxpr, captured)
