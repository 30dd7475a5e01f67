"""Traced values that the functions of a custom rule close over, as arguments of its call.

A rule runs later than the function it belongs to, or on other values: lanes of a batch, inputs of a
program. What its functions close over has to come along. It is found where Python keeps it, and
another value takes its place by writing the function down as a program of which it is an input.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core import context
from funcgrad.core.aval import Linear, Zero
from funcgrad.core.dce import dce_jaxpr
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.staging import is_reached, stage
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.core.types import Cotangent, Cotangents, Operands, Tangents, Values
from funcgrad.errors import ConcretizationError
from funcgrad.ops.base import instantiate
from funcgrad.transforms.control.custom_call import JVPCall, VJPCall, captured_error
from funcgrad.transforms.passes.simplify import inline_calls


def captured_by(*functions: Any) -> list[Tracer]:
    """The tracers that functions close over: in cells, defaults and bound arguments, also through
    other functions, trees and attributes of objects.

    >>> captured_by(lambda x: x)
    []
    """
    seen: dict[int, Any] = {}
    todo = list(functions)
    while todo:
        x = todo.pop()
        if id(x) not in seen:
            seen[id(x)] = x
            todo += _held_by(x)
    # Others have leaked, which is told where they are used.
    trace = context.current().trace
    return [x for x in seen.values() if isinstance(x, Tracer) and is_reached(x, trace)]


def _held_by(x: object) -> list:
    if isinstance(x, types.FunctionType):
        cells = [c.cell_contents for c in x.__closure__ or () if _filled(c)]
        return [*cells, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
    if isinstance(x, types.MethodType):
        return [x.__func__, x.__self__]
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    if hasattr(x, "__wrapped__"):
        return [x.__wrapped__]
    if isinstance(x, type | types.ModuleType):
        return []
    if isinstance(x, dict):  # of any keys: those of a tree would have to be sorted
        return list(x.values())
    leaves = tree.leaves(x)
    return leaves if not leaves or leaves[0] is not x else [getattr(x, "__dict__", None)]


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that is yet to be set
        return False


def with_captured(call: JVPCall | VJPCall, captured: Sequence[Tracer]) -> JVPCall | VJPCall:
    """The call of which the captured values are the last arguments. Its derivative in those that
    the function depends on is refused, as the rule doesn't tell it."""
    n = len(captured)

    def run(fun: Callable, args: Values, values: Values) -> list:
        if all(v is c for v, c in zip(values, captured, strict=True)):
            return fun(*args)
        found: list[Any] = []

        def arrays(*given: Any) -> list:
            found[:] = fun(*given)
            return [x for x in found if not _is_symbolic(x)]

        try:
            jaxpr, consts = stage(arrays, [aval_of(a) for a in args], call.name, held=captured)
        except ConcretizationError:  # it looks at values, which it may if it needs no others
            return fun(*args)
        outs = iter(eval_jaxpr(jaxpr, *values, *consts[n:], *args))
        return [x if _is_symbolic(x) else next(outs) for x in found]

    def check(args: Values, varies: Sequence[bool]) -> None:
        if any(varies):
            jaxpr, _ = stage(call.fun, [aval_of(a) for a in args], call.name, held=captured)
            _, used = dce_jaxpr(inline_calls(jaxpr), [True] * len(jaxpr.outs))
            if any(v and u for v, u in zip(varies, used, strict=False)):
                raise captured_error(call.name)

    def fun(*args: Any) -> list:
        return run(call.fun, args[:-n], args[-n:])

    if isinstance(call, JVPCall):
        return _jvp_call(call, fun, run, check, n)
    return _vjp_call(call, fun, run, check, captured)


def _is_symbolic(x: Cotangent) -> bool:
    return x is None or type(x) is Zero


def _jvp_call(call: JVPCall, fun: Callable, run: Callable, check: Callable, n: int) -> JVPCall:
    def jvp(primals: Values, tangents: Tangents) -> tuple[list, list]:
        check(primals[:-n], [type(t) is not Zero for t in tangents[-n:]])
        tangents = tangents[:-n]
        if not call.symbolic_zeros:
            tangents = [instantiate(t) for t in tangents]
        at = len(primals) - n
        given = [t for t in tangents if type(t) is not Zero]

        def both(*flat: Any) -> list:
            rest = iter(flat[at:])
            moves = [t if type(t) is Zero else next(rest) for t in tangents]
            outs, outs_t = call.jvp(flat[:at], moves)
            return [*outs, *outs_t]

        found = run(both, [*primals[:at], *given], primals[at:])
        half = len(found) // 2
        return found[:half], found[half:]

    def transpose(args: Operands, cts: Cotangents) -> list:
        if any(type(a) is Linear for a in args[-n:]):
            raise captured_error(call.name)
        known = [a for a in args[:-n] if type(a) is not Linear]
        given = [c for c in cts if type(c) is not Zero]

        def back(*flat: Any) -> list:
            rest = iter(flat)
            whole = [a if type(a) is Linear else next(rest) for a in args[:-n]]
            assert call.transpose is not None
            return call.transpose(whole, [c if type(c) is Zero else next(rest) for c in cts])

        return [*run(back, [*known, *given], args[-n:]), *[None] * n]

    return JVPCall(call.name, fun, jvp, True, call.transpose and transpose)


def _vjp_call(
    call: VJPCall, fun: Callable, run: Callable, check: Callable, captured: Sequence[Tracer]
) -> VJPCall:
    n = len(captured)

    def fwd(primals: Values, perturbed: Sequence[bool]) -> tuple[list, list]:
        check(primals[:-n], perturbed[-n:])
        count = 0

        def both(*args: Any) -> list:
            nonlocal count
            outs, residuals = call.fwd(args, perturbed[:-n])
            count = len(outs)
            return [*outs, *residuals]

        found = run(both, primals[:-n], primals[-n:])
        return found[:count], [*found[count:], *primals[-n:]]

    def bwd(residuals: Values, cts: Cotangents) -> list:
        at = len(residuals) - n
        given = [c for c in cts if type(c) is not Zero]

        def back(*flat: Any) -> list:
            rest = iter(flat[at:])
            return call.bwd(flat[:at], [c if type(c) is Zero else next(rest) for c in cts])

        found = run(back, [*residuals[:at], *given], residuals[at:])
        return [*found, *(Zero(c.aval.tangent()) for c in captured)]

    return VJPCall(call.name, fun, fwd, bwd, call.forward, call.refs)
