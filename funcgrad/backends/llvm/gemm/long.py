"""The way of the generated GEMM for a small C that is a long sum: parts of k on several threads.

Each part is a product of its own, beside C; then they are added in order. Where they are cut
depends on the shapes alone.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.words import JOB
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Int, Record

MOST = 1 << 14  # elements of C
MOST_ROWS = 512  # of C, and columns: threads take parts of more
LEAST = 4096  # terms of a sum
LEAST_PART = 1024


class Long:
    """Writes `function`: void(ptr job), for a c that is contiguous along n."""

    def __init__(self, parts: Parts, product: ir.Function):
        self.parts, self.fmt, self.tile = parts, parts.fmt, parts.tile
        self.function = self._cut(self._part_task(product), parts.add_parts)

    @staticmethod
    def fits(code: Code, parts: Parts, m: Int, n: Int, k: Int) -> Bool:
        """Whether a product of this shape gains; a part of one is not cut again."""
        few = (m * n <= MOST) & (m.max(n) <= MOST_ROWS)
        whole = k > _most(code, parts, m, n).round_up(2 * parts.tile.lanes)
        return few & (k >= LEAST) & whole & (m * n * k >= 32 * parts.serial_work)

    def _cut(self, part_task: ir.Function, add_task: ir.Function) -> ir.Function:
        code = Code(self.parts.module, "long", [PTR])
        job = Record(code, JOB, code.args[0])
        m, n, k = job["m"], job["n"], job["k"]
        size = k.ceil_div(k.ceil_div(_most(code, self.parts, m, n))).round_up(2 * self.tile.lanes)
        job["kl"] = size
        count = k.ceil_div(size)
        job["nt"] = count
        sums = code.call(self.parts.take, count * m * n * self.fmt.acc_bytes)
        job["pb"] = sums
        self.parts.loop(code, part_task, code.args[0], count, code.i64(1))
        grain = (code.i64(self.parts.serial_work // 4) // (count * n)).max(1)
        self.parts.loop(code, add_task, code.args[0], m, grain)
        code.call(self.parts.give, sums)
        code.ret()
        return code.function

    def _part_task(self, product: ir.Function) -> ir.Function:
        """Parts [begin, end) of k."""
        code = Code(self.parts.module, "long_task", [PTR, I64, I64])
        job, storage = Record(code, JOB, code.args[0]), self.fmt.storage
        part = Record(code, JOB, code.variable(I64, count=len(JOB)).slot)
        m, n, k, size = job["m"], job["n"], job["k"], job["kl"]
        with code.range(code.args[1], code.args[2]) as p:
            for name in ("m", "n", "a_rs", "a_cs", "b_rs", "b_cs"):
                part[name] = job[name]
            part["k"] = (k - p * size).min(size)
            part["a"] = code.at(job.pointer_at("a"), p * size * job["a_cs"], storage)
            part["b"] = code.at(job.pointer_at("b"), p * size * job["b_rs"], storage)
            part["c"] = code.at(job.pointer_at("pb"), p * m * n, self.fmt.acc)
            part["c_rs"], part["c_cs"], part["add"], part["a_rows"] = n, 1, 0, 0
            part["b_cols"] = part["out"] = 0
            code.call(product, part.pointer)
        code.ret()
        return code.function


def _most(code: Code, parts: Parts, m: Int, n: Int) -> Int:
    """The terms of a part, of which the second cache holds both operands."""
    held = parts.target.caches.l2 // (2 * parts.fmt.acc_bytes)
    return (code.i64(held) // (m + n.max(parts.tile.cols))).max(LEAST_PART)
