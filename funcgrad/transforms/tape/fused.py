"""Neighbouring operations on large arrays as one: a tape puts them off until a value is needed.

Between products a model's layers are chains of elementwise operations and sums along axes (a
residual, a norm, a bias, an activation). One by one each passes over memory, forward and backward;
as one program they are compiled like code under `jit`. What is put off, and so is one program, must
not depend on what was done before: it follows from the operations, the types of their operands, and
which of their results the caller still holds when one is needed. So a function that looks at a
value in the middle, or keeps it, may give other last bits. The exceptions are bounds on what is
compiled (`MOST_PROGRAMS`, `MOST_OF_A_TYPE`), behind which new sequences run one by one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy import ndarray

from funcgrad.core import context
from funcgrad.core.eager.calls import calls, pays
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import Tracer
from funcgrad.core.types import Value
from funcgrad.transforms.passes.simplify import simplify
from funcgrad.transforms.tape.linear_rule import (
    LinearRule,
    backward_of,
    equation,
    linear_rule,
    split,
)
from funcgrad.transforms.tape.residuals import fewer_residuals

MOST_EQUATIONS = 64  # put off before they are run: compiling takes time by their number
# Programs that end with a rule, after which what ends with it is no longer joined: what comes
# next seems to follow from values, and so would be compiled again and again.
MOST_PROGRAMS = 8
MOST_OF_A_TYPE = 16  # as many that begin with results of one type, whatever they end with
_JOINT = "joint"  # what the keys of these rules begin with, among what a context knows of types


def _nobody() -> None:
    pass


class Late:
    """A result that is put off: its rule, the operands (NumPy's arrays, or late themselves) and
    places for cotangents, theirs and its own; `value` is there once it was run, if its tracer
    lives."""

    __slots__ = ("number", "operands", "place", "places", "rule", "tracer", "value")

    def __init__(self, rule: LinearRule, operands: list, places: Sequence[int], place: int):
        self.rule, self.operands, self.places, self.place = rule, operands, places, place
        self.number = -1  # among those that are put off together
        self.value: Any = None
        self.tracer: Callable[[], Any] = _nobody

    @property
    def nbytes(self) -> int:
        """That its value will have."""
        return self.rule.aval.nbytes

    def held_by(self, tracer: Tracer) -> None:
        """The tracer whose value it will be."""
        self.tracer = weakref.ref(tracer)


def in_time(value: Value | Late) -> Value:
    """An operand that may have been late."""
    return value.value if type(value) is Late else value


class View:
    """How a tracer's value was made of another one's without a look at elements."""

    __slots__ = ("_key", "_params", "_prim", "operand")

    def __init__(self, key: list, prim: Primitive, params: dict, operand: Value):
        self._key, self._prim, self._params, self.operand = tuple(key), prim, params, operand

    def rule(self) -> LinearRule:
        """That of the operation, under the tape's parent."""
        ctx = context.current()
        known = ctx.types.get(self._key)
        if type(known) is not LinearRule:
            jaxpr = equation(self._prim, [self.operand], self._params)
            known = ctx.keep(self._key, linear_rule(jaxpr, [True]))
        return known


class JointRule:
    """Several operations, and their derivative: as a `LinearRule` of several results.

    run(*operands) → the results, then residuals
    """

    __slots__ = ("_forward", "_lean", "_linear", "_n", "_pulls", "_varies", "run")

    def __init__(self, jaxpr: Jaxpr, varies: Sequence[bool]):
        self._n, self._varies = len(jaxpr.outs), varies
        self._forward, self._linear, _ = split(jaxpr, varies)
        backward, _ = backward_of(self._linear, varies, [True] * self._n)
        lean = [simplify(j) for j in fewer_residuals(self._forward, backward, self._n)]
        self._lean = any(map(pays, lean))
        self.run = calls(lean[0] if self._lean else self._forward, True)
        self._pulls: dict[tuple[bool, ...], tuple] = {}

    def pulled(self, given: tuple[bool, ...]) -> tuple[Callable, Jaxpr, Sequence[int]]:
        """(pull, backward, positions) as of a `LinearRule`, from the residuals and the cotangents
        of those results that have one."""
        found = self._pulls.get(given)
        if found is None:
            backward, positions = backward_of(self._linear, self._varies, given)
            if self._lean:
                backward = simplify(fewer_residuals(self._forward, backward, self._n)[1])
            found = self._pulls[given] = calls(backward, True), backward, positions
        return found


class Chain:
    """The operations that a tape has put off, in their order."""

    __slots__ = ("_equations", "_late")

    def __init__(self) -> None:
        self._late: list[Late] = []
        self._equations = 0

    def add(self, late: Late) -> None:
        """Put an operation off."""
        late.number = len(self._late)
        self._late.append(late)
        self._equations += len(late.rule.jaxpr.eqns)

    def is_long(self) -> bool:
        """Whether it is time to run what there is."""
        return self._equations >= MOST_EQUATIONS

    def is_empty(self) -> bool:
        """Whether nothing is put off."""
        return not self._late

    def seen_whole(self, x: Value, value: Value) -> Value:
        """For an operand that is a view the late operation that makes it of the array behind, added
        here; for others `value`."""
        view = getattr(x, "maker", None)
        if type(view) is not View:
            return value
        for late in self._late:
            if late.place == x.place:
                return late
        source = view.operand
        operand = self.seen_whole(source, source.value)
        made = Late(view.rule(), [operand], (source.place,), x.place)
        self.add(made)
        return made

    def run(self, nodes: list) -> None:
        """Compute what callers hold, and write to a tape's nodes how cotangents go back. It is to
        be called under the tape's parent, where floating-point errors pass silently."""
        tracers = [x.tracer() for x in self._late]
        if any(t is not None for t in tracers):
            self._compute(self._late, tracers, nodes)

    def _compute(self, late: list[Late], tracers: list, nodes: list) -> None:
        found = _joined(late, tracers) if len(late) > 1 else None
        if found is None:
            for x in late:
                operands = [o.value if type(o) is Late else o for o in x.operands]
                x.value, *residuals = x.rule.run(*operands)
                nodes[x.place] = (x.rule, residuals, x.places, None)
        else:
            rule, operands, places = found
            made = iter(rule.run(*operands))
            kept = [x for x, t in zip(late, tracers, strict=True) if t is not None]
            for x in kept:
                x.value = next(made)
            # The last place: what else is an operand was made before it.
            nodes[late[-1].place] = (rule, [*made], places, [x.place for x in kept])
        for x, t in zip(late, tracers, strict=True):
            if t is not None:
                t.value, t.maker = x.value, None


def _joined(late: list[Late], tracers: list) -> tuple[JointRule, list[ndarray], list[int]] | None:
    """The rule of several operations together, their operands and these operands' places; None
    where they aren't to be joined."""
    number: dict[Any, int] = {}
    operands: list[ndarray] = []
    places: list[int] = []
    wiring: list[Any] = [_JOINT]
    for x in late:
        wiring.append(x.rule)
        for o, place in zip(x.operands, x.places, strict=True):
            if type(o) is Late:
                wiring.append(~o.number)
                continue
            same = place if place >= 0 else (id(o),)
            at = number.setdefault(same, len(operands))
            if at == len(operands):
                operands.append(o)
                places.append(place)
            wiring.append(at)
    wiring += [t is not None for t in tracers]
    ctx = context.current()
    key = tuple(wiring)
    known: Any = ctx.types.get(key)
    if known is None:
        known = _settled(key, late)
        if known is None:
            return None
    if known is _JOINT:  # to be made, perhaps by another thread, too
        alive = [i for i, t in enumerate(tracers) if t is not None]
        jaxpr = _program([x.rule for x in late], wiring[1:], len(operands), alive)
        known = ctx.keep(key, JointRule(jaxpr, [p >= 0 for p in places]))
    return known, operands, places


def _settled(key: tuple, late: list[Late]) -> object:
    """None where there are so many programs like that of these operations that what they are seems
    to follow from values, else what is known of theirs: `_JOINT` if that there is to be one."""
    ctx, first, last = context.current(), late[0].rule.aval, late[-1].rule
    alike = (_JOINT, first.shape, first.dtype)
    count = ctx.types.get(alike, 0)
    if last.programs >= MOST_PROGRAMS or count >= MOST_OF_A_TYPE:
        return ctx.types.get(key)  # the last may be this one, of another thread
    # Known before it is counted, so that threads agree.
    ctx.keep(key, _JOINT)
    last.programs += 1
    ctx.keep(alike, count + 1)
    return _JOINT


def _program(
    rules: Sequence[LinearRule], wiring: Iterable[int], n: int, alive: Sequence[int]
) -> Jaxpr:
    """The program of operations whose operands are those of the whole, by number, or results of
    those before, by inverted numbers."""
    steps: list[tuple[Jaxpr, list[int]]] = []
    avals: list[Any] = [None] * n
    left = iter(wiring)
    for rule in rules:
        next(left)
        at = [next(left) for _ in rule.jaxpr.ins]
        steps.append((rule.jaxpr, at))
        for i, v in zip(at, rule.jaxpr.ins, strict=True):
            if i >= 0:
                avals[i] = v.aval

    def fun(*xs: Any) -> list:
        made: list[Any] = []
        for jaxpr, at in steps:
            made += eval_jaxpr(jaxpr, *[xs[i] if i >= 0 else made[~i] for i in at])
        return [made[i] for i in alive]

    return stage_closed(fun, avals, "operations on a tape")
