"""The program around the micro-kernels: batches, choice of a way, blocking, parallel loops.

A call is described by an array of i64 words (`CALL`). One matrix product of it becomes a `JOB`,
swapped to Cᵀ = BᵀAᵀ where that makes it thin in m or contiguous in c. It goes one of three ways:
`dot` (m small, both operands contiguous along k), `direct` (small, or m small, b and c contiguous
along n; nothing is copied), or `packed`: for blocks of at most no × ko of B and mo × ko of A, pack
both in parallel, then multiply tiles of C in parallel, k in steps of kc (Van Zee & van de Geijn,
BLIS, 2015). Sums over k are split by shapes alone: the number of threads never changes a result.
"""

from __future__ import annotations

from llvmlite import ir

from .engine import Target
from .gemm_build import I32, I64, PTR, VOID, Code, Int, declare
from .gemm_kernels import Kernels
from .gemm_pack import Format, Tile, constant, narrow, pack_function, widen

CALL = (
    "batch0", "batch1", "m", "n", "k",
    "a", "a_b0", "a_b1", "a_rs", "a_cs",
    "b", "b_b0", "b_b1", "b_rs", "b_cs",
    "c", "c_b0", "c_b1", "c_rs", "c_cs",
    "add",
)  # fmt: skip
JOB = (
    "m", "n", "k", "a", "a_rs", "a_cs", "b", "b_rs", "b_cs", "c", "c_rs", "c_cs", "add",
    # The block in hand of the packed way: offsets and sizes, packed operands, tiling.
    "jc", "ic", "ko", "nl", "ml", "kl", "pa", "pb", "pa_step", "pb_step",
    "a_panels", "first_panel", "mt", "nt", "row_tiles",
)  # fmt: skip
THIN = 8
SMALL_WORK = 96**3  # multiply-adds up to which packing costs more than it saves
SERIAL_WORK = 1 << 17  # below this many a second thread is no gain
BATCH_WORK = 1 << 24  # products up to this size are spread over threads as wholes


class Record:
    """Named i64 words or pointers behind a pointer."""

    def __init__(self, code: Code, fields: tuple[str, ...], pointer: ir.Value):
        self.code, self.fields, self.pointer = code, fields, pointer

    def _slot(self, name: str) -> ir.Value:
        return self.code.at(self.pointer, self.fields.index(name), I64)

    def __getitem__(self, name: str) -> Int:
        return self.code.load(self._slot(name), I64)

    def pointer_at(self, name: str) -> ir.Value:
        return self.code.load(self._slot(name), PTR)

    def __setitem__(self, name: str, value: Int | ir.Value | int) -> None:
        self.code.store(I64(value) if isinstance(value, int) else value, self._slot(name))


class Driver:
    """Writes fg_gemm_<in>_<out>(ptr call) and all it needs into a module."""

    def __init__(self, module: ir.Module, fmt: Format, out: Format, target: Target):
        self.module, self.fmt, self.out, self.target = module, fmt, out, target
        self.tile = Tile.of(target, fmt)
        self.kernels = Kernels(module, fmt, self.tile, target)
        self.narrow = out.storage != fmt.acc
        kind = ir.FunctionType(VOID, [PTR, PTR, I64, I64])
        self.parallel_for = declare(module, "fg_parallel_for", kind)
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))
        self.limit = ir.GlobalVariable(module, I32, "fg_pool_limit")
        self.limit.type = PTR
        self.pack_a = self._packer("pack_a", self.tile.rows)
        self.pack_b = self._packer("pack_b", self.tile.cols)
        self.packed = self._packed()
        self.direct = self._direct() if self.kernels.direct_works else None
        self.dot = self._dot() if self.kernels.direct_works else None
        self.product = self._product()
        self.item = self._item()
        self._entry(self._batch_task())

    def _packer(self, name: str, width: int) -> ir.Function:
        return pack_function(self.module, name, width, self.tile.lanes, self.fmt, self.target)

    def _loop(self, code: Code, task: ir.Function, ctx: ir.Value, n: Int, grain: Int) -> None:
        """A parallel loop, or a plain call where one chunk is all."""
        with code.either(n <= grain) as (yes, no):
            with yes:
                code.call(task, ctx, 0, n)
            with no:
                code.call(self.parallel_for, task, ctx, n, grain)

    # -- the packed way ----------------------------------------------------------------------

    def _pack_task(self) -> ir.Function:
        """Packs panels [begin, end) of a block: first those of A, then those of B."""
        code = Code(self.module, "pack_task", [PTR, I64, I64])
        job = Record(code, JOB, code.args[0])
        k, ko, first = job["kl"], job["ko"], job["first_panel"]
        storage, acc = self.fmt.storage, self.fmt.acc
        with code.range(code.args[1], code.args[2]) as turn:
            u = turn + first
            with code.either(u < job["a_panels"]) as (is_a, is_b):
                with is_a:
                    w = self.tile.rows
                    rs, cs = job["a_rs"], job["a_cs"]
                    src = code.at(job.pointer_at("a"), (job["ic"] + u * w) * rs + ko * cs, storage)
                    dst = code.at(job.pointer_at("pa"), u * job["pa_step"], acc)
                    code.call(self.pack_a, dst, src, (job["ml"] - u * w).min(w), k, rs, cs)
                with is_b:
                    w = self.tile.cols
                    p = u - job["a_panels"]
                    rs, cs = job["b_rs"], job["b_cs"]
                    src = code.at(job.pointer_at("b"), (job["jc"] + p * w) * cs + ko * rs, storage)
                    dst = code.at(job.pointer_at("pb"), p * job["pb_step"], acc)
                    code.call(self.pack_b, dst, src, (job["nl"] - p * w).min(w), k, cs, rs)
        code.ret()
        return code.function

    def _tile_task(self) -> ir.Function:
        """Multiplies tiles [begin, end) of the block's part of C."""
        code = Code(self.module, "tile_task", [PTR, I64, I64])
        job, tile, acc = Record(code, JOB, code.args[0]), self.tile, self.fmt.acc
        row_tiles, mt, nt = job["row_tiles"], job["mt"], job["nt"]
        m, n, k, rs, cs = job["ml"], job["nl"], job["kl"], job["c_rs"], job["c_cs"]
        pa, pb, c = job.pointer_at("pa"), job.pointer_at("pb"), job.pointer_at("c")
        pa_step, pb_step = job["pa_step"], job["pb_step"]
        c = code.at(c, job["ic"] * rs + job["jc"] * cs, acc)
        add_first = job["add"] + job["ko"]
        with code.range(code.args[1], code.args[2]) as t:
            i0, j0 = t % row_tiles * mt, t // row_tiles * nt
            i1, j1 = (i0 + mt).min(m), (j0 + nt).min(n)
            with code.range(0, k, tile.kc) as pc, code.range(j0, j1, tile.cols) as j:
                kc, add = (k - pc).min(tile.kc), add_first + pc
                bp = code.at(pb, j // tile.cols * pb_step + pc * tile.cols, acc)
                with code.range(i0, i1, tile.rows) as i:
                    ap = code.at(pa, i // tile.rows * pa_step + pc * tile.rows, acc)
                    cp = code.at(c, i * rs + j * cs, acc)
                    self._choose_rows(code, (kc, ap, bp, cp, rs, cs, m - i, n - j, add))
        code.ret()
        return code.function

    def _choose_rows(self, code: Code, args: tuple) -> None:
        """The shortest micro-kernel that has the rows that are left."""
        rows_left = args[6]

        def choose(heights: list[int]) -> None:
            if len(heights) == 1:
                code.call(self.kernels.packed(heights[0]), *args)
                return
            with code.either(rows_left > heights[-2]) as (taller, fits):
                with taller:
                    code.call(self.kernels.packed(heights[-1]), *args)
                with fits:
                    choose(heights[:-1])

        choose([h for h in (4, 8) if h < self.tile.rows] + [self.tile.rows])

    def _packed(self) -> ir.Function:
        pack_task, tile_task = self._pack_task(), self._tile_task()
        code = Code(self.module, "packed", [PTR])
        job, tile, size = Record(code, JOB, code.args[0]), self.tile, self.fmt.acc_bytes
        mo, no, ko = tile.rows * (1536 // tile.rows), tile.cols * (2048 // tile.cols), 4 * tile.kc
        m, n, k = job["m"], job["n"], job["k"]

        def step(width: int, length: Int) -> Int:
            return (length * width + tile.lanes).round_up(16)

        widest = k.min(ko)
        pa_bytes = m.min(mo).ceil_div(tile.rows) * step(tile.rows, widest) * size
        pb_bytes = n.min(no).ceil_div(tile.cols) * step(tile.cols, widest) * size
        pa, pb = code.call(self.take, pa_bytes), code.call(self.take, pb_bytes)
        job["pa"], job["pb"] = pa, pb
        with code.range(0, n, no) as jc, code.range(0, k, ko) as kk, code.range(0, m, mo) as ic:
            ml, nl, kl = (m - ic).min(mo), (n - jc).min(no), (k - kk).min(ko)
            a_panels, b_panels = ml.ceil_div(tile.rows), nl.ceil_div(tile.cols)
            for name, value in {"jc": jc, "ic": ic, "ko": kk, "nl": nl, "ml": ml, "kl": kl}.items():
                job[name] = value
            job["pa_step"], job["pb_step"] = step(tile.rows, kl), step(tile.cols, kl)
            job["a_panels"], job["first_panel"] = a_panels, 0
            work = ml * nl * kl
            serial = work < SERIAL_WORK
            panels = a_panels + ic.eq(0).select(b_panels, 0)
            grain = serial.select(panels, (code.i64(16384) // (kl * tile.cols)).max(1))
            self._loop(code, pack_task, code.args[0], panels, grain)
            tiles = self._tiling(code, job, work, a_panels, b_panels, kl)
            self._loop(code, tile_task, code.args[0], tiles, serial.select(tiles, 1))
        code.call(self.give, pb)
        code.call(self.give, pa)
        code.ret()
        return code.function

    def _tiling(
        self, code: Code, job: Record, work: Int, a_panels: Int, b_panels: Int, k: Int
    ) -> Int:
        """Sets the tile shape so that every thread gets several tiles; returns their number."""
        tile = self.tile
        threads = Int(code, code.b.sext(code.load(self.limit, I32), I64)) + 1
        row_tiles = a_panels.ceil_div(252 // tile.rows)
        row_panels = a_panels.ceil_div(row_tiles)
        aim = (work // (threads * 8)).max(1 << 18)
        per_column = row_panels * (tile.rows * tile.cols) * k
        col_panels = (aim // per_column).max(1).min(8)
        job["mt"], job["nt"] = row_panels * tile.rows, col_panels * tile.cols
        job["row_tiles"] = row_tiles
        return row_tiles * b_panels.ceil_div(col_panels)

    # -- ways without packing ----------------------------------------------------------------

    def _direct(self) -> ir.Function:
        task = self._direct_task()
        code = Code(self.module, "direct", [PTR])
        job = Record(code, JOB, code.args[0])
        m, n, k = job["m"], job["n"], job["k"]
        units = n.ceil_div(2 * self.tile.lanes)
        per_unit = (m * k * (2 * self.tile.lanes)).max(1)
        self._loop(code, task, code.args[0], units, (code.i64(SERIAL_WORK) // per_unit).max(8))
        code.ret()
        return code.function

    def _direct_task(self) -> ir.Function:
        """Columns [begin, end), in units of two vectors, of a product that is not packed."""
        code = Code(self.module, "direct_task", [PTR, I64, I64])
        job, lanes = Record(code, JOB, code.args[0]), self.tile.lanes
        fields = ("m", "n", "k", "a_rs", "a_cs", "b_rs", "c_rs", "add")
        m, n, k, a_rs, a_cs, b_rs, c_rs, add = (job[f] for f in fields)
        a, b, c = (job.pointer_at(f) for f in "abc")
        start, stop = code.args[1] * (2 * lanes), (code.args[2] * (2 * lanes)).min(n)
        heights = [(8, 0), (4, 4), (2, 8), (1, 8)] if self.tile.rows >= 8 else [(4, 0), (1, 8)]
        row = code.variable(I64, I64(0))
        for h, wide in heights:
            with code.loop() as (turn, done):
                i = Int(code, row.get())
                code.b.cbranch((i + h <= m).value, turn, done)
                code.b.position_at_end(turn)
                ai = code.at(a, i * a_rs, self.fmt.storage)
                column = code.variable(I64, start)

                def sweep(vectors: int, masked: bool, more: Int, ai=ai, i=i, h=h, column=column):
                    with code.loop() as (turn, done):
                        j = Int(code, column.get())
                        code.b.cbranch((j + more <= stop).value, turn, done)
                        code.b.position_at_end(turn)
                        bj = code.at(b, j, self.fmt.storage)
                        cj = code.at(c, i * c_rs + j, self.fmt.acc)
                        kernel = self.kernels.direct(h, vectors, masked)
                        code.call(kernel, k, ai, a_rs, a_cs, bj, b_rs, cj, c_rs, stop - j, add)
                        column.set(j + vectors * lanes)

                if wide:
                    sweep(wide, False, code.i64(wide * lanes))
                sweep(2, True, code.i64(lanes + 1))
                sweep(1, True, code.i64(1))
                row.set(i + h)
        code.ret()
        return code.function

    def _dot(self) -> ir.Function:
        """Thin in m, b contiguous along k; rows of a are made contiguous if they are not."""
        task = self._dot_task()
        code = Code(self.module, "dot", [PTR])
        job, storage = Record(code, JOB, code.args[0]), self.fmt.storage
        m, n, k, rs, cs = job["m"], job["n"], job["k"], job["a_rs"], job["a_cs"]
        grain = (code.i64(SERIAL_WORK // 2) // (m * k).max(1)).max(1).round_up(4)
        copied = cs.ne(1)
        with code.when(copied):
            rows = code.call(self.take, m * k * self.fmt.bytes)
            a = job.pointer_at("a")
            with code.range(0, m) as i, code.range(0, k) as kk:
                x = code.load(code.at(a, i * rs + kk * cs, storage), storage)
                code.store(x, code.at(rows, i * k + kk, storage))
            job["a"], job["a_rs"] = rows, k
        self._loop(code, task, code.args[0], n, grain)
        with code.when(copied):
            code.call(self.give, job.pointer_at("a"))
        code.ret()
        return code.function

    def _dot_task(self) -> ir.Function:
        code = Code(self.module, "dot_task", [PTR, I64, I64])
        job = Record(code, JOB, code.args[0])
        fields = ("m", "k", "a_rs", "b_cs", "c_rs", "c_cs", "add")
        m, k, a_rs, b_cs, c_rs, c_cs, add = (job[f] for f in fields)
        a, b, c = (job.pointer_at(f) for f in "abc")
        begin, end = code.args[1:]
        fours = end - (end - begin) % 4
        for cols, start, stop in ((4, begin, fours), (1, fours, end)):
            with code.range(start, stop, cols) as j:
                bj = code.at(b, j * b_cs, self.fmt.storage)
                row = code.variable(I64, I64(0))
                for h in (4, 2, 1):
                    with code.loop() as (turn, done):
                        i = Int(code, row.get())
                        code.b.cbranch((i + h <= m).value, turn, done)
                        code.b.position_at_end(turn)
                        ai = code.at(a, i * a_rs, self.fmt.storage)
                        cij = code.at(c, i * c_rs + j * c_cs, self.fmt.acc)
                        kernel = self.kernels.dot(h, cols)
                        code.call(kernel, k, ai, a_rs, bj, b_cs, cij, c_rs, c_cs, add)
                        row.set(i + h)
        code.ret()
        return code.function

    # -- one product, and the batch ----------------------------------------------------------

    def _product(self) -> ir.Function:
        """Swaps a job if that helps, then chooses its way."""
        code = Code(self.module, "product", [PTR])
        job = Record(code, JOB, code.args[0])
        m, n, k = job["m"], job["n"], job["k"]
        small = m * n * k <= SMALL_WORK
        thin = (n <= THIN) & (m > 2 * THIN)
        wide = (m <= THIN) & (n > 2 * THIN)
        with code.when(thin | (job["c_cs"].ne(1) & job["c_rs"].eq(1) & ~wide)):
            for x, y in (("m", "n"), ("a", "b"), ("a_rs", "b_cs"), ("a_cs", "b_rs"),
                         ("c_rs", "c_cs")):  # fmt: skip
                job[x], job[y] = job[y], job[x]
        if not self.direct or not self.dot:
            code.call(self.packed, code.args[0])
            code.ret()
            return code.function
        m, b_rs, b_cs = job["m"], job["b_rs"], job["b_cs"]
        directly = b_cs.eq(1) & job["c_cs"].eq(1) & (small | (m <= THIN))
        dots = (m <= THIN) & b_rs.eq(1) & (k >= 4 * self.tile.lanes)
        with code.either(directly) as (yes, no):
            with yes:
                code.call(self.direct, code.args[0])
            with no, code.either(dots) as (is_dot, other):
                with is_dot:
                    code.call(self.dot, code.args[0])
                with other:
                    code.call(self.packed, code.args[0])
        code.ret()
        return code.function

    def _item(self) -> ir.Function:
        """Product number i of a call's batch."""
        code = Code(self.module, "item", [PTR, I64])
        call = Record(code, CALL, code.args[0])
        i = code.args[1]
        i0, i1 = i // call["batch1"], i % call["batch1"]
        job = Record(code, JOB, code.variable(I64, count=len(JOB)).slot)
        for name in ("m", "n", "k", "a_rs", "a_cs", "b_rs", "b_cs", "c_rs", "c_cs", "add"):
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
        c, zero = job.pointer_at("c"), ir.Constant(self.out.storage, None)
        with code.range(0, job["m"]) as i, code.range(0, job["n"]) as j:
            code.store(zero, code.at(c, i * job["c_rs"] + j * job["c_cs"], self.out.storage))

    def _product_narrowed(self, code: Code, job: Record) -> None:
        """The product in float32 beside C, then rounded (once) into it."""
        m, n = job["m"], job["n"]
        wide = Record(code, JOB, code.variable(I64, count=len(JOB)).slot)
        for name in ("m", "n", "k", "a", "a_rs", "a_cs", "b", "b_rs", "b_cs"):
            wide[name] = job[name]
        sums = code.call(self.take, m * n * self.fmt.acc_bytes)
        wide["c"], wide["c_rs"], wide["c_cs"], wide["add"] = sums, n, 1, 0
        code.call(self.product, wide.pointer)
        job["a"] = sums
        grain = (code.i64(SERIAL_WORK) // n).max(1)
        self._loop(code, self._round_task(), job.pointer, m, grain)
        code.call(self.give, sums)

    def _round_task(self) -> ir.Function:
        """Rows [begin, end) of c become the sums (contiguous, in the job's a), or grow by them."""
        code = Code(self.module, "round_task", [PTR, I64, I64])
        job = Record(code, JOB, code.args[0])
        n, rs, cs, add = job["n"], job["c_rs"], job["c_cs"], job["add"]
        sums, c = job.pointer_at("a"), job.pointer_at("c")
        lanes, storage, acc = self.tile.lanes, self.out.storage, self.fmt.acc
        vectors = cs.eq(1).select(n // lanes * lanes, 0)

        def round_one(p: ir.Value, x: ir.Value, kind: ir.Type) -> None:
            """What c held before counts only where the call adds: it may be NaN."""
            old = widen(code, self.out, self.target, code.load(p, kind, self.out.bytes))
            old = add.ne(0).pick(old, constant(x.type, -0.0))
            code.store(narrow(code, self.out, code.b.fadd(old, x)), p, self.out.bytes)

        with code.range(code.args[1], code.args[2]) as i:
            row, c_row = code.at(sums, i * n, acc), code.at(c, i * rs, storage)
            with code.range(0, vectors, lanes) as j:
                x = code.load(code.at(row, j, acc), ir.VectorType(acc, lanes), 4)
                round_one(code.at(c_row, j, storage), x, ir.VectorType(storage, lanes))
            with code.range(vectors, n) as j:
                x = code.load(code.at(row, j, acc), acc)
                round_one(code.at(c_row, j * cs, storage), x, storage)
        code.ret()
        return code.function

    def _batch_task(self) -> ir.Function:
        code = Code(self.module, "batch_task", [PTR, I64, I64])
        with code.range(code.args[1], code.args[2]) as i:
            code.call(self.item, code.args[0], i)
        code.ret()
        return code.function

    def _entry(self, task: ir.Function) -> None:
        code = Code(self.module, symbol(self.fmt, self.out), [PTR], public=True)
        given = Record(code, CALL, code.args[0])
        call = Record(code, CALL, code.variable(I64, count=len(CALL)).slot)
        for name in CALL:
            call[name] = given[name]
        self._merge_batches(code, call)
        batch, m, n = call["batch0"] * call["batch1"], call["m"], call["n"]
        work = m * n * call["k"].max(1)
        spreads = (batch > 1) & (work <= BATCH_WORK)
        with code.when(work > 0), code.either(spreads) as (spread, one_by_one):
            with spread:
                grain = (code.i64(SERIAL_WORK) // work).max(1)
                self._loop(code, task, call.pointer, batch, grain)
            with one_by_one:
                code.call(task, call.pointer, 0, batch)
        code.ret()

    def _merge_batches(self, code: Code, call: Record) -> None:
        """A batch of A against one B is a taller A, if rows go on from item to item."""
        for batch, step in (("batch1", "b1"), ("batch0", "b0")):
            m = call["m"]
            follows = call[f"b_{step}"].eq(0) & call[f"a_{step}"].eq(m * call["a_rs"])
            follows = follows & call[f"c_{step}"].eq(m * call["c_rs"])
            if batch == "batch0":
                follows = follows & call["batch1"].eq(1)
            with code.when(follows & (call[batch] > 1)):
                call["m"] = m * call[batch]
                call[batch] = 1


def symbol(fmt: Format, out: Format) -> str:
    """Name of the function for two formats."""
    return f"fg_gemm_{fmt.name}_{out.name}"
