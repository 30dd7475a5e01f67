"""The program around the ways of the generated GEMM: batches, choice of a way, rounding.

A call is described by an array of i64 words (`CALL`). One matrix product of it becomes a `JOB`,
swapped to Cᵀ = BᵀAᵀ where that makes it thin in m or contiguous in c, and goes one of the ways of
`unpacked` or `packed`. Sums over k are split by shapes alone, so the number of threads
never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from funcgrad.backends.llvm.gemm.batch import ROWS, Batch, is_thin, merge_batches
from funcgrad.backends.llvm.gemm.job import Parts, Way
from funcgrad.backends.llvm.gemm.kernels import Micro
from funcgrad.backends.llvm.gemm.long import Long
from funcgrad.backends.llvm.gemm.micro import linked, placed
from funcgrad.backends.llvm.gemm.pack import Format
from funcgrad.backends.llvm.gemm.packed import Packed
from funcgrad.backends.llvm.gemm.trial import Facts, Known, Trial
from funcgrad.backends.llvm.gemm.unpacked import CALLS, SMALL_K, Unpacked
from funcgrad.backends.llvm.gemm.words import (
    BATCH_PART,
    BATCH_WORK,
    CALL,
    INNER,
    JOB,
    OUT,
    SHARED,
    TABLES,
    THIN,
)
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Callee, Code, Int, Record
from funcgrad.backends.llvm.native.target import Target

PAGE = 4096
# Ways of which it is known what kernels a product calls.
ROUTED = ("packed", "batch", *CALLS)
PLAIN = (*ROUTED, "axpy", "dot")  # ways of operands that have strides
BRIEF = ("at_once", "small")  # ways of products that take less time than compiling them
LONG_ROWS = 512  # elements of a row from which on its inner products beat packing
FEW_ROWS = 128  # of A, to which packing B is dear
TALL = 896  # rows from which on tasks of packed products each have rows of their own
# Rows in the same few lines of a core's own cache that it still holds, and of its first one, which
# matters where few registers make short steps.
SPREAD_ROWS, WAYS = 256, 8
NEAR = 2048  # bytes that rows may be apart for processors that don't follow longer strides
SHORT_SUMS = 32  # products that an element of C is the sum of, to which its writing is what counts
UNEVEN_WORK = 12 << 20  # multiply-adds that pay for packing a B which could be read in place


class Driver:
    """Writes fg_gemm_<in>_<out>(ptr call) and all it needs into `module`.

    way: the only way that its calls will go (see `route`), the suffix of its name. This class is
        for those of `PLAIN`; `gathered` for others, and for any.
    """

    routed: tuple[str, ...] = ROUTED
    gathered: Mapping[str, Any] = {}

    def __init__(self, fmt: Format, out: Format, target: Target, way: str = ""):
        self.module = module = ir.Module("gemm")
        self.fmt, self.out, self.target, self.way = fmt, out, target, way
        self.used: set[Micro] = set()  # kernels of their own libraries
        self.parts = Parts(module, fmt, out, target, self._elsewhere())
        self.narrow = self.parts.narrow
        packed = self._panels = Packed(self.parts, tables=not way and not fmt.is_complex)
        self.packed = packed.way
        works = self.parts.kernels.direct_works
        self.unpacked = Unpacked(self.parts, brief=way in BRIEF) if works else None
        batches = works and not (self.narrow or fmt.is_complex) and self.parts.tile.rows >= ROWS
        self.batch = Batch(self.parts) if batches else None
        # Its parts are products that go ways of their own.
        self.long = Way("", lambda: Long(self.parts, self.product).function)

    def write(self) -> None:
        """The functions."""
        if self.batch and self.way == self.batch.name:
            self._entry(self.batch.task(symbol(self.fmt, self.out, self.way)))
            return
        self._product()
        self.item = self._item()
        self._entry(self._batch_task())

    def _elsewhere(self) -> Callable[[Micro], Callee] | None:
        """Where the kernels are: a function for all ways has them itself."""
        if self.way in self.routed:
            return placed(symbol(self.fmt, self.out, self.way))
        return linked(self.module, self.fmt, self.used) if self.way else None

    def route(self, words: Mapping[str, int]) -> tuple[str, list[Micro]]:
        """The way that products of a call's sizes and strides go, "" if it isn't only one; and the
        kernels that have to be placed for it (`micro`).

        Found by the very statements that choose at run time, run on numbers.
        """
        if not words["k"] or self.narrow:
            return "", []
        call: Any = Facts({name: Known(words.get(name, 0)) for name in CALL})
        trial: Any = Trial(call)
        merge_batches(trial, call)
        if self.batch and self.batch.serves(call):
            return self.batch.name, self.batch.reached(call["m"].value, call["n"].value)
        self._finished_or_plain(trial, call)
        (found,) = trial.calls
        way = found.name if isinstance(found, Way) else ""
        m, n = call["m"].value, call["n"].value
        if way == self.packed.name:
            return way, self._panels.reached(m, n)
        if not self.unpacked:
            return way, []
        return way, self.unpacked.reached(way, m, n, call["a_cs"].value, way in BRIEF)

    def _product(self) -> None:
        """Swaps a job if that helps, then sends it the way whose condition comes first."""
        code = Code(self.module, "product", [PTR])
        self.product = code.function
        job = Record(code, JOB, code.args[0])
        if self.way:
            self._finished_or_plain(code, job)
        else:
            with code.either(job["a_rows"].ne(0)) as (gathered, plain):
                with gathered:
                    self._go(code, self.packed)
                with plain:
                    self._finished_or_plain(code, job)
        code.ret()

    def _finished_or_plain(self, code: Code, job: Record) -> None:
        if not self.parts.finishes:
            self._plain_product(code, job)
            return
        with code.either(job["finish"].ne(0)) as (finished, plain):
            with finished:
                self._go(code, self.packed)
            with plain:
                self._plain_product(code, job)

    def _plain_product(self, code: Code, job: Record) -> None:
        if self.way:
            # What there is to ask, `route` has asked.
            if self.way != "at_once":
                self._swap(code, job)
            self._go(code, getattr(self.unpacked, self.way, None) or self.packed)
            return
        if not self.unpacked:
            self._strided_product(code, job)
            return
        with code.either(self._is_tiny(job)) as (tiny, other):
            with tiny:
                self._go(code, self.unpacked.at_once)
            with other:
                self._strided_product(code, job)

    def _is_tiny(self, job: Record) -> Bool:
        """Whether a product lies well, and choosing its way would take long beside itself."""
        m, n, k = job["m"], job["n"], job["k"]
        lies_well = job["b_cs"].eq(1) & job["c_cs"].eq(1)
        return lies_well & (m > 1) & (m * n * k <= self.parts.serial_work) & ~is_thin(m, n)

    def _swap(self, code: Code, job: Record) -> None:
        """Turns a job that is thin in n, or whose c lies along m."""
        m, n = job["m"], job["n"]
        thin = is_thin(m, n)
        wide = (m <= THIN) & (n > 2 * THIN)
        with code.when(thin | (job["c_cs"].ne(1) & job["c_rs"].eq(1) & ~wide)):
            pairs = [("m", "n"), ("a", "b"), ("a_rs", "b_cs"), ("a_cs", "b_rs"), ("c_rs", "c_cs")]
            for x, y in [*pairs, *([("out_rs", "out_cs")] if self.narrow else [])]:
                job[x], job[y] = job[y], job[x]

    def _strided_product(self, code: Code, job: Record) -> None:
        lanes, work = self.parts.tile.lanes, job["m"] * job["n"] * job["k"]
        small, serial = (work <= most for most in (self.parts.small_work, self.parts.serial_work))
        self._swap(code, job)
        m, n, k = job["m"], job["n"], job["k"]
        b_unit, c_unit = job["b_cs"].eq(1), job["c_cs"].eq(1)
        ways: list[tuple[Bool, Way | None]] = []
        if self.unpacked:
            few = (m <= THIN) | small & (k > SMALL_K)
            # Narrow columns of a B that no cache holds would be read in long strides.
            caches, width = self.target.caches, self.fmt.acc_bytes
            streamed = (m > THIN // 2) & (n * k > caches.l3 // 2 // width)
            many_registers = self.parts.tile.many_registers
            held, in_place = self._kept(job, m, n, k)
            lies_well = small | (m <= THIN) & ~streamed
            if many_registers:
                few = few | (m <= 6 * THIN) & (k >= LONG_ROWS)
                if self.target.follows_strides:
                    lies_well = lies_well | (m <= 4 * THIN) & (n * k <= caches.l3 // 4 // width)
            if self.unpacked.panelled:
                lies_well = lies_well | in_place
            apart, uneven, short = self._packs_apart(job, m, n, k)
            ways = [
                (c_unit & Long.fits(code, self.parts, m, n, k), self.long),
                (m.eq(1) & b_unit & c_unit & (n >= 8 * lanes), self.unpacked.axpy),
                (c_unit & uneven, self.unpacked.apart),
                (b_unit & c_unit & lies_well, self.unpacked.direct),
                (job["b_rs"].eq(1) & (k >= 4 * lanes) & few, self.unpacked.dot),
                (b_unit & ~c_unit & (m <= THIN), self.unpacked.turned),
                (c_unit & serial & (k <= SMALL_K), self.unpacked.small),
            ]
            if self.unpacked.panelled and self.target.follows_strides:
                ways.append((c_unit & held, self.unpacked.panelled))
            if self.unpacked.apart and self.unpacked.panelled:
                ways.append((c_unit & apart, self.unpacked.apart))
                ways.append((c_unit & short, self.unpacked.panelled))
        self._first_way(code, [(fits, way) for fits, way in ways if way])

    def _kept(self, job: Record, m: Int, n: Int, k: Int) -> tuple[Bool, Bool]:
        """Whether B is small enough to be read for all rows of A by kernels that leave A where it
        is, and whether B itself had better stay where it is then."""
        caches, width = self.target.caches, self.fmt.acc_bytes
        kept = caches.l2 // width
        if not self.target.follows_strides:
            # From further away, B comes in time only where it is packed.
            held = n * k <= (m <= FEW_ROWS).select(kept // 2, kept // 4)
            # So does a large A, unless it is read but a few times.
            held = held & ((m * k <= 2 * kept) | (n <= FEW_ROWS))
            held = held & (job["a_cs"].eq(1) | (m <= FEW_ROWS))
            step, near = job["b_rs"], NEAR // self.fmt.bytes
            return held, held & ((step <= near) & (step >= -near) | (m <= 6 * THIN))
        many_registers = self.parts.tile.many_registers
        most = (m <= FEW_ROWS).select(kept, kept * 5 // 8)
        if many_registers:
            # Long steps leave time to read B from further away, which beats packing first.
            far = max(kept, min(2 * kept, caches.l3 // (8 * width)))
            most = (m < TALL).select(far, kept * 5 // 8)
        held = (n * k <= most) & (job["a_cs"].eq(1) | (m * k <= kept))
        # Rows a multiple of a page apart would meet in the same lines of a cache.
        spread = SPREAD_ROWS if many_registers else WAYS
        apart = (job["b_rs"] % (PAGE // self.fmt.bytes)).ne(0) | (k <= spread)
        return held, held & apart

    def _packs_apart(self, job: Record, m: Int, n: Int, k: Int) -> tuple[Bool, Bool, Bool]:
        """Whether tasks had better pack columns of B, each for itself, and leave A where it is;
        whether even a B that could be read where it is, as its rows begin anywhere in lines; and
        whether all of B had better be packed first, as C is to be written row by row."""
        kept, step = self.target.caches.l2 // self.fmt.acc_bytes, job["a_cs"]
        near = NEAR // self.fmt.bytes
        fits = (n * k <= kept // 4) & (m * k <= kept // 2) & (step < near) & (step > -near)
        # Strips of columns of a large C take longer to write than short sums.
        fits = fits & (m >= 2 * THIN) & (k >= SHORT_SUMS) & (m * n <= 2 * kept)
        short = (m >= 2 * THIN) & (k <= SHORT_SUMS) & (m * k <= 2 * kept) & (n * k <= kept // 2)
        uneven = job["b_cs"].eq(1) & (m * n * k >= UNEVEN_WORK * 4 // self.fmt.acc_bytes)
        uneven = uneven & (job["b_rs"] % self.parts.tile.lanes).ne(0)
        return fits, fits & uneven, short

    def _first_way(self, code: Code, ways: list[tuple[Bool, Way]]) -> None:
        if not ways:
            self._go(code, self.packed)
            return
        with code.either(ways[0][0]) as (yes, no):
            with yes:
                self._go(code, ways[0][1])
            with no:
                self._first_way(code, ways[1:])

    def _go(self, code: Code, way: Way) -> None:
        if isinstance(code, Trial):
            code.call(way)
        elif self.way in ("", way.name):
            code.call(way.function, code.args[0])

    def _item(self) -> ir.Function:
        """Product number i of a call's batch."""
        code = Code(self.module, "item", [PTR, I64])
        call = Record(code, SHARED, code.args[0])
        i = code.args[1]
        i0, i1 = i // call["batch1"], i % call["batch1"]
        job = Record(code, JOB, code.variable(I64, count=len(JOB)).slot)
        code.copy(job.pointer, call.pointer, 8 * len(SHARED))
        for name, storage in (("a", self.fmt.storage), ("b", self.fmt.storage),
                              ("c", self.out.storage)):  # fmt: skip
            offset = i0 * call[f"{name}_b0"] + i1 * call[f"{name}_b1"]
            job[name] = code.at(call.pointer_at(name), offset, storage)
        with code.either(call["k"].eq(0)) as (empty, full):
            with empty, code.when(call["add"].eq(0)):
                self._clear(code, job)
            with full:
                if self.narrow:
                    self._product_narrowed(code, job)
                else:
                    code.call(self.product, job.pointer)
        code.ret()
        return code.function

    def _clear(self, code: Code, job: Record) -> None:
        c, zero, align = job.pointer_at("c"), ir.Constant(self.out.storage, None), self.out.align
        with code.range(0, job["m"]) as i, code.range(0, job["n"]) as j:
            place = code.at(c, i * job["c_rs"] + j * job["c_cs"], self.out.storage)
            code.store(zero, place, align)

    def _product_narrowed(self, code: Code, job: Record) -> None:
        """The product in float32 beside C, rounded (once) into it here, unless that is done."""
        m, n = job["m"], job["n"]
        wide = Record(code, JOB, code.variable(I64, count=len(JOB)).slot)
        code.copy(wide.pointer, job.pointer, 8 * len(SHARED))
        sums = code.call(self.parts.take, m * n * self.fmt.acc_bytes)
        wide["c"], wide["c_rs"], wide["c_cs"], wide["add"] = sums, n, 1, 0
        for name, source in zip(OUT, ("c", "c_rs", "c_cs", "add"), strict=True):
            wide[name] = job[source]
        code.call(self.product, wide.pointer)
        with code.when(wide["out"].ne(0)):
            job["a"] = sums
            grain = (code.i64(self.parts.serial_work) // n).max(1)
            self.parts.loop(code, self._round_task(), job.pointer, m, grain)
        code.call(self.parts.give, sums)

    def _round_task(self) -> ir.Function:
        """Rows [begin, end) of c become the sums (contiguous, in the job's a), or grow by them."""
        code = Code(self.module, "round_task", [PTR, I64, I64])
        job, begin, end = Record(code, JOB, code.args[0]), code.args[1], code.args[2]
        n, rs = job["n"], job["c_rs"]
        sums = code.at(job.pointer_at("a"), begin * n, self.fmt.acc)
        c = code.at(job.pointer_at("c"), begin * rs, self.out.storage)
        code.call(self.parts.round, sums, n, c, rs, job["c_cs"], end - begin, n, job["add"])
        code.ret()
        return code.function

    def _batch_task(self) -> ir.Function:
        code = Code(self.module, "batch_task", [PTR, I64, I64])
        with code.range(code.args[1], code.args[2]) as i:
            code.call(self.item, code.args[0], i)
        code.ret()
        return code.function

    def _entry(self, task: ir.Function) -> None:
        code = Code(self.module, symbol(self.fmt, self.out, self.way), [PTR], public=True)
        _, call = self._shared_call(code)
        merge_batches(code, call)
        self._items(code, call, task)
        code.ret()

    def _items(self, code: Code, call: Record, task: ir.Function) -> None:
        """The products of a batch, spread over threads if they are small."""
        batch = call["batch0"] * call["batch1"]
        work = call["m"] * call["n"] * call["k"].max(1)
        spreads = (batch > 1) & (work <= BATCH_WORK)
        with code.when(work > 0), code.either(spreads) as (spread, one_by_one):
            with spread:
                parts = batch // (self.parts.threads(code) * 16)
                grain = (code.i64(BATCH_PART) // work).min(parts)
                grain = (code.i64(self.parts.serial_work) // work).max(grain).max(1)
                self.parts.loop(code, task, call.pointer, batch, grain)
            with one_by_one:
                code.call(task, call.pointer, 0, batch)

    def _shared_call(self, code: Code) -> tuple[Record, Record]:
        """The call that a function was given, and a copy with room for tables."""
        given = Record(code, CALL, code.args[0])
        call = Record(code, SHARED, code.variable(I64, count=len(SHARED)).slot)
        code.copy(call.pointer, given.pointer, 8 * len(CALL))
        for name in TABLES if self.way in PLAIN else (*TABLES, *INNER):
            call[name] = 0
        return given, call


def symbol(fmt: Format, out: Format, way: str = "") -> str:
    """Name of the function for two formats, and one way if not for all."""
    return "_".join(["fg_gemm", fmt.name, out.name, *([way] if way else [])])
