"""Staging: run a Python function on tracers and write down the program it performs.

Every operation is recorded, also on known values. Values the function captures (arrays, or tracers
of enclosing transformations) become leading inputs of the program and are handed back beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.core import context, source
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import with_constants
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, literal
from funcgrad.core.primitive import Primitive
from funcgrad.core.refs import Cell, Ref, settled
from funcgrad.core.trace import CustomCall, Trace, Tracer, aval_of, leak_error
from funcgrad.core.types import Result, Value, Values
from funcgrad.errors import RefError


class JaxprTracer(Tracer):
    """A variable of the program being written."""

    __slots__ = ("_var",)

    def __init__(self, trace: JaxprTrace, var: Var, place: source.Source | None = None):
        self._trace = trace
        self.aval = var.aval
        self._var = var
        self.source = place

    def origin(self) -> str:
        trace = self._trace
        assert isinstance(trace, JaxprTrace)
        names = trace.arguments_behind(self._var)
        if names:
            what = "argument" if len(names) == 1 else "arguments"
            listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            return f"It depends on the {what} {listed} of {trace.what}."
        return f"It is computed inside {trace.what}."


class JaxprTrace(Trace):
    """Records operations as equations."""

    def __init__(self, what: str = "a traced function", names: Sequence[str] | None = None):
        super().__init__(context.current().trace)
        self.what = what
        self.names = names
        self.args: list[Var] = []
        self.eqns: list[Eqn] = []
        self.consts: dict[int, tuple[Value, Value, Var]] = {}
        self.cells: dict[int, Cell] = {}

    def new_arg(self, aval: ShapedArray) -> JaxprTracer:
        """Add an input."""
        var = Var(aval)
        self.args.append(var)
        return JaxprTracer(self, var)

    def cell_of(self, ref: Ref) -> Cell:
        cell = self.cells.get(id(ref))
        if cell is None:
            first = JaxprTracer(self, Var(ref.inner_aval), source.current())
            cell = self.cells[id(ref)] = Cell(ref, self, first)
        return cell

    def atom(self, value: Value) -> Atom:
        """The variable or literal that stands for a value in this program."""
        if type(value) is JaxprTracer and value._trace is self:
            return value._var
        known = self.consts.get(id(value))
        if known is not None:
            return known[-1]
        if isinstance(value, Tracer) and not is_reached(value, self):
            raise leak_error(value)
        if not isinstance(value, Tracer):
            scalar = literal(value)
            if scalar is not None:
                return scalar
        var = Var(aval_of(value))
        # Keeping the value alive keeps its id its own. A numpy array may be written to later; the
        # program holds what it was.
        held = Array(value.copy()) if isinstance(value, np.ndarray) else value
        self.consts[id(value)] = (value, held, var)
        return var

    def process(self, prim: Primitive, args: tuple, params: dict) -> Result:
        atom, ctx, place = self.atom, context.current(), source.current()
        ins = [a._var if type(a) is JaxprTracer and a._trace is self else atom(a) for a in args]
        if prim.multiple:
            outs = [Var(a) for a in prim.abstract(*[a.aval for a in ins], **params)]
            self.eqns.append(Eqn(prim, ins, outs, params, place, ctx.scopes))
            return [JaxprTracer(self, v, place) for v in outs]
        out = Var(ctx.type_of(prim, [a.aval for a in ins], params))
        self.eqns.append(Eqn(prim, ins, (out,), params, place, ctx.scopes))
        return JaxprTracer(self, out, place)

    def process_custom(self, call: CustomCall, args: tuple) -> list:
        return call.stage(self, args)

    def arguments_behind(self, var: Var) -> list[str]:
        """The names of the inputs that a variable depends on."""
        needed = {var}
        for eqn in reversed(self.eqns):
            if any(v in needed for v in eqn.outs):
                needed.update(a for a in eqn.ins if isinstance(a, Var))
        names = self.names or [f"#{i}" for i in range(len(self.args))]
        return [n for n, v in zip(names, self.args, strict=False) if v in needed]

    def finish(self, outs: Values) -> tuple[Jaxpr, list]:
        """The program with these outputs, captured values first, and those values: of mutable
        arrays from outside themselves. Where these were written, what they hold comes last."""
        cells = list(self.cells.values())
        written = [cell.value for cell in cells if cell.written]
        out_atoms = [self.atom(o) for o in (*outs, *written)]
        values = [held for _, held, _ in self.consts.values()]
        variables = [var for _, _, var in self.consts.values()]
        if cells:
            values += [cell.ref for cell in cells]
            variables += [cell.first._var for cell in cells]
        names = None
        if self.names is not None and len(self.names) == len(self.args):
            names = [*("captured" for _ in variables), *self.names]
        return Jaxpr([*variables, *self.args], self.eqns, out_atoms, names), values


def is_reached(x: Tracer, trace: Trace | None) -> bool:
    """Whether a tracer means something under a trace: its own goes on, or it is held as an input of
    a program that is being written."""
    while trace is not None and not x._trace.live:
        if isinstance(trace, JaxprTrace) and id(x) in trace.consts:
            return True
        trace = trace.parent
    return x._trace.live


def only_staging() -> bool:
    """Whether no transformation runs but those that write programs down.

    >>> only_staging()
    True
    """
    trace: Trace | None = context.current().trace
    while trace is not context.ROOT.trace:
        if type(trace) is not JaxprTrace:
            return False
        trace = trace.parent
    return True


def stage(
    fun: Callable[..., Values],
    avals: Sequence[ShapedArray],
    what: str = "a traced function",
    names: Sequence[str] | None = None,
    held: Sequence[Tracer] = (),
) -> tuple[Jaxpr, list]:
    """Write down `fun`, a function of flat arguments to a flat list of results.

    Returns the program, whose first inputs are the values `fun` captured, and those values. Those
    in `held` are the first of all, captured or not, and may be of a trace that has ended. `fun`
    may read mutable arrays from outside, but not write to them.
    """
    jaxpr, captured, written = stage_with_refs(fun, avals, what, names, held)
    if written:
        raise RefError(
            f"{what} writes to a Ref of {written[0].inner_aval} from outside of it: there a "
            "function must be pure. Return the value, and write it after the call"
        )
    return jaxpr, settled(captured)


def stage_with_refs(
    fun: Callable[..., Values],
    avals: Sequence[ShapedArray],
    what: str = "a traced function",
    names: Sequence[str] | None = None,
    held: Sequence[Tracer] = (),
) -> tuple[Jaxpr, list, list[Ref]]:
    """As `stage`, of a function that may write to mutable arrays from outside.

    Those it touches are the last of what it captured, themselves and not what they hold. Third are
    those it writes to: what they hold then are the program's last results.
    """
    trace, before = JaxprTrace(what, names), context.current()
    trace.consts = {id(x): (x, x, Var(x.aval)) for x in held}
    try:
        context.switch(before.with_trace(trace))
        tracers = [trace.new_arg(a) for a in avals]
        jaxpr, captured = trace.finish(list(fun(*tracers)))
        return jaxpr, captured, [cell.ref for cell in trace.cells.values() if cell.written]
    finally:
        context.switch(before)
        trace.end()


def stage_closed(
    fun: Callable[..., Values], avals: Sequence[ShapedArray], what: str = "a program"
) -> Jaxpr:
    """Write down a function as a program with these inputs alone: for transformations of programs.

    Arrays that it captures (custom derivative rules may) become constants of the program, which may
    be kept: so it may not touch mutable arrays from outside.
    """
    jaxpr, captured, _ = stage_with_refs(fun, avals, what)
    refs = [c for c in captured if type(c) is Ref]
    if refs:
        raise RefError(
            f"a custom rule touches a Ref of {refs[0].inner_aval} from outside of {what}, which is "
            "made once for all calls: apply jit to the whole (jit(grad(f)), not grad(jit(f))), or "
            "pass what the Ref holds as an argument"
        )
    assert not any(isinstance(c, Tracer) for c in captured), f"{what} captured {captured}"
    return with_constants(jaxpr, captured)


def formula_of(prim: Primitive, avals: Sequence[ShapedArray], params: dict) -> Jaxpr:
    """The program of what an op's `formula` says, on operands of these types."""

    def fun(*args: Value) -> Values:
        out = prim.formula(*args, **params)  # type: ignore[misc]
        return out if prim.multiple else [out]

    return stage_closed(fun, avals, prim.name)
