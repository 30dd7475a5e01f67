"""Short axes whose points read different arrays, written out: what interleaves, or cuts in rows.

Where a piece of a result is chosen by an axis of a few points, each point asks for every piece.
Written out, a point reads its own piece alone, and vectors run along the axes that remain. Where
rows are cut from what lies interleaved, memory is read once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.emit.schedule import (
    LINE,
    SHORT,
    coalesce,
    coefficient,
)
from funcgrad.backends.loops.builder import add_indices, index_key, operand_key, scale_index
from funcgrad.backends.loops.ir import (
    INDEX,
    Axis,
    Const,
    Index,
    Kernel,
    Load,
    Loop,
    Op,
    Operand,
    Stmt,
    Store,
    Value,
    While,
    reads,
    used_as_scalars,
)
from funcgrad.core.eager.large import LARGE
from funcgrad.core.record import replace

loops_interpret = Late("funcgrad.backends.loops.interpret")

BOOL = np.dtype(bool)
# Points that are written out at most, and statements.
MOST_POINTS, MOST_STATEMENTS = 8, 400
# Elements of a row, from which on it is worth a loop that writes several; and bytes that no second
# cache holds, so that reading them once outweighs stores that lie in two lines each.
LONG_ROW, FAR = 512, 1 << 23


def unrolled(kernel: Kernel) -> Kernel:
    """A kernel without its short axes, if that leaves two thirds of its loads or fewer, or reads
    what lies interleaved once for all rows that it is cut in."""
    loads = [s for s in kernel.body if isinstance(s, Load)]
    straight = not any(isinstance(s, Loop | While) for s in kernel.body)
    # What else is read may have been written at another point.
    if not straight or any(s.buffer.role != "in" for s in loads):
        return kernel
    named = used_as_scalars(kernel.body)
    short = [a for a in kernel.axes if 1 < a.size <= MOST_POINTS and a.value in named]
    points = math.prod(a.size for a in short)
    if not short:
        cut = _interleaved(kernel)
        return kernel if cut is None else _without(kernel, [cut])
    if points > MOST_POINTS or kernel.points < LINE * points:
        return kernel
    # Without guards each point reads all that is read, and vectors can hold the short axis, too.
    # Beside rows that are in order anyway, it costs a choice for each of them.
    stay = [a.value for a in kernel.axes if a not in short]
    stores = [s.index for s in kernel.body if isinstance(s, Store)]
    in_order = any(abs(coefficient(i, a)) == 1 for i in stores for a in stay)
    if in_order or all(s.guard is None for s in loads):
        return kernel
    made = _without(kernel, short)
    after = sum(isinstance(s, Load) for s in made.body)
    return kernel if after * 3 > len(loads) * points * 2 else made


def _interleaved(kernel: Kernel) -> Axis | None:
    """The short axis along which elements lie that are stored in a row each, if there is one."""
    found = [s for s in kernel.body if isinstance(s, Load | Store)]
    if any(s.guard is not None for s in found):
        return None
    axes, _ = coalesce(kernel)
    loads = [s for s in found if isinstance(s, Load)]
    stores = [s for s in found if isinstance(s, Store)]
    for short in axes:
        if short.size >= SHORT or short not in kernel.axes:
            continue
        for row in axes:
            if row.size < LONG_ROW or any(coefficient(s.index, row.value) != 1 for s in stores):
                continue
            widths = [
                s.buffer.dtype.itemsize
                for s in loads
                if coefficient(s.index, short.value) == 1
                and coefficient(s.index, row.value) == short.size
            ]
            far = row.size * short.size * max(widths, default=0) >= FAR
            if widths and (far or all(_is_in_lines(s, row) for s in stores)):
                return short
    return None


def _is_in_lines(s: Store, row: Axis) -> bool:
    """Whether all rows that are stored begin with a line, in memory that does."""
    width = s.buffer.dtype.itemsize
    others = [s.index.const, *(c for c, v in s.index.terms if v is not row.value)]
    return s.buffer.size * width >= LARGE and all(c * width % LINE == 0 for c in others)


def _without(kernel: Kernel, short: Sequence[Axis]) -> Kernel:
    """A kernel with some axes written out, or as it is if that were too many statements."""
    body = _Copies(kernel, short).run()
    if len(body) > MOST_STATEMENTS:
        return kernel
    axes = tuple(a for a in kernel.axes if a not in short)
    return replace(kernel, axes=axes, body=tuple(body))


class _Copies:
    """Writes a body for each point of some axes: first all that is read, then all that is stored,
    which is nothing that another point reads."""

    def __init__(self, kernel: Kernel, short: Sequence[Axis]):
        self.kernel, self.short = kernel, short
        self.bounds = {a.value: (0, a.size - 1) for a in kernel.axes if a not in short}
        self.made: dict[Any, Operand] = {}
        self.stmts: list[Stmt] = []
        self.stores: list[Store] = []
        # What values of the body are at the point in hand, and what integers made of axes are.
        self.now: dict[Value, Operand] = {}
        self.affine: dict[Value, Index] = {}

    def run(self) -> list[Stmt]:
        for point in np.ndindex(*(a.size for a in self.short)):
            self.now = {a.value: Const(i, INDEX) for a, i in zip(self.short, point, strict=True)}
            for s in self.kernel.body:
                self.copy(s)
        return _needed([*self.stmts, *self.stores])

    def copy(self, s: Stmt) -> None:
        """A statement at the point in hand."""
        if isinstance(s, Op):
            self.now[s.out] = self.op(s, tuple(map(self.operand, s.args)))
            return
        assert isinstance(s, Load | Store)
        guard = None if s.guard is None else self.operand(s.guard)
        if isinstance(guard, Const) and guard.value:
            guard = None
        if isinstance(s, Load):
            zero = Const(0, s.buffer.dtype)
            self.now[s.out] = zero if isinstance(guard, Const) else self.load(s, guard)
        elif not isinstance(guard, Const):
            value = self.operand(s.value)
            self.stores.append(Store(s.buffer, self.index(s.index), value, guard))

    def operand(self, a: Operand) -> Operand:
        return self.now.get(a, a) if type(a) is Value else a

    def load(self, s: Load, guard: Operand | None) -> Operand:
        index = self.index(s.index)
        key = (s.buffer, index_key(index), guard)
        if key not in self.made:
            self.made[key] = out = Value(s.buffer.dtype)
            self.stmts.append(Load(out, s.buffer, index, guard))
        return self.made[key]

    def op(self, s: Op, args: tuple[Operand, ...]) -> Operand:
        """An op on what its operands are: a constant, one of them, or a value."""
        dtype = s.out.dtype
        settled = [np.asarray(a.value) for a in args if isinstance(a, Const)]
        if len(settled) == len(args):
            with np.errstate(all="ignore"):
                return Const(loops_interpret.apply(s.name, dtype, settled), dtype)
        known = self.known(s.name, dtype, args)
        if known is not None:
            return known
        key = (s.name, dtype, *(operand_key(a) for a in args))
        if key not in self.made:
            self.made[key] = out = Value(dtype)
            self.stmts.append(Op(out, s.name, args))
            line = self.line(s.name, args) if dtype == INDEX else None
            if line is not None:
                self.affine[out] = line
        return self.made[key]

    def known(self, name: str, dtype: np.dtype, args: tuple[Operand, ...]) -> Operand | None:
        """The result of an op that some operands settle."""
        if name == "where" and isinstance(args[0], Const):
            return args[1] if args[0].value else args[2]
        if dtype != BOOL:
            return None
        if name in ("bitwise_and", "bitwise_or") and any(type(a) is Const for a in args):
            constant, other = args if type(args[0]) is Const else args[::-1]
            assert isinstance(constant, Const)
            return other if bool(constant.value) == (name == "bitwise_and") else constant
        if name in ("less", "greater_equal") and args[0].dtype == INDEX:
            x, y = (self.as_index(a) for a in args)
            if x is None or y is None:
                return None
            low, high = self.range(add_indices(x, scale_index(y, -1)))
            if high < 0 or low >= 0:
                return Const((high < 0) == (name == "less"), BOOL)
        return None

    # ---- integers

    def as_index(self, a: Operand) -> Index | None:
        """An integer as a sum of axes, if it is one."""
        if isinstance(a, Const):
            return Index(int(a.value))
        if a in self.bounds:
            return Index(0, ((1, a),))
        return self.affine.get(a)

    def line(self, name: str, args: tuple[Operand, ...]) -> Index | None:
        """A sum, difference or multiple of sums of axes."""
        if name not in ("add", "subtract", "multiply"):
            return None
        x, y = (self.as_index(a) for a in args)
        if x is None or y is None:
            return None
        if name != "multiply":
            return add_indices(x, scale_index(y, 1 if name == "add" else -1))
        if x.terms and y.terms:
            return None
        return scale_index(y, x.const) if y.terms else scale_index(x, y.const)

    def range(self, index: Index) -> tuple[int, int]:
        """The least and the greatest value of a sum of axes."""
        low = high = index.const
        for c, v in index.terms:
            first, last = (c * b for b in self.bounds[v])
            low, high = low + min(first, last), high + max(first, last)
        return low, high

    def index(self, index: Index) -> Index:
        """Where an access is at the point in hand."""
        terms = [Index(index.const)]
        for c, v in index.terms:
            a = self.operand(v)
            at = Index(int(a.value)) if isinstance(a, Const) else Index(0, ((1, a),))
            terms.append(scale_index(at, c))
        return add_indices(*terms)


def _needed(stmts: Sequence[Stmt]) -> list[Stmt]:
    """The statements of which a store reads something."""
    used: set[Operand] = set()
    kept: list[Stmt] = []
    for s in reversed(stmts):
        if isinstance(s, Store) or s.out in used:  # type: ignore[union-attr]
            kept.append(s)
            used.update(reads(s))
    return kept[::-1]
