"""From a kernel of the loop IR to LLVM IR: loops that LLVM's vectorizer can take as they are.

Parameters are `noalias`, counters can't wrap, and accesses in parallel loops carry their access
group, so no loop needs a check at run time. A kernel becomes one function, void(pointers…), or
void(pointers…, i64 begin, i64 end) on a part of its range where threads share it: loops around the
body (`levels`), its statements for a point, which are here, and loops among these
(`loops`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from funcgrad.backends.late import late
from funcgrad.backends.llvm.emit import ops, tables
from funcgrad.backends.llvm.emit.edges import Edges, folded, guarded_load, guarded_store
from funcgrad.backends.llvm.emit.facts import chained, indices_first, reassociable
from funcgrad.backends.llvm.emit.levels import write_levels
from funcgrad.backends.llvm.emit.schedule import (
    FEWER_ROWS,
    MOST_ROWS,
    SHORT,
    Range,
    Schedule,
    schedule,
)
from funcgrad.backends.llvm.emit.stream import streams
from funcgrad.backends.llvm.emit.text import (
    BOOL,
    STAYS,
    Definitions,
    Function,
    constant,
    memory_type,
    task_of,
)
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.loops.ir import (
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
    walk,
)
from funcgrad.core.record import Record

emit_loops, stage = late("funcgrad.backends.llvm.emit", "loops", "stage")

STACK_BYTES = 65_536
HEAVY_OPS = 60
TINY_NS = 10.0
# Bodies of more loops than this would take seconds to compile if they were unrolled.
MANY_LOOPS = 16


class Emitted(Record):
    """A kernel's function; `turns` > 0 says that tasks share the range [0, turns) by `grain`.

    `{name}_task`(context, begin, end) is then the same function on an array of pointers.
    `tiny`: it is over before code that LLVM optimized would be. Its bits don't depend on that.
    `asks`: its last pointer is to the words of `fg_poll`.
    """

    text: str
    definitions: Definitions
    turns: int
    grain: int
    tiny: bool
    asks: bool


def emit(
    kernel: Kernel, name: str, ranges: Mapping[Loop, Range], target: Target, often: bool = False
) -> Emitted:
    """The LLVM function of a kernel that has points; often: as of `schedule`."""
    most_rows = MOST_ROWS if target.follows_strides else FEWER_ROWS
    plan = schedule(kernel, ranges, target.caches.l1, often, most_rows, target.vector_bits)
    return Emitter(kernel, plan, ranges, target).run(name)


class Emitter:
    """Writes the function of one kernel."""

    def __init__(
        self, kernel: Kernel, plan: Schedule, ranges: Mapping[Loop, Range], target: Target
    ):
        self.kernel = kernel
        self.plan = plan
        self.ranges = ranges
        self.target, self.vector_bits = target, target.vector_bits
        # Whether passes over rows ask for the next ones: such rows are pages, or parts of them.
        self.asks_for_rows = not target.follows_strides
        self.module = Definitions()
        self.f = Function(self.module)
        self.env: dict[Value, str] = dict.fromkeys(plan.fixed, "0")
        self.base: dict[Buffer, str] = {}
        self.taken: list[str] = []
        # Access groups of the parallel loops around, and how many of them are around a point.
        self.groups: list[str] = []
        self.outside = 0
        self.group_lists: dict[tuple[str, ...], str] = {}
        self.bounds: dict[Value, tuple[str, str]] = {}
        self.staged: dict[Load, tuple] = {}
        self.loose = reassociable(kernel.body)
        # How often loops turn, by their axes.
        self.sizes = {v.axis: v.size for v in plan.levels}
        self.sizes |= {s.axis: s.size for s in walk(kernel.body) if isinstance(s, Loop)}
        self.axes = frozenset([*self.sizes, *(a.value for a in kernel.axes)])
        # Stores past the caches by their ids, where those of the line in hand go, if there was one.
        self.streams = streams(kernel, target.stream_bytes)
        self.redirected: dict[int, tuple[str, str]] = {}
        # Rows that are to be prefetched in the loop along an axis: places, and their bytes.
        self.soon: dict[Value, list[tuple[str, int]]] = {}
        self.streamed = False
        # Whether loops ask for signals, and so may end the kernel.
        self.asks = False
        self.edges = Edges(kernel, target.vector_bits)
        # Conditions that are constants in the part of a loop in hand.
        self.known: dict[Value, str] = {}
        loops = any(isinstance(s, Loop) for s in kernel.body) and plan.block is None
        inner = {plan.levels[-1].axis} if plan.levels and not loops else set()
        self.outer = frozenset(a.value for a in kernel.axes if a.value not in inner)
        heavy = sum(isinstance(s, Op) for s in walk(kernel.body)) > HEAVY_OPS
        count = 4 if chained(kernel.body) else 1 if heavy else 0
        self.hints = [f'!{{!"llvm.loop.interleave.count", i32 {count}}}'] if count else []
        if sum(isinstance(s, Loop) for s in walk(kernel.body)) > MANY_LOOPS:
            self.hints.append(STAYS)

    def run(self, name: str) -> Emitted:
        """The function, under a name; once an emitter."""
        shared = self.plan.lead > 0
        params = self._params()
        self._scratch()
        write_levels(self, list(self.plan.levels), self.plan.lead)
        if self.asks:
            params.append("ptr %words")
            self.f.do("br label %stopped")
            self.f.start("stopped")
        if shared:
            params += ["i64 %begin", "i64 %end"]
        for block in self.taken:
            self.f.do(f"call void @fg_scratch_give(ptr {block})")
        if self.streamed:
            # Streaming stores are in no order with others, the end of a task among them.
            self.f.do("fence seq_cst")
        self.f.do("ret void")
        linkage = "internal " if shared else ""
        head = f"define {linkage}void @{name}({', '.join(params)}) noinline nounwind"
        turns, grain = (self.plan.turns, self.plan.grain) if shared else (0, 0)
        straight = not any(isinstance(s, Loop | While) for s in self.kernel.body)
        tiny = straight and self.kernel.points <= SHORT and self.plan.nanoseconds < TINY_NS
        text = self.f.text(head)
        if shared:
            text += "\n\n" + task_of(name, len(self.kernel.params) + self.asks)
        return Emitted(text, self.module, turns, grain, tiny, self.asks)

    def _params(self) -> list[str]:
        overlapping = {i for pair in self.kernel.in_place for i in pair}
        out = []
        for i, b in enumerate(self.kernel.params):
            self.base[b] = f"%p{i}"
            noalias = "" if i in overlapping else " noalias"
            out.append(f"ptr{noalias}{' readonly' if b.role == 'in' else ''} %p{i}")
        return out

    def _scratch(self) -> None:
        room = STACK_BYTES
        for b in self.kernel.buffers:
            if b.role != "scratch":
                continue
            # Where rows are taken several at a time, each has scratch of its own.
            points = self.plan.levels[-1].turns if self.plan.rows else 1
            count = max(1, b.size) * points
            nbytes = count * b.dtype.itemsize
            if nbytes <= room:
                room -= nbytes
                self.base[b] = self.f.alloca(memory_type(b.dtype), count)
            else:
                self.module.declare("fg_scratch_take", "noalias ptr", ["i64"])
                self.module.declare("fg_scratch_give", "void", ["ptr"])
                self.base[b] = self.f.let(f"call ptr @fg_scratch_take(i64 {nbytes})")
                self.taken.append(self.base[b])

    # ---- statements

    def body(self, stmts: Sequence[Stmt]) -> None:
        """Statements for one point."""
        for s in indices_first(self.edges.merged(stmts, self.outer)):
            if isinstance(s, Op):
                self.env[s.out] = self.op(s)
            elif isinstance(s, Load):
                self.env[s.out] = self.load(s)
            elif isinstance(s, Store):
                self.store(s)
            elif isinstance(s, While):
                emit_loops.write_while(self, s)
            else:
                emit_loops.write_loop(self, s)

    def read(self, operand: Operand) -> str:
        """An operand as an LLVM value."""
        if isinstance(operand, Const):
            return constant(operand.value, operand.dtype)
        return self.env[operand]

    def op(self, s: Op) -> str:
        """The value of an op."""
        if s.out in self.known:
            return self.known[s.out]
        args = [self.read(a) for a in s.args]
        if s.out.dtype == BOOL and (short := folded(s.name, args)) is not None:
            return short
        flags = "reassoc" if s.out in self.loose else ""
        return ops.apply(self.f, s.name, s.out.dtype, [a.dtype for a in s.args], args, flags)

    def load(self, s: Load) -> str:
        """The value of a load."""
        return guarded_load(self, s, self._load)

    def _load(self, s: Load) -> str:
        if tables.from_table(s, self.axes, self.target):
            tables.define(self.module, self.target)
            at = self.f.let(f"trunc i64 {self._index(s.index)} to i32")
            table = f"ptr {self.base[s.buffer]}, i32 {at}"
            return self.f.let(f"call float @{tables.NAME}({table}){self._group(s.buffer)}")
        kind = memory_type(s.buffer.dtype)
        place = stage.staged(self, s) if s in self.staged else self.address(s.buffer, s.index)
        how = self._align(s.buffer) + self._group(s.buffer)
        value = self.f.let(f"load {kind}, ptr {place}{how}")
        return self.f.let(f"icmp ne i8 {value}, 0") if s.buffer.dtype == BOOL else value

    def store(self, s: Store) -> None:
        """A store."""
        guarded_store(self, s, self._store)

    def _store(self, s: Store) -> None:
        value, kind = self.read(s.value), memory_type(s.buffer.dtype)
        if s.buffer.dtype == BOOL:
            value = self.f.let(f"zext i1 {value} to i8")
        if id(s) in self.redirected:
            array, k = self.redirected[id(s)]
            place = self.f.let(f"getelementptr inbounds {kind}, ptr {array}, i64 {k}")
            group = self.group(len(self.groups) - 1)
        else:
            place, group = self.address(s.buffer, s.index), self._group(s.buffer)
        self.f.do(f"store {kind} {value}, ptr {place}{self._align(s.buffer)}{group}")

    def address(self, buffer: Buffer, index: Index) -> str:
        """The address of an element."""
        offset = self._index(index)
        kind = memory_type(buffer.dtype)
        return self.f.let(f"getelementptr inbounds {kind}, ptr {self.base[buffer]}, i64 {offset}")

    def _index(self, index: Index) -> str:
        total = ""
        for c, v in index.terms:
            value = self.env[v]
            if value == "0":
                continue
            value = ops.convert(self.f, value, v.dtype, np.dtype(np.int64))
            if c != 1:
                value = self.f.let(f"mul nsw i64 {value}, {c}")
            total = self.f.let(f"add nsw i64 {total}, {value}") if total else value
        if not total:
            return str(index.const)
        return self.f.let(f"add nsw i64 {total}, {index.const}") if index.const else total

    def _align(self, buffer: Buffer) -> str:
        return f", align {buffer.align or buffer.dtype.itemsize}"

    def _group(self, buffer: Buffer) -> str:
        """Scratch belongs to a point: loops around the point reuse it, one after the other."""
        first = self.outside if buffer.role == "scratch" else 0
        return self.group(first)

    def group(self, first: int = 0) -> str:
        """The metadata of an access in the parallel loops from number `first` on."""
        groups = tuple(self.groups[first:])
        if not groups:
            return ""
        if groups not in self.group_lists:
            listed = f"!{{{', '.join(groups)}}}"
            self.group_lists[groups] = groups[0] if len(groups) == 1 else self.module.node(listed)
        return f", !llvm.access.group {self.group_lists[groups]}"

    # ---- loops

    def loop(
        self,
        start: str,
        stop: str,
        body: Callable[..., Sequence[str] | None],
        types: Sequence[str] = (),
        starts: Sequence[str] = (),
        parallel: bool = True,
        hints: Sequence[str] = (),
    ) -> list[str]:
        """for i in [start, stop), not empty: carried = body(i, *carried); the last carried."""
        f = self.f
        label, before = f.name("loop"), f.block
        f.do(f"br label %{label}")
        f.start(label)
        place = len(f.lines)
        counter = "%" + f.name("i")
        inside = ["%" + f.name("c") for _ in types]
        f.lines += [""] * (1 + len(inside))
        if parallel:
            self.groups.append(self.module.node("distinct !{}"))
        nexts = list(body(counter, *inside) or ())
        step = f.let(f"add nuw nsw i64 {counter}, 1")
        latch = f.block
        phis = [(counter, "i64", start, step)]
        phis += list(zip(inside, types, starts, nexts, strict=True))
        for k, (name, kind, first, later) in enumerate(phis):
            f.lines[place + k] = f"  {name} = phi {kind} [{first}, %{before}], [{later}, %{latch}]"
        more, after = f.let(f"icmp slt i64 {step}, {stop}"), f.name("done")
        f.do(f"br i1 {more}, label %{label}, label %{after}{self._loop_hints(parallel, hints)}")
        if parallel:
            self.groups.pop()
        f.start(after)
        return nexts

    def _loop_hints(self, parallel: bool, more: Sequence[str]) -> str:
        hints = [self.module.node(h) for h in (*self.hints, *more)]
        if parallel:
            text = f'!{{!"llvm.loop.parallel_accesses", {self.groups[-1]}}}'
            hints.append(self.module.node(text))
        if not hints:
            return ""
        return (
            f", !llvm.loop {self.module.node('distinct !{' + ', '.join(['{self}', *hints]) + '}')}"
        )

    def turns(self, s: Loop) -> tuple[str, str]:
        """The first turn of a loop and the one after its last."""
        part = self.ranges.get(s)
        if part is None:
            return "0", str(s.size)
        low = self.f.let(f"mul nuw nsw i64 {self.env[part.axis]}, {part.size}")
        high = self.f.let(f"add nuw nsw i64 {low}, {part.size}")
        if s.size % part.size:
            high = self.f.intrinsic("smin", "i64", high, str(s.size))
        return low, high
