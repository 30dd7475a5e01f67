"""Native sums, maxima and minima of several arrays, element by element.

`void fold_<op>_<dtype>(ptr to, ptr arrays, i64 n, i64 count)` combines n arrays in their order, so
that every rank gets the same bits. Narrow floats are combined in float32 and rounded once, NaN is
passed on, as `numpy.maximum` does. `to` may be one of the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.llvm.gemm.pack import FORMATS, narrow, widen
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.rewrites.exchanges import DTYPES, OPS

# How many vectors are combined at a time.
UNROLLED = 4


@dataclass(frozen=True)
class _Kind:
    """How elements of a dtype are combined: their type in memory, what kind of number, and the
    narrow float's format."""

    storage: ir.Type
    sort: str
    narrow: str = ""

    @property
    def bits(self) -> int:
        """The bits of an element in a register."""
        if self.narrow:
            return 32
        if isinstance(self.storage, ir.IntType):
            return self.storage.width
        return 64 if isinstance(self.storage, ir.DoubleType) else 32


def _kind(dtype: np.dtype) -> _Kind | None:
    if dtype == dtypes.BOOL:
        return _Kind(ir.IntType(8), "bool")
    if dtype.kind in "iu":
        return _Kind(ir.IntType(8 * dtype.itemsize), "signed" if dtype.kind == "i" else "unsigned")
    if dtype.name in ("float16", "bfloat16"):
        return _Kind(ir.IntType(16), "float", dtype.name)
    floats = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
    return _Kind(floats[dtype.name], "float") if dtype.name in floats else None


def _combine(code: Code, op: str, sort: str, x: ir.Value, y: ir.Value) -> ir.Value:
    """x op y, of scalars or vectors."""
    b = code.b
    if sort == "bool":
        return b.and_(x, y) if op == "min" else b.or_(x, y)
    if op == "sum":
        return b.fadd(x, y) if sort == "float" else b.add(x, y)
    sign = ">" if op == "max" else "<"
    if sort == "float":
        best = b.select(b.fcmp_ordered(sign, x, y), x, y)
        return b.select(b.fcmp_unordered("uno", x, x), x, best)
    compare = b.icmp_signed if sort == "signed" else b.icmp_unsigned
    return b.select(compare(sign, x, y), x, y)


class _Fold:
    """Writes one function."""

    def __init__(self, module: ir.Module, target: Target, name: str, op: str, kind: _Kind):
        self.code = Code(module, name, [PTR, PTR, I64, I64])
        self.target, self.op, self.kind = target, op, kind
        self.to, self.arrays, self.n, self.count = self.code.args
        lanes = target.vector_bits // kind.bits
        step = lanes * UNROLLED
        whole = self.count - self.count % step
        with self.code.range(0, whole, step) as i:
            self.block(i, ir.VectorType(kind.storage, lanes), lanes, UNROLLED)
        with self.code.range(whole, self.count) as i:
            self.block(i, kind.storage, 1, 1)
        self.code.ret()

    def block(self, i: Int, type_: ir.Type, lanes: int, unrolled: int) -> None:
        """The results from i on."""
        code = self.code
        first = self.load(0, i, type_, lanes, unrolled)
        totals = [code.variable(x.type, x) for x in first]
        with code.range(1, self.n) as r:
            for total, x in zip(totals, self.load(r, i, type_, lanes, unrolled), strict=True):
                total.set(_combine(code, self.op, self.kind.sort, total.get(), x))
        for k, total in enumerate(totals):
            value = total.get()
            if self.kind.narrow:
                value = self.rounded(value)
            at = code.at(self.to, i + k * lanes, self.kind.storage)
            code.store(value, at, self.align)

    def load(self, r: Any, i: Int, type_: ir.Type, lanes: int, unrolled: int) -> list[ir.Value]:
        code = self.code
        array = code.load(code.at(self.arrays, r, PTR), PTR)
        values = []
        for k in range(unrolled):
            at = code.at(array, i + k * lanes, self.kind.storage)
            value = code.b.load(at, typ=type_, align=self.align)
            if self.kind.narrow:
                value = widen(code, FORMATS[self.kind.narrow], self.target, value)
            values.append(value)
        return values

    def rounded(self, value: ir.Value) -> ir.Value:
        """Float32 as the bits of the narrow float."""
        b, name, type_ = self.code.b, self.kind.narrow, value.type
        if name == "bfloat16" or not self.target.converts_halves:
            return narrow(self.code, FORMATS[name], value)
        half, bits = ir.HalfType(), ir.IntType(16)
        if isinstance(type_, ir.VectorType):
            half, bits = ir.VectorType(half, type_.count), ir.VectorType(bits, type_.count)
        return b.bitcast(b.fptrunc(value, half), bits)

    @property
    def align(self) -> int:
        return 2 if self.kind.narrow else self.kind.bits // 8


def write_folds(module: ir.Module, target: Target) -> ir.Function:
    """All folds, in a module, and the function that calls the one of an op and a dtype:
    `i32 fold(i64 op, i64 dtype, ptr to, ptr arrays, i64 n, i64 count)`. It returns 0, or 1 where
    there is none; with a count of 0 it only asks."""
    functions: dict[tuple[str, str], ir.Function] = {}
    for op in OPS:
        for dtype in DTYPES:
            kind = None if "int4" in dtype.name else _kind(dtype)
            if kind is not None:
                fold = _Fold(module, target, f"fold_{op}_{dtype.name}", op, kind)
                functions[op, dtype.name] = fold.code.function
    for pair, part in (("complex64", "float32"), ("complex128", "float64")):
        functions["sum", pair] = _pairs(module, f"fold_sum_{pair}", functions["sum", part])
    code = Code(module, "fold", [I64, I64, PTR, PTR, I64, I64], result=I32)
    op, dtype, *args = code.args
    none = code.b.append_basic_block("none")
    start, cases = code.b.block, []
    for (name, of), function in functions.items():
        block = code.b.append_basic_block(function.name)
        number = OPS.index(name) * len(DTYPES) + [d.name for d in DTYPES].index(of)
        cases.append((number, block))
        code.b.position_at_end(block)
        code.call(function, *args)
        code.b.ret(I32(0))
    code.b.position_at_end(start)
    code.b.switch((op * len(DTYPES) + dtype).value, none, cases)
    code.b.position_at_end(none)
    code.b.ret(I32(1))
    return code.function


def _pairs(module: ir.Module, name: str, part: ir.Function) -> ir.Function:
    """The sum of complex numbers: of twice as many real ones."""
    code = Code(module, name, [PTR, PTR, I64, I64])
    to, arrays, n, count = code.args
    code.call(part, to, arrays, n, count * 2)
    code.ret()
    return code.function
