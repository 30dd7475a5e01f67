"""Kernels of a team a point: a warp, or a block, whose threads share a row's loops.

What stands outside of parallel loops each thread computes, and one stores. The turns of a parallel
loop go to threads in turn, and what it carries is combined by shuffles, between the warps of a
block by shared memory. Threads wait only where one needs what another wrote, or would overwrite
what another still reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.backends.cuda.schedule import WARP, Schedule, is_shared, scratch_of
from funcgrad.backends.cuda.writer import GLOBAL, SHARED, Writer
from funcgrad.backends.llvm.emit.text import BOOL, constant, value_type
from funcgrad.backends.loops.ir import (
    Buffer,
    Carry,
    Kernel,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
    While,
    walk,
)

Accesses = tuple[set[Buffer], set[Buffer]]  # what is read, and what is written


class Rows(Writer):
    """Writes the kernel of a team for each point."""

    def __init__(self, kernel: Kernel, name: str, aligned: Sequence[int]):
        super().__init__(kernel, name, aligned)
        self.alone = False  # whether this is inside of a loop whose turns are shared
        self.pending: Accesses = (set(), set())  # since threads waited for each other
        # Arrays that may be the same memory count as one.
        self.same = {kernel.buffers[o]: kernel.buffers[i] for o, i in kernel.in_place}

    def run(self, plan: Schedule) -> str:
        """The kernel's function."""
        f, self.team, teams = self.f, plan.team, plan.block // plan.team
        thread, block = (f.call(w, "i32", [], []) for w in ("fg_thread", "fg_block"))
        self.lane, self.warp, within = thread, "0", "0"
        if teams > 1:
            self.lane = f.let(f"and i32 {thread}, {plan.team - 1}")
            within = f.let(f"udiv i32 {thread}, {plan.team}")
        if self.team > WARP:
            self.warp = f.let(f"udiv i32 {thread}, {WARP}")
            self.slots = f"@{name_of_memory(self.name, 'slots')}"
            self.globals.append(_shared(self.slots, 8 * self.team // WARP))
        row = f.let(f"add i32 {f.let(f'mul i32 {block}, {teams}')}, {within}")
        self._memory(plan, teams, within, row)
        inside = f.let(f"icmp ult i32 {row}, {self.kernel.points}")
        self.when(inside, lambda: self._row(row))
        return self.finish(plan.workspace > 0)

    def _row(self, row: str) -> None:
        self.point(row)
        self.body(self.kernel.body)

    def _memory(self, plan: Schedule, teams: int, within: str, row: str) -> None:
        """Give scratch buffers their places, widest elements first."""
        offset, places = 0, {}
        for b in sorted(scratch_of(self.kernel), key=lambda b: -b.dtype.itemsize):
            places[b] = offset
            offset += max(b.size, 1) * b.dtype.itemsize
        if not offset:
            return
        f, nbytes = self.f, -(-offset // 8) * 8
        if plan.workspace:
            space, whole, number = GLOBAL, "%workspace", row
        else:
            space, whole, number = SHARED, f"@{name_of_memory(self.name, 'shared')}", within
            self.globals.append(_shared(whole, teams * nbytes))
        start = f.let(f"mul i64 {f.let(f'zext i32 {number} to i64')}, {nbytes}")
        for b, at in places.items():
            place = f.let(f"add i64 {start}, {at}")
            self.bases[b] = f.let(f"getelementptr i8, ptr{space} {whole}, i64 {place}"), space

    # ---- what a team does together

    def stmt(self, s: Stmt) -> None:
        if self.alone or isinstance(s, Op):
            super().stmt(s)
            return
        reads, writes = self.accesses([s])
        if reads & self.pending[1] or writes & (self.pending[0] | self.pending[1]):
            self.sync()
        self.pending[0].update(reads)
        self.pending[1].update(writes)
        before = self.pending
        super().stmt(s)
        if isinstance(s, Loop | While):  # which may have had no turn, or ended in any
            now = self.pending
            self.pending = (before[0] | now[0] | reads, before[1] | now[1] | writes)

    def accesses(self, body: Sequence[Stmt]) -> Accesses:
        """What statements read and write."""
        found: Accesses = (set(), set())
        for s in walk(body):
            if isinstance(s, Load | Store):
                found[isinstance(s, Store)].add(self.same.get(s.buffer, s.buffer))
        return found

    def sync(self) -> None:
        """Wait for the team's threads."""
        self.f.do(f"call void @fg_sync{'_warp' if self.team == WARP else ''}()")
        self.pending = (set(), set())

    def store(self, s: Store) -> None:
        if self.alone:
            super().store(s)
        else:
            first = self.f.let(f"icmp eq i32 {self.lane}, 0")
            self.when(first, lambda: Writer.store(self, s))

    def loop(self, s: Loop) -> None:
        if self.alone:
            super().loop(s)
        elif is_shared(s):
            self._share(s)
        else:
            super().loop(s)

    def turn(self, s: Loop | While, part: Sequence[Stmt]) -> None:
        # What a turn writes could meet what the one before it did.
        if not self.alone and self.accesses([s])[1]:
            self.sync()
        super().turn(s, part)

    def _share(self, s: Loop) -> None:
        starts = [self.read(c.start) for c in s.carries]
        first = self.f.let(f"icmp eq i32 {self.lane}, 0") if s.carries else ""
        mine = []
        for c, start in zip(s.carries, starts, strict=True):
            kind, dtype = value_type(c.inside.dtype), c.inside.dtype
            nothing = constant(identity(c.combine or "", dtype), dtype)
            mine.append(self.f.let(f"select i1 {first}, {kind} {start}, {kind} {nothing}"))
        self.alone = True
        self.turns(s, self.lane, self.team, mine)
        self.alone = False
        for c in s.carries:
            self.env[c.out] = self._combined(c, self.env[c.out])

    # ---- combining

    def _combined(self, c: Carry, value: str) -> str:
        """A carried value of all threads, the same for each."""
        dtype, combine = c.inside.dtype, c.combine or ""
        m = WARP // 2
        while m:
            other = self._other(value, value_type(dtype), m)
            value = self.apply(combine, dtype, [dtype, dtype], [value, other])
            m //= 2
        return value if self.team == WARP else self._of_warps(combine, dtype, value)

    def _of_warps(self, combine: str, dtype: np.dtype, value: str) -> str:
        f, kind = self.f, value_type(dtype)
        memory = "i8" if dtype == BOOL else kind
        held = f.let(f"zext i1 {value} to i8") if dtype == BOOL else value
        place = f.let(f"getelementptr i64, ptr{SHARED} {self.slots}, i32 {self.warp}")
        f.do(f"store {memory} {held}, ptr{SHARED} {place}")
        f.do("call void @fg_sync()")
        total = ""
        for k in range(self.team // WARP):
            place = f.let(f"getelementptr i64, ptr{SHARED} {self.slots}, i32 {k}")
            x = f.let(f"load {memory}, ptr{SHARED} {place}")
            x = f.let(f"icmp ne i8 {x}, 0") if dtype == BOOL else x
            total = self.apply(combine, dtype, [dtype] * 2, [total, x]) if total else x
        self.sync()
        return total

    def _other(self, value: str, kind: str, m: int) -> str:
        """What the lane whose number differs by the bits of m holds."""
        f, bits = self.f, {"float": 32, "double": 64}.get(kind) or int(kind[1:])
        raw = value if kind[0] == "i" else f.let(f"bitcast {kind} {value} to i{bits}")
        if bits == 64:
            low = f.let(f"trunc i64 {raw} to i32")
            high = f.let(f"trunc i64 {f.let(f'lshr i64 {raw}, 32')} to i32")
            low, high = (f.let(f"zext i32 {self._xor(x, m)} to i64") for x in (low, high))
            got = f.let(f"or i64 {f.let(f'shl i64 {high}, 32')}, {low}")
        elif bits == 32:
            got = self._xor(raw, m)
        else:
            wide = self._xor(f.let(f"zext i{bits} {raw} to i32"), m)
            got = f.let(f"trunc i32 {wide} to i{bits}")
        return got if kind[0] == "i" else f.let(f"bitcast i{bits} {got} to {kind}")

    def _xor(self, value: str, m: int) -> str:
        return self.f.call("fg_xor", "i32", ["i32", "i32"], [value, str(m)])


def identity(combine: str, dtype: np.dtype) -> np.generic:
    """What combined with a value gives that value.

    >>> identity("minimum", np.dtype("float32")), identity("add", np.dtype("int8"))
    (np.float32(inf), np.int8(0))
    """
    if dtype == BOOL:
        return np.bool_(combine in ("multiply", "minimum", "bitwise_and"))
    if combine in ("maximum", "minimum"):
        if dtype.kind == "f":
            return dtype.type(-np.inf if combine == "maximum" else np.inf)
        limits = np.iinfo(dtype)
        return dtype.type(limits.min if combine == "maximum" else limits.max)
    if combine == "bitwise_and":
        return np.invert(dtype.type(0))
    zero = -0.0 if dtype.kind == "f" else 0
    return dtype.type({"multiply": 1}.get(combine, zero))


def name_of_memory(kernel: str, what: str) -> str:
    """What a kernel's shared memory is called in its module."""
    return f"{kernel}_{what}"


def _shared(name: str, nbytes: int) -> str:
    return f"{name} = internal addrspace(3) global [{nbytes} x i8] undef, align 16"
