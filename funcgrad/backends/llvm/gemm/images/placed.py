"""The way of the generated GEMM for windows that are read where they lie.

One operand, a kernel or the gradient of a convolution's result, is packed into panels of columns.
The rows of the other begin where a table says and go on as a second one does: the micro-kernel
reads their elements one by one, so that windows are never copied, however they overlap.
Long sums are cut into parts, by shapes alone, whose results are added in order.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.pack import equal_parts
from funcgrad.backends.llvm.gemm.words import JOB, SERIAL_WORK, SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Int, Record

# The operand of rows x, that of columns w. If w is packed before: its panels and their distance.
# Items of a task, and its rows of each; the depth of a block, and of a part; how many parts, and
# the room for their sums.
FIELDS = (
    "batch0", "batch1", "rows", "cols", "k", "x", "x_b0", "x_b1", "x_rows", "x_ks",
    "w", "w_b0", "w_b1", "w_cols", "w_ks", "c", "c_b0", "c_b1", "c_rs", "c_cs", "add",
    "ready", "pw", "pw_step", "together", "height", "kc", "kl", "parts",
    "sums", "sums_rs", "sums_cs",
)  # fmt: skip
MOST_READY = 1 << 22  # elements of w up to which it is packed before
OWN_ELEMENTS = 1 << 16  # of w, packed by a task at a time, and the depth of that
LEAST_OWN, MOST_OWN = 64, 1024
LEAST_PART, MOST_PARTS = 1024, 32
MOST_CUT, MOST_SUMS = 1 << 18, 1 << 20  # elements of c, if it is cut; of all its parts
LEAST_TURNED = 64  # terms of sums that are worth transposing
TASK_WORK, TASK_ROWS = 1 << 19, 256  # of a task, at most
SMALL_W, LARGE_W, LARGE_ROWS = 1 << 14, 1 << 18, 128  # elements of w; rows of a task, if it's large
OWN_ROWS = 64  # of a task that packs w, at least


class Placed:
    """Writes `function`: void(ptr call), of a call of `SHARED` that has tables."""

    def __init__(self, parts: Parts):
        self.parts, self.tile, self.fmt = parts, parts.tile, parts.fmt
        self.function = self._function(self._pack_task(), self._task(), parts.add_parts)

    @staticmethod
    def serves(call: Record, parts: Parts) -> Bool:
        """Whether columns fill vectors well enough, or there is less than one of them, which packed
        rows would not fill better; and c can be written."""
        swapped, lanes = packs_a(call), parts.tile.lanes
        cols, rows = swapped.select(call["m"], call["n"]), swapped.select(call["n"], call["m"])
        fills = (cols < lanes) | (cols * 4 >= cols.round_up(lanes) * 3)
        fills = fills & (rows >= parts.kernels.placed_rows)
        c_rows = swapped.select(call["c_cs"], call["c_rs"])
        c_cols = swapped.select(call["c_rs"], call["c_cs"])
        turned = c_rows.eq(1) & (call["k"] >= LEAST_TURNED)
        return fills & (c_cols.eq(1) | turned)

    def _pack_task(self) -> ir.Function:
        """Packs panels [begin, end) of w."""
        code = Code(self.parts.module, "pack_columns_task", [PTR, I64, I64])
        call, width = Record(code, FIELDS, code.args[0]), self.tile.cols
        first, last, step = code.args[1] * width, code.args[2] * width, call["pw_step"]
        dst = code.at(call.pointer_at("pw"), code.args[1] * step, self.fmt.acc)
        count = call["cols"].min(last) - first
        columns = code.at(call.pointer_at("w_cols"), first, I64)
        ks = call.pointer_at("w_ks")
        code.call(
            self.parts.gather_b, dst, call.pointer_at("w"), count, call["k"], columns, ks, step
        )
        code.ret()
        return code.function

    def _task(self) -> ir.Function:
        """Tasks [begin, end): some rows of a part of an item each."""
        code = Code(self.parts.module, "placed_task", [PTR, I64, I64])
        call, acc = Record(code, FIELDS, code.args[0]), self.fmt.acc
        k, kc, height, parts, cols = (call[f] for f in ("k", "kc", "height", "parts", "cols"))
        ready, row_tasks = call["ready"].ne(0), call["rows"].ceil_div(height)
        own_step = self.parts.panel_elements(self.tile.cols, kc)
        own = code.variable(PTR, call.pointer_at("pw"))
        with code.when(~ready):
            size = own_step * cols.ceil_div(self.tile.cols) * self.fmt.acc_bytes
            own.set(code.call(self.parts.take, size))
        step = ready.select(call["pw_step"], own_step)
        with code.range(code.args[1], code.args[2]) as t:
            group, rest = t // (row_tasks * parts), t % (row_tasks * parts)
            part, row = rest // row_tasks, rest % row_tasks * height
            begin = group * call["together"]
            end = (begin + call["together"]).min(call["batch0"] * call["batch1"])
            w, cut = item_of(code, call, "w", begin, acc), parts > 1
            sums = code.at(call.pointer_at("sums"), part * call["rows"] * cols, acc)
            rs, cs = (cut.select(call[f"sums_{f}"], call[f"c_{f}"]) for f in ("rs", "cs"))
            first = part * call["kl"]
            last, kept = (first + call["kl"]).min(k), cut.select(0, call["add"])
            with code.range(first, last, kc) as pc:
                kl, panels = (last - pc).min(kc), own.get()
                with code.when(~ready):
                    ks = code.at(call.pointer_at("w_ks"), pc, I64)
                    args = (panels, w, cols, kl, call.pointer_at("w_cols"), ks, own_step)
                    code.call(self.parts.gather_b, *args)
                panels = code.at(panels, ready.select(pc * self.tile.cols, 0), acc)
                with code.range(begin, end) as item:
                    x, c = (item_of(code, call, name, item, acc) for name in "xc")
                    place = (x, pc, kl, row, (row + height).min(call["rows"]))
                    out = cut.pick(sums, c), rs, cs, kept + pc - first
                    self._multiply(code, call, place, (panels, step), out)
        with code.when(~ready):
            code.call(self.parts.give, own.get())
        code.ret()
        return code.function

    def _multiply(self, code: Code, call: Record, place: tuple, panels: tuple, to: tuple) -> None:
        """Rows [row, stop) of x with all columns, for some k."""
        (x, pc, kl, row, stop), (w, step), (c, rs, cs, add) = place, panels, to
        tile, acc, cols, kernels = self.tile, self.fmt.acc, call["cols"], self.parts.kernels
        along = code.at(call.pointer_at("x_ks"), pc, I64)
        with code.range(row, stop, kernels.placed_rows) as i, code.range(0, cols, tile.cols) as j:
            across = code.at(call.pointer_at("x_rows"), i, I64)
            panel = code.at(w, j // tile.cols * step, acc)
            out, left = code.at(c, i * rs + j * cs, acc), cols - j
            args = (kl, x, across, along, panel, out, rs, cs, stop - i, left, add)
            with code.either(left > tile.lanes) as (several, one):
                with several:
                    code.call(kernels.placed(tile.vectors), *args)
                with one:
                    code.call(kernels.placed(1), *args)

    def _function(
        self, pack_task: ir.Function, task: ir.Function, add_parts: ir.Function
    ) -> ir.Function:
        code = Code(self.parts.module, "placed", [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        orient(given, call)
        tile, rows, cols, k = self.tile, call["rows"], call["cols"], call["k"]
        items, size = call["batch0"] * call["batch1"], self.fmt.acc_bytes
        threads, height = self.parts.threads(code), self.parts.kernels.placed_rows
        most = (code.i64(MOST_SUMS) // (rows * cols)).min(MOST_PARTS).min(k // LEAST_PART)
        may_cut = items.eq(1) & (rows * cols <= MOST_CUT) & given["c_cs"].eq(1)
        kl = k.ceil_div(may_cut.select(most, 1).max(1))
        parts = k.ceil_div(kl)
        call["kl"], call["parts"] = kl, parts
        one_w = call["w_b0"].eq(0) | call["batch0"].eq(1)
        one_w = one_w & (call["w_b1"].eq(0) | call["batch1"].eq(1))
        ready = one_w & parts.eq(1) & (cols * k <= MOST_READY)
        call["ready"] = ready.select(1, 0)
        panels = cols.ceil_div(tile.cols)
        own_depth = (code.i64(OWN_ELEMENTS) // (panels * tile.cols)).min(MOST_OWN).max(LEAST_OWN)
        own_depth = kl.ceil_div(kl.ceil_div(own_depth))
        call["kc"] = ready.select(equal_parts(k, tile.kc, 1), own_depth)
        step = call["pw_step"] = self.parts.panel_elements(tile.cols, k)
        call["pw"] = pw = code.call(self.parts.take, ready.select(panels * step * size, 0))
        sums = code.call(self.parts.take, (parts > 1).select(parts * rows * cols * size, 0))
        call["sums"] = sums
        with code.when(ready):
            grain = (code.i64(SERIAL_WORK // 4) // (k * tile.cols)).max(1)
            self.parts.loop(code, pack_task, call.pointer, panels, grain)
        # Beside a small w, which stays in the first caches, long tasks read more of x in order.
        few = (code.i64(TASK_WORK) // (k * cols)).min(TASK_ROWS)
        few = (k * cols <= SMALL_W).select(TASK_ROWS, few)
        shared = (rows * items // (threads * 8)).min(few)
        alone = rows.ceil_div((threads * 4).ceil_div(items * parts)).max(OWN_ROWS)
        # A large w comes from afar for each task.
        large = (ready & (k * cols > LARGE_W)).select(LARGE_ROWS, 1)
        large = (rows * items // (threads * 2)).min(large)
        tall = ready.select(shared, alone).max(large).max(1).round_up(height)
        together = call["together"] = (large // rows).max(1)
        call["height"] = tall
        total = rows.ceil_div(tall) * parts * items.ceil_div(together)
        serial = rows * cols * k * items < SERIAL_WORK
        self.parts.loop(code, task, call.pointer, total, serial.select(total, 1))
        with code.when(parts > 1):
            self._add(code, given, call, add_parts)
        code.call(self.parts.give, sums)
        code.call(self.parts.give, pw)
        code.ret()
        return code.function

    def _add(self, code: Code, given: Record, call: Record, task: ir.Function) -> None:
        """c from the sums of the parts."""
        job = Record(code, JOB, code.variable(I64, count=len(JOB)).slot)
        for name in ("m", "n", "c", "c_rs", "add"):
            job[name] = given[name]
        job["pb"], job["nt"] = call["sums"], call["parts"]
        grain = (code.i64(SERIAL_WORK // 4) // (call["parts"] * given["n"])).max(1)
        self.parts.loop(code, task, job.pointer, given["m"], grain)


def packs_a(call: Record) -> Bool:
    """Whether a is the operand of columns: the one that takes less room."""
    items = {
        x: call[f"{x}_b0"].ne(0).select(call["batch0"], 1)
        * call[f"{x}_b1"].ne(0).select(call["batch1"], 1)
        for x in "ab"
    }
    return call["m"] * items["a"] <= call["n"] * items["b"]


def orient(given: Record, call: Record) -> None:
    """Fills a call of `FIELDS` from one of a and b, either of which may have the rows."""
    swapped, code = packs_a(given), call.code
    for name in ("batch0", "batch1", "k", "c", "c_b0", "c_b1", "add"):
        call[name] = given[name]
    names = {
        "rows": "mn", "x": "ab", "x_b0": ("a_b0", "b_b0"), "x_b1": ("a_b1", "b_b1"),
        "x_rows": ("a_rows", "b_cols"), "x_ks": ("a_ks", "b_ks"),
        "cols": "nm", "w": "ba", "w_b0": ("b_b0", "a_b0"), "w_b1": ("b_b1", "a_b1"),
        "w_cols": ("b_cols", "a_rows"), "w_ks": ("b_ks", "a_ks"),
        "c_rs": ("c_rs", "c_cs"), "c_cs": ("c_cs", "c_rs"),
    }  # fmt: skip
    for name, (plain, other) in names.items():
        call[name] = swapped.select(given[other], given[plain])
    # Parts lie as c's matrix does, in rows of n.
    n, one = given["n"], code.i64(1)
    call["sums_rs"], call["sums_cs"] = swapped.select(one, n), swapped.select(n, one)


def item_of(code: Code, call: Record, name: str, item: Int, kind: ir.Type) -> ir.Value:
    """Where an operand's item begins."""
    i0, i1 = item // call["batch1"], item % call["batch1"]
    offset = i0 * call[f"{name}_b0"] + i1 * call[f"{name}_b1"]
    return code.at(call.pointer_at(name), offset, kind)
