"""Matrix products as cuBLASLt takes them: data, made of a program's steps when it is built.

cuBLASLt takes matrices in column order. A product of rows is one of columns with its operands
swapped: cᵀ = bᵀ·aᵀ, where each matrix is the other order of the same memory. So what stands here as
`first` is the step's b, mostly.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.program import GemmStep, Ref, Tail
from funcgrad.core.record import Record, replace

# Floats of 8 bits that have products, but not of two e5m2; their sizes are multiples of SIXTEEN.
EIGHTS = (np.dtype(dtypes.float8_e4m3fn), np.dtype(dtypes.float8_e5m2))
SIXTEEN = 16
_NONE = Tail()


class Operand(Record):
    """A matrix in column order: columns are `leading` elements apart, matrices of a batch `batch`.

    turned: whether the product takes its transpose
    """

    dtype: np.dtype
    ref: Ref
    leading: int
    batch: int
    turned: bool = False


class Product(Record):
    """result (m, n) = first (m, k) · second (k, n), `count` times, summed in `compute`.

    compute: the dtype of sums: float32 for narrow floats, else that of the operands
    tf32: whether float32 operands are rounded to TensorFloat-32
    tail: what becomes of the sums; its bias runs along m, its scales are first's and second's
    """

    compute: np.dtype
    m: int
    n: int
    k: int
    count: int
    first: Operand
    second: Operand
    result: Operand
    tf32: bool = False
    tail: Tail = _NONE

    @property
    def key(self) -> tuple:
        """What products have in common that are the same but for where their operands are."""
        operands = (self.first, self.second, self.result)
        layouts = tuple((x.dtype, x.leading, x.batch, x.turned) for x in operands)
        sizes = (self.m, self.n, self.k, self.count)
        how = (self.compute, self.tf32, self.tail.activation, *self.attributes)
        return (*sizes, *how, *layouts, *self.alignments)

    @property
    def attributes(self) -> tuple[str, ...]:
        """Which addresses a call's description has beside the operands, in the order of
        `Tail.refs`."""
        scales = ("first scale", "second scale")[: len(self.tail.scales)]
        return scales if self.tail.bias is None else (*scales, "bias")

    @property
    def alignments(self) -> tuple[int, ...]:
        """To how many bytes the heuristics may take each operand to be aligned."""
        return tuple(
            int(np.gcd.reduce([256, x.ref.offset, *(s for _, s in x.ref.strides),
                               x.batch * x.dtype.itemsize]))
            for x in (self.first, self.second, self.result)
        )  # fmt: skip


def products(s: GemmStep) -> list[Product] | None:
    """The calls that a step is; None if cuBLASLt has no such matrices: without a stride of 1,
    of windows, of integers, without terms, or of floats of 8 bits in another form."""
    if s.axes is not None or s.frame is not None or s.k == 0 or s.dtype.kind not in "fVc":
        return None
    kinds = s.dtype, s.b_dtype or s.dtype, s.out
    a = _column_order(s.m, s.k, s.a_strides)
    b = _column_order(s.k, s.n, s.b_strides)
    c = _column_order(s.m, s.n, s.c_strides)
    if s.tail is not None and s.c_strides[1] == 1:  # a bias runs along n, in one row, too
        c = max(s.c_strides[0], s.n), True
    if a is None or b is None or c is None:
        return None
    *outer, inner = s.batch or ((1, 0, 0, 0),)
    operands = [
        Operand(dtype, ref, leading, inner[i], turned)
        for i, (dtype, ref, (leading, turned)) in enumerate(
            zip(kinds, (s.a, s.b, s.c), (a, b, c), strict=True), 1
        )
    ]
    first, second, result = operands
    m, n = s.m, s.n
    if result.turned:
        # The result's rows are in order: its transpose is what is computed, of both turned.
        first, second = (replace(x, turned=not x.turned) for x in (second, first))
        result, m, n = replace(result, turned=False), s.n, s.m
    compute = np.dtype(np.float32) if s.dtype in (*HALVES, *EIGHTS) else s.dtype
    tail, swapped = s.tail or _NONE, c[1]
    if swapped:
        tail = replace(tail, scales=tail.scales[::-1])
    whole = Product(compute, m, n, s.k, inner[0], first, second, result, s.tf32, tail)
    if {s.dtype, kinds[1]} & set(EIGHTS) and not _is_eights(whole):
        return None
    return [_moved(whole, at, swapped) for at in _places(outer)]


def _is_eights(p: Product) -> bool:
    """Whether cuBLASLt has a product of floats of 8 bits: k is the axis of stride 1 of both."""
    kinds = {p.first.dtype, p.second.dtype}
    sizes = (p.m, p.k, p.first.leading, p.second.leading, p.result.leading)
    known = kinds <= set(EIGHTS) and kinds != {EIGHTS[1]} and all(n % SIXTEEN == 0 for n in sizes)
    return known and p.first.turned and not p.second.turned and min(p.alignments) >= SIXTEEN


def _column_order(rows: int, columns: int, strides: tuple[int, int]) -> tuple[int, bool] | None:
    """How far columns of a matrix are apart, and whether it is its transpose that has them."""
    down, along = strides
    if rows == 1 or down == 1:
        return (max(along, rows) if columns > 1 else rows), False
    if columns == 1 or along == 1:
        return (max(down, columns) if rows > 1 else columns), True
    return None


def _places(outer: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """By how many elements a, b and c move, for each point of the outer batch axes."""
    for point in product(*(range(n) for n, *_ in outer)):
        moves = [[i * s for s in axis[1:]] for i, axis in zip(point, outer, strict=True)]
        yield tuple(map(sum, zip((0, 0, 0), *moves, strict=True)))  # type: ignore[misc]


def _moved(p: Product, at: tuple[int, int, int], swapped: bool) -> Product:
    a, b, c = at
    x, y = (b, a) if swapped else (a, b)

    def moved(operand: Operand, elements: int) -> Operand:
        ref, nbytes = operand.ref, elements * operand.dtype.itemsize
        return replace(operand, ref=replace(ref, offset=ref.offset + nbytes))

    return replace(p, first=moved(p.first, x), second=moved(p.second, y), result=moved(p.result, c))
