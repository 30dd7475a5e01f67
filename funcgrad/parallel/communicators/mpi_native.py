"""Native exchanges through MPI, whose functions are called by address.

Two of MPI's collectives carry everything: all-to-all and all-gather, of bytes. Sums are ours, in
the order of ranks, for every dtype: a large all-reduce is a reduce-scatter and an all-gather of
parts. Only small ones of MPI's own dtypes go through MPI_Allreduce, which needs fewer messages.
Large arrays go in chunks, so that no count exceeds what MPI's integers hold.

Where ranks form equal groups on several nodes, an all-reduce is summed inside each node, then
across them, a part a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Bool, Int, Record, declare
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.rewrites.exchanges import DTYPES, KINDS, OPS
from funcgrad.parallel.communicators.fold import write_folds
from funcgrad.parallel.communicators.native import (
    BARRIER,
    CONTEXT,
    MPI_FAILED,
    UNKNOWN,
    Exchange,
    Writer,
)

NULL = ir.Constant(PTR, None)


def mpi_module(target: Target, handle_bytes: int, proc_null: int) -> ir.Module:
    """The module of fg_mpi_<kind>, fg_mpi_barrier and fg_nodes_all_reduce. `handle_bytes` is the
    size of MPI's handles, which differs between libraries, proc_null the rank of nobody."""
    return _Mpi(target, handle_bytes, proc_null).module


class _Mpi:
    def __init__(self, target: Target, handle_bytes: int, proc_null: int):
        self.module = ir.Module("mpi")
        self.handle = ir.IntType(8 * handle_bytes)
        self.proc_null = proc_null
        self.fold_at = write_folds(self.module, target)
        self.take = declare(self.module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(self.module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))
        self.writer = Writer(self.module, "fg_mpi")
        for kind in KINDS:
            x = self.writer.begin(kind)
            x.load_all()
            x.enter()
            getattr(self, kind)(x)
            x.done()
        self.barrier()
        self.nodes_all_reduce()

    # ---- calls of MPI

    def mpi(self, x: Exchange, name: str, *args: Any) -> None:
        """Call MPI; give up if it fails. Python integers are C ints."""
        values = [I32(a) if isinstance(a, int) else a for a in args]
        function = declare(self.module, name, ir.FunctionType(I32, [v.type for v in values]))
        status = x.code.b.call(function, values)
        with x.code.when(Bool(x.code, x.code.b.icmp_signed("!=", status, I32(0)))):
            x.context["failed"] = Int(x.code, x.code.b.sext(status, I64)) * 256 + MPI_FAILED
            x.leave()
            x.code.b.ret(I32(MPI_FAILED))

    def word(self, x: Exchange, name: str) -> ir.Value:
        """A handle of the context."""
        value = x.context[name].value
        return value if self.handle == I64 else x.code.b.trunc(value, self.handle)

    def entry(self, x: Exchange, table: str, index: Int) -> ir.Value:
        """A handle of a table that the context points at."""
        at = x.code.at(x.context.pointer_at(table), index, I64)
        return Int(x.code, x.code.b.load(at, typ=I64)).value if self.handle == I64 else (
            x.code.b.trunc(x.code.b.load(at, typ=I64), self.handle))  # fmt: skip

    def c_int(self, x: Exchange, n: Int) -> ir.Value:
        return x.code.b.trunc(n.value, I32)

    def blocks(self, x: Exchange, name: str, source: ir.Value, to: ir.Value, nbytes: Int) -> None:
        """MPI_Alltoall or MPI_Allgather of blocks of bytes."""
        n, byte = self.c_int(x, nbytes), self.word(x, "byte")
        self.mpi(x, name, source, n, byte, to, n, byte, self.word(x, "comm"))

    # ---- pieces

    def scratch(self, x: Exchange, nbytes: Int) -> ir.Value:
        return x.call(self.take, nbytes)

    def free(self, x: Exchange, block: ir.Value) -> None:
        x.call(self.give, block)

    def check_fold(self, x: Exchange) -> None:
        none = x.call(self.fold_at, x.wanted["op"], x.wanted["dtype"], NULL, NULL, 0, 0)
        with x.code.when(Bool(x.code, x.code.b.icmp_signed("!=", none, I32(0)))):
            x.context["failed"] = UNKNOWN
            x.leave()
            x.code.b.ret(I32(UNKNOWN))

    def fold(self, x: Exchange, to: ir.Value, rows: ir.Value, n: Int) -> None:
        """Combine rows of n elements that lie one behind the other."""
        with x.code.range(0, x.size) as r:
            x.code.store(x.at(rows, r * n * x.width), x.code.at(self.arrays, r, PTR))
        x.call(self.fold_at, x.wanted["op"], x.wanted["dtype"], to, self.arrays, x.size, n)

    def chunks(self, x: Exchange, rows: Int | int, body: Callable[[Int, Int], None]) -> None:
        """body(first element, elements) for parts of which `rows` rows make no more than a chunk"""
        fits = (x.context["chunk"] // (x.width * rows)).max(1)
        with x.code.range(0, x.count, fits) as o:
            body(o, (x.count - o).min(fits))

    def whole(self, x: Exchange) -> Bool:
        """Whether the blocks of all ranks fit into a chunk."""
        return x.count * x.width * x.size <= x.context["chunk"]

    def pack(self, x: Exchange, to: ir.Value, source: ir.Value, o: Int, n: Int) -> None:
        """Elements [o, o + n) of each row, one behind the other."""
        with x.code.range(0, x.size) as r:
            x.copy(
                x.at(to, r * n * x.width), x.at(source, (r * x.count + o) * x.width), n * x.width
            )

    def unpack(self, x: Exchange, to: ir.Value, source: ir.Value, o: Int, n: Int) -> None:
        """The inverse of `pack`."""
        with x.code.range(0, x.size) as r:
            x.copy(
                x.at(to, (r * x.count + o) * x.width), x.at(source, r * n * x.width), n * x.width
            )

    # ---- exchanges

    def all_reduce(self, x: Exchange) -> None:
        self.check_fold(x)
        code, width = x.code, x.width
        self.arrays = x.table(x.size)
        ordered = x.wanted["op"].ne(OPS.index("sum")).select(len(DTYPES), 0)
        kind = self.entry(x, "types", x.wanted["dtype"] + ordered)
        null = self.entry(x, "types", code.i64(-1))
        known = Bool(code, code.b.icmp_unsigned("!=", kind, null))
        small = x.count * width <= x.context["small"]
        with code.when(known & small):
            source = self.apart(x)
            self.mpi(x, "MPI_Allreduce", source, x.to, self.c_int(x, x.count), kind,
                     self.entry(x, "ops", x.wanted["op"]), self.word(x, "comm"))  # fmt: skip
            x.leave()
            code.b.ret(I32(0))

        def chunk(o: Int, n: Int) -> None:
            rows = self.scratch(x, (n + x.size * x.size) * width)
            part = n // x.size
            body = part * x.size
            with code.when(part > 0):
                here = x.at(x.to, o * width)
                self.blocks(x, "MPI_Alltoall", x.at(x.source, o * width), rows, part * width)
                mine = x.at(here, x.rank * part * width)
                self.fold(x, mine, rows, part)
                in_place = x.context.pointer_at("in_place")
                nothing = self.word(x, "byte")
                self.mpi(x, "MPI_Allgather", in_place, 0, nothing, here,
                         self.c_int(x, part * width), nothing, self.word(x, "comm"))  # fmt: skip
            rest = n - body
            with code.when(rest > 0):
                last = (o + body) * width
                self.blocks(x, "MPI_Allgather", x.at(x.source, last), rows, rest * width)
                self.fold(x, x.at(x.to, last), rows, rest)
            self.free(x, rows)

        self.chunks(x, 1, chunk)

    def apart(self, x: Exchange) -> ir.Value:
        """The source of an all-reduce, or MPI_IN_PLACE where it is the result, too."""
        b = x.code.b
        same = b.icmp_unsigned("==", x.source, x.to)
        return b.select(same, x.context.pointer_at("in_place"), x.source)

    def all_gather(self, x: Exchange) -> None:
        def chunk(o: Int, n: Int) -> None:
            rows = self.scratch(x, n * x.width * x.size)
            self.blocks(x, "MPI_Allgather", x.at(x.source, o * x.width), rows, n * x.width)
            self.unpack(x, x.to, rows, o, n)
            self.free(x, rows)

        with x.code.either(self.whole(x)) as (whole, parts):
            with whole:
                self.blocks(x, "MPI_Allgather", x.source, x.to, x.count * x.width)
            with parts:
                self.chunks(x, x.size, chunk)

    def reduce_scatter(self, x: Exchange) -> None:
        self.check_fold(x)
        self.arrays = x.table(x.size)

        def chunk(o: Int, n: Int) -> None:
            nbytes = n * x.width * x.size
            rows = self.scratch(x, nbytes * 2)
            packed = x.at(rows, nbytes)
            with x.code.either(self.whole(x)) as (whole, parts):
                with whole:
                    self.blocks(x, "MPI_Alltoall", x.source, rows, n * x.width)
                with parts:
                    self.pack(x, packed, x.source, o, n)
                    self.blocks(x, "MPI_Alltoall", packed, rows, n * x.width)
            self.fold(x, x.at(x.to, o * x.width), rows, n)
            self.free(x, rows)

        self.chunks(x, x.size, chunk)

    def all_to_all(self, x: Exchange) -> None:
        def chunk(o: Int, n: Int) -> None:
            nbytes = n * x.width * x.size
            rows = self.scratch(x, nbytes * 2)
            packed = x.at(rows, nbytes)
            self.pack(x, packed, x.source, o, n)
            self.blocks(x, "MPI_Alltoall", packed, rows, n * x.width)
            self.unpack(x, x.to, rows, o, n)
            self.free(x, rows)

        with x.code.either(self.whole(x)) as (whole, parts):
            with whole:
                self.blocks(x, "MPI_Alltoall", x.source, x.to, x.count * x.width)
            with parts:
                self.chunks(x, x.size, chunk)

    def permute(self, x: Exchange) -> None:
        code = x.code
        perm = x.wanted.pointer_at("perm")
        to, source = (code.variable(I64, code.i64(-1)) for _ in range(2))
        with code.when(x.nonnull(perm)):
            to.set(code.load(code.at(perm, x.rank * 2, I64), I64))
            source.set(code.load(code.at(perm, x.rank * 2 + 1, I64), I64))
        send, receive = Int(code, to.get()), Int(code, source.get())
        with code.when(receive < 0):
            x.clear(x.to, x.count * x.width)
        peers = [self.c_int(x, (p < 0).select(self.proc_null, p)) for p in (send, receive)]
        status = code.variable(I64, None, 16).slot

        def chunk(o: Int, n: Int) -> None:
            nbytes, byte = self.c_int(x, n * x.width), self.word(x, "byte")
            self.mpi(
                x, "MPI_Sendrecv", x.at(x.source, o * x.width), nbytes, byte, peers[0], 0,
                x.at(x.to, o * x.width), nbytes, byte, peers[1], 0, self.word(x, "comm"), status,
            )  # fmt: skip

        self.chunks(x, 1, chunk)

    def barrier(self) -> None:
        x = self.writer.begin("barrier")
        x.enter(BARRIER)
        self.mpi(x, "MPI_Barrier", self.word(x, "comm"))
        x.done()

    # ---- several nodes

    def nodes_all_reduce(self) -> None:
        """An all-reduce by the contexts of this node's ranks, and of those across nodes."""
        x = Writer(self.module, "fg_nodes").begin("all_reduce")
        x.load_all()
        x.enter()
        code, width = x.code, x.width
        local, across = x.context.pointer_at("local"), x.context.pointer_at("across")
        several = Record(code, CONTEXT, local)["size"]
        part_of = x.context["chunk"] // (width * several)
        words = code.variable(I64, None, 8).slot

        def part(ctx: ir.Value, kind: str, count: Int, source: ir.Value, to: ir.Value) -> None:
            x.give_up_unless(self.inner(x, ctx, kind, words, count, source, to))

        def chunk(o: Int, n: Int) -> None:
            mine = self.scratch(x, (n // several + 1) * width)
            body = n // several
            here = x.at(x.to, o * width)
            with code.when(body > 0):
                part(local, "reduce_scatter", body, x.at(x.source, o * width), mine)
                part(across, "all_reduce", body, mine, mine)
                part(local, "all_gather", body, mine, here)
            done = body * several
            with code.when(n > done):
                rest = x.at(here, done * width)
                part(local, "all_reduce", n - done, x.at(x.source, (o + done) * width), rest)
                part(across, "all_reduce", n - done, rest, rest)
            self.free(x, mine)

        with code.range(0, x.count, part_of * several) as o:
            chunk(o, (x.count - o).min(part_of * several))
        x.done()

    def inner(
        self, x: Exchange, ctx: ir.Value, kind: str, words: ir.Value, count: Int,
        source: ir.Value, to: ir.Value,
    ) -> ir.Value:  # fmt: skip
        """Call an exchange of another context with a descriptor made here."""
        code, wanted = x.code, x.wanted
        values = (
            code.i64(KINDS.index(kind)), wanted["op"], wanted["dtype"], x.width, count, source, to,
            code.i64(0),
        )  # fmt: skip
        for i, value in enumerate(values):
            code.store(value, code.at(words, i, I64))
        function = Record(code, CONTEXT, ctx).pointer_at(kind)
        taking = ir.FunctionType(I32, [PTR, PTR])
        return code.b.call(ir.Called(function, taking), [ctx, words])
