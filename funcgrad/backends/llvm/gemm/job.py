"""What the ways of the generated GEMM share: kernels, packers and symbols of one format."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from funcgrad.backends.llvm.gemm.gather import gather_function
from funcgrad.backends.llvm.gemm.kernels import Kernels, Micro
from funcgrad.backends.llvm.gemm.pack import (
    Format,
    Tile,
    narrow,
    vector_of,
    widen,
)
from funcgrad.backends.llvm.gemm.packers import packer
from funcgrad.backends.llvm.gemm.words import JOB, SERIAL_WORK, SMALL_WORK
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import (
    I32,
    I64,
    PTR,
    VOID,
    Callee,
    Code,
    Int,
    Record,
    declare,
)
from funcgrad.backends.llvm.native.target import Target


class Way:
    """One way to multiply: its name, and its function void(ptr job), written when it is needed."""

    def __init__(self, name: str, write: Callable[[], ir.Function]):
        self.name, self._write = name, write

    @cached_property
    def function(self) -> ir.Function:
        """The function, in the module of its parts."""
        return self._write()


class Parts:
    """A module with the kernels, packers and symbols that the ways of one format use.

    elsewhere: what gives kernels of other modules, as of `Kernels`
    """

    def __init__(
        self, module: ir.Module, fmt: Format, out: Format, target: Target,
        elsewhere: Callable[[Micro], Callee] | None = None,
    ):  # fmt: skip
        self.module, self.fmt, self.out, self.target = module, fmt, out, target
        self.tile = Tile.of(target, fmt)
        each = 4 if fmt.is_complex else 1  # real products that one of elements is made of
        self.small_work, self.serial_work = SMALL_WORK // each, SERIAL_WORK // each
        self.kernels = Kernels(module, fmt, self.tile, target, elsewhere)
        loop = ir.FunctionType(VOID, [PTR, PTR, I64, I64])
        self.parallel_for = declare(module, "fg_parallel_for", loop)
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))
        self.limit = ir.GlobalVariable(module, I32, "fg_pool_limit")

    @cached_property
    def pack_a(self) -> ir.Function:
        """Packs rows of A by strides."""
        return packer(self.module, self.tile.rows, self.tile, self.fmt)

    @cached_property
    def pack_b(self) -> ir.Function:
        """Packs columns of B by strides."""
        return packer(self.module, self.tile.cols, self.tile, self.fmt)

    @cached_property
    def gather_a(self) -> ir.Function:
        """Packs rows of A by tables."""
        return self._gatherer("gather_a", self.tile.rows)

    @cached_property
    def gather_b(self) -> ir.Function:
        """Packs columns of B by tables."""
        return self._gatherer("gather_b", self.tile.cols)

    @cached_property
    def add_parts(self) -> ir.Function:
        """The task that makes rows [begin, end) of C from those of its nt parts, beside at pb."""
        code = Code(self.module, "add_parts", [PTR, I64, I64])
        job, acc, lanes = Record(code, JOB, code.args[0]), self.fmt.acc, self.tile.lanes
        m, n, count, add = job["m"], job["n"], job["nt"], job["add"]
        sums, c, kernels = job.pointer_at("pb"), job.pointer_at("c"), self.kernels
        with code.range(code.args[1], code.args[2]) as i, code.range(0, n, lanes) as j:
            mask = kernels.mask(code, n - j)
            out, first = code.at(c, i * job["c_rs"] + j, acc), code.at(sums, i * n + j, acc)
            total = code.variable(kernels.vec, code.masked_load(first, mask, kernels.vec))
            with code.range(1, count) as p:
                x = code.masked_load(code.at(first, p * m * n, acc), mask, kernels.vec)
                total.set(kernels.sum(code, total.get(), x))
            with code.when(add.ne(0)):
                old = code.masked_load(out, mask, kernels.vec)
                total.set(kernels.sum(code, old, total.get()))
            code.masked_store(total.get(), out, mask)
        code.ret()
        return code.function

    @property
    def finishes(self) -> bool:
        """Whether products may be finished row by row (`FINISH`): sums of integers, which are the
        same in any order."""
        return self.fmt.name == "int8"

    @property
    def narrow(self) -> bool:
        """Whether C is of a narrower type than the sums."""
        return self.out.storage != self.fmt.acc

    @cached_property
    def round(self) -> ir.Function:
        """void(sums, sums_rs, c, c_rs, c_cs, m, n, add): c becomes the sums, or grows by them."""
        code = Code(self.module, "round", [PTR, I64, PTR, I64, I64, I64, I64, I64])
        sums, sums_rs, c, rs, cs, m, n, add = code.args
        lanes, storage, acc = self.tile.lanes, self.out.storage, self.fmt.acc

        def rounded(at: ir.Value, p: ir.Value, count: int, adds: bool) -> None:
            """So many sums at once."""
            x = code.load(at, vector_of(acc, count) if count > 1 else acc, 4)
            if adds:
                kind = vector_of(storage, count) if count > 1 else storage
                old = code.load(p, kind, self.out.bytes)
                x = code.b.fadd(widen(code, self.out, self.target, old), x)
            code.store(narrow(code, self.out, x), p, self.out.bytes)

        # What c held before counts only where the call adds: it may be NaN.
        with code.either(add.ne(0)) as cases:
            for case, adds in zip(cases, (True, False), strict=True):
                with case, code.range(0, m) as i:
                    row, c_row = code.at(sums, i * sums_rs, acc), code.at(c, i * rs, storage)
                    done = code.i64(0)
                    for count in (2 * lanes, lanes):  # two vectors fill one of the results
                        end = cs.eq(1).select(n // count * count, 0)
                        with code.range(done, end, count) as at:
                            rounded(code.at(row, at, acc), code.at(c_row, at, storage), count, adds)
                        done = end
                    with code.range(done, n) as at:
                        rounded(code.at(row, at, acc), code.at(c_row, at * cs, storage), 1, adds)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _gatherer(self, name: str, width: int) -> ir.Function:
        function = gather_function(self.module, name, width, self.tile, self.fmt, self.target)
        function.attributes.add("noinline")
        return function

    def threads(self, code: Code) -> Int:
        """The number of threads that a parallel loop may take."""
        return Int(code, code.b.sext(code.load(self.limit, I32), I64)) + 1

    def panel_elements(self, width: int, k: Int) -> Int:
        """Room for a panel, with what packing may write behind it."""
        return (self.tile.depth(k).round_up(self.tile.lanes) * width + self.tile.lanes).round_up(16)

    def loop(self, code: Code, task: ir.Function, ctx: ir.Value, n: Int, grain: Int) -> None:
        """A parallel loop, or a plain call where one chunk is all."""
        with code.either(n <= grain) as (yes, no):
            with yes:
                code.call(task, ctx, 0, n)
            with no:
                code.call(self.parallel_for, task, ctx, n, grain)
