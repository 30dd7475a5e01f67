"""What forward and backward of the generated attention share: the call in memory,
exponentials and logarithms of vectors, and which keys a query sees.

A query t sees the keys from max(0, t + first) to min(keys, t + last), the latter excluded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from funcgrad.backends.llvm.gemm.pack import (
    F64,
    Format,
    Tile,
    constant,
    narrow,
    widen,
)
from funcgrad.backends.llvm.gemm.packers import packer
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import (
    I32,
    I64,
    PTR,
    VOID,
    Code,
    Functions,
    Int,
    Record,
    declare,
)
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.vecmath.exp import EXP2

# Arrays of batch, place, head and feature, with a stride in elements for each of these axes.
AXES = ("batch", "place", "head", "feature")
ARRAYS = ("q", "k", "v", "out", "ct", "dq", "dk", "dv")
# Arrays of batch, head, query and key; strides are 0 where one element serves all.
PAIR_AXES = ("batch", "head", "query", "key")
PAIRS = ("bias", "mask", "dbias")
SIZES = ("batch", "queries", "keys", "heads", "key_heads", "features")
CALL = (
    *SIZES,
    "scale",  # the bits of a double, at least 0
    "first", "last",  # see the module's docstring
    "block",  # how many queries a task of the forward pass has
    "ranges",  # into how many ranges of keys the backward pass is cut
    "stats", "query_lengths", "key_lengths",  # the latter may be null
    "scratch",
    "dbias_size",  # its elements
    "shared_batch", "shared_heads",  # of how many batch items and key heads a backward task is
    *(f"{x}{part}" for x in ARRAYS for part in ("", *(f"_{axis}" for axis in AXES))),
    *(f"{x}{part}" for x in PAIRS for part in ("", *(f"_{axis}" for axis in PAIR_AXES))),
)  # fmt: skip
FAR = 1 << 40
# What the tasks of a loop share: the call, how many items there are, and how many were taken from
# the front (in the lower half) and from the back.
SHARED = ("call", "items", "taken")
# For a call, how many elements each place in a task's memory has.
Sizes = Callable[[Code, Record], list[Int]]


class Attention(Functions):
    """The module, and what is written once into it."""

    def __init__(self, module: ir.Module, fmt: Format, target: Target):
        super().__init__()
        self.module, self.fmt, self.target = module, fmt, target
        # Weights are in the accumulator's type: no pairs of narrower ones.
        self.tile = Tile.of(target, fmt).plain()
        self.rows, self.cols, self.lanes = self.tile.rows, self.tile.cols, self.tile.lanes
        self.acc, self.width = fmt.acc, fmt.acc_bytes
        self.vec = ir.VectorType(fmt.acc, self.lanes)
        self.int = I64 if fmt.acc == F64 else I32
        loop = ir.FunctionType(VOID, [PTR, PTR, I64, I64])
        self.parallel_for = declare(module, "fg_parallel_for", loop)
        self.limit = ir.GlobalVariable(module, I32, "fg_pool_limit")
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))
        self.pack_columns = packer(module, self.cols, self.tile, fmt)

    def panel(self, width: int, k: Int) -> Int:
        """Room for a packed panel, with what packing may write behind it."""
        return (k.round_up(self.lanes) * width + self.lanes).round_up(16)

    # ---- vectors

    def load(self, code: Code, p: ir.Value, index: Int | int) -> ir.Value:
        """A vector at p[index]."""
        return code.load(code.at(p, index, self.acc), self.vec, self.width)

    def store(self, code: Code, x: ir.Value, p: ir.Value, index: Int | int) -> None:
        """Stores a vector at p[index]."""
        code.store(x, code.at(p, index, self.acc), self.width)

    def value(self, x: float) -> ir.Constant:
        """A vector of equal elements."""
        return constant(self.vec, x)

    def fma(self, code: Code, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x·y + z, rounded once where the processor can."""
        if self.tile.fma:
            return code.intrinsic("fma", x, y, z)
        return code.b.fadd(code.b.fmul(x, y), z)

    def largest(self, code: Code, x: ir.Value, y: ir.Value) -> ir.Value:
        """The larger one; y where one is NaN."""
        return code.b.select(code.b.fcmp_ordered(">", x, y), x, y)

    def exp2(self, code: Code, x: ir.Value, factor: ir.Value | None = None) -> ir.Value:
        """2^(x·factor) for exponents ≤ 127; NaN is NaN, and what is about subnormal is 0."""
        b, bits = code.b, 52 if self.acc == F64 else 23
        bias, ints = (1023 if self.acc == F64 else 127), ir.VectorType(self.int, self.lanes)
        # Its low bits hold the exponent of 2^n, for n the integer that is nearest to x·factor.
        magic = self.value(1.5 * 2.0**bits + bias)
        near = b.fadd(x, magic) if factor is None else self.fma(code, x, factor, magic)
        whole = b.fsub(near, magic)
        r = b.fsub(x, whole) if factor is None else self.fma(code, x, factor, b.fneg(whole))
        terms = EXP2[8 * self.width]
        p: ir.Value = self.value(terms[-1])
        for c in terms[-2::-1]:
            p = self.fma(code, p, r, self.value(c))
        power = b.bitcast(b.shl(b.bitcast(near, ints), constant(ints, bits)), self.vec)
        small = b.fcmp_ordered("<", near, self.value(1.5 * 2.0**bits + 2))
        return b.select(small, self.value(0.0), b.fmul(p, power))

    def log(self, code: Code, x: ir.Value) -> ir.Value:
        """The natural logarithm of normal positive numbers; NaN is NaN."""
        b, bits = code.b, 52 if self.acc == F64 else 23
        bias, ints = (1023 if self.acc == F64 else 127), ir.VectorType(self.int, self.lanes)
        raw = b.bitcast(x, ints)
        one = bias << bits
        fraction = b.or_(b.and_(raw, constant(ints, (1 << bits) - 1)), constant(ints, one))
        m = b.bitcast(fraction, self.vec)
        e = b.sub(b.lshr(raw, constant(ints, bits)), constant(ints, bias))
        large = b.fcmp_ordered(">", m, self.value(math.sqrt(2.0)))
        m = b.select(large, b.fmul(m, self.value(0.5)), m)
        e = b.sitofp(b.select(large, b.add(e, constant(ints, 1)), e), self.vec)
        # log m = 2·artanh(t), a series in t² ≤ 0.03.
        t = b.fdiv(b.fsub(m, self.value(1.0)), b.fadd(m, self.value(1.0)))
        z, order = b.fmul(t, t), 21 if self.acc == F64 else 11
        p: ir.Value = self.value(2.0 / order)
        for n in range(order - 2, 0, -2):
            p = self.fma(code, p, z, self.value(2.0 / n))
        total = self.fma(code, e, self.value(math.log(2.0)), b.fmul(p, t))
        return b.select(b.fcmp_unordered("uno", x, x), x, total)

    # ---- memory

    def pointer(self, code: Code, call: Record, name: str, at: Sequence[Int]) -> ir.Value:
        """The address of an array's element (batch, place, head, first feature)."""
        offset = code.i64(0)
        for axis, i in zip(AXES, at, strict=False):
            offset = offset + call[f"{name}_{axis}"] * i
        return code.at(call.pointer_at(name), offset, self.fmt.storage)

    def zero(self, code: Code, p: ir.Value, count: Int) -> None:
        """Zeros, up to a multiple of lanes."""
        with code.range(0, count, self.lanes) as i:
            self.store(code, self.value(0.0), p, i)

    def memory(self, code: Code, sizes: Sequence[Int]) -> tuple[ir.Value, list[ir.Value]]:
        """A block of scratch memory, and the places of so many elements each in it."""
        memory = code.call(self.take, self.total(code, sizes))
        places, at = [], code.i64(0)
        for size in sizes:
            places.append(code.at(memory, at, self.acc))
            at = at + size.round_up(16)
        return memory, places

    def total(self, code: Code, sizes: Sequence[Int]) -> Int:
        """The bytes of a block of memory that has places of so many elements each."""
        total = code.i64(0)
        for size in sizes:
            total = total + size.round_up(16)
        return total * self.width

    def room(self, symbol: str, sizes: Sizes, items: Callable[[Record], Int]) -> None:
        """Writes i64(call): the bytes of scratch memory that all tasks of a loop over items take.

        sizes: those of the places in a task's memory
        """
        code = Code(self.module, symbol, [PTR], public=True, result=I64)
        call = Record(code, CALL, code.args[0])
        tasks = self.threads(code).min(items(call)).max(1)
        code.ret(self.total(code, sizes(code, call)) * tasks)

    def write(self, code: Code, x: ir.Value, to: ir.Value) -> None:
        """Stores a vector or scalar of the accumulator's type as the storage type."""
        y = x if self.fmt.storage == self.acc else narrow(code, self.fmt, x)
        code.store(y, to, self.fmt.bytes)

    def widened(self, code: Code, p: ir.Value, kind: ir.Type) -> ir.Value:
        """A scalar or vector of the storage type in memory, in the accumulator's type."""
        return widen(code, self.fmt, self.target, code.load(p, kind, self.fmt.bytes))

    # ---- which keys a query sees

    def limits(self, code: Code, call: Record, batch: Int) -> tuple[Int, Int]:
        """How many queries and keys of an item of the batch count."""
        found: list[Int] = []
        for name, whole in (("query_lengths", "queries"), ("key_lengths", "keys")):
            count = code.variable(I64, call[whole])
            with code.when(call[name].ne(0)):
                p = code.at(call.pointer_at(name), batch, I32)
                given = Int(code, code.b.sext(code.load(p, I32), I64))
                count.set(given.max(0).min(call[whole]))
            found.append(Int(code, count.get()))
        return found[0], found[1]

    def seen(self, code: Code, call: Record, t: Int, keys: Int) -> tuple[Int, Int]:
        """The keys that query t sees: the first, and the one behind the last."""
        return (t + call["first"]).max(0).min(keys), (t + call["last"]).max(0).min(keys)

    def scale(self, code: Code, call: Record, factor: float = 1.0) -> ir.Value:
        """The scale times a factor, as a vector."""
        wide = code.b.bitcast(call["scale"].value, F64)
        wide = code.b.fmul(wide, ir.Constant(F64, factor))
        return code.splat(wide if self.acc == F64 else code.b.fptrunc(wide, self.acc), self.lanes)

    def counting(self, code: Code, start: Int, v: int) -> ir.Value:
        """start + v·lanes, and the numbers after it, as a vector of 32-bit integers."""
        ints = ir.VectorType(I32, self.lanes)
        first = code.splat(code.b.trunc((start + v * self.lanes).value, I32), self.lanes)
        return code.b.add(first, ir.Constant(ints, list(range(self.lanes))))

    def number(self, code: Code, x: Int) -> ir.Value:
        """An integer as a vector of 32 bits each."""
        return code.splat(code.b.trunc(x.value, I32), self.lanes)

    # ---- tasks

    def loop(self, code: Code, task: ir.Function, call: ir.Value, n: Int) -> None:
        """A parallel loop over n items, which a `task` takes until there are none (`items`); a
        plain call of a single one."""
        shared = Record(code, SHARED, code.variable(I64, count=len(SHARED)).slot)
        shared["call"], shared["items"], shared["taken"] = call, n, 0
        with code.either(n <= 1) as (yes, no):
            with yes:
                code.call(task, shared.pointer, 0, 1)
            with no:
                threads = self.threads(code).min(n)
                code.call(self.parallel_for, task, shared.pointer, threads, 1)

    def task(self, name: str) -> tuple[Code, Record]:
        """The function of a task, to be written, and the call."""
        code = Code(self.module, name, [PTR, I64, I64])
        return code, Record(code, CALL, Record(code, SHARED, code.args[0]).pointer_at("call"))

    @contextmanager
    def items(self, code: Code) -> Iterator[tuple[Int, Int]]:
        """In a task: each item that no other has taken, and the one that will probably come after
        it here, which may be none.

        The first task takes them from the front, the others from the back: what lies beside an
        item, and may come into the cache with it, is the next one.
        """
        shared = Record(code, SHARED, code.args[0])
        n, front, half = shared["items"], code.args[1].eq(0), 1 << 32
        counter = code.at(code.args[0], SHARED.index("taken"), I64)
        others = (self.threads(code) - 1).max(1)
        with code.loop() as (test, done):
            one = front.select(1, half).value
            taken = Int(code, code.b.atomic_rmw("add", counter, one, "monotonic"))
            first, behind = taken % half, taken // half
            code.b.cbranch((first + behind < n).value, test, done)
            code.b.position_at_end(test)
            i = front.select(first, n - 1 - behind)
            before = (i < others).select(n, i - others)
            yield i, front.select(i + 1, before)

    def threads(self, code: Code) -> Int:
        """How many threads loops have."""
        return Int(code, code.b.sext(code.load(self.limit, I32), I64)) + 1
