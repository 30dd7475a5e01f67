"""The meaning of the loop IR: an interpreter in NumPy.

Independent points run together: the outer axes and parallel loops are axes of arrays, and each
scalar op is NumPy's function on them. All other loops are Python's. It is what backends are tested
against, so it is written to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.backends.loops.ir import (
    INDEX,
    Buffer,
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
)


def run(kernel: Kernel, arrays: Sequence[np.ndarray]) -> None:
    """Run a kernel on flat arrays, one a parameter; it writes the "out" and "inout" ones."""
    frame = _Frame()
    for buffer, array in zip(kernel.params, arrays, strict=True):
        assert array.shape == (buffer.size,), (buffer, array.shape)
        assert array.dtype == buffer.dtype, (buffer, array.dtype)
        frame.memory[buffer] = array
    for axis in kernel.axes:
        frame.add_parallel(axis.value, axis.size)
    for buffer in kernel.buffers:
        if buffer.role == "scratch":
            frame.scratch(buffer)
    if kernel.points:
        with np.errstate(all="ignore"):
            frame.run(kernel.body)


class _Frame:
    """Values and memory. Points are the last axes: every value broadcasts against `points`."""

    def __init__(self) -> None:
        self.values: dict[Value, np.ndarray] = {}
        self.memory: dict[Buffer, np.ndarray] = {}
        self.base: dict[Buffer, np.ndarray] = {}
        self.points: list[int] = []
        # Where the loops around go on, if points leave them one after the other.
        self.active: np.ndarray | None = None

    def add_parallel(self, axis: Value, size: int) -> None:
        """Make an axis of independent turns an axis of the arrays (a new first one)."""
        rank = len(self.points)
        self.points.insert(0, size)
        self.values[axis] = np.arange(size, dtype=INDEX).reshape(size, *[1] * rank)

    def scratch(self, buffer: Buffer) -> None:
        """Memory of its own for each point of the outer axes."""
        n = int(np.prod(self.points, dtype=int))
        self.memory[buffer] = np.zeros(n * buffer.size, buffer.dtype)
        self.base[buffer] = np.arange(n, dtype=INDEX).reshape(self.points) * buffer.size

    def read(self, operand: Operand) -> Any:
        if type(operand) is Const:
            return np.asarray(operand.value)
        return self.values[operand]  # type: ignore[index]

    def place(self, buffer: Buffer, index: Index) -> np.ndarray:
        total = np.asarray(index.const, INDEX)
        for c, v in index.terms:
            total = total + c * self.values[v]
        return total + self.base[buffer] if buffer in self.base else total

    def run(self, body: Sequence[Stmt]) -> None:
        for s in body:
            if isinstance(s, Op):
                out = apply(s.name, s.out.dtype, [self.read(a) for a in s.args])
                self.values[s.out] = np.asarray(out)
            elif isinstance(s, Load):
                self.values[s.out] = self.load(s)
            elif isinstance(s, Store):
                self.store(s)
            elif isinstance(s, While):
                self.while_(s)
            else:
                self.loop(s)

    def load(self, s: Load) -> np.ndarray:
        memory, place = self.memory[s.buffer], self.place(s.buffer, s.index)
        guard = self.guard(s)
        if guard is None:
            assert np.all((place >= 0) & (place < memory.size)), (s.buffer, place)
            return memory[place]
        safe = np.where(guard, place, 0)
        assert np.all((safe >= 0) & (safe < memory.size)), (s.buffer, place)
        if not memory.size:
            return np.zeros(np.shape(safe), memory.dtype)
        return np.where(guard, memory[safe], np.zeros((), memory.dtype))

    def guard(self, s: Load | Store) -> Any:
        """Where an access is made; None if everywhere."""
        if s.guard is None or self.active is None:
            return self.active if s.guard is None else self.read(s.guard)
        return self.active & self.read(s.guard)

    def store(self, s: Store) -> None:
        memory, value = self.memory[s.buffer], self.read(s.value)
        place = np.broadcast_to(self.place(s.buffer, s.index), self.points)
        value = np.broadcast_to(value, self.points)
        guard = self.guard(s)
        if guard is not None:
            chosen = np.broadcast_to(guard, self.points)
            place, value = place[chosen], value[chosen]
        assert np.all((place >= 0) & (place < memory.size)), (s.buffer, place)
        memory[place] = value

    def loop(self, s: Loop) -> None:
        if s.parallel and not s.carries:
            outer = list(self.points)
            self.add_parallel(s.axis, s.size)
            if s.size:
                self.run(s.body)
            self.points = outer
            return
        for c in s.carries:
            self.values[c.inside] = self.values[c.out] = self.read(c.start)
        for i in range(s.size):
            self.values[s.axis] = np.asarray(i, INDEX)
            self.run(s.body)
            self.step(s)

    def step(self, s: Loop | While) -> None:
        nexts = [self.read(c.next) for c in s.carries]
        for c, n in zip(s.carries, nexts, strict=True):
            self.values[c.inside] = self.values[c.out] = n

    def while_(self, s: While) -> None:
        """Points whose condition no longer holds keep their values, and memory, while others go
        on."""
        around = self.active
        for c in s.carries:
            self.values[c.inside] = self.values[c.out] = self.read(c.start)
        while True:
            self.run(s.test)
            active = self.read(s.condition)
            active = active if around is None else active & around
            if not np.any(active):
                return
            before = [self.read(c.inside) for c in s.carries]
            self.active = active
            self.run(s.body)
            self.active = around
            nexts = [self.read(c.next) for c in s.carries]
            for c, n, b in zip(s.carries, nexts, before, strict=True):
                self.values[c.inside] = self.values[c.out] = np.where(active, n, b)


def apply(name: str, dtype: np.dtype, args: Sequence[Any]) -> Any:
    """One scalar op on arrays of operands."""
    if name == "convert":
        return args[0].astype(dtype)
    if name == "bitcast":
        return np.ascontiguousarray(args[0]).view(dtype).reshape(np.shape(args[0]))
    if name == "count_leading_zeros":
        return _count_leading_zeros(args[0])
    if name == "bitwise_count":
        return np.bitwise_count(_unsigned(args[0])).astype(dtype)
    out = getattr(np, name)(*args)
    return out if out.dtype == dtype else out.astype(dtype)


def _unsigned(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.dtype(f"u{x.dtype.itemsize}")).reshape(np.shape(x))


def _count_leading_zeros(x: np.ndarray) -> np.ndarray:
    bits = 8 * x.dtype.itemsize
    rest, count = _unsigned(x), np.full(np.shape(x), bits, x.dtype)
    while np.any(rest):
        count = np.where(rest != 0, count - 1, count).astype(x.dtype)
        rest = rest >> rest.dtype.type(1)
    return count
