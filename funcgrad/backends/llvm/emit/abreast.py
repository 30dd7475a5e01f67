"""Rows abreast: reductions of several rows in one loop, each in sums of its own.

A matrix times a vector reads the vector for each row. Where that takes half of the first cache, the
row that streams by drives it out, and each row fetches it from the second cache again: of rows in
one loop, its elements are read once for all. And where nothing is shared, long rows come from
memory faster: a processor fetches ahead along a few streams, but each of them ends with its page.
What is added to what in a row stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from funcgrad.backends.llvm.emit.schedule import (
    MOST_TASKS,
    Piece,
    coefficient,
    cost,
)
from funcgrad.backends.loops.ir import (
    Axis,
    Carry,
    Index,
    Kernel,
    Load,
    Loop,
    Op,
    Operand,
    Stmt,
    Store,
    Value,
    used_as_scalars,
)
from funcgrad.core.record import replace

# Nanoseconds of work for a byte, from which on a row doesn't wait for the second cache.
MOST_WORK = 0.1
PAGE = 4096


def abreast(piece: Piece, vector_bits: int, l1: int) -> list[Piece]:
    """The kernels that do what this one does with rows abreast, and with those that are left;
    itself alone, where rows are short and share nothing large."""
    # LLVM adds each row into as many vectors as by itself: one of 512 bits, or two or four of the
    # 16 registers of fewer bits.
    rows = 8 if vector_bits >= 512 else 4
    found = _rows(piece, rows, l1)
    if found is None:
        return [piece]
    loop, axis = found
    kernel, many = piece.kernel, axis.size // rows
    copies = _Rows(kernel.body, axis.value, rows)
    body = copies.body(loop)
    ranges = {copies.loop: piece.ranges[loop]} if loop in piece.ranges else {}
    pieces = [replace(piece, kernel=_with(kernel, axis, many, body), ranges=ranges)]
    if axis.size % rows:
        rest = _Rows(kernel.body, axis.value, 1, many * rows)
        left = _with(kernel, axis, axis.size % rows, rest.body(loop))
        ranges = {rest.loop: piece.ranges[loop]} if loop in piece.ranges else {}
        pieces.append(replace(piece, kernel=left, ranges=ranges))
    return pieces


def _rows(piece: Piece, rows: int, l1: int) -> tuple[Loop, Axis] | None:
    """The loop along rows, and the axis across them: all share a row that takes half of the first
    cache, or each takes a page."""
    kernel = piece.kernel
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    scratch = any(b.role == "scratch" for b in kernel.buffers)
    if len(loops) != 1 or scratch or kernel.in_place:
        return None
    (loop,) = loops
    if not _is_plain(kernel, loop) or kernel.points // rows < MOST_TASKS:
        return None
    loads = [s for s in loop.body if isinstance(s, Load)]
    named = used_as_scalars(kernel.body)
    turns = piece.ranges[loop].size if loop in piece.ranges else loop.size
    bounding = {r.axis for r in piece.ranges.values()}
    for axis in reversed(kernel.axes):
        if axis.size < rows or axis.value in named or axis.value in bounding:
            continue
        in_order = [s for s in loads if coefficient(s.index, loop.axis) == 1]
        same = [s for s in in_order if not coefficient(s.index, axis.value)]
        lengths = [turns * s.buffer.dtype.itemsize for s in same or in_order]
        if len(same) < len(in_order) and max(lengths) >= (l1 // 2 if same else PAGE):
            return loop, axis
    return None


def _is_plain(kernel: Kernel, loop: Loop) -> bool:
    """Whether the loop is one reduction of little work of what is read in order, at places that
    axes alone say, and nothing beside it loops or is guarded."""
    if not loop.parallel or len(loop.carries) != 1 or not loop.carries[0].combine:
        return False
    places = {loop.axis, *(a.value for a in kernel.axes)}
    for s in loop.body:
        if isinstance(s, Load):
            known = all(v in places for _, v in s.index.terms)
            if s.guard is not None or not known or coefficient(s.index, loop.axis) not in (0, 1):
                return False
        elif not isinstance(s, Op):
            return False
    others = [s for s in kernel.body if s is not loop]
    plain = all(isinstance(s, Op) or getattr(s, "guard", 1) is None for s in others)
    return plain and cost(loop.body) <= MOST_WORK * loop.carries[0].inside.dtype.itemsize


def _with(kernel: Kernel, axis: Axis, size: int, body: tuple[Stmt, ...]) -> Kernel:
    axes = tuple(Axis(a.value, size) if a is axis else a for a in kernel.axes)
    return replace(kernel, axes=axes, body=body)


class _Rows:
    """Writes a body for some rows at once: point i of the axis stands for rows first + i·rows on.

    What is the same in all rows is there once.
    """

    loop: Loop

    def __init__(self, body: tuple[Stmt, ...], axis: Value, rows: int, first: int = 0):
        self.whole, self.axis, self.rows, self.first = body, axis, rows, first
        self.moving: set[Operand] = {axis}
        self.now: list[dict[Operand, Value]] = [{} for _ in range(rows)]

    def body(self, loop: Loop) -> tuple[Stmt, ...]:
        """The body, whose loop is then `loop`."""
        at = next(i for i, s in enumerate(self.whole) if s is loop)
        before = self.copies(self.whole[:at])
        (carry,) = loop.carries
        self.moving |= {carry.inside, carry.out}
        inside = self.copies(loop.body)
        carries = []
        for k in range(self.rows):
            start, result = self.read(carry.start, k), self.read(carry.next, k)
            ends = self.fresh(carry.inside, k), self.fresh(carry.out, k)
            carries.append(Carry(ends[0], start, result, ends[1], carry.combine))
        self.loop = Loop(loop.axis, loop.size, tuple(inside), tuple(carries), loop.parallel)
        return (*before, self.loop, *self.copies(self.whole[at + 1 :]))

    def copies(self, stmts: Iterable[Stmt]) -> list[Stmt]:
        """Each statement for each row."""
        out: list[Stmt] = []
        for s in stmts:
            if self.moves(s):
                out += [self.copy(s, k) for k in range(self.rows)]
                self.moving |= set() if isinstance(s, Store) else {s.out}  # type: ignore[union-attr]
            else:
                out.append(s)
        return out

    def moves(self, s: Stmt) -> bool:
        """Whether a statement isn't the same in all rows."""
        if isinstance(s, Op):
            return not self.moving.isdisjoint(s.args)
        assert isinstance(s, Load | Store)
        used = {v for _, v in s.index.terms}
        return isinstance(s, Store) or not self.moving.isdisjoint(used)

    def copy(self, s: Stmt, k: int) -> Stmt:
        """A statement for row number k."""
        if isinstance(s, Op):
            return Op(self.fresh(s.out, k), s.name, tuple(self.read(a, k) for a in s.args))
        assert isinstance(s, Load | Store)
        index = self.index(s.index, k)
        if isinstance(s, Load):
            return Load(self.fresh(s.out, k), s.buffer, index)
        return Store(s.buffer, index, self.read(s.value, k))

    def fresh(self, v: Value, k: int) -> Value:
        return self.now[k].setdefault(v, Value(v.dtype))

    def read(self, a: Operand, k: int) -> Operand:
        return self.fresh(a, k) if a in self.moving and isinstance(a, Value) else a

    def index(self, index: Index, k: int) -> Index:
        const, terms = index.const, []
        for c, v in index.terms:
            if v is self.axis:
                const += c * (self.first + k)
                terms.append((c * self.rows, v))
            else:
                read = self.read(v, k)
                assert isinstance(read, Value)
                terms.append((c, read))
        return Index(const, tuple(terms))
