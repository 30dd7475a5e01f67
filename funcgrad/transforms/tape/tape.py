"""Reverse mode at the root, where values are known: each operation runs at once and leaves on a
tape what its transpose needs; then the tape is run backwards.

The derivative of an operation that was met before is found ready (`linear_rule`). What is no such
rule (operations that hold programs, custom rules, sharded arrays) is linearized by itself, each
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import Zero
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.primitive import Primitive, exact_params
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.trace import Trace, Tracer, leak_error
from funcgrad.core.types import Cotangent, Cotangents, CustomCall, Result, Value, Values
from funcgrad.errors import FuncgradError
from funcgrad.transforms.arguments import FlatFunction, as_array
from funcgrad.transforms.autodiff.partial_eval import linearize_flat
from funcgrad.transforms.control.bodies import choose
from funcgrad.transforms.recorded import (
    AS_IT_IS,
    MET,
    NUMBERS,
    add_static,
    program,
    takes_numbers,
)
from funcgrad.transforms.tape.cotangents import add_to, pulled
from funcgrad.transforms.tape.fused import Chain, Late, View, in_time
from funcgrad.transforms.tape.linear_rule import (
    LinearRule,
    equation,
    kind_of,
    linear_rule,
    may_compile,
)
from funcgrad.transforms.tape.sliced import Pieces, in_one
from funcgrad.transforms.tape.tracer import TapeTracer

ndarray, asarray = np.ndarray, np.asarray
_LINEAR = "linear"  # what the keys of rules begin with, among what a context knows of types


class TapeTrace(Trace):
    """Runs operations at once, and writes down how cotangents go back through them."""

    what = "a differentiated function"

    def __init__(self, parent: Trace):
        super().__init__(parent)
        # For each place, where cotangents are added up, the operation whose result it belongs to:
        # how cotangents go through it (a rule, or a linear program), a rule's residuals, the places
        # of the operands' cotangents and, of a program or of several operations, those of the
        # results'. None for inputs, for what has several results but at the first, and for several
        # operations but at the last.
        self.nodes: list[tuple[Any, Sequence[np.ndarray], Sequence[int], Any] | None] = []
        self.chain: Chain | None = None  # what is put off

    def new(self, primal: Value) -> TapeTracer:
        """A value that varies."""
        place = len(self.nodes)
        self.nodes.append(None)
        aval = primal.aval
        if type(primal) is Array:
            return TapeTracer(self, primal._value, place, aval, kind_of(aval), primal)
        return TapeTracer(self, None, place, aval, None, primal)

    def owns(self, x: Value) -> bool:
        """Whether a value varies."""
        return type(x) is TapeTracer and x._trace is self

    def primal(self, x: Value) -> Value:
        """A value without the place of its cotangent."""
        return x.primal if type(x) is TapeTracer and x._trace is self else x

    def process(self, prim: Primitive, args: tuple, params: dict) -> Result:
        key: list[Any] = [_LINEAR, prim]
        values: list[Any] = []
        places: list[int] = []
        if ndarray in map(type, args) and any(map(self.owns, args)):
            # Its owner may write to it later.
            args = tuple([Array(a.copy()) if type(a) is ndarray else a for a in args])
        mine = self._operands(args, key, values, places, None)
        if not (any(map(self.owns, args)) if mine is None else mine):
            assert self.parent is not None
            return self.parent.process(prim, args, params)
        if mine and prim.partial is None and not prim.multiple:
            if params:
                key += exact_params(params)
            rule = self._rule(key, values, places, lambda: equation(prim, args, params))
            if rule is not None:
                out = self._apply(rule, args, values, places)
                return self._viewed(out, key, prim, params, args) if prim.view else out

        def fun(*xs: Any) -> list:
            out = context.current().trace.process(prim, xs, params)
            return out if prim.multiple else [out]

        outs = self._by_itself(fun, args)
        if prim.multiple:
            return outs
        return self._viewed(outs[0], key, prim, params, args) if mine and prim.view else outs[0]

    def _viewed(self, out: Value, key: list, prim: Primitive, params: dict, args: tuple) -> Value:
        """A result, which if it is a view says of what."""
        source = args[0]
        known = type(out) is TapeTracer and out.value is not None
        if known and np.may_share_memory(out.value, source.value):
            out.maker = View(key, prim, params, source)
        return out

    def process_custom(self, call: CustomCall, args: tuple) -> list:
        if not any(map(self.owns, args)):
            assert self.parent is not None
            return self.parent.process_custom(call, args)
        return self._by_itself(lambda *xs: context.current().trace.process_custom(call, xs), args)

    def ready1(self, ctx: context.Context, of: Primitive | Callable, x: Value) -> Value | None:
        if type(x) is not TapeTracer or x._trace is not self:
            return None
        rule = ctx.types.get((_LINEAR, of, x.kind))
        held = x._primal
        if type(rule) is not LinearRule or (held is not None and held._gone is not None):
            return None
        a = x.value
        if rule.starts or (a is None and rule.joins):
            return self._put_off(rule, [x.maker if a is None else a], (x.place,))
        if a is None:
            a = x.known()
        before = errors()
        try:
            quiet()
            out, *residuals = rule.run(a)
        finally:
            loud(before)
        return self._made(rule, out, residuals, (x.place,))

    def ready2(
        self, ctx: context.Context, of: Primitive | Callable, x: Value, y: Value
    ) -> Value | None:
        i = j = -1
        a: Any = None
        b: Any
        kind: Any = None
        other: Any
        if type(x) is TapeTracer and x._trace is self:
            a, i, kind = x.value, x.place, x.kind
            if a is None:
                a = x.maker
            held = x._primal
            if held is not None and held._gone is not None:
                return None
        elif type(x) is Array:
            if x._gone is not None:
                return None
            a = x._value
            kind = a.shape, a.dtype, x.weak_type, False
        if type(y) is TapeTracer and y._trace is self:
            b, j, other = y.value, y.place, y.kind
            if b is None:
                b = y.maker
            held = y._primal
            if held is not None and held._gone is not None:
                return None
        elif type(y) is Array:
            if y._gone is not None:
                return None
            b = y._value
            other = b.shape, b.dtype, y.weak_type, False
        elif i >= 0 and type(y) in NUMBERS and takes_numbers(kind):
            b, other = y, ((), kind[1], False, False)
        else:
            return None
        if kind is None:
            if j < 0 or type(x) not in NUMBERS or not takes_numbers(other):
                return None
            a, kind = x, ((), other[1], False, False)
        rule = ctx.types.get((_LINEAR, of, kind, other))
        if type(rule) is not LinearRule or (i < 0 and j < 0):
            return None
        before = errors()
        try:
            quiet()
            if rule.starts or type(a) is not ndarray or type(b) is not ndarray:
                a, b = _arrays(a, kind, b, other)
                if rule.starts or type(a) is Late or type(b) is Late:
                    if rule.starts or rule.joins:
                        return self._put_off(rule, [a, b], (i, j))
                    self.catch_up()
                    a, b = in_time(a), in_time(b)
            out, *residuals = rule.run(a, b)
        except OverflowError:  # a number that the dtype can't hold, of which others tell
            return None
        finally:
            loud(before)
        return self._made(rule, out, residuals, (i, j))

    def _made(self, rule: LinearRule, out: np.ndarray, residuals: list, places: tuple) -> Value:
        """A result, and the node that leads back from it."""
        if rule.pull is None:
            return Array(out, rule.aval.weak_type, rule.aval)
        nodes = self.nodes
        made = TapeTracer(self, out, len(nodes), rule.aval, rule.kind)
        nodes.append((rule, residuals, places, None))
        return made

    def replayed(self, fun: Callable, args: tuple, kwargs: dict) -> Value | None:
        key: list[Any] = [_LINEAR, fun]
        values: list[Any] = []
        places: list[int] = []
        if not self._operands(args, key, values, places, add_static):
            return None
        for name, a in kwargs.items():
            key.append(name)
            if not add_static(key, a):
                return None
        rule = self._rule(key, values, places, lambda: program(fun, args, kwargs))
        if rule is not None:
            return self._apply(rule, args, values, places)
        # By itself, too, since sums of cotangents are to be added in the same order each time.
        is_operand = [isinstance(a, Array | Tracer) for a in args]

        def flat(*xs: Any) -> list:
            given = iter(xs)
            return [fun(*(next(given) if m else a for a, m in zip(args, is_operand, strict=True)),
                        **kwargs)]  # fmt: skip

        return self._by_itself(flat, choose(args, is_operand))[0]

    def _operands(
        self, args: tuple, key: list, values: list, places: list[int], static: Callable | None
    ) -> bool | None:
        """Whether an operand varies. It adds to a key the operands' types, and which vary, to the
        lists their values, which may be late, and places (-1 for those that don't). None where
        there is something else among them."""
        mine = False
        for a in args:
            if type(a) is TapeTracer and a._trace is self:
                held = a._primal
                if a.kind is None or (held is not None and held._gone is not None):
                    return None
                mine = True
                values.append(a.maker if a.value is None else a.value)
                places.append(a.place)
                key.append(a.kind)
            elif type(a) is Array:
                if a._gone is not None:
                    return None
                value = a._value
                values.append(value)
                places.append(-1)
                key.append((value.shape, value.dtype, a.weak_type, False))
            elif static is None or not static(key, a):
                return None
        return mine

    def _rule(
        self, key: list, values: list, places: list[int], program: Callable[[], Jaxpr | None]
    ) -> LinearRule | None:
        """The rule of what has this key; None for what is to be linearized by itself: also for
        what wasn't met before, as most of that won't be met again. Unless it may be compiled, since
        its operands are large, or it is joined with what makes them: each time is to give the same
        bits."""
        found = tuple(key)
        try:
            known = context.current().types.get(found)
        except TypeError:  # a parameter that has no hash
            return None
        if type(known) is LinearRule:
            return known
        if known is AS_IT_IS:
            return None
        ctx, rule = self.below(), None
        before = context.current()
        try:
            context.switch(ctx)
            compiling = may_compile(key[1], values, program)
            if known is MET or compiling or Late in map(type, values):
                jaxpr = program()
                if jaxpr is not None:
                    rule = linear_rule(jaxpr, [p >= 0 for p in places], compiling)
                known = rule or AS_IT_IS
            else:
                known = MET
        except FuncgradError:  # it comes again where the operation is linearized
            known = AS_IT_IS
        finally:
            context.switch(before)
        ctx.keep(found, known)
        return rule

    def _apply(self, rule: LinearRule, args: tuple, values: list, places: list[int]) -> Value:
        late = self.chain is not None and Late in map(type, values)
        if rule.starts or (late and rule.joins):
            return self._put_off(rule, values, places)
        if late:
            self.catch_up()
            values = [*map(in_time, values)]
        if rule.reads_views:
            out = self._with_views(rule, args, values, places)
            if out is not None:
                return out
        before = errors()
        try:
            quiet()
            out, *residuals = rule.run(*values)
        finally:
            loud(before)
        if rule.pull is None:
            return Array(out, rule.aval.weak_type, rule.aval)
        nodes = self.nodes
        made = TapeTracer(self, out, len(nodes), rule.aval, rule.kind)
        nodes.append((rule, residuals, places, None))
        return made

    def _with_views(
        self, rule: LinearRule, args: tuple, values: list, places: list[int]
    ) -> TapeTracer | None:
        """The result of an operation that is joined with what made views that it reads; None where
        it reads none."""
        chain = Chain()
        before = context.current()
        try:
            context.switch(self.below())
            given = [a for a in args if isinstance(a, Array | Tracer)]
            operands = [chain.seen_whole(*pair) for pair in zip(given, values, strict=True)]
        finally:
            context.switch(before)
        if chain.is_empty():
            return None
        made = self._late(rule, operands, places, chain)
        self._run(chain)
        return made

    def _put_off(self, rule: LinearRule, operands: list, places: Sequence[int]) -> TapeTracer:
        if self.chain is None:
            self.chain = Chain()
        made = self._late(rule, operands, places, self.chain)
        if self.chain.is_long():
            self.catch_up()
        return made

    def _late(
        self, rule: LinearRule, operands: list, places: Sequence[int], chain: Chain
    ) -> TapeTracer:
        """The result of an operation, which is done when the chain is run."""
        place = len(self.nodes)
        self.nodes.append(None)
        made = TapeTracer(self, None, place, rule.aval, rule.kind)
        made.maker = late = Late(rule, operands, places, place)
        late.held_by(made)
        chain.add(late)
        return made

    def catch_up(self) -> None:
        """Do what was put off."""
        if self.chain is not None:
            self._run(self.chain)
            self.chain = None

    def _run(self, chain: Chain) -> None:
        before, silent = context.current(), errors()
        try:
            context.switch(self.below())
            quiet()
            chain.run(self.nodes)
        finally:
            loud(silent)
            context.switch(before)

    def _by_itself(self, fun: Callable[..., list], args: Values) -> list:
        """The results of a function that is linearized now, and for this once."""
        before = context.current()
        try:
            context.switch(self.below())
            primals = [self.primal(a) for a in args]
            outs, lin = linearize_flat(fun, primals, [self.owns(a) for a in args])
        finally:
            context.switch(before)
        ins = [a.place for a, v in zip(args, lin.in_nonzero, strict=True) if v]
        made = [self.new(o) if nz else o for o, nz in zip(outs, lin.out_nonzero, strict=True)]
        places = [t.place for t, nz in zip(made, lin.out_nonzero, strict=True) if nz]
        if places:
            self.nodes[places[0]] = (lin, (), ins, places)
        return made

    def pull_back(self, outs: Values, given: Cotangents) -> dict[int, Cotangent]:
        """Run the tape backwards, and off: the cotangents of its inputs, by places, from those of
        results."""
        cts: dict[int, Any] = {}
        nodes, take = self.nodes, cts.pop
        before = errors()
        try:
            quiet()
            for out, ct in zip(outs, given, strict=True):
                if self.owns(out):
                    add_to(cts, out.place, ct)
            place = len(nodes)
            while place:
                place -= 1
                node = nodes.pop()
                if node is None:
                    continue
                how, residuals, ins, outs = node
                if outs is not None:
                    loud(before)  # it may be the user's functions
                    try:
                        found = pulled(how, residuals, [in_one(take(p, None)) for p in outs])
                    finally:
                        quiet()
                    for k, ct in found:
                        add_to(cts, ins[k], ct)
                    continue
                ct = take(place, None)
                if ct is None:
                    continue
                if type(ct) is Pieces:
                    ct = ct.whole()
                if type(ct) is ndarray:
                    found = how.pull(*residuals, ct)
                else:  # an array that is cut over a mesh
                    found = eval_jaxpr(how.backward, *map(Array, residuals), ct)
                positions = how.positions
                for k, ct in enumerate(found):
                    to = ins[positions[k]]
                    if to in cts:
                        add_to(cts, to, ct)
                    else:
                        cts[to] = ct
        finally:
            loud(before)
        return cts


def linearize_at_root(
    fun: Callable[..., Values], primals: Values
) -> tuple[list, Callable[[list], list]]:
    """Results of `fun` on flat primals, and the function from the results' cotangents to those of
    the primals (or `Zero`), which can be called once. Only where `at_root` holds."""
    ctx = context.current()
    trace = TapeTrace(ctx.trace)
    args: list[Any] = []
    for p in primals:
        if type(p) is not Array:
            p = as_array(p)
            if isinstance(p, Tracer) and not p._trace.live:
                raise leak_error(p)
        aval = p.aval
        args.append(trace.new(p) if aval.tangent() is aval else p)
    try:
        context.switch(ctx.with_trace(trace))
        outs = list(fun(*args))
        if trace.chain is not None:
            trace.catch_up()
        if isinstance(fun, FlatFunction):
            fun.lower_aux(trace.primal)
    finally:
        context.switch(ctx)
        trace.end()

    def pull(cts: list) -> list:
        held = trace.pull_back(outs, cts)
        return [
            _cotangent(a, held.get(a.place)) if type(a) is TapeTracer else Zero(a.aval.tangent())
            for a in args
        ]

    return [trace.primal(o) for o in outs], pull


def _arrays(a: Value, kind: tuple, b: Value, other: tuple) -> tuple[Value, Value]:
    """Two operands, of which a number is an array of the other's dtype."""
    if type(b) in NUMBERS:
        b = asarray(b, kind[1])
    elif type(a) in NUMBERS:
        a = asarray(a, other[1])
    return a, b


def _cotangent(of: TapeTracer, ct: Cotangent) -> Value:
    """An input's cotangent as it is given to others."""
    if type(ct) is Pieces:
        ct = ct.whole()
    if type(ct) is ndarray:
        return Array(ct, of.aval.weak_type, of.aval)
    return Zero(of.aval.tangent()) if ct is None else ct
