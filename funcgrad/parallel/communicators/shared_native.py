"""Native exchanges through memory that the ranks of a node share.

Each rank has a *slot* of two halves in the window. An exchange goes chunk by chunk: put what others
need into a half, wait for all, take what is needed from the others' halves. The next chunk uses the
other half, so that one wait a chunk is enough. A rank's *line* counts its waits, and says what it
exchanges (twice, for who is one ahead): who disagrees is found before anything is taken.
Waiting spins, then yields the processor, then sleeps on a futex, and asks for signals (Ctrl-C).
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Bool, Code, Int, declare
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.routines.copies import stream_function
from funcgrad.backends.rewrites.exchanges import KINDS
from funcgrad.parallel.communicators.fold import write_folds
from funcgrad.parallel.communicators.native import (
    ABORTED,
    BARRIER,
    DISAGREE,
    RAISED,
    UNKNOWN,
    Exchange,
    Writer,
)

# The window: three lines of the head, one of each rank, then the slots.
LINE = 128
ABORT, FUTEX, SLEEPERS = 0, LINE, 2 * LINE
LINES = 3 * LINE
LINE_WORDS = ("epoch", "sequence0", "what0", "count0", "sequence1", "what1", "count1")
# The words of an odd exchange stand behind those of an even one.
ODD = 3
# Results larger than this go past the caches, which they would only empty.
STREAMED = 1 << 22
# From this number of ranks on, each sums a part and the parts are gathered.
GATHERED_FROM = 4
SLEEP_SECONDS = 0.2


def shared_module(target: Target) -> ir.Module:
    """The module of fg_shared_<kind> and fg_shared_barrier."""
    return _Shared(target).module


class _Shared:
    def __init__(self, target: Target):
        self.module = ir.Module("shared")
        self.target = target
        self.fold_at = write_folds(self.module, target)
        self.stream = stream_function(self.module)
        self.writer = Writer(self.module, "fg_shared")
        self.meet = self._meet(self._wait())
        for kind in KINDS:
            x = self.writer.begin(kind)
            x.load_all()
            x.enter()
            self.publish(x)
            getattr(self, kind)(x)
            x.done()
        self.barrier()

    # ---- waiting

    def pause(self, code: Code) -> None:
        name = "llvm.x86.sse2.pause" if self.target.triple.startswith("x86_64") else ""
        if name:
            code.b.call(declare(self.module, name, ir.FunctionType(VOID, [])), [])
        elif self.target.triple.startswith(("aarch64", "arm64")):
            hint = declare(self.module, "llvm.aarch64.hint", ir.FunctionType(VOID, [I32]))
            code.b.call(hint, [I32(1)])

    def futex(self, code: Code, word: ir.Value, op: int, value: ir.Value, time: ir.Value) -> None:
        number = 202 if self.target.triple.startswith("x86_64") else 98
        kind = ir.FunctionType(I64, [I64], var_arg=True)
        syscall = declare(self.module, "syscall", kind)
        code.b.call(syscall, [I64(number), word, I32(op), value, time])

    def atomic(self, code: Code, op: str, place: ir.Value, value: ir.Value) -> ir.Value:
        return code.b.atomic_rmw(op, place, value, "seq_cst")

    def peek(self, code: Code, place: ir.Value, type_: ir.Type) -> ir.Value:
        """An atomic load that what follows can't overtake."""
        return code.b.load_atomic(place, "seq_cst", 8 if type_ == I64 else 4, typ=type_)

    def _wait(self) -> ir.Function:
        """Waits until a line's epoch is reached."""
        x = self.writer.begin("wait", public=False)
        code, context, line = x.code, x.context, x.descriptor
        head, epoch = context.pointer_at("head"), context["epoch"]
        abort, futex = x.at(head, ABORT), x.at(head, FUTEX)
        sleepers = x.at(head, SLEEPERS)

        def return_if_there() -> None:
            with code.when(Int(code, self.peek(code, line, I64)) >= epoch):
                code.b.ret(I32(0))

        with code.range(0, context["spins"]):
            return_if_there()
            self.pause(code)
        sched_yield = declare(self.module, "sched_yield", ir.FunctionType(I32, []))
        with code.range(0, context["yields"]):
            return_if_there()
            code.b.call(sched_yield, [])
        signals = declare(self.module, "fg_signals", ir.FunctionType(I32, []))
        time = code.variable(I64, None, 2).slot
        code.store(code.i64(0), time)
        code.store(code.i64(int(SLEEP_SECONDS * 1e9)), code.at(time, 1, I64))
        with code.loop() as (turn, _):
            self.atomic(code, "add", sleepers, I32(1))
            seen = self.peek(code, futex, I32)
            there = Int(code, self.peek(code, line, I64)) >= epoch
            stop = Bool(code, code.b.icmp_signed("!=", self.peek(code, abort, I32), I32(0)))
            with code.when(~(there | stop)):
                self.futex(code, futex, 0, seen, time)
            self.atomic(code, "sub", sleepers, I32(1))
            return_if_there()
            with code.when(stop):
                code.b.ret(I32(ABORTED))
            raised = code.b.call(signals, [])
            with code.when(Bool(code, code.b.icmp_signed("!=", raised, I32(0)))):
                code.b.ret(I32(RAISED))
            code.b.branch(turn)
            code.b.position_at_end(turn)
        code.b.unreachable()
        return code.function

    def _meet(self, wait: ir.Function) -> ir.Function:
        """Arrives, waits for all ranks, and compares what they want."""
        x = self.writer.begin("meet", public=False)
        code, context = x.code, x.context
        x.rank, x.size = context["rank"], context["size"]
        epoch = context["epoch"] + 1
        context["epoch"] = epoch
        head, lines = context.pointer_at("head"), context.pointer_at("lines")
        mine = x.at(lines, x.rank * LINE)
        self.atomic(code, "xchg", mine, epoch.value)
        self.wake_sleepers(x, head)
        offset = self.odd(x)
        own = [code.load(self.word(x, mine, i, offset), I64) for i in (1, 2, 3)]
        alike = code.variable(I32, I32(0))
        with code.range(0, x.size) as r:
            line = x.at(lines, r * LINE)
            status = code.b.call(wait, [x.ctx, line])
            with code.when(Bool(code, code.b.icmp_signed("!=", status, I32(0)))):
                context["failed"] = ABORTED
                # Others may already wait for this rank in what follows, which it doesn't do.
                self.atomic(code, "xchg", x.at(head, ABORT), I32(1))
                self.wake_sleepers(x, head)
                code.b.ret(status)
            for i, value in enumerate(own, 1):
                with code.when(code.load(self.word(x, line, i, offset), I64).ne(value)):
                    alike.set(I32(DISAGREE))
        with code.when(Bool(code, code.b.icmp_signed("!=", alike.get(), I32(0)))):
            context["failed"] = DISAGREE
            self.atomic(code, "xchg", x.at(head, ABORT), I32(1))
            self.wake_sleepers(x, head)
            code.b.ret(alike.get())
        # Once ranks disagreed, nothing that they exchange means anything.
        stop = self.peek(code, x.at(head, ABORT), I32)
        with code.when(Bool(code, code.b.icmp_signed("!=", stop, I32(0)))):
            context["failed"] = ABORTED
            code.b.ret(I32(ABORTED))
        code.b.ret(I32(0))
        return code.function

    def wake_sleepers(self, x: Exchange, head: ir.Value) -> None:
        code = x.code
        asleep = self.peek(code, x.at(head, SLEEPERS), I32)
        with code.when(Bool(code, code.b.icmp_signed(">", asleep, I32(0)))):
            word = x.at(head, FUTEX)
            self.atomic(code, "add", word, I32(1))
            self.futex(code, word, 1, I32(0x7FFFFFFF), ir.Constant(PTR, None))

    def publish(self, x: Exchange) -> None:
        """Write into the rank's line what it is about to exchange."""
        line = x.at(x.context.pointer_at("lines"), x.rank * LINE)
        for i, value in enumerate((x.sequence, x.what, x.number_of), 1):
            x.code.store(value, self.word(x, line, i, self.odd(x)))

    def odd(self, x: Exchange) -> Int:
        """Where in a line the words of this exchange are."""
        return x.context["sequence"] % 2 * ODD

    def word(self, x: Exchange, line: ir.Value, i: int, offset: Int) -> ir.Value:
        return x.code.at(line, offset + i, I64)

    def met(self, x: Exchange) -> None:
        """Wait for all; give up if that fails."""
        x.give_up_unless(x.call(self.meet, x.ctx, x.descriptor))

    # ---- slots

    def half(self, x: Exchange, rank: Int) -> ir.Value:
        """The half of a rank's slot whose turn it is."""
        slot = x.context["slot_bytes"]
        return x.at(x.context.pointer_at("slots"), (rank * 2 + x.context["parity"]) * slot)

    def chunks(self, x: Exchange, rows: Int | int, body: Callable[[Int, Int], None]) -> None:
        """body(first element, elements) for each chunk of which `rows` rows fit into a half."""
        code = x.code
        fits = x.context["slot_bytes"] // (x.width * rows)
        with code.range(0, x.count, fits) as o:
            body(o, (x.count - o).min(fits))
            x.context["parity"] = 1 - x.context["parity"]

    def deliver(self, x: Exchange, to: ir.Value, source: ir.Value, nbytes: Int) -> None:
        """Copy into the result."""
        with x.code.either(x.count * x.width > STREAMED) as (large, small):
            with large:
                x.call(self.stream, to, source, nbytes)
            with small:
                x.copy(to, source, nbytes)

    def others(self, x: Exchange, body: Callable[[Int], None]) -> None:
        """body(r) for each other rank, the next one first."""
        with x.code.range(1, x.size) as i:
            body((x.rank + i) % x.size)

    def check_fold(self, x: Exchange) -> None:
        """Give up where there is no such sum; also tell the others by not arriving alone."""
        null = ir.Constant(PTR, None)
        none = x.call(self.fold_at, x.wanted["op"], x.wanted["dtype"], null, null, 0, 0)
        with x.code.when(Bool(x.code, x.code.b.icmp_signed("!=", none, I32(0)))):
            x.context["failed"] = UNKNOWN
            x.leave()
            x.code.b.ret(I32(UNKNOWN))

    def fold(self, x: Exchange, to: ir.Value, array_of: Callable[[Int], ir.Value], n: Int) -> None:
        """Combine n elements of an array of each rank."""
        with x.code.range(0, x.size) as r:
            x.code.store(array_of(r), x.code.at(self.arrays, r, PTR))
        x.call(self.fold_at, x.wanted["op"], x.wanted["dtype"], to, self.arrays, x.size, n)

    def own_or(self, x: Exchange, r: Int, own: ir.Value, other: ir.Value) -> ir.Value:
        return r.eq(x.rank).pick(own, other)

    # ---- exchanges

    def all_reduce(self, x: Exchange) -> None:
        self.check_fold(x)
        code, width = x.code, x.width
        self.arrays = x.table(x.size)

        def together(o: Int, n: Int) -> None:
            """Each rank sums all."""
            own = x.at(x.source, o * width)
            x.copy(self.half(x, x.rank), own, n * width)
            self.met(x)
            self.fold(x, x.at(x.to, o * width),
                      lambda r: self.own_or(x, r, own, self.half(x, r)), n)  # fmt: skip

        def in_parts(o: Int, n: Int) -> None:
            """Each rank sums a part, in its slot, and takes the others'."""
            mine = self.half(x, x.rank)
            x.copy(mine, x.at(x.source, o * width), n * width)
            self.met(x)
            part = n.ceil_div(x.size).round_up(64)
            begin = (x.rank * part).min(n)
            m = (begin + part).min(n) - begin
            self.fold(x, x.at(mine, begin * width),
                      lambda r: x.at(self.half(x, r), begin * width), m)  # fmt: skip
            self.met(x)
            with code.range(0, x.size) as r:
                first = (r * part).min(n)
                size = ((first + part).min(n) - first) * width
                there = x.at(self.half(x, r), first * width)
                self.deliver(x, x.at(x.to, (o + first) * width), there, size)

        with code.either((x.size < GATHERED_FROM) | (x.count <= 512)) as (few, many):
            with few:
                self.chunks(x, 1, together)
            with many:
                self.chunks(x, 1, in_parts)

    def all_gather(self, x: Exchange) -> None:
        width = x.width

        def chunk(o: Int, n: Int) -> None:
            own = x.at(x.source, o * width)
            x.copy(self.half(x, x.rank), own, n * width)
            self.met(x)
            self.deliver(x, x.at(x.to, (x.rank * x.count + o) * width), own, n * width)
            self.others(x, lambda r: self.deliver(
                x, x.at(x.to, (r * x.count + o) * width), self.half(x, r), n * width))  # fmt: skip

        self.chunks(x, 1, chunk)

    def reduce_scatter(self, x: Exchange) -> None:
        self.check_fold(x)
        width = x.width
        self.arrays = x.table(x.size)

        def chunk(o: Int, n: Int) -> None:
            self.put_rows(x, o, n)
            own = x.at(x.source, (x.rank * x.count + o) * width)
            self.fold(x, x.at(x.to, o * width), lambda r: self.own_or(
                x, r, own, x.at(self.half(x, r), x.rank * n * width)), n)  # fmt: skip

        self.chunks(x, x.size, chunk)

    def all_to_all(self, x: Exchange) -> None:
        width = x.width

        def chunk(o: Int, n: Int) -> None:
            self.put_rows(x, o, n)
            here = (x.rank * x.count + o) * width
            self.deliver(x, x.at(x.to, here), x.at(x.source, here), n * width)
            self.others(x, lambda r: self.deliver(
                x, x.at(x.to, (r * x.count + o) * width),
                x.at(self.half(x, r), x.rank * n * width), n * width))  # fmt: skip

        self.chunks(x, x.size, chunk)

    def put_rows(self, x: Exchange, o: Int, n: Int) -> None:
        """Part [o, o + n) of each other rank's row into the own slot; then wait for all."""
        mine, width = self.half(x, x.rank), x.width
        self.others(x, lambda r: x.copy(
            x.at(mine, r * n * width), x.at(x.source, (r * x.count + o) * width), n * width
        ))  # fmt: skip
        self.met(x)

    def permute(self, x: Exchange) -> None:
        code, width = x.code, x.width
        to, source = (code.variable(I64, code.i64(-1)) for _ in range(2))
        perm = x.wanted.pointer_at("perm")
        with code.when(x.nonnull(perm)):
            to.set(code.load(code.at(perm, x.rank * 2, I64), I64))
            source.set(code.load(code.at(perm, x.rank * 2 + 1, I64), I64))
        sends, receives = Int(code, to.get()) >= 0, Int(code, source.get()) >= 0

        def chunk(o: Int, n: Int) -> None:
            with code.when(sends):
                x.copy(self.half(x, x.rank), x.at(x.source, o * width), n * width)
            self.met(x)
            with code.either(receives) as (yes, no):
                with yes:
                    there = self.half(x, Int(code, source.get()))
                    self.deliver(x, x.at(x.to, o * width), there, n * width)
                with no:
                    x.clear(x.at(x.to, o * width), n * width)

        self.chunks(x, 1, chunk)

    def barrier(self) -> None:
        x = self.writer.begin("barrier")
        x.rank = x.context["rank"]
        x.enter(BARRIER)
        self.publish(x)
        self.met(x)
        x.done()
