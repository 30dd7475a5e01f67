"""A kernel's body for a block of points at once: the points are the innermost loop.

Loops of the body stay outside; each run of other statements between them becomes a loop over the
block, which walks memory in order. What lives longer than a run, carried values above all, lies in
small arrays with one place a point. What is the same for all points is computed once.

Rows that take several passes (softmax, norms) gain from a milder form: a pass over a few rows, then
the next pass over the same rows, so that no pass waits for the end of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.backends.llvm.emit import ahead
from funcgrad.backends.llvm.emit.text import BOOL, STAYS, memory_type
from funcgrad.backends.loops.ir import (
    Const,
    Kernel,
    Load,
    Loop,
    Op,
    Operand,
    Stmt,
    Value,
    While,
    reads,
    walk,
)

Move = tuple[str, Operand]


def can_block(kernel: Kernel) -> bool:
    """Whether a kernel may run by blocks."""
    scratch = any(b.role == "scratch" for b in kernel.buffers)
    return not scratch and not any(isinstance(s, While) for s in walk(kernel.body))


def emit_block(emitter: Any, axis: Value, most: int) -> None:
    """Write the body for the points of `axis` within the emitter's bounds, at most so many."""
    _Block(emitter, axis, most).block(emitter.kernel.body, [])


def has_passes(kernel: Kernel) -> bool:
    """Whether the body passes over its row several times, a later pass needing an earlier's sum."""
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    simple = not any(isinstance(s, While) for s in walk(kernel.body))
    return simple and len(loops) > 1 and any(s.carries for s in loops[:-1])


def emit_rows(emitter: Any, axis: Value, most: int) -> None:
    """Write the body for a few points of `axis`, pass by pass."""
    _Rows(emitter, axis, most).block(emitter.kernel.body, [])


class _Block:
    hints: tuple[str, ...] = ()

    def __init__(self, emitter: Any, axis: Value, most: int):
        self.e = emitter
        self.f = emitter.f
        self.axis = axis
        self.most = most
        self.low, high = emitter.bounds[axis]
        level = emitter.plan.levels[-1]
        whole = level.size % level.tile == 0
        self.count = str(most) if whole else self.f.let(f"sub nsw i64 {high}, {self.low}")
        self.uniform = _uniform(emitter.kernel, axis)
        self.uses = _uses(emitter.kernel.body)
        self.arrays: dict[Value, str] = {}

    def block(self, stmts: Sequence[Stmt], tail: list[Move]) -> None:
        """Statements, then moves of values into arrays."""
        run: list[Stmt] = []
        for s in stmts:
            if isinstance(s, Loop):
                arrays = [self.array(c.inside) for c in s.carries]
                self.flush(run, [(a, c.start) for a, c in zip(arrays, s.carries, strict=True)])
                run = []
                self.arrays.update((c.out, a) for a, c in zip(arrays, s.carries, strict=True))
                self.loop(s, arrays)
            elif isinstance(s, Op | Load) and s.out in self.uniform:
                self.e.body([s])
            else:
                run.append(s)
        self.flush(run, tail)

    def loop(self, s: Loop, arrays: list[str]) -> None:
        if not s.size:
            return
        start, stop = self.e.turns(s)

        def turn(i: str) -> None:
            self.e.env[s.axis] = i
            self.block(s.body, [(a, c.next) for a, c in zip(arrays, s.carries, strict=True)])

        self.e.loop(start, stop, turn, parallel=s.parallel)

    def flush(self, run: list[Stmt], moves: list[Move]) -> None:
        """A run of statements as a loop over the block."""
        if not run and not moves:
            return
        made = [s.out for s in run if isinstance(s, Op | Load)]
        made += [c.out for s in run if isinstance(s, Loop) for c in s.carries]
        here = {id(s) for s in walk(run)}
        kept = [v for v in made if any(id(u) not in here for u in self.uses.get(v, ()))]
        arrays = {v: self.array(v) for v in kept}

        def turn(j: str) -> None:
            env = self.e.env
            self.e.env = _Lazy(self, env, j)
            self.e.env[self.axis] = self.f.let(f"add nuw nsw i64 {self.low}, {j}")
            self.enter(j)
            self.e.body(run)
            for v, array in arrays.items():
                self.put(array, v.dtype, j, self.e.env[v])
            values = [self.e.read(operand) for _, operand in moves]
            for (array, operand), value in zip(moves, values, strict=True):
                self.put(array, operand.dtype, j, value)
            self.e.env = env

        self.e.loop("0", self.count, turn, hints=self.hints)

    def enter(self, j: str) -> None:
        """Point number j of the block begins."""

    # ---- arrays of one place a point

    def array(self, v: Value) -> str:
        if v not in self.arrays:
            self.arrays[v] = self.f.alloca(memory_type(v.dtype), self.most)
        return self.arrays[v]

    def place(self, array: str, dtype: Any, j: str) -> str:
        return self.f.let(f"getelementptr inbounds {memory_type(dtype)}, ptr {array}, i64 {j}")

    def put(self, array: str, dtype: Any, j: str, value: str) -> None:
        if dtype == BOOL:
            value = self.f.let(f"zext i1 {value} to i8")
        group = self.e.group(len(self.e.groups) - 1)
        self.f.do(f"store {memory_type(dtype)} {value}, ptr {self.place(array, dtype, j)}{group}")

    def get(self, v: Value, j: str) -> str:
        place, kind = self.place(self.arrays[v], v.dtype, j), memory_type(v.dtype)
        value = self.f.let(f"load {kind}, ptr {place}{self.e.group(len(self.e.groups) - 1)}")
        return self.f.let(f"icmp ne i8 {value}, 0") if v.dtype == BOOL else value


class _Rows(_Block):
    hints = (STAYS,)
    asks = False  # whether the pass in hand asks for the rows of the next block

    def __init__(self, emitter: Any, axis: Value, most: int):
        super().__init__(emitter, axis, most)
        self.uniform = set()
        self.scratch = {b: emitter.base[b] for b in emitter.kernel.buffers if b.role == "scratch"}

    def block(self, stmts: Sequence[Stmt], tail: list[Move]) -> None:
        run: list[Stmt] = []
        passes = 0
        for s in stmts:
            run.append(s)
            if isinstance(s, Loop):
                passes += 1
                # The first pass waits for its rows; while the second goes on, memory is idle.
                self.asks = passes == 2 and self.e.asks_for_rows
                self.flush(run, [])
                run = []
        self.asks = False
        self.flush(run, tail)

    def enter(self, j: str) -> None:
        if self.asks:
            ahead.prefetch_block(self.e, self.axis, self.most, j)
        for b, base in self.scratch.items():
            first = self.f.let(f"mul nuw nsw i64 {j}, {max(1, b.size)}")
            kind = memory_type(b.dtype)
            self.e.base[b] = self.f.let(f"getelementptr inbounds {kind}, ptr {base}, i64 {first}")


class _Lazy(dict):
    """The values of one point: those of all points, and those in arrays, read at first use."""

    def __init__(self, block: _Block, shared: dict[Value, str], j: str):
        super().__init__()
        self.block = block
        self.shared = shared
        self.j = j

    def __missing__(self, v: Value) -> str:
        value = self.block.get(v, self.j) if v in self.block.arrays else self.shared[v]
        self[v] = value
        return value


def _uniform(kernel: Kernel, axis: Value) -> set[Value]:
    """The values that are the same for all points of a block."""
    fixed = {a.value for a in kernel.axes if a.value is not axis}
    shared = {kernel.params[i] for pair in kernel.in_place for i in pair}
    for s in walk(kernel.body):
        if isinstance(s, Loop):
            fixed.add(s.axis)
            continue
        stays = isinstance(s, Load) and s.buffer.role == "in" and s.buffer not in shared
        known = all(isinstance(a, Const) or a in fixed for a in reads(s))
        if known and (isinstance(s, Op) or stays):
            fixed.add(s.out)  # type: ignore[union-attr]
    return fixed


def _uses(body: Sequence[Stmt]) -> dict[Value, list[Any]]:
    """The statements that read a value; a loop reads what it carries from and to."""
    uses: dict[Value, list[Any]] = {}
    for s in walk(body):
        for v in reads(s):
            if isinstance(v, Value):
                uses.setdefault(v, []).append(s)
    return uses
