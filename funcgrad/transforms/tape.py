"""Reverse mode at the root, where values are known: each operation runs at once and leaves on a
tape what its transpose needs; then the tape is run backwards.

The derivative of an operation is that of `jvp`, `partial_eval` and `transpose`. It depends on types
and parameters alone, so of an operation met again it is found ready, as lists of NumPy calls. What
these can't say (operations that hold programs, custom rules, sharded arrays) is linearized by
itself, each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import Linear, ShapedArray, Zero
from funcgrad.core.ir import Eqn, Jaxpr, Var, eval_jaxpr
from funcgrad.core.large import LARGE
from funcgrad.core.numpy_calls import numpy_calls
from funcgrad.core.primitive import Primitive
from funcgrad.core.quiet import loud, quiet
from funcgrad.core.trace import Trace, Tracer, aval_of
from funcgrad.errors import FuncgradError
from funcgrad.ops.families import add
from funcgrad.transforms.arguments import FlatFunction, as_array
from funcgrad.transforms.jvp import jvp_jaxpr
from funcgrad.transforms.partial_eval import Linearized, linearize_flat, partial_eval_jaxpr
from funcgrad.transforms.simplify import simplify
from funcgrad.transforms.transpose import backward_pass, transpose_jaxpr

ndarray = np.ndarray
_LINEAR = "linear"  # what the keys of rules begin with, among what a context knows of types
_MET, _BY_ITSELF = "met once", "linearized by itself"


class TapeTracer(Tracer):
    """A known value, and the place of its cotangent."""

    __slots__ = ("place", "primal")

    def __init__(self, trace: TapeTrace, primal: Any, place: int):
        self._trace = trace
        self.aval = primal.aval
        self.primal = primal
        self.place = place
        self.source = None

    def concrete(self) -> Any:
        return self.primal


class LinearRule(NamedTuple):
    """An operation on operands of certain types, some of which vary, and its derivative.

    run(*operands) → the result, of type `aval`, then residuals. The result varies if there is a
    program `backward` of residuals and the result's cotangent to the cotangents of the operands at
    `positions`, in the order in which they are added to others; `pull` is it on NumPy's arrays.
    """

    aval: ShapedArray
    run: Callable[..., list]
    pull: Callable[..., list] | None = None
    backward: Jaxpr | None = None
    positions: Sequence[int] = ()


def linear_rule(
    prim: Primitive, avals: Sequence[ShapedArray], varies: Sequence[bool], params: dict[str, Any]
) -> LinearRule:
    """The rule of an operation that has one result.

    >>> from funcgrad.ops.arithmetic import mul
    >>> x = ShapedArray((2,), "float32")
    >>> linear_rule(mul, [x, x], [True, False], {}).backward
    { lambda ; a:f32[2] b:f32[2] . let
        c:f32[2] = mul b a
      in (c,) }
    """
    ins = [Var(a) for a in avals]
    out = Var(prim.abstract(*avals, **params))
    both, (nonzero,) = jvp_jaxpr(Jaxpr(ins, [Eqn(prim, ins, (out,), params)], [out]), varies)
    n, n_varying = len(ins), sum(varies)
    parts = partial_eval_jaxpr(
        both, [i >= n for i in range(n + n_varying)], [False, True][: 1 + nonzero]
    )
    forward = Jaxpr(both.ins[:n], parts.known.eqns, [both.outs[0], *parts.residuals])
    aval, run = both.outs[0].aval, numpy_calls(simplify(forward))
    if not nonzero:
        return LinearRule(aval, run)
    linear = [i >= len(parts.residuals) for i in range(len(parts.unknown.ins))]
    backward, found = transpose_jaxpr(parts.unknown, linear, [True])
    operands = [i for i, v in enumerate(varies) if v]
    cts = dict(
        zip([i for i, f in zip(operands, found, strict=True) if f], backward.outs, strict=True)
    )
    positions = [operands[i] for i in order_of(parts.unknown, n_varying) if operands[i] in cts]
    backward = simplify(Jaxpr(backward.ins, backward.eqns, [cts[i] for i in positions]))
    return LinearRule(aval, run, numpy_calls(backward), backward, positions)


def order_of(linear: Jaxpr, n: int) -> list[int]:
    """In which order the last n inputs of a linear program get their cotangents, when it is run
    backwards: sums of floating-point numbers depend on it."""
    number: dict[Any, int] = {v: i for i, v in enumerate(linear.ins[len(linear.ins) - n :])}
    reads = [linear.outs, *(e.ins for e in reversed(linear.eqns))]
    return list(dict.fromkeys(number[a] for atoms in reads for a in atoms if a in number))


class _Ruled(NamedTuple):
    """An operation on the tape: its rule and residuals, the places of cotangents."""

    rule: LinearRule
    residuals: Sequence[np.ndarray]
    ins: Sequence[int]
    out: int

    def pull(self, cts: dict[int, Any]) -> Iterable[tuple[int, Any]]:
        """Cotangents for places, from those that are there; it takes away that of the result."""
        ct = cts.pop(self.out, None)
        if ct is None:
            return ()
        rule = self.rule
        if type(ct) is ndarray:
            return zip(self.ins, rule.pull(*self.residuals, ct), strict=True)  # type: ignore[misc]
        found = eval_jaxpr(rule.backward, *map(Array, self.residuals), ct)  # type: ignore[arg-type]
        return zip(self.ins, found, strict=True)


class _Linearized(NamedTuple):
    """A function on the tape that was linearized by itself."""

    lin: Linearized
    ins: Sequence[int]
    outs: Sequence[int]

    def pull(self, cts: dict[int, Any]) -> Iterable[tuple[int, Any]]:
        """As `_Ruled.pull`."""
        jaxpr = self.lin.jaxpr
        n, given = len(self.lin.residuals), [cts.pop(p, None) for p in self.outs]
        if all(c is None for c in given):
            return
        args = [*self.lin.residuals, *(Linear(v.aval) for v in jaxpr.ins[n:])]
        given = [Array(c) if type(c) is ndarray else c for c in given]
        found = backward_pass(jaxpr, args, given)[n:]
        for i in order_of(jaxpr, len(self.ins)):
            if type(found[i]) is not Zero:
                yield self.ins[i], found[i]


def at_root() -> bool:
    """Whether nothing but evaluation goes on, of arrays in one piece."""
    ctx = context.current()
    return ctx.trace is context.ROOT.trace and not (
        ctx.debug_nans or ctx.axes or ctx.manual or ctx.communicators
    )


class TapeTrace(Trace):
    """Runs operations at once, and writes down how cotangents go back through them."""

    what = "a differentiated function"

    def __init__(self, parent: Trace):
        super().__init__(parent)
        self.nodes: list[_Ruled | _Linearized] = []
        self.places = 0

    def new(self, primal: Any) -> TapeTracer:
        """A value that varies."""
        place = self.places
        self.places = place + 1
        return TapeTracer(self, primal, place)

    def owns(self, x: Any) -> bool:
        """Whether a value varies."""
        return type(x) is TapeTracer and x._trace is self

    def primal(self, x: Any) -> Any:
        """A value without the place of its cotangent."""
        return x.primal if type(x) is TapeTracer and x._trace is self else x

    def process(self, prim: Primitive, args: tuple, params: dict) -> Any:
        key: list[Any] = [_LINEAR, prim]
        values: list[Any] = []
        places: list[int] = []
        mine = False
        for a in args:
            place = -1
            if type(a) is TapeTracer and a._trace is self:
                place, a, mine = a.place, a.primal, True
            elif type(a) is float or type(a) is int:
                a = as_array(a)
            if type(a) is not Array or a._gone is not None:
                key = []
                mine = any(map(self.owns, args))
                break
            value = a._value
            values.append(value)
            places.append(place)
            key += value.shape, value.dtype, a.weak_type, place >= 0
        if not mine:
            assert self.parent is not None
            return self.parent.process(prim, args, params)
        rule = self._rule(prim, args, params, key) if key else None
        if rule is None:
            return self._operation(prim, args, params)
        out, *residuals = rule.run(*values)
        made = Array(out, rule.aval.weak_type, rule.aval)
        if rule.pull is None:
            return made
        tracer = self.new(made)
        ins = [places[i] for i in rule.positions]
        self.nodes.append(_Ruled(rule, residuals, ins, tracer.place))
        return tracer

    def process_custom(self, call: Any, args: tuple) -> list:
        if not any(map(self.owns, args)):
            assert self.parent is not None
            return self.parent.process_custom(call, args)
        return self._by_itself(lambda *xs: context.current().trace.process_custom(call, xs), args)

    def _rule(self, prim: Primitive, args: tuple, params: dict, key: list) -> LinearRule | None:
        """The rule of an operation; None for those that are to be linearized by themselves, and
        for those that weren't met before, as most of these won't be met again."""
        if prim.multiple or prim.partial is not None:
            return None
        if params:
            key += params.items()
        found = tuple(key)
        ctx = self.below()
        try:
            known = ctx.types.get(found)
        except TypeError:  # a parameter that has no hash
            return None
        if type(known) is LinearRule:
            return known
        if known is None:
            ctx.keep(found, _MET)
        elif known is _MET:
            token = context.push(ctx)
            try:
                avals = [aval_of(self.primal(a)) for a in args]
                return ctx.keep(found, linear_rule(prim, avals, [*map(self.owns, args)], params))
            except FuncgradError:  # it comes again where the operation is linearized
                ctx.keep(found, _BY_ITSELF)
            finally:
                context.pop(token)
        return None

    def _operation(self, prim: Primitive, args: tuple, params: dict) -> Any:
        def fun(*xs: Any) -> list:
            out = context.current().trace.process(prim, xs, params)
            return out if prim.multiple else [out]

        outs = self._by_itself(fun, args)
        return outs if prim.multiple else outs[0]

    def _by_itself(self, fun: Callable[..., list], args: tuple) -> list:
        """The results of a function that is linearized now, and for this once."""
        token = context.push(self.below())
        try:
            primals = [self.primal(a) for a in args]
            outs, lin = linearize_flat(fun, primals, [self.owns(a) for a in args])
        finally:
            context.pop(token)
        made = [self.new(o) if nz else o for o, nz in zip(outs, lin.out_nonzero, strict=True)]
        ins = [a.place for a, v in zip(args, lin.in_nonzero, strict=True) if v]
        places = [t.place for t, nz in zip(made, lin.out_nonzero, strict=True) if nz]
        if places:
            self.nodes.append(_Linearized(lin, ins, places))
        return made

    def pull_back(self, cts: dict[int, Any]) -> None:
        """Run the tape backwards, and off: cotangents by places, of its results as they are given,
        of its inputs in the end."""
        nodes = self.nodes
        while nodes:
            for place, ct in nodes.pop().pull(cts):
                add_to(cts, place, ct)


def add_to(cts: dict[int, Any], place: int, ct: Any) -> None:
    """Add a cotangent to what there is at its place; arrays in one piece are held as NumPy's."""
    if type(ct) is Array:
        ct = ct._value
    held = cts.get(place)
    cts[place] = ct if held is None else _sum(held, ct)


def _sum(x: Any, y: Any) -> Any:
    if type(x) is ndarray and type(y) is ndarray and x.nbytes < LARGE:
        token = quiet()
        try:
            return np.asarray(add.impl(np, x, y))
        finally:
            loud(token)
    out = add.bind(*(Array(a) if type(a) is ndarray else a for a in (x, y)))
    return out._value if type(out) is Array else out


def linearize_at_root(
    fun: Callable[..., Sequence[Any]], primals: Sequence[Any]
) -> tuple[list, Callable[[list], list]]:
    """Results of `fun` on flat primals, and the function from the results' cotangents to those of
    the primals (or `Zero`), which can be called once. Only where `at_root` holds."""
    trace = TapeTrace(context.current().trace)
    primals = list(map(as_array, primals))
    avals = [aval_of(p).tangent() for p in primals]
    with trace.active():
        args = [p if a.dtype.kind == "V" and a.dtype.names else trace.new(p)
                for p, a in zip(primals, avals, strict=True)]  # fmt: skip
        outs = list(fun(*args))
        if isinstance(fun, FlatFunction):
            fun.lower_aux(trace.primal)

    def pull(cts: list) -> list:
        held: dict[int, Any] = {}
        for out, ct in zip(outs, cts, strict=True):
            if trace.owns(out):
                add_to(held, out.place, ct)
        trace.pull_back(held)
        found = [held.get(a.place) if trace.owns(a) else None for a in args]
        return [
            Zero(v) if c is None else Array(c, v.weak_type, v) if type(c) is ndarray else c
            for c, v in zip(found, avals, strict=True)
        ]

    return [trace.primal(o) for o in outs], pull
