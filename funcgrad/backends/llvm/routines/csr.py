"""Products of sparse matrices with dense ones, many in one step: see `rewrites.csr`.

Threads share the rows of all products. A row's sums stay in registers while its entries pass, and
the lines of entries some way behind are asked for meanwhile: which lines come next, no processor
foresees. Each kind of lines, their dtype and width, has a function of its own. A row of very many
entries waits until all others are done: threads share its parts, and their sums are added in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Code, Int, Record, declare
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.runtime.routine import Call, compiled

if TYPE_CHECKING:
    from funcgrad.backends.program import HostStep

# Words of a product: its rows among all, its entries and lines, how long these are, whether what is
# missing is NaN, and its kind; then, of each array, which word has its address, and the element
# where it begins.
_FIELDS = (
    "first", "rows", "entries", "lines", "width", "nan", "kind",
    "indices", "indices_at", "starts", "starts_at", "ends", "ends_at", "data", "data_at",
    "dense", "scales", "out",
)  # fmt: skip
# How many products and rows there are, how many entries a row may have so as not to wait, and
# whether one has more.
_HEAD = ("products", "rows", "most", "waiting")
_ARRAYS = ("indices", "starts", "ends", "data", "dense", "scales", "out")
GRAIN = 128  # rows of a task
LONG, PARTS = 4096, 32  # entries of a row that doesn't wait; parts of one that does
AHEAD, LINE = 4096, 64  # bytes of lines that are on their way; of a line of caches
REGISTERS = 8  # that hold sums
_FLOATS = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_STORED = {
    **_FLOATS, "float16": ir.HalfType(), "bfloat16": ir.IntType(16), "int8": ir.IntType(8),
}  # fmt: skip
_WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_CODES = {"codes8": 8, "codes4": 4}  # bits of numbers that a line's scale is multiplied with


class Kind(NamedTuple):
    """What a function is written for: lines of so many elements of a dtype (or of `_CODES`), with
    factors or not."""

    dtype: str
    width: int
    weighted: bool

    @property
    def nbytes(self) -> int:
        """Of a line."""
        return -(-self.width * _CODES.get(self.dtype, 8 * _WIDTHS.get(self.dtype, 0)) // 8)

    def __str__(self) -> str:
        return f"{self.dtype}x{self.width}{'w' * self.weighted}"


def csr_call(step: HostStep) -> Call:
    """How the function that runs a step of `csr_matmuls` is called."""
    members, outs = step.params["members"], [v.aval for v in step.outs]
    dense = [step.ins[m.dense].aval for m in members]
    kinds = [
        Kind(f"codes{m.bits}" if m.bits else x.dtype.name, out.shape[1], m.data >= 0)
        for x, m, out in zip(dense, members, outs, strict=True)
    ]
    different = sorted(set(kinds))
    one = members[0]
    dtypes = step.ins[one.indices].aval.dtype, step.ins[one.starts].aval.dtype, outs[0].dtype
    name = "_".join(("fg_csr", *(d.name for d in dtypes), ".".join(map(str, different))))
    places = len(_HEAD) + len(_FIELDS) * len(members)
    words, first = [len(members), sum(x.shape[0] for x in outs), LONG, 0], 0
    for i, (m, kind, lines, out) in enumerate(zip(members, kinds, dense, outs, strict=True)):
        words += [first, out.shape[0], m.entries, lines.shape[0], kind.width, m.nan]
        words += [different.index(kind)]
        words += [places + m.indices, m.indices_at, places + m.starts, m.starts_at]
        words += [places + m.ends, m.ends_at, places + max(m.data, 0), m.data_at]
        words += [places + m.dense, places + max(m.scales, 0), places + len(step.ins) + i]
        first += out.shape[0]
    return Call(name, tuple(map(int, words)), (partial(install, name),))


@functools.cache
def install(name: str, target: Engine | None = None) -> int:
    """Compile a function that `csr_call` names; bind its symbol, return its address.

    >>> name = "fg_csr_int32_int32_float32_float32x5"
    >>> install(name) == install(name)
    True
    """
    target = target or engine()
    _, _, *dtypes, kinds = name.split("_")

    def write() -> ir.Module:
        module = ir.Module("csr")
        writer = _Writer(module, *dtypes, bits=target.target.vector_bits)
        writer.entry(name, [_kind(k) for k in kinds.split(".")])
        return module

    return compiled(name, write, 2, ("routines.csr",), target)


def _kind(text: str) -> Kind:
    dtype, _, width = text.rpartition("x")
    return Kind(dtype, int(width.rstrip("w")), width.endswith("w"))


class _Writer:
    """Writes the functions of one dtype of indices, one of bounds and one of sums."""

    def __init__(self, module: ir.Module, index: str, bound: str, wide: str, *, bits: int):
        self.module, self.wide = module, wide
        self.index, self.bound = (ir.IntType(8 * np.dtype(d).itemsize) for d in (index, bound))
        self.sum = _FLOATS[wide]
        self.lanes = bits // (8 * _WIDTHS[wide])

    def entry(self, name: str, kinds: list[Kind]) -> None:
        """void name(ptr call) of the words `_HEAD`, `_FIELDS` of each product, and addresses."""
        loop = ir.FunctionType(VOID, [PTR, PTR, I64, I64])
        parallel = declare(self.module, "fg_parallel_for", loop)
        task = self._task([self._rows(kind) for kind in kinds])
        in_parts = self._in_parts(task, parallel)
        code = Code(self.module, name, [PTR], public=True)
        head = Record(code, _HEAD, code.args[0])
        code.call(parallel, task, head.pointer, head["rows"], GRAIN)
        with code.when(head["waiting"].ne(0)), code.range(0, head["products"]) as i:
            product = self._product(code, head.pointer, i)
            bounds = self._bounds(code, head.pointer, product)
            with code.range(0, product["rows"]) as row:
                start, end = bounds(row)
                with code.when(end - start > LONG):
                    code.call(in_parts, head.pointer, product.pointer, row, start, end)
        code.ret()

    def _product(self, code: Code, call: ir.Value, i: Int | int) -> Record:
        """A product of a call."""
        return Record(code, _FIELDS, code.at(call, i * len(_FIELDS) + len(_HEAD), I64))

    def _bounds(
        self, code: Code, call: ir.Value, product: Record
    ) -> Callable[[Int], tuple[Int, Int]]:
        """What gives where a row's entries begin and end."""
        starts, ends = (_array(code, call, product, k, self.bound) for k in ("starts", "ends"))
        entries = product["entries"]

        def bound(array: ir.Value, row: Int) -> Int:
            return integer(code, array, row, self.bound).max(0).min(entries)

        return lambda row: (bound(starts, row), bound(ends, row))

    def _in_parts(self, task: ir.Function, parallel: ir.Function) -> ir.Function:
        """void in_parts(call, product, row, start, end): a row of a product, whose parts are the
        rows of a product of their own."""
        code = Code(self.module, "in_parts", [PTR, PTR, I64, I64, I64])
        call, at, row, start, end = code.args
        whole, words = Record(code, _FIELDS, at), len(_HEAD) + len(_FIELDS)
        own = code.variable(I64, count=words + len(_ARRAYS)).slot
        head, part = Record(code, _HEAD, own), self._product(code, own, 0)
        head["products"], head["rows"], head["most"] = 1, PARTS, (1 << 63) - 1
        for name in _FIELDS:
            part[name] = whole[name]
        for name, number in {"first": 0, "rows": PARTS, "starts_at": 0, "ends_at": 0}.items():
            part[name] = number
        bounds = {k: code.variable(self.bound, count=PARTS).slot for k in ("starts", "ends")}
        each = (end - start).ceil_div(PARTS)
        with code.range(0, PARTS) as i:
            for name, n in (("starts", code.i64(i)), ("ends", i + 1)):
                bound = (start + n * each).min(end).value
                bound = code.b.trunc(bound, self.bound) if self.bound.width < 64 else bound
                code.store(bound, code.at(bounds[name], i, self.bound))
        take, give = (
            declare(self.module, f"fg_scratch_{name}", ir.FunctionType(*kinds))
            for name, kinds in (("take", (PTR, [I64])), ("give", (VOID, [PTR])))
        )
        sums = code.call(take, whole["width"] * (PARTS * _WIDTHS[self.wide]))
        for word, name in enumerate(_ARRAYS, words):
            address = {**bounds, "out": sums}.get(name) or _array(code, call, whole, name, None)
            code.store(address, code.at(own, word, I64))
            part[name] = word
        code.call(parallel, task, own, PARTS, 1)
        out = code.at(_array(code, call, whole, "out", None), row * whole["width"], self.sum)
        self._added(code, sums, whole["width"], out)
        code.call(give, sums)
        code.ret()
        return code.function

    def _added(self, code: Code, sums: ir.Value, width: Int, out: ir.Value) -> None:
        """The sums of a row's parts, added in their order."""
        with code.range(0, width) as column:
            total = code.variable(self.sum, ir.Constant(self.sum, 0))
            with code.range(0, PARTS) as i:
                term = code.load(code.at(sums, i * width + column, self.sum), self.sum)
                total.set(code.b.fadd(total.get(), term))
            code.store(total.get(), code.at(out, column, self.sum))

    def _task(self, rows: list[ir.Function]) -> ir.Function:
        """Rows [begin, end) of all products."""
        code = Code(self.module, "task", [PTR, I64, I64])
        call, begin, end = code.args
        with code.range(0, Record(code, _HEAD, call)["products"]) as i:
            product = self._product(code, call, i)
            first = product["first"]
            low, high = (begin - first).max(0), (end - first).min(product["rows"])
            with code.when(low < high):
                kind = product["kind"]
                for number, function in enumerate(rows):
                    with code.when(kind.eq(number)):
                        code.call(function, call, product.pointer, low, high)
        code.ret()
        return code.function

    def _rows(self, kind: Kind) -> ir.Function:
        """void rows(call, product, low, high): these rows of a product."""
        code = Code(self.module, f"rows_{kind}", [PTR, PTR, I64, I64])
        code.function.attributes.add("noinline")
        call, at, low, high = code.args
        product = Record(code, _FIELDS, at)
        row = _Row(self, code, kind, product, partial(_array, code, call, product))
        bounds, pieces = self._bounds(code, call, product), _pieces(kind.width, self.lanes)
        parts = [pieces[i : i + REGISTERS] for i in range(0, len(pieces), REGISTERS)]
        head = Record(code, _HEAD, call)
        most = head["most"]
        with code.range(low, high) as r:
            start, end = bounds(r)
            with code.either(end - start > most) as (yes, no):
                with yes:
                    head["waiting"] = 1
                with no:
                    for number, part in enumerate(parts):
                        row.sums(r, start, end, part, asks=number == 0)
        code.ret()
        return code.function


class _Row:
    """Writes the sums of a row, some of its columns at a time."""

    def __init__(self, writer: _Writer, code: Code, kind: Kind, product: Record, array: partial):
        self.writer, self.code, self.kind = writer, code, kind
        self.indices = array("indices", writer.index)
        self.data = array("data", writer.sum) if kind.weighted else None
        self.dense, self.out = array("dense", None), array("out", None)
        self.scales = array("scales", None) if kind.dtype in _CODES else None
        self.lines, self.last = product["lines"], product["entries"] - 1
        self.nan = product["nan"].ne(0)
        self.nbytes = kind.nbytes

    def sums(
        self, row: Int, start: Int, end: Int, pieces: list[tuple[int, int]], asks: bool
    ) -> None:
        """Entries [start, end) of a row, its columns in some pieces. asks: for later lines, too."""
        code, b, wide = self.code, self.code.b, self.writer.sum
        sums = [code.variable(kind := ir.VectorType(wide, lanes), ir.Constant(kind, None))
                for _, lanes in pieces]  # fmt: skip
        lost = code.variable(ir.IntType(1), ir.Constant(ir.IntType(1), 0))
        with code.range(start, end) as e:
            if asks:
                self.ask((e + max(1, min(64, AHEAD // self.nbytes))).min(self.last))
            number = integer(code, self.indices, e, self.writer.index)
            inside = b.icmp_unsigned("<", number.value, self.lines.value)
            with b.if_else(inside) as (yes, no):
                with yes:
                    line = code.at(self.dense, number * self.nbytes, ir.IntType(8))
                    factor = self.factor(e, number)
                    for total, piece in zip(sums, pieces, strict=True):
                        term = self.term(line, *piece)
                        if factor is not None:
                            term = b.fmul(code.splat(factor, piece[1]), term)
                        total.set(b.fadd(total.get(), term))
                with no:
                    lost.set(ir.Constant(ir.IntType(1), 1))
        spoilt = b.and_(lost.get(), self.nan.value)
        place = code.at(self.out, row * self.kind.width, wide)
        for total, (column, lanes) in zip(sums, pieces, strict=True):
            nans = code.splat(ir.Constant(wide, float("nan")), lanes)
            found = b.select(spoilt, nans, total.get())
            code.store(found, code.at(place, column, wide), _WIDTHS[self.writer.wide])

    def factor(self, entry: Int, line: Int) -> ir.Value | None:
        """What the line of an entry is multiplied with, if there is such a thing."""
        code, wide, read = self.code, self.writer.sum, []
        for array, at in ((self.data, entry), (self.scales, line)):
            if array is not None:
                read.append(code.load(code.at(array, at, wide), wide))
        return code.b.fmul(*read) if len(read) == 2 else next(iter(read), None)

    def ask(self, entry: Int) -> None:
        """For the line of an entry; it may be none."""
        number = integer(self.code, self.indices, entry, self.writer.index)
        line = self.code.at(self.dense, number * self.nbytes, ir.IntType(8))
        for offset in (*range(0, min(self.nbytes, 1024), LINE), self.nbytes - 1):
            self.code.prefetch(self.code.at(line, offset, ir.IntType(8)))
        if self.scales is not None:
            self.code.prefetch(self.code.at(self.scales, number, self.writer.sum))

    def term(self, line: ir.Value, column: int, lanes: int) -> ir.Value:
        """Some elements of a line, as what is summed."""
        code, b, dtype = self.code, self.code.b, self.kind.dtype
        if dtype in _CODES:
            return self.codes(line, column, lanes)
        stored, size = _STORED[dtype], _WIDTHS[dtype]
        x = b.load(code.at(line, column, stored), typ=ir.VectorType(stored, lanes), align=size)
        wide = ir.VectorType(self.writer.sum, lanes)
        if dtype == "bfloat16":
            word = ir.VectorType(I32, lanes)
            high = b.shl(b.zext(x, word), code.splat(I32(16), lanes))
            return b.bitcast(high, wide)
        if dtype == "int8":
            return b.sitofp(x, wide)
        return x if dtype == self.writer.wide else b.fpext(x, wide)

    def codes(self, line: ir.Value, column: int, lanes: int) -> ir.Value:
        """The same of codes; of 4 bits a piece begins with a whole byte."""
        code, b, bits, byte = self.code, self.code.b, _CODES[self.kind.dtype], ir.IntType(8)
        read = max(1, lanes * bits // 8)
        vector = ir.VectorType(byte, read)
        x = b.load(code.at(line, column * bits // 8, byte), typ=vector, align=1)
        if bits == 4:
            low = b.and_(x, code.splat(byte(15), read))
            high = b.lshr(x, code.splat(byte(4), read))
            order = [i // 2 + i % 2 * read for i in range(lanes)]
            pairs = ir.Constant(ir.VectorType(I32, lanes), order)
            x = b.sub(b.shuffle_vector(low, high, pairs), code.splat(byte(8), lanes))
        return b.sitofp(x, ir.VectorType(self.writer.sum, lanes))


def integer(code: Code, array: ir.Value, i: Int, kind: ir.IntType) -> Int:
    """An integer of an array, with 64 bits."""
    found = code.b.load(code.at(array, i, kind), typ=kind)
    return Int(code, code.b.sext(found, I64) if kind.width < 64 else found)


def _array(
    code: Code, call: ir.Value, product: Record, name: str, kind: ir.Type | None
) -> ir.Value:
    """Where an array of a product begins, of elements of some type."""
    address = code.load(code.at(call, product[name], I64), PTR)
    return address if kind is None else code.at(address, product[f"{name}_at"], kind)


def _pieces(width: int, lanes: int) -> list[tuple[int, int]]:
    """Columns as (first, count): whole vectors, then shorter ones.

    >>> _pieces(13, 4)
    [(0, 4), (4, 4), (8, 4), (12, 1)]
    """
    found, at = [], 0
    while at < width:
        while lanes > width - at:
            lanes //= 2
        found.append((at, lanes))
        at += lanes
    return found
