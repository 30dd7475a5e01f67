"""Kernels of running sums, products and extremes along an axis.

Each element waits for the one before it, so that rows, or columns, go on side by side: what a row
comes to doesn't depend on how many others do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import ZERO, Builder, add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand, Value
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.core.ir import Eqn
from funcgrad.ops.cumulative import cumlogsumexp_p, cummax_p, cummin_p, cumprod_p, cumsum_p
from funcgrad.ops.reduce import highest, lowest

BOOL, FLOAT32 = np.dtype(bool), np.dtype(np.float32)
_RUNNING = {
    cumsum_p: "add", cumprod_p: "multiply", cummax_p: "maximum", cummin_p: "minimum",
    cumlogsumexp_p: "logaddexp",
}  # fmt: skip
# How many rows have their running sums side by side, unless they are SHORT.
ABREAST, SHORT = 4, 32
# Bytes of a vector, which are the columns of a block, too; the most rows that have one; and the
# elements from which on they are worth compiling.
VECTOR, MOST_LANES, LEAST = 64, 16, 1 << 14


def write(k: SpecialKernel, eqn: Eqn) -> Written:
    """The kernel of a running sum, product or extremum."""
    running = _Running(k, eqn)
    if running.columns == 1:
        running.along()
    else:
        running.across()
    return k.done(eqn)


class _Running:
    """What sums, products or extremes so far along an axis are written with: the axes before it,
    the axis, and everything after it as columns."""

    def __init__(self, k: SpecialKernel, eqn: Eqn):
        (self.x, *self.before), self.k = eqn.ins, k
        axis, shape = eqn.params["axis"], self.x.aval.shape
        self.lead, self.n, self.columns = shape[:axis], shape[axis], math.prod(shape[axis + 1 :])
        self.reverse = eqn.params["reverse"]
        self.dtype = FLOAT32 if self.x.aval.dtype in HALVES else self.x.aval.dtype
        self.op = eqn.params["how"] if self.before else _RUNNING[eqn.prim]
        self.out = k.params.write(eqn.outs[0])

    def place(self, turn: Index, column: Index, row: Sequence[Index]) -> Index:
        """Where the element of a turn lies."""
        turn = scale_index(turn, -1, self.n - 1) if self.reverse else turn
        return self.k.builder.flatten([*row, turn, column], (*self.lead, self.n, self.columns))

    def element(self, place: Index) -> Operand:
        return self.k.builder.convert(self.k.pull.read_flat(self.x, place), self.dtype)

    def store(self, place: Index, value: Operand) -> None:
        b = self.k.builder
        b.store(self.out, place, b.convert(value, self.out.dtype))

    def along(self) -> None:
        """Along rows that lie in memory one element after the other.

        Each turn waits for the one before: rows side by side don't wait for each other.
        """
        lead, dtype = self.lead, self.dtype
        # An extremum of floats, with NaN, takes many cycles, one of integers a cycle.
        self.ordered = self.op in ("maximum", "minimum") and dtype.kind == "f"
        self.kind = np.dtype(f"i{dtype.itemsize}") if self.ordered else dtype
        fits = lead and self.n >= SHORT
        width = VECTOR // dtype.itemsize
        lanes = min(MOST_LANES, width)
        many = math.prod(lead) * self.n >= LEAST
        if fits and many and lead[-1] % lanes == 0 and self.n >= width:
            self._turned(lanes, width)
        else:
            self._abreast(ABREAST if fits and lead[-1] % ABREAST == 0 else 1)

    def _encoded(self, value: Operand) -> Operand:
        """An element as it is combined."""
        return _to_ordered(self.k.builder, value, self.kind, self.op) if self.ordered else value

    def _decoded(self, value: Operand) -> Operand:
        b = self.k.builder
        return b.op("bitcast", self.dtype, _flipped(b, value)) if self.ordered else value

    def _abreast(self, together: int) -> None:
        """Some rows, element by element."""
        k, b, lead = self.k, self.k.builder, self.lead
        row = [k.outer(m) for m in (*lead[:-1], lead[-1] // together)] if lead else []
        rows = [row] if together == 1 else [
            [*row[:-1], scale_index(row[-1], together, i)] for i in range(together)
        ]  # fmt: skip

        def turn(i: Value, *totals: Value) -> list[Operand]:
            places = [self.place(_index(i), ZERO, row) for row in rows]
            values = [self._encoded(self.element(place)) for place in places]
            so_far = [b.op(self.op, self.kind, *xs) for xs in zip(totals, values, strict=True)]
            for place, value in zip(places, so_far, strict=True):
                self.store(place, self._decoded(value))
            return so_far

        starts = [self._encoded(k.pull.read(x, row)) for x in self.before for row in rows]
        b.loop(self.n, turn, starts or [_initial(self.op, self.kind)] * together)

    def _turned(self, lanes: int, width: int) -> None:
        """A vector of rows: blocks of columns are transposed, so that a line of a block has an
        element of each row, and back. The last block may have fewer columns, and old ones."""
        k, kind, lead = self.k, self.kind, self.lead
        outer = [k.outer(m) for m in (*lead[:-1], lead[-1] // lanes)]
        outer, first = outer[:-1], scale_index(outer[-1], lanes)
        totals, flat, turned = (k.params.local(kind, n) for n in (lanes, *[lanes * width] * 2))
        b = k.builder

        def row(r: Value) -> list[Index]:
            return [*outer, add_indices(first, _index(r))]

        def begin(r: Value) -> None:
            start: Operand = _initial(self.op, kind)
            if self.before:
                start = self._encoded(k.pull.read(self.before[0], row(r)))
            b.store(totals, _index(r), start)

        def block(start: Index, columns: int) -> None:
            def place(r: Value, c: Value) -> Index:
                return self.place(add_indices(start, _index(c)), ZERO, row(r))

            def fill(r: Value, c: Value) -> None:
                b.store(flat, _index(r, c, width), self._encoded(self.element(place(r, c))))

            def turn(r: Value, c: Value) -> None:
                b.store(turned, _index(c, r, lanes), b.load(flat, _index(r, c, width)))

            def add(c: Value, r: Value) -> None:
                here = _index(c, r, lanes)
                total = b.op(self.op, kind, b.load(totals, _index(r)), b.load(turned, here))
                b.store(totals, _index(r), total)
                b.store(turned, here, total)

            def turn_back(c: Value, r: Value) -> None:
                b.store(flat, _index(r, c, width), b.load(turned, _index(c, r, lanes)))

            def write(r: Value, c: Value) -> None:
                self.store(place(r, c), self._decoded(b.load(flat, _index(r, c, width))))

            _nest(b, lanes, columns, fill)
            _nest(b, lanes, width, turn)
            _nest(b, columns, lanes, add, parallel=False)
            _nest(b, width, lanes, turn_back)
            _nest(b, lanes, columns, write)

        b.loop(lanes, begin, parallel=True)
        b.loop(self.n // width, lambda i: block(scale_index(_index(i), width), width))
        if left := self.n % width:
            block(Index(self.n - left), left)

    def across(self) -> None:
        """From line to line, blocks of columns abreast."""
        k, b, op, dtype = self.k, self.k.builder, self.op, self.dtype
        rows = [k.outer(m) for m in self.lead]
        block = k.column_block(self.columns, math.prod(self.lead))
        first = scale_index(k.outer(self.columns // block), block)
        totals = k.params.local(dtype, block)

        def line(i: Value) -> None:
            def column(c: Value) -> None:
                here = _index(c)
                place = self.place(_index(i), add_indices(first, here), rows)
                value = b.op(op, dtype, b.load(totals, here), self.element(place))
                b.store(totals, here, value)
                self.store(place, value)

            b.loop(block, column, parallel=True)

        initial = _initial(op, dtype)
        b.loop(block, lambda c: b.store(totals, _index(c), initial), parallel=True)
        b.loop(self.n, line)


def _index(row: Value, column: Value | None = None, width: int = 1) -> Index:
    """A loop's turn, or the element (row, column) of rows of a width."""
    return Index(0, ((width, row),)) if column is None else Index(0, ((width, row), (1, column)))


def _nest(b: Builder, m: int, n: int, body: Callable, parallel: bool = True) -> None:
    """body(i, j) for i < m, in order or not, and all j < n."""
    b.loop(m, lambda i: b.loop(n, lambda j: body(i, j), parallel=True) and None, parallel=parallel)


def _initial(op: str, dtype: np.dtype) -> Const:
    """What changes nothing."""
    start = {"add": 0, "multiply": 1, "maximum": lowest(dtype), "minimum": highest(dtype),
             "logaddexp": -np.inf}[op]  # fmt: skip
    return Const(start, dtype)


def _flipped(b: Builder, bits: Operand) -> Operand:
    """The bits of floats as integers in the floats' order, and back: all but the sign turn over
    in negative ones."""
    kind = bits.dtype
    sign = b.op("right_shift", kind, bits, Const(8 * kind.itemsize - 1, kind))
    mask = b.op("bitwise_and", kind, sign, Const(highest(kind), kind))
    return b.op("bitwise_xor", kind, bits, mask)


def _to_ordered(b: Builder, value: Operand, kind: np.dtype, op: str) -> Operand:
    """A float as an integer of its rank; NaN is the extreme one, whose bits are NaN again."""
    rank = _flipped(b, b.op("bitcast", kind, value))
    extreme = Const((highest if op == "maximum" else lowest)(kind), kind)
    return b.op("where", kind, b.op("isnan", BOOL, value), extreme, rank)
