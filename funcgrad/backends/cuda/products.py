"""Matrix products as cuBLASLt takes them: data, made of a program's steps when it is built.

cuBLASLt takes matrices in column order. A product of rows is one of columns with its operands
swapped: cᵀ = bᵀ·aᵀ, where each matrix is the other order of the same memory. So what stands here as
`first` is the step's b, mostly.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.program import GemmStep, Ref
from funcgrad.core.record import Record, replace


class Operand(Record):
    """A matrix in column order: columns are `leading` elements apart, matrices of a batch `batch`.

    turned: whether the product takes its transpose
    """

    ref: Ref
    leading: int
    batch: int
    turned: bool = False


class Product(Record):
    """result (m, n) = first (m, k) · second (k, n), `count` times, summed in `out` or wider.

    compute: the dtype of sums: float32 for narrow floats, else that of the operands
    """

    dtype: np.dtype
    out: np.dtype
    compute: np.dtype
    m: int
    n: int
    k: int
    count: int
    first: Operand
    second: Operand
    result: Operand

    @property
    def key(self) -> tuple:
        """What products have in common that are the same but for where their operands are."""
        operands = (self.first, self.second, self.result)
        layouts = tuple((x.leading, x.batch, x.turned) for x in operands)
        sizes = (self.m, self.n, self.k, self.count)
        return (self.dtype, self.out, self.compute, *sizes, *layouts, *self.alignments)

    @property
    def alignments(self) -> tuple[int, ...]:
        """To how many bytes the heuristics may take each operand to be aligned."""
        items = (self.dtype, self.dtype, self.out)
        return tuple(
            int(np.gcd.reduce([256, x.ref.offset, *(s for _, s in x.ref.strides),
                               x.batch * dtype.itemsize]))
            for x, dtype in zip((self.first, self.second, self.result), items, strict=True)
        )  # fmt: skip


def products(s: GemmStep) -> list[Product] | None:
    """The calls that a step is; None if cuBLASLt has no such matrices: without a stride of 1,
    of windows, of integers, or without terms."""
    if s.axes is not None or s.frame is not None or s.k == 0 or s.dtype.kind not in "fVc":
        return None
    a = _column_order(s.m, s.k, s.a_strides)
    b = _column_order(s.k, s.n, s.b_strides)
    c = _column_order(s.m, s.n, s.c_strides)
    if a is None or b is None or c is None:
        return None
    *outer, inner = s.batch or ((1, 0, 0, 0),)
    operands = [
        Operand(ref, leading, inner[i], turned)
        for i, (ref, (leading, turned)) in enumerate(
            zip((s.a, s.b, s.c), (a, b, c), strict=True), 1
        )
    ]
    first, second, result = operands
    m, n = s.m, s.n
    if result.turned:
        # The result's rows are in order: its transpose is what is computed, of both turned.
        first, second = (replace(x, turned=not x.turned) for x in (second, first))
        result, m, n = replace(result, turned=False), s.n, s.m
    compute = np.dtype(np.float32) if s.dtype in HALVES else s.dtype
    whole = Product(s.dtype, s.out, compute, m, n, s.k, inner[0], first, second, result)
    swapped = c[1]
    return [_moved(whole, at, s, swapped) for at in _places(outer)]


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


def _moved(p: Product, at: tuple[int, int, int], s: GemmStep, swapped: bool) -> Product:
    a, b, c = at
    x, y = (b, a) if swapped else (a, b)

    def moved(operand: Operand, elements: int, dtype: np.dtype) -> Operand:
        ref = operand.ref
        return replace(operand, ref=replace(ref, offset=ref.offset + elements * dtype.itemsize))

    return replace(
        p,
        first=moved(p.first, x, s.dtype),
        second=moved(p.second, y, s.dtype),
        result=moved(p.result, c, s.out),
    )
