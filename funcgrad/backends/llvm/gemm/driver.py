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
from funcgrad.backends.llvm.gemm.images.lines import Lines
from funcgrad.backends.llvm.gemm.images.placed import Placed
from funcgrad.backends.llvm.gemm.images.strips import Strips
from funcgrad.backends.llvm.gemm.images.sums import Sums
from funcgrad.backends.llvm.gemm.images.windows import Windows
from funcgrad.backends.llvm.gemm.job import Parts, Way
from funcgrad.backends.llvm.gemm.kernels import SOON, Micro
from funcgrad.backends.llvm.gemm.long import Long
from funcgrad.backends.llvm.gemm.micro import linked, placed
from funcgrad.backends.llvm.gemm.pack import Format
from funcgrad.backends.llvm.gemm.packed import Packed
from funcgrad.backends.llvm.gemm.trial import Facts, Known, Trial
from funcgrad.backends.llvm.gemm.unpacked import CALLS, SMALL_K, Unpacked
from funcgrad.backends.llvm.gemm.winograd.first import Winograd
from funcgrad.backends.llvm.gemm.winograd.kernel_first import WinogradKernel
from funcgrad.backends.llvm.gemm.winograd.kernel_last import WinogradKernelLast
from funcgrad.backends.llvm.gemm.winograd.last import WinogradLast
from funcgrad.backends.llvm.gemm.winograd.last_bytes import WinogradBytes
from funcgrad.backends.llvm.gemm.winograd.phases import WinogradPhases
from funcgrad.backends.llvm.gemm.winograd.tiles import TiledWay
from funcgrad.backends.llvm.gemm.words import (
    AXES,
    BATCH_PART,
    BATCH_WORK,
    CALL,
    FINISH,
    FRAMED,
    INNER,
    JOB,
    MAX_AXES,
    OUT,
    PRODUCT,
    SHARED,
    TABLES,
    THIN,
)
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Int, Record
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.rewrites import tiles

TILED_WAYS: dict[int, type[TiledWay]] = {
    tiles.IMAGES: Winograd,
    tiles.KERNEL: WinogradKernel,
    tiles.IMAGES_LAST: WinogradLast,
    tiles.KERNEL_LAST: WinogradKernelLast,
    tiles.PHASES: WinogradPhases,
    tiles.BYTES_LAST: WinogradBytes,
}
PAGE = 4096
# Ways of which it is known what kernels a product calls.
ROUTED = ("packed", "batch", Sums.name, *CALLS)
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

    way: the only way that its calls will go (see `route`), the suffix of its name
    """

    def __init__(self, fmt: Format, out: Format, target: Target, way: str = ""):
        self.module = module = ir.Module("gemm")
        self.fmt, self.out, self.target, self.way = fmt, out, target, way
        self.used: set[Micro] = set()  # kernels of their own libraries
        self.parts = Parts(module, fmt, out, target, self._elsewhere())
        self.narrow = self.parts.narrow
        packed = self._panels = Packed(self.parts, tables=not way and not fmt.is_complex)
        self.packed = packed.way
        plain = not (self.narrow or fmt.is_complex)
        self.gathered = self._gathered_ways(packed) if plain else {}
        works = self.parts.kernels.direct_works
        self.unpacked = Unpacked(self.parts, brief=way in BRIEF) if works else None
        batches = works and plain and self.parts.tile.rows >= ROWS
        self.batch = Batch(self.parts) if batches else None
        # Its parts are products that go ways of their own.
        self.long = Way("", lambda: Long(self.parts, self.product).function)

    def write(self) -> None:
        """The functions."""
        if self.way in self.gathered:
            self._gathered_entry(self.gathered[self.way][1])
            return
        if self.batch and self.way == self.batch.name:
            self._entry(self.batch.task(symbol(self.fmt, self.out, self.way)))
            return
        self._product()
        self.item = self._item()
        self._entry(self._batch_task())

    def _elsewhere(self) -> Callable[[Micro], ir.Function] | None:
        """Where the kernels are: a function for all ways has them itself."""
        if self.way in ROUTED:
            return placed(self.module, symbol(self.fmt, self.out, self.way))
        return linked(self.module, self.fmt, self.used) if self.way else None

    def route(self, words: Mapping[str, int]) -> tuple[str, list[Micro]]:
        """The way that products of a call's sizes and strides go, "" if it isn't only one; and the
        kernels that have to be placed for it (`micro`).

        Found by the very statements that choose at run time, run on numbers. A call that has axes
        needs `INNER`, too.
        """
        if not words["k"] or self.narrow:
            return "", []
        call: Any = Facts({name: Known(words.get(name, 0)) for name in (*CALL, *INNER, FRAMED)})
        if call["axes"]:
            work = words["m"] * words["n"] * words["batch0"] * words["batch1"]
            ways = self.gathered.items() if work else ()
            way = next((name for name, (serves, _) in ways if serves(call)), "")
            takes = call["tiled"] or (way == Strips.name and Strips.takes_frame(call))
            kernels = Sums.reached(self.parts.tile, call) if way == Sums.name else []
            return ("", []) if call[FRAMED] and not takes else (way, kernels)
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

    def _strided_product(self, code: Code, job: Record) -> None:
        m, n, k, lanes = job["m"], job["n"], job["k"], self.parts.tile.lanes
        small, serial = (
            m * n * k <= work for work in (self.parts.small_work, self.parts.serial_work)
        )
        thin = is_thin(m, n)
        wide = (m <= THIN) & (n > 2 * THIN)
        with code.when(thin | (job["c_cs"].ne(1) & job["c_rs"].eq(1) & ~wide)):
            pairs = [("m", "n"), ("a", "b"), ("a_rs", "b_cs"), ("a_cs", "b_rs"), ("c_rs", "c_cs")]
            for x, y in [*pairs, *([("out_rs", "out_cs")] if self.narrow else [])]:
                job[x], job[y] = job[y], job[x]
        m, n, b_unit, c_unit = job["m"], job["n"], job["b_cs"].eq(1), job["c_cs"].eq(1)
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
        for name in (*PRODUCT, *TABLES, *FINISH):
            job[name] = call[name]
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
        for name in (*PRODUCT, *TABLES):
            wide[name] = job[name]
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
        given, call = self._shared_call(code)
        apart = given["axes"].ne(0)
        tables = code.variable(PTR, ir.Constant(PTR, None))
        with code.either(apart) as (yes, no):
            with yes:
                tables.set(self._make_tables(code, call))
            with no:
                merge_batches(code, call)
        batch, m, n = call["batch0"] * call["batch1"], call["m"], call["n"]
        work = m * n * call["k"].max(1)
        spreads = (batch > 1) & (work <= BATCH_WORK)

        def items() -> None:
            with code.when(work > 0), code.either(spreads) as (spread, one_by_one):
                with spread:
                    parts = batch // (self.parts.threads(code) * 16)
                    grain = (code.i64(BATCH_PART) // work).min(parts)
                    grain = (code.i64(self.parts.serial_work) // work).max(grain).max(1)
                    self.parts.loop(code, task, call.pointer, batch, grain)
                with one_by_one:
                    code.call(task, call.pointer, 0, batch)

        def ways(left: list) -> None:
            if not left:
                items()
                return
            (serves, way), *others = left
            with code.either(serves(call)) as (yes, no):
                with yes:
                    code.call(way.function, call.pointer)
                with no:
                    ways(others)

        if self.way:
            items()
        else:
            gathered = apart & (call["k"] > 0) & (work * batch > 0)
            with code.either(gathered) as (some, none):
                with some:
                    self._set_inner(call)
                    # Who calls a product for all ways doesn't ask for these.
                    others = [kind.name for kind in TILED_WAYS.values()] + [Sums.name]
                    ways([x for x in self.gathered.values() if x[1].name not in others])
                with none:
                    items()
        with code.when(apart):
            code.call(self.parts.give, tables.get())
        code.ret()

    def _gathered_entry(self, way: Way) -> None:
        """The entry for calls that have axes and go one way."""
        code = Code(self.module, symbol(self.fmt, self.out, self.way), [PTR], public=True)
        _, call = self._shared_call(code)
        untold = {kind.name for kind in TILED_WAYS.values() if not kind.tables}
        tables = None if way.name in untold else self._make_tables(code, call)
        self._set_inner(call)
        code.call(way.function, call.pointer)
        if tables is not None:
            code.call(self.parts.give, tables)
        code.ret()

    def _shared_call(self, code: Code) -> tuple[Record, Record]:
        """The call that a function was given, and a copy with room for tables."""
        given = Record(code, CALL, code.args[0])
        call = Record(code, SHARED, code.variable(I64, count=len(SHARED)).slot)
        for name in CALL:
            call[name] = given[name]
        for name in (*TABLES, *INNER):
            call[name] = 0
        return given, call

    def _set_inner(self, call: Record) -> None:
        """`INNER` of a call that has axes."""
        code, axes = call.code, call.pointer_at("axes")
        for x, strides in (("m", "m_a"), ("n", "n_b")):
            sizes, steps = (
                code.at(axes, AXES.index(name) * MAX_AXES, I64) for name in (f"{x}_sizes", strides)
            )
            size, step = (code.load(code.at(p, MAX_AXES - 1, I64), I64) for p in (sizes, steps))
            odd = code.variable(I64, I64(0))
            with code.range(0, MAX_AXES) as i:
                other = (code.load(code.at(p, i, I64), I64) for p in (sizes, steps))
                n, stride = other
                odd.set(Int(code, odd.get()) + ((n > 1) & (stride % 2).ne(0)).select(1, 0))
            two = step.eq(2) & Int(code, odd.get()).eq(0)
            call[f"{x}_inner"] = (step.eq(1) | two).select(size, 0)
            call[f"{x}_step"] = two.select(2, 1)

    def _gathered_ways(self, packed: Packed) -> dict[str, tuple[Callable[[Any], Any], Way]]:
        """Ways for operands of axes, and when they serve: the first that does is gone."""
        parts = self.parts
        ways: list[tuple[Callable[[Any], Any], Way]] = []
        # Only elements that are multiplied as they lie are read one by one.
        as_it_is = self.fmt.storage == self.fmt.acc
        if self.fmt.name == "int8":
            ways.append(_tiled_way(tiles.BYTES_LAST, WinogradBytes, parts))
        if as_it_is:
            ways += [_tiled_way(form, kind, parts) for form, kind in TILED_WAYS.items()]
            if Lines.works(parts):
                sums = Way(Sums.name, lambda: Sums(parts).function)
                ways.append((lambda call: Sums.serves(call, parts), sums))
        if as_it_is and Lines.works(parts):
            strips = Way(Strips.name, lambda: Strips(parts).function)
            ways.append((lambda call: Strips.serves(call, parts), strips))
            lines = Way("lines", lambda: Lines(parts).function)
            ways.append((lambda call: Lines.serves(call, parts), lines))
        if as_it_is:
            placed = Way("placed", lambda: Placed(parts).function)
            ways.append((lambda call: Placed.serves(call, parts), placed))
        copied = Way("windows", lambda: Windows(parts, packed).function)
        ways.append((Windows.serves, copied))
        return {way.name: (serves, way) for serves, way in ways}

    def _make_tables(self, code: Code, call: Record) -> ir.Value:
        """Sets the tables of a call that has axes; returns their memory, with room to read on."""
        m, n, k = call["m"], call["n"], call["k"]
        axes, fill = call.pointer_at("axes"), self._fill_table()
        more = max(self.parts.tile.lanes, SOON)
        memory = code.call(self.parts.take, (m + n + 2 * k + more) * 8)
        at = code.i64(0)
        sources = zip(TABLES, ("m", "k", "k", "n"), ("m_a", "k_a", "k_b", "n_b"), strict=True)
        for name, axis, strides in sources:
            count = {"m": m, "n": n, "k": k}[axis]
            table = call[name] = code.at(memory, at, I64)
            parts = (
                code.at(axes, AXES.index(x) * MAX_AXES, I64) for x in (f"{axis}_sizes", strides)
            )
            with code.when(count > 0):
                code.call(fill, table, *parts)
            at = at + count
        return memory

    def _fill_table(self) -> ir.Function:
        """void fill(table, sizes, strides): Σ index·stride for each point of the axes, in order."""
        code = Code(self.module, "fill_table", [PTR, PTR, PTR])
        table, sizes, strides = code.args
        filled = code.variable(I64, I64(1))
        code.store(I64(0), table)
        with code.range(1, MAX_AXES + 1) as back:
            size, stride = (
                code.load(code.at(x, MAX_AXES - back, I64), I64) for x in (sizes, strides)
            )
            done = Int(code, filled.get())
            with code.range(1, size) as i, code.range(0, done) as j:
                start = code.load(code.at(table, j, I64), I64)
                code.store(start + i * stride, code.at(table, i * done + j, I64))
            filled.set(done * size)
        code.ret()
        return code.function


def _tiled_way(form: int, kind: type[TiledWay], parts: Parts) -> tuple[Callable[[Any], Any], Way]:
    return (lambda call: call["tiled"].eq(form)), Way(kind.name, lambda: kind(parts).function)


def symbol(fmt: Format, out: Format, way: str = "") -> str:
    """Name of the function for two formats, and one way if not for all."""
    return "_".join(["fg_gemm", fmt.name, out.name, *([way] if way else [])])
