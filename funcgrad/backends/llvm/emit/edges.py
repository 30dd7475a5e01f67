"""Edges of arrays: loops are cut where a guard changes, and opposite edges are read by one load.

What reads a shifted, padded or joined array asks at each element on which side of an edge it is.
Along the innermost loop, whose elements vectors hold, the answer should be known: the loop runs in
parts, one from edge to edge, and in each the guards are constants. Along outer loops the two sides
of an edge differ in a distance only: that is chosen instead of one of two loads, which LLVM would
have to move out of the loop around, in as many copies as there are combinations of edges.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from funcgrad.backends.llvm.emit.schedule import is_harmless
from funcgrad.backends.llvm.emit.text import constant, value_type
from funcgrad.backends.loops.ir import (
    INDEX,
    Const,
    Index,
    Kernel,
    Load,
    Loop,
    Op,
    Operand,
    Stmt,
    Store,
    Value,
    While,
    reads,
    walk,
)

# A loop is cut into no more parts than this, which together have no more than so many statements.
MOST_PARTS, MOST_STATEMENTS = 8, 600
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
_OPPOSITE = {"less": "greater_equal", "greater_equal": "less",
             "greater": "less_equal", "less_equal": "greater"}  # fmt: skip

# The first turn, the one after the last, and the conditions that are known there, as LLVM values.
Part = tuple[int, int, dict[Value, str]]
Run = Callable[[str, str], Any]


class Edges:
    """What a kernel's guards ask about axes.

    made: the op that makes each value. uses: how often each value is read
    """

    def __init__(self, kernel: Kernel, vector_bits: int):
        self.made = {s.out: s for s in walk(kernel.body) if isinstance(s, Op)}
        self.uses = Counter(v for s in walk(kernel.body) for v in reads(s))
        # LLVM's vectors hold as many elements as fit of the widest.
        width = max((b.dtype.itemsize for b in kernel.params if b.size > 1), default=1)
        self.lanes = vector_bits // 8 // width
        # What is written meanwhile must be read when the kernel says so.
        shared = {kernel.params[i] for pair in kernel.in_place for i in pair}
        self.fixed = {b for b in kernel.params if b.role == "in" and b not in shared}

    # ---- along a loop

    def parts(self, body: Sequence[Stmt], axis: Value, size: int) -> list[Part]:
        """The parts of a loop along an axis; one, in which nothing is known, where a cut would not
        help."""
        whole: list[Part] = [(0, size, {})]
        if size < 2 * self.lanes or any(isinstance(s, Loop | While) for s in body):
            return whole
        changes: dict[Value, tuple[int, bool]] = {}
        for s in body:
            if isinstance(s, Load | Store) and isinstance(s.guard, Value):
                for c in self.conditions(s.guard):
                    change = self.change(c, axis, size)
                    if change is not None:
                        changes[c] = change
        at = self._cuts(size, {x for x in changes.values() if x[0] < size})
        if not changes or len(at) - 1 > MOST_PARTS or (len(at) - 1) * len(body) > MOST_STATEMENTS:
            return whole

        def known(low: int, high: int) -> dict[Value, str]:
            settled = {c: x for c, x in changes.items() if not low < x[0] < high}
            holds = {c: first == (low < k) for c, (k, first) in settled.items()}
            return {c: "true" if held else "false" for c, held in holds.items()}

        return [(low, high, known(low, high)) for low, high in pairwise(at)]

    def _cuts(self, size: int, changes: Set[tuple[int, bool]]) -> list[int]:
        """Where a loop is cut: around the vectors in which something changes.

        In such a vector, lanes that read nothing are masked; but where one reading ends as another
        begins there is a cut in between, or LLVM would gather lanes from two places.
        """
        n = self.lanes
        near = {k for c, _ in changes for k in (c // n * n, -(-c // n) * n)}
        both = {c for c, first in changes if (c, not first) in changes}
        return sorted({0, size, *(k for k in near | both if k < size)})

    def change(self, condition: Value, axis: Value, size: int) -> tuple[int, bool] | None:
        """From which turn on a comparison with a constant no longer is what it is in the first."""
        s = self.made.get(condition)
        if s is None or s.name not in _COMPARE:
            return None
        x, y = s.args
        line = self._affine(x, axis)
        if line is None or not isinstance(y, Const) or y.dtype != INDEX:
            return None
        step, start = line
        first = _COMPARE[s.name](start, int(y.value))
        low, high = 1, size
        while low < high:
            middle = (low + high) // 2
            if _COMPARE[s.name](start + step * middle, int(y.value)) == first:
                low = middle + 1
            else:
                high = middle
        return low, first

    def _affine(self, x: Operand, axis: Value) -> tuple[int, int] | None:
        """(step, start) such that an integer is start + step·axis."""
        if x is axis:
            return 1, 0
        s = self.made.get(x)  # type: ignore[arg-type]
        if s is None or s.out.dtype != INDEX or s.name not in ("add", "multiply"):
            return None
        y, c = s.args
        line = self._affine(y, axis)
        if line is None or not isinstance(c, Const):
            return None
        k = int(c.value)
        return (line[0], line[1] + k) if s.name == "add" else (line[0] * k, line[1] * k)

    def conditions(self, guard: Operand) -> Iterator[Value]:
        """The conditions of which a guard is the conjunction."""
        s = self.made.get(guard)  # type: ignore[arg-type]
        if s is not None and s.name == "bitwise_and":
            for a in s.args:
                yield from self.conditions(a)
        elif isinstance(guard, Value):
            yield guard

    # ---- around a loop

    def merged(self, stmts: Sequence[Stmt], outer: Set[Value]) -> Sequence[Stmt]:
        """The statements with one load for two of which a condition on outer axes chooses, if
        these differ in a distance."""
        loads: dict[Operand, Load] = {
            s.out: s for s in stmts if isinstance(s, Load) and s.guard is not None
        }
        out: list[Stmt] = []
        gone: set[Operand] = set()
        distances: dict[tuple[Operand, int], Value] = {}
        for s in stmts if loads else ():
            found = self._chosen(s, loads, outer) if isinstance(s, Op) else None
            if found is None:
                out.append(s)
                continue
            near, distance, guard = found
            known = distances.get((s.args[0], distance))  # type: ignore[union-attr]
            if known is None:
                known = distances[s.args[0], distance] = Value(INDEX)  # type: ignore[union-attr]
                far, none = Const(distance, INDEX), Const(0, INDEX)
                out.append(Op(known, "where", (s.args[0], far, none)))  # type: ignore[union-attr]
            at = Index(near.index.const, (*near.index.terms, (1, known)))
            loads[s.out] = load = Load(s.out, near.buffer, at, guard)  # type: ignore[union-attr]
            out.append(load)
            gone.update(a for a in s.args[1:] if self.uses[a] == 1)  # type: ignore[union-attr]
        if not gone:
            return out or stmts
        return [s for s in out if not (isinstance(s, Load) and s.out in gone)]

    def _chosen(
        self, s: Op, loads: Mapping[Operand, Load], outer: Set[Value]
    ) -> tuple[Load, int, Value | None] | None:
        """The load at hand where the condition of a choice doesn't hold, how much farther the other
        one is, and the guard that both have; None if it is another choice."""
        if s.name != "where" or not all(a in loads for a in s.args[1:]):
            return None
        x, y = (loads[a] for a in s.args[1:])
        if x.buffer is not y.buffer or x.buffer not in self.fixed:
            return None
        if set(x.index.terms) != set(y.index.terms):
            return None
        here, there = (list(self.conditions(a.guard)) for a in (x, y))  # type: ignore[arg-type]
        both = [c for c in here if c in there]
        own, others = ([c for c in a if c not in both] for a in (here, there))
        if own != [s.args[0]] or len(others) != 1 or len(both) > 1:
            return None
        one, other = self.made.get(own[0]), self.made.get(others[0])
        if one is None or other is None or not _opposite(one, other):
            return None
        if not self._is_outer(one.args[0], outer):
            return None
        return y, x.index.const - y.index.const, both[0] if both else None

    def _is_outer(self, x: Operand, outer: Set[Value]) -> bool:
        """Whether an operand is known in outer loops."""
        if isinstance(x, Const) or x in outer:
            return True
        s = self.made.get(x)
        return s is not None and all(self._is_outer(a, outer) for a in s.args)


def run_parts(e: Any, parts: Sequence[Part], start: str, stop: str, run: Run) -> None:
    """Write the turns from start to stop of a loop part by part, each by run(start, stop).

    e: the emitter, whose `known` conditions are those of the part in hand
    """
    f, before = e.f, e.known
    for low, high, known in parts:
        e.known = {**before, **known}
        if start.isdecimal() and stop.isdecimal():
            if max(int(start), low) < min(int(stop), high):
                run(str(max(int(start), low)), str(min(int(stop), high)))
            continue
        if len(parts) == 1:
            run(start, stop)
            continue
        first = f.intrinsic("smax", "i64", start, str(low)) if low else start
        last = stop if (low, high) == parts[-1][:2] else f.intrinsic("smin", "i64", stop, str(high))
        then, join = f.name("part"), f.name("join")
        f.do(f"br i1 {f.let(f'icmp slt i64 {first}, {last}')}, label %{then}, label %{join}")
        f.start(then)
        run(first, last)
        f.do(f"br label %{join}")
        f.start(join)
    e.known = before


def guarded_load(e: Any, s: Load, load: Callable[[Load], str]) -> str:
    """The value of a load, which is 0 where its guard doesn't hold."""
    guard = _guard(e, s)
    if guard == "true":
        return load(s)
    zero = constant(0, s.buffer.dtype)
    if guard == "false":
        return zero
    kind = value_type(s.buffer.dtype)
    if is_harmless(s, e.plan):
        # A vector would have to ask in each lane whether to read one and the same element.
        return e.f.let(f"select i1 {guard}, {kind} {load(s)}, {kind} {zero}")
    before = e.f.block
    then, join = e.f.name("load"), e.f.name("join")
    e.f.do(f"br i1 {guard}, label %{then}, label %{join}")
    e.f.start(then)
    value = load(s)
    e.f.do(f"br label %{join}")
    e.f.start(join)
    return e.f.let(f"phi {kind} [{value}, %{then}], [{zero}, %{before}]")


def guarded_store(e: Any, s: Store, store: Callable[[Store], None]) -> None:
    """A store, where its guard holds."""
    guard = _guard(e, s)
    if guard == "true":
        store(s)
    if guard in ("true", "false"):
        return
    e.read(s.value)
    then, join = e.f.name("store"), e.f.name("join")
    e.f.do(f"br i1 {guard}, label %{then}, label %{join}")
    e.f.start(then)
    store(s)
    e.f.do(f"br label %{join}")
    e.f.start(join)


def _guard(e: Any, s: Load | Store) -> str:
    """The guard of an access, before whose branch what both sides may need is read.

    In a block of points a value is read from its array at first use, which must come before
    every later one.
    """
    if s.guard is None:
        return "true"
    if not isinstance(s.guard, Const):
        for _, v in s.index.terms:
            e.read(v)
    return e.read(s.guard)


def folded(name: str, args: Sequence[str]) -> str | None:
    """The conjunction or disjunction of conditions of which some are known; None if none is.

    >>> folded("bitwise_and", ["%a", "true"]), folded("bitwise_or", ["%a", "true"])
    ('%a', 'true')
    """
    if name not in ("bitwise_and", "bitwise_or"):
        return None
    nothing, all_ = ("true", "false") if name == "bitwise_and" else ("false", "true")
    if all_ in args:
        return all_
    return next((args[1 - i] for i, a in enumerate(args) if a == nothing), None)


def _opposite(s: Op, t: Op) -> bool:
    """Whether one of two comparisons of integers holds where the other doesn't."""
    (x, a), (y, b) = s.args, t.args
    same = x is y and isinstance(a, Const) and isinstance(b, Const) and a.value == b.value
    return same and _OPPOSITE.get(s.name) == t.name and x.dtype.kind != "f"
