"""The product of a sparse matrix, row by row, with a dense one: each row sums its own entries.

Rows are independent, so that threads share them. With one column, a row's entries are added up in
several sums, which don't wait for each other; with more, a row of sums takes a few entries at a
time, one after the other, so that it is read and written once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import ZERO, add_indices, scale_index
from funcgrad.backends.loops.ir import INDEX, Buffer, Const, Index, Operand
from funcgrad.backends.loops.scalars import HALVES, LOOP_DTYPES
from funcgrad.core.ir import Atom, Eqn
from funcgrad.ops.csr import NAN

BOOL, FLOAT32 = np.dtype(bool), np.dtype(np.float32)
SUMS = 4  # of a row, which are added up in the end
TAKEN = 4  # entries that a row of sums takes at a time


def product(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a "csr_matmul"; None where there is nothing to add, or of other dtypes."""
    data, _, starts, ends, dense = eqn.ins
    known = all(a.aval.dtype in LOOP_DTYPES for a in eqn.ins)
    if not known or not data.aval.size or not dense.aval.size:
        return None
    rows, columns = eqn.outs[0].aval.shape
    row = k.outer(rows)
    begin, end = (k.builder.integer(k.pull.start(x, [row], data.aval.size)) for x in (starts, ends))
    out = k.params.write(eqn.outs[0])
    entries = _Entries(k, eqn)
    if columns == 1:
        k.builder.store(out, row, k.builder.convert(entries.total(begin, end), out.dtype))
    else:
        _row_of_sums(k, entries, out, row, columns, (begin, end))
    return k.done(eqn)


class _Entries:
    """A matrix's entries, and what they are multiplied with."""

    def __init__(self, k: SpecialKernel, eqn: Eqn):
        self.k, self.b = k, k.builder
        self.data, self.indices, _, _, self.dense = eqn.ins
        dtype = self.data.aval.dtype
        self.wide = FLOAT32 if dtype in HALVES else dtype
        self.lost = Const(np.nan, self.wide) if eqn.params.get("missing") == NAN else None

    def entry(self, at: Operand, further: int = 0) -> tuple[Index, Index, Operand]:
        """The place of the entry `further` behind one, its column, and whether that is one."""
        b = self.b
        most = self.data.aval.size - 1
        place = add_indices(b.value_index(at, 0, most - further), Index(further, ()))
        return place, *self.column(place)

    def column(self, place: Index) -> tuple[Index, Operand]:
        """An entry's column, and whether it is one."""
        b, last = self.b, self.dense.aval.shape[0] - 1
        column = b.convert(self.k.pull.read(self.indices, [place]), INDEX)
        sides = (b.op("greater_equal", BOOL, column, Const(0, INDEX)),
                 b.op("less_equal", BOOL, column, Const(last, INDEX)))  # fmt: skip
        return b.value_index(column, 0, last), b.op("bitwise_and", BOOL, *sides)

    def several_there(self, at: Operand, end: Operand) -> Operand:
        """Whether a row has so many more entries, all of whose columns are there."""
        b, last = self.b, self.data.aval.size - 1
        found = b.op("less_equal", BOOL, b.op("add", INDEX, at, Const(TAKEN, INDEX)), end)
        for i in range(TAKEN):
            moved = b.op("add", INDEX, at, Const(i, INDEX)) if i else at
            place = b.op("minimum", INDEX, moved, Const(last, INDEX))
            _, inside = self.column(b.value_index(place, 0, last))
            found = b.op("bitwise_and", BOOL, found, inside)
        return found

    def added(self, total: Operand, at: Operand) -> Operand:
        """A sum and an entry's product, of a dense matrix of one column."""
        place, line, inside = self.entry(at)
        with self.b.guarded(inside):
            value = self.value(self.data, [place])
            term = self.value(self.dense, [line, ZERO])
        return self.b.op("add", self.wide, total, self.product(value, term, inside))

    def product(self, value: Operand, term: Operand, inside: Operand) -> Operand:
        """What an entry adds to its row's sum; both numbers are 0 where its column isn't there."""
        found = self.b.op("multiply", self.wide, value, term)
        if self.lost is None:
            return found
        return self.b.op("where", self.wide, inside, found, self.lost)

    def value(self, x: Atom, at: Sequence[Index]) -> Operand:
        """An element as what is summed."""
        return self.b.convert(self.k.pull.read(x, at), self.wide)

    def total(self, begin: Operand, end: Operand) -> Operand:
        """The sum over a row's entries."""
        b = self.b

        def moved(at: Operand, by: int) -> Operand:
            return b.op("add", INDEX, at, Const(by, INDEX))

        def all_there(at: Operand, *sums: Operand) -> Operand:
            return b.op("less_equal", BOOL, moved(at, SUMS), end)

        def several(at: Operand, *sums: Operand) -> list[Operand]:
            found = [self.added(s, moved(at, i) if i else at) for i, s in enumerate(sums)]
            return [moved(at, SUMS), *found]

        def there(at: Operand, total: Operand) -> Operand:
            return b.op("less", BOOL, at, end)

        def one(at: Operand, total: Operand) -> list[Operand]:
            return [moved(at, 1), self.added(total, at)]

        zero = Const(0, self.wide)
        at, *sums = b.while_(all_there, several, [begin, *[zero] * SUMS])
        _, first = b.while_(there, one, [at, sums[0]])
        pairs = [b.op("add", self.wide, *two) for two in ((first, sums[1]), (sums[2], sums[3]))]
        return b.op("add", self.wide, *pairs)


def _row_of_sums(
    k: SpecialKernel, entries: _Entries, out: Buffer, row: Index, columns: int,
    bounds: tuple[Operand, Operand],
) -> None:  # fmt: skip
    """A row of the result, a block of its columns at a time."""
    b = k.builder
    block = k.column_block(columns, out.size // columns)
    first = scale_index(k.outer(columns // block), block)
    sums = k.params.local(entries.wide, block)

    def each(write: Callable[[Index, Index], None]) -> None:
        """write(place in the sums, column)"""
        b.nest([block], lambda at: write(at[0], add_indices(first, at[0])), parallel=True)

    def begin(at: Index, column: Index) -> None:
        b.store(sums, at, Const(0, entries.wide))

    def take_several(at: Operand) -> list[Operand]:
        terms = [entries.entry(at, i)[:2] for i in range(TAKEN)]
        values = [entries.value(entries.data, [place]) for place, _ in terms]

        def add(at: Index, column: Index) -> None:
            total = b.load(sums, at)
            for value, (_, line) in zip(values, terms, strict=True):
                term = entries.value(entries.dense, [line, column])
                term = b.op("multiply", entries.wide, value, term)
                total = b.op("add", entries.wide, total, term)
            b.store(sums, at, total)

        each(add)
        return [b.op("add", INDEX, at, Const(TAKEN, INDEX))]

    def take(at: Operand) -> list[Operand]:
        place, line, inside = entries.entry(at)
        with b.guarded(inside):
            value = entries.value(entries.data, [place])

        def one(at: Index, column: Index) -> None:
            with b.guarded(inside):
                term = entries.value(entries.dense, [line, column])
            term = entries.product(value, term, inside)
            b.store(sums, at, b.op("add", entries.wide, b.load(sums, at), term))

        each(one)
        return [b.op("add", INDEX, at, Const(1, INDEX))]

    def finish(at: Index, column: Index) -> None:
        place = b.flatten([row, column], (out.size // columns, columns))
        b.store(out, place, b.convert(b.load(sums, at), out.dtype))

    each(begin)
    at = bounds[0]
    if entries.data.aval.size >= TAKEN:
        (at,) = b.while_(lambda at: entries.several_there(at, bounds[1]), take_several, [at])
    b.while_(lambda at: b.op("less", BOOL, at, bounds[1]), take, [at])
    each(finish)
