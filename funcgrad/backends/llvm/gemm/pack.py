"""Packing of operands for the generated GEMM, and the number formats it knows.

A panel of width W holds k rows of W elements, the order in which the micro-kernel reads them
(Goto & van de Geijn 2008): W rows of A, or W columns of B. Elements are converted to the
accumulator's type on the way, or those of two or four neighbouring k become one of 32 bits, where
an instruction multiplies and adds such pairs or fours. A panel that the matrix does not fill is
filled with zeros. Complex numbers stay as they lie, elements of two numbers each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int, of_shape, zero_of
from funcgrad.backends.llvm.native.target import Target
from funcgrad.core.record import Record, replace

F32, F64, I16 = ir.FloatType(), ir.DoubleType(), ir.IntType(16)
C64, C128 = ir.VectorType(F32, 2), ir.VectorType(F64, 2)

ROWS_AHEAD = 8  # of those being read, of an operand whose rows lie along panels
AHEAD = 512  # bytes between a prefetch and its use, in rows too many for the hardware's


def vector_of(element: ir.Type, count: int) -> ir.VectorType:
    """So many elements one after the other; of complex ones, their numbers."""
    if isinstance(element, ir.VectorType):
        return ir.VectorType(element.element, element.count * count)
    return ir.VectorType(element, count)


class Format(Record):
    """A number format: how it lies in memory, and in which type it is multiplied and added."""

    name: str
    storage: ir.Type
    acc: ir.Type
    bytes: int

    @property
    def acc_bytes(self) -> int:
        """The bytes of an element of the sums."""
        if self.is_complex:
            return self.bytes
        return 8 if self.acc == F64 else 4

    @property
    def is_complex(self) -> bool:
        """Whether an element is a pair of numbers."""
        return isinstance(self.acc, ir.VectorType)

    @property
    def align(self) -> int:
        """What addresses of elements are multiples of."""
        return self.bytes // 2 if self.is_complex else self.bytes

    @property
    def acc_align(self) -> int:
        """The same of the sums."""
        return self.align if self.is_complex else self.acc_bytes


FORMATS = {
    f.name: f
    for f in (
        Format("float32", F32, F32, 4),
        Format("float64", F64, F64, 8),
        Format("float16", I16, F32, 2),
        Format("bfloat16", I16, F32, 2),
        Format("int8", ir.IntType(8), I32, 1),
        Format("int32", I32, I32, 4),
        Format("complex64", C64, C64, 8),
        Format("complex128", C128, C128, 16),
    )
}


class Tile(Record):
    """Shape of the register tile (rows × vectors of lanes) and of the blocks around it."""

    rows: int
    vectors: int
    lanes: int
    kc: int
    masks: bool  # masked loads and stores are cheap
    fma: bool
    pairs: str = ""  # the instruction for pairs or fours of k, if panels hold such
    along: int = 1  # elements of k in one of a panel
    sums: int = 1  # registers for a vector of C; two if it is complex

    @property
    def many_registers(self) -> bool:
        """Whether there are more than 16 registers for vectors."""
        return self.rows * self.sums >= 8

    @property
    def cols(self) -> int:
        """The columns of the tile."""
        return self.vectors * self.lanes

    def depth(self, k: Int) -> Int:
        """The rows of a panel for k."""
        return k.ceil_div(self.along) if self.pairs else k

    @staticmethod
    def of(target: Target, fmt: Format) -> Tile:
        """The tile for a format on a target."""
        tile, pairs = Tile._plain(target, fmt), pair_instruction(target, fmt)
        if fmt.is_complex:
            return replace(tile, rows=tile.rows // 2, sums=2)
        if "vpdpbusd" in pairs:
            # Registers are left for the sums of B's columns.
            rows = 12 if tile.many_registers else 5
            return replace(tile, rows=rows, kc=4 * tile.kc, pairs=pairs, along=4)
        return replace(tile, kc=2 * tile.kc, pairs=pairs, along=2) if pairs else tile

    @property
    def unit(self) -> int:
        """What parts of k are multiples of."""
        return max(2, self.along)

    def plain(self) -> Tile:
        """The tile with panels of single elements."""
        return replace(self, pairs="", along=1)

    @property
    def biased(self) -> bool:
        """Whether the elements of A are unsigned, 128 more than they are."""
        return self.along == 4

    @staticmethod
    def _plain(target: Target, fmt: Format) -> Tile:
        lanes = target.vector_bits // (8 * fmt.acc_bytes)
        if target.has("avx512f"):
            # Panels of B are fetched ahead where that is needed, so that they may be long.
            long = fmt.acc_bytes == 4 or not target.follows_strides
            return Tile(14, 2, lanes, 1024 if long else 384, True, True)
        if target.has("avx2"):
            return Tile(6, 2, lanes, 256, True, target.has("fma"))
        if target.triple.startswith(("aarch64", "arm64")):
            return Tile(8, 3, lanes, 256, False, True)
        return Tile(6, 2, lanes, 256, False, False)


def pair_instruction(target: Target, fmt: Format) -> str:
    """The intrinsic that adds products of pairs to lanes of 32 bits, "" if there is none.

    Pairs of bfloat16 are summed in float32, numbers below the least normal one taken as 0, where
    that is quicker than to widen them. Those of int8 are pairs of int16, whose sums are exact, or
    fours of bytes where an instruction is exact, too: AVX2's (`vpmaddubsw`) saturates at 16 bits.

    >>> pair_instruction(Target("x86_64-unknown-linux-gnu", "x86-64", ""), FORMATS["int8"])
    'sse2.pmadd.wd'
    """
    wide = target.vector_bits == 512
    if fmt.name == "bfloat16" and wide and target.multiplies_pairs:
        return "avx512bf16.dpbf16ps.512"
    if fmt.name != "int8":
        return ""
    if wide and target.has("avx512vnni"):
        return "avx512.vpdpbusd.512"
    if target.vector_bits == 256 and target.has("avxvnni"):
        return "avx512.vpdpbusd.256"
    return word_instruction(target)


def word_instruction(target: Target) -> str:
    """The intrinsic that multiplies pairs of int16 and adds the two products, "" if there is none.

    >>> word_instruction(Target("aarch64-unknown-linux-gnu", "generic", ""))
    ''
    """
    if not target.triple.startswith("x86_64"):
        return ""
    if target.vector_bits == 512:
        return "avx512.pmaddw.d.512" if target.has("avx512bw") else ""
    if target.vector_bits == 256:
        return "avx2.pmadd.wd" if target.has("avx2") else ""
    return "sse2.pmadd.wd"


def first_elements(code: Code, count: Int | int, lanes: int, fmt: Format) -> ir.Value:
    """The mask of a vector of so many lanes that has on those of the first `count` elements."""
    numbers = 2 if fmt.is_complex else 1
    return code.first_lanes(code.i64(count) * numbers, lanes * numbers)


def widen(code: Code, fmt: Format, target: Target, x: ir.Value) -> ir.Value:
    """Storage type to accumulator type, exactly; scalars or vectors."""
    b = code.b
    if fmt.storage == fmt.acc:
        return x
    if fmt.name == "int8":
        return b.sext(x, of_shape(x, I32))
    if fmt.name == "bfloat16":
        high = b.shl(b.zext(x, of_shape(x, I32)), _const(x, I32, 16))
        return b.bitcast(high, of_shape(x, F32))
    if target.converts_halves:
        return b.fpext(b.bitcast(x, of_shape(x, ir.HalfType())), of_shape(x, F32))
    # Shift exponent and fraction into place and correct the exponent's bias by a product, which
    # also normalizes denormals; infinities and NaNs get the largest exponent.
    wide = b.zext(x, of_shape(x, I32))
    sign = b.shl(b.and_(wide, _const(x, I32, 0x8000)), _const(x, I32, 16))
    rest = b.shl(b.and_(wide, _const(x, I32, 0x7FFF)), _const(x, I32, 13))
    scaled = b.fmul(b.bitcast(rest, of_shape(x, F32)), _const(x, F32, 2.0**112))
    special = b.icmp_unsigned(">=", rest, _const(x, I32, 0x7C00 << 13))
    bits = b.bitcast(scaled, of_shape(x, I32))
    bits = b.select(special, b.or_(rest, _const(x, I32, 0x7F800000)), bits)
    return b.bitcast(b.or_(bits, sign), of_shape(x, F32))


def narrow(code: Code, fmt: Format, x: ir.Value) -> ir.Value:
    """Float32 to float16 or bfloat16 bits, rounded to nearest even."""
    b = code.b
    bits = b.bitcast(x, of_shape(x, I32))
    if fmt.name == "bfloat16":
        odd = b.and_(b.lshr(bits, _const(x, I32, 16)), _const(x, I32, 1))
        rounded = b.add(b.add(bits, _const(x, I32, 0x7FFF)), odd)
        quiet = b.or_(bits, _const(x, I32, 0x400000))
        high = b.select(b.fcmp_unordered("uno", x, x), quiet, rounded)
        return b.trunc(b.lshr(high, _const(x, I32, 16)), of_shape(x, I16))
    size = b.and_(bits, _const(x, I32, 0x7FFFFFFF))
    sign = b.and_(b.lshr(bits, _const(x, I32, 16)), _const(x, I32, 0x8000))
    # Adding 0.5 leaves a denormal result in the low bits, rounded by the hardware.
    small = b.fadd(b.bitcast(size, of_shape(x, F32)), _const(x, F32, 0.5))
    small = b.sub(b.bitcast(small, of_shape(x, I32)), _const(x, I32, 0x3F000000))
    odd = b.and_(b.lshr(size, _const(x, I32, 13)), _const(x, I32, 1))
    normal = b.add(b.add(size, _const(x, I32, 0xC8000FFF)), odd)
    normal = b.lshr(normal, _const(x, I32, 13))
    nan = b.icmp_unsigned(">", size, _const(x, I32, 0x7F800000))
    large = b.select(nan, _const(x, I32, 0x7E00), _const(x, I32, 0x7C00))
    half = b.select(b.icmp_unsigned("<", size, _const(x, I32, 0x38800000)), small, normal)
    half = b.select(b.icmp_unsigned(">=", size, _const(x, I32, 0x47800000)), large, half)
    return b.trunc(b.or_(half, sign), of_shape(x, I16))


BIAS = -(1 << 31) | 0x808080  # of four bytes: their signs turned are 128 added to each


def pack_function(
    module: ir.Module, name: str, width: int, tile: Tile, fmt: Format, target: Target,
    public: bool = False,
) -> ir.Function:  # fmt: skip
    """void name(dst, src, count, k, sw, sk, step): packs the rows of a (count × k) matrix, whose
    strides are sw and sk, into panels that begin every `step` elements. It may write behind a
    panel, as if k were a multiple of lanes, and then `lanes` elements more."""
    code = Code(module, name, [PTR, PTR, I64, I64, I64, I64, I64], public)
    packer = Packer(code, width, tile, fmt, target)
    sw, sk = code.args[4:6]
    with code.either(sw.eq(1)) as (yes, no):
        with yes:
            packer.contiguous_rows()
        with no, code.either(sk.eq(1)) as (yes_k, no_k):
            with yes_k:
                packer.transpose_blocks()
            with no_k, packer.each_panel():
                packer.scalars(code.i64(0))
    code.ret()
    return code.function


class Packer:
    """Writes the ways to pack, for operands at `src` with strides sw and sk.

    With pairs or fours, k elements of a row become a half or a quarter as many, kk counts them in
    the source.
    """

    def __init__(self, code: Code, width: int, tile: Tile, fmt: Format, target: Target):
        self.code, self.width, self.fmt, self.target = code, width, fmt, target
        self.lanes = lanes = tile.lanes
        self.masked_stores = tile.masks
        self.masks = tile.masks and (fmt.bytes >= 4 or target.has("avx512bw"))
        self.dst, self.src, self.count, self.k, self.sw, self.sk, self.step = code.args
        self.vec = vector_of(fmt.storage, lanes)
        self.along = tile.along
        self.pairs = self.along > 1
        self.biased = tile.biased and width == tile.rows
        # The last group may reach into the next row, which is written later, or, when groups
        # go downwards, over what the group before it then corrects.
        self.groups = list(reversed(range(-(-width // lanes))))

    @contextmanager
    def each_panel(self) -> Iterator[None]:
        """Turns dst, src and count into those of a single panel."""
        dst, src, count = self.dst, self.src, self.count
        with self.code.range(0, count.ceil_div(self.width)) as p:
            self.dst = self.code.at(dst, p * self.step, self.fmt.acc)
            self.src = self.code.at(src, p * self.width * self.sw, self.fmt.storage)
            self.count = (count - p * self.width).min(self.width)
            yield
        self.dst, self.src, self.count = dst, src, count

    @contextmanager
    def each_group(self) -> Iterator[Int]:
        """The first row of each vector of a panel's rows, downwards; written once for all."""
        last = len(self.groups) - 1
        if last:
            with self.code.range(0, last + 1) as i:
                yield (last - i) * self.lanes
        else:
            yield self.code.i64(0)

    def _first(self, count: Int | int, lanes: int) -> ir.Value:
        """The mask of so many of the elements in a vector."""
        return first_elements(self.code, count, lanes, self.fmt)

    def _source(self, w: Int, kk: Int) -> ir.Value:
        return self.code.at(self.src, w * self.sw + kk * self.sk, self.fmt.storage)

    def _row_of(self, kk: Int) -> Int:
        return kk // self.along if self.pairs else kk

    def _put(self, value: ir.Value, w: Any, kk: Int) -> None:
        where = self.code.at(self.dst, self._row_of(kk) * self.width + w, self.fmt.acc)
        self.code.store(value, where, self.fmt.acc_align)

    def _packed(self, kk: Int, read: Callable[[Int], ir.Value]) -> ir.Value:
        """What a panel holds for row kk of the source, and with pairs or fours those after it:
        read(k) reads."""
        if not self.pairs:
            return widen(self.code, self.fmt, self.target, read(kk))
        b, first = self.code.b, read(kk)
        found = b.zext(self._part(first), of_shape(first, I32))
        for i in range(1, self.along):
            more = kk + i < self.k
            x = read(more.select(kk + i, kk))
            x = b.zext(self._part(more.pick(x, zero_of(x.type))), found.type)
            found = b.or_(found, b.shl(x, _const(first, I32, 32 // self.along * i)))
        return self._signed(found)

    def _part(self, x: ir.Value) -> ir.Value:
        """Elements as one of two in a pair, or of four."""
        bits = ir.IntType(32 // self.along)
        return x if self.fmt.storage == bits else self.code.b.sext(x, of_shape(x, bits))

    def _signed(self, x: ir.Value) -> ir.Value:
        """Pairs or fours as the instruction takes those of this operand."""
        return self.code.b.xor(x, _const(x, I32, BIAS)) if self.biased else x

    def contiguous_rows(self) -> None:
        """sw = 1: rows of all panels together are contiguous in the source, and read at once."""
        code, lanes, dst, src = self.code, self.lanes, self.dst, self.src
        rest = self.count % self.width
        whole = self.count // self.width
        full = {g: self._first(self.width - g * lanes, lanes) for g in self.groups}
        part = {g: self._first(rest - g * lanes, lanes) for g in self.groups}

        def copy(p: Int, kk: Int, masks: dict[int, ir.Value]) -> None:
            to = code.at(dst, p * self.step + self._row_of(kk) * self.width, self.fmt.acc)
            for g in self.groups:
                first = p * self.width + g * lanes

                def read(at: Int, g: int = g, first: Int = first) -> ir.Value:
                    q = code.at(src, first + at * self.sk, self.fmt.storage)
                    if masks is full and (g + 1) * lanes <= self.width:
                        return code.load(q, self.vec, self.fmt.align)
                    return code.masked_load(q, masks[g], self.vec)

                soon = code.at(src, first + (kk + ROWS_AHEAD) * self.sk, self.fmt.storage)
                code.prefetch(soon)
                x = self._packed(kk, read)
                there = code.at(to, g * lanes, self.fmt.acc)
                if self.masked_stores and (g + 1) * lanes > self.width:
                    # What follows the last row may be another thread's.
                    code.masked_store(x, there, full[g])
                else:
                    code.store(x, there, self.fmt.acc_align)

        with code.range(0, self.k, self.along) as kk:
            with code.range(0, whole) as p:
                copy(p, kk, full)
            with code.when(rest > 0):
                copy(whole, kk, part)

    def transpose_blocks(self) -> None:
        """sk = 1: squares of lanes × lanes are transposed in registers.

        Where masks are dear, what is left of k goes by scalars.
        """
        code, lanes = self.code, self.lanes
        square = lanes * self.along  # its side along k
        whole = self.k if self.masks else self.k // square * square
        with self.each_panel():
            with code.range(0, whole, square) as kk:
                mask = self._first(whole - kk, square) if self.masks else None
                with self.each_group() as low, code.either(self.count > low) as (some, none):
                    with some:
                        self._transpose_block(low, kk, mask)
                    with none:
                        zero = zero_of(vector_of(self.fmt.acc, lanes))
                        for c in range(lanes):
                            self._put(zero, low, kk + c * self.along)
            self.scalars(whole)

    def ahead(self) -> Int:
        """How far from what is read the memory lies that will be read soon."""
        along = self.code.i64(AHEAD // self.fmt.bytes)
        return (self.k < 2 * along).select(self.width * self.sw, along)

    def _line_of(self, p: ir.Value, mask: ir.Value | None, vec: ir.VectorType) -> ir.Value:
        """What lies along k, as far as the mask says."""
        if mask is None:
            return self.code.load(p, vec, self.fmt.align)
        return self.code.masked_load(p, mask, vec)

    def _transpose_block(self, low: Int, kk: Int, mask: ir.Value | None) -> None:
        """Rows of a panel from `low` on, a vector of them."""
        code, rows = self.code, []
        vec = vector_of(self.fmt.storage, self.lanes * self.along)
        for r in range(min(self.lanes, self.width)):
            w = low + r
            inside = self.count > w
            p = self._source(inside.select(w, 0), kk)
            code.prefetch(code.at(p, self.ahead(), self.fmt.storage))
            x = self._line_of(p, mask, vec)
            if self.pairs:
                x = self._signed(code.b.bitcast(self._part(x), ir.VectorType(I32, self.lanes)))
            else:
                x = widen(code, self.fmt, self.target, x)
            rows.append(inside.pick(x, zero_of(x.type)))
        rows += [zero_of(rows[0].type)] * (self.lanes - len(rows))
        for c, column in enumerate(transpose(code, rows)):
            self._put(column, low, kk + c * self.along)

    def scalars(self, start: Int) -> None:
        """Any strides, element by element."""
        code = self.code
        with code.range(start, self.k, self.along) as kk:
            with code.range(0, self.count) as w:

                def read(at: Int, w: Int = w) -> ir.Value:
                    return code.load(self._source(w, at), self.fmt.storage, self.fmt.align)

                self._put_scalar(self._packed(kk, read), w, kk)
            with code.range(self.count, self.width) as w:
                self._put_scalar(ir.Constant(self.fmt.acc, None), w, kk)

    def _put_scalar(self, value: ir.Value, w: Int, kk: Int) -> None:
        where = self.code.at(self.dst, self._row_of(kk) * self.width + w, self.fmt.acc)
        self.code.store(value, where, self.fmt.acc_align)


def transpose(code: Code, rows: list[ir.Value]) -> list[ir.Value]:
    """A square matrix of vectors, transposed by exchanging blocks of doubling size."""
    n = len(rows)
    step = 1
    while step < n:
        low = [j if not j & step else n + j - step for j in range(n)]
        high = [j + step if not j & step else n + j for j in range(n)]
        result = list(rows)
        for i in range(n):
            if not i & step:
                result[i] = _shuffle(code, rows[i], rows[i + step], low)
                result[i + step] = _shuffle(code, rows[i], rows[i + step], high)
        rows = result
        step *= 2
    return rows


def _shuffle(code: Code, x: ir.Value, y: ir.Value, elements: list[int]) -> ir.Value:
    size = x.type.count // len(elements)
    return shuffle(code, x, y, [i * size + part for i in elements for part in range(size)])


def shuffle(code: Code, x: ir.Value, y: ir.Value, lanes: list[int]) -> ir.Value:
    """The lanes of two vectors, side by side, in these places."""
    return code.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def _const(x: ir.Value, element: ir.Type, value: float) -> ir.Constant:
    return constant(of_shape(x, element), value)


def constant(kind: ir.Type, value: float) -> ir.Constant:
    """A scalar, or a vector of equal elements."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def equal_parts(size: Int, largest: int, unit: int) -> Int:
    """The size of the parts, in units, if as few equal ones are made as can be."""
    parts = size.ceil_div(largest // unit * unit)
    return size.ceil_div(parts * unit) * unit
