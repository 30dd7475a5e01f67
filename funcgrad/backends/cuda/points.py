"""Kernels of a thread a point: elementwise ones, and what is reduced along a few elements or rows.

A thread takes neighbours statement by statement: their loads stand together, so that the assembler
makes one of 16 bytes, and before their stores, which may go to the same array.
"""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.cuda.schedule import Schedule, columns_of, is_shared, scratch_of
from funcgrad.backends.cuda.writer import LOCAL, Writer
from funcgrad.backends.llvm.emit.text import memory_type
from funcgrad.backends.loops.ir import Buffer, Index, Kernel, Loop, Value


class Points(Writer):
    """Writes the kernel of a thread for each point, or for some neighbours."""

    number = 0  # of the neighbour that is written
    first = ""  # where the first one is

    def run(self, plan: Schedule) -> str:
        """The kernel's function."""
        self.memory()
        f = self.f
        thread, block = (f.call(w, "i32", [], []) for w in ("fg_thread", "fg_block"))
        flat = f.let(f"add i32 {f.let(f'mul i32 {block}, {plan.block}')}, {thread}")
        count = self.count() // plan.vector
        inside = f.let(f"icmp ult i32 {flat}, {count}")
        self.when(inside, lambda: self.threads_part(flat, plan.vector))
        return self.finish(False)

    def memory(self) -> None:
        """Give each scratch buffer memory."""
        for b in scratch_of(self.kernel):
            size = max(1, b.size)
            self.bases[b] = self.f.alloca(memory_type(b.dtype), size, b.dtype.itemsize), LOCAL

    def count(self) -> int:
        """How many points there are."""
        return self.kernel.points

    def threads_part(self, flat: str, vector: int) -> None:
        """What a thread does."""
        if vector == 1:
            self.point(flat)
            self.body(self.kernel.body)
        else:
            self.neighbours(flat, vector)

    def neighbours(self, flat: str, vector: int) -> None:
        """The body for neighbours along the last axis."""
        f, last = self.f, self.kernel.axes[-1].value
        self.point(f.let(f"mul nuw i32 {flat}, {vector}"))
        self.first = self.env[last]
        places: list[dict[Value, str]] = []
        for k in range(vector):
            at = f.let(f"or disjoint i64 {self.first}, {k}") if k else self.first
            places.append({**self.env, last: at})
        for s in self.kernel.body:
            for k, env in enumerate(places):
                self.env, self.number = env, k
                self.stmt(s)

    def index(self, index: Index, kind: str) -> str:
        # Neighbours' indices differ in the constant that is added last, for LLVM to see it.
        steps = {v: c for c, v in index.terms} if self.number else {}
        last = next((a.value for a in self.kernel.axes[-1:] if a.value in steps), None)
        if last is None:
            return super().index(index, kind)
        own, self.env = self.env, {**self.env, last: self.first}
        found = super().index(Index(index.const + steps[last] * self.number, index.terms), kind)
        self.env = own
        return found


class Columns(Points):
    """Writes the kernel of a thread for each element of a point's rows."""

    def __init__(self, kernel: Kernel, name: str, aligned: Sequence[int]):
        super().__init__(kernel, name, aligned)
        self.width = columns_of(kernel)
        self.column = ""
        self.inside = False  # of a loop whose turns are columns

    def memory(self) -> None:
        for b in scratch_of(self.kernel):
            self.bases[b] = self.f.alloca(memory_type(b.dtype), 1, b.dtype.itemsize), LOCAL

    def count(self) -> int:
        return self.kernel.points * self.width

    def threads_part(self, flat: str, vector: int) -> None:
        f = self.f
        column = f.let(f"urem i32 {flat}, {self.width}")
        self.column = f.let(f"zext nneg i32 {column} to i64")
        self.point(f.let(f"udiv i32 {flat}, {self.width}"))
        self.body(self.kernel.body)

    def loop(self, s: Loop) -> None:
        if is_shared(s) and not self.inside:
            self.env[s.axis], self.inside = self.column, True
            self.body(s.body)
            self.inside = False
        else:
            super().loop(s)

    def address(self, buffer: Buffer, index: Index) -> tuple[str, str]:
        # A column has one element of scratch memory.
        return super().address(buffer, Index(0) if buffer.role == "scratch" else index)
