"""Writing kernels: statements land in the outermost loop that knows their operands.

The builder keeps a stack of open blocks. An op goes where its latest operand is made, so what
doesn't change in a loop stands before it, and the same op on the same operands is made once.
Indices stay affine as long as arithmetic allows: a quotient or remainder by a constant falls apart
along axes whose ranges are known, and where an axis would have to be split for that, the builder
says so (`wanted`), so that the kernel can be written again on finer axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.backends.loops.ir import (
    INDEX,
    Buffer,
    Carry,
    Const,
    Index,
    Load,
    Loop,
    Op,
    Operand,
    Stmt,
    Store,
    Value,
    While,
)

interpret = Late("funcgrad.backends.loops.interpret")

BOOL = np.dtype(bool)
ZERO = Index(0)
_BIG = 1 << 62


def index_key(index: Index) -> tuple:
    """What equal indices have in common."""
    return (index.const, frozenset(index.terms))


def operand_key(a: Operand) -> Any:
    """What equal operands have in common."""
    return a if type(a) is Value else (a.dtype, a.value.tobytes())  # type: ignore[union-attr]


def add_indices(*indices: Index) -> Index:
    """The sum of indices."""
    const = 0
    total: dict[Value, int] = {}
    for index in indices:
        const += index.const
        for c, v in index.terms:
            total[v] = total.get(v, 0) + c
    return Index(const, tuple((c, v) for v, c in total.items() if c))


def scale_index(index: Index, factor: int, plus: int = 0) -> Index:
    """index·factor + plus."""
    if not factor:
        return Index(plus)
    return Index(index.const * factor + plus, tuple((c * factor, v) for c, v in index.terms))


def strides_of(shape: Sequence[int]) -> list[int]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return strides[::-1]


class _Block:
    __slots__ = ("memo", "stmts")

    def __init__(self) -> None:
        self.stmts: list[Stmt] = []
        self.memo: dict[Any, Operand] = {}


class Builder:
    """Statements under construction; see the module's docstring.

    bounds: the least and the greatest value of integer values, where known
    axes: sizes of axes (outer ones and loops')
    wanted: pairs (axis, inner size): splits that would make an index affine
    guard: what loads depend on at the moment (a bool), or None
    """

    def __init__(self) -> None:
        self.blocks = [_Block()]
        self.depth: dict[Value, int] = {}
        self.bounds: dict[Value, tuple[int, int]] = {}
        self.axes: dict[Value, int] = {}
        self.wanted: list[tuple[Value, int]] = []
        # Quotients: the divisor, the remainder beside it, and the index that was divided.
        self.quotients: dict[Value, tuple[int, Value, Index]] = {}
        self.widened: dict[Operand, Operand] = {}  # values of a wider dtype, of what they are
        self.guard: Operand | None = None

    # ---- scalars

    def op(self, name: str, dtype: np.dtype, *args: Operand) -> Operand:
        """name(*args) of this dtype, made now or before; of constants, their value."""
        depth = max((self.depth[a] for a in args if type(a) is Value), default=-1)
        if depth < 0:
            with np.errstate(all="ignore"):
                values = [np.asarray(a.value) for a in args]  # type: ignore[union-attr]
                return Const(interpret.apply(name, dtype, values), dtype)
        block = self.blocks[depth]
        key = (name, dtype, *map(operand_key, args))
        known = block.memo.get(key)
        if known is None:
            made = Value(dtype)
            known = block.memo[key] = made
            self.depth[made] = depth
            block.stmts.append(Op(made, name, args))
        return known

    def load(self, buffer: Buffer, index: Index) -> Operand:
        """An element of a buffer, under the current guard; of what a kernel only reads, once."""
        values = [v for _, v in index.terms]
        if type(self.guard) is Value:
            values.append(self.guard)
        fixed = buffer.role == "in"
        depth = len(self.blocks) - 1
        if fixed:
            depth = max((self.depth[v] for v in values), default=0)
        block = self.blocks[depth]
        key = (buffer, index_key(index), self.guard)
        known = block.memo.get(key) if fixed else None
        if known is None:
            known = made = Value(buffer.dtype)
            self.depth[made] = depth
            block.stmts.append(Load(made, buffer, index, self.guard))
            if fixed:
                block.memo[key] = made
        return known

    def store(self, buffer: Buffer, index: Index, value: Operand) -> None:
        """Write an element, under the current guard, in the innermost block."""
        self.blocks[-1].stmts.append(Store(buffer, index, value, self.guard))

    @contextmanager
    def guarded(self, condition: Operand | None):
        """Loads and stores inside happen only where the condition holds, too."""
        before = self.guard
        if condition is not None and not (type(condition) is Const and condition.value):
            self.guard = condition
            if before is not None:
                self.guard = self.op("bitwise_and", BOOL, before, condition)
        try:
            yield
        finally:
            self.guard = before

    # ---- loops

    def axis(self, size: int) -> Value:
        """A new axis in the innermost block (to be bound by whoever asked for it)."""
        v = Value(INDEX)
        self.depth[v] = len(self.blocks) - 1
        self.bounds[v] = (0, size - 1)
        self.axes[v] = size
        return v

    def _carried(self, starts: Iterable[Operand]) -> list[Value]:
        inside = []
        for s in starts:
            v = Value(s.dtype)
            self.depth[v] = len(self.blocks) - 1
            inside.append(v)
        return inside

    def loop(
        self,
        size: int,
        body: Callable[..., Sequence[Operand] | None],
        starts: Sequence[Operand] = (),
        combine: Sequence[str | None] | None = None,
        parallel: bool = False,
    ) -> list[Value]:
        """A loop whose body(axis, *carried) gives the next carried values; the last of them.

        combine: for each carried value the op that a reduction combines it with, or None
        """
        self.blocks.append(_Block())
        axis = self.axis(size)
        inside = self._carried(starts)
        nexts = list(body(axis, *inside) or ())
        block = self.blocks.pop()
        outs = self._carried(starts)
        how = combine or [None] * len(starts)
        carries = tuple(map(Carry, inside, starts, nexts, outs, how))
        self.blocks[-1].stmts.append(Loop(axis, size, tuple(block.stmts), carries, parallel))
        return outs

    def nest(
        self,
        sizes: Sequence[int],
        body: Callable[..., Sequence[Operand] | None],
        starts: Sequence[Operand] = (),
        combine: Sequence[str | None] | None = None,
        parallel: bool = False,
    ) -> list[Operand]:
        """Loops in loops, one a size other than 1: body(indices, *carried)."""

        def level(i: int, indices: list[Index], carried: Sequence[Operand]) -> list[Operand]:
            while i < len(sizes) and sizes[i] == 1:
                indices, i = [*indices, ZERO], i + 1
            if i == len(sizes):
                return list(body(indices, *carried) or ())

            def turn(axis: Value, *inside: Value) -> list[Operand]:
                return level(i + 1, [*indices, Index(0, ((1, axis),))], inside)

            return list(self.loop(sizes[i], turn, carried, combine, parallel))

        return level(0, [], starts)

    def while_(
        self,
        test: Callable[..., Operand],
        body: Callable[..., Sequence[Operand]],
        starts: Sequence[Operand],
    ) -> list[Value]:
        """A loop that runs while test(*carried) holds; the last carried values."""
        self.blocks.append(_Block())
        inside = self._carried(starts)
        condition = test(*inside)
        tested = len(self.blocks[-1].stmts)
        nexts = list(body(*inside))
        block = self.blocks.pop()
        outs = self._carried(starts)
        carries = tuple(map(Carry, inside, starts, nexts, outs))
        before, after = tuple(block.stmts[:tested]), tuple(block.stmts[tested:])
        self.blocks[-1].stmts.append(While(before, condition, after, carries))
        return outs

    # ---- indices

    def index_bounds(self, index: Index) -> tuple[int, int]:
        """The least and the greatest value that an index may have."""
        low = high = index.const
        for c, v in index.terms:
            a, b = self.bounds.get(v, (-_BIG, _BIG))
            low += c * (a if c > 0 else b)
            high += c * (b if c > 0 else a)
        return low, high

    def integer(self, index: Index, dtype: np.dtype = INDEX) -> Operand:
        """An index as a scalar operand."""
        total: Operand | None = None
        for c, v in index.terms:
            term: Operand = v
            if c != 1:
                term = self.op("multiply", INDEX, v, Const(c, INDEX))
            total = term if total is None else self.op("add", INDEX, total, term)
        if total is None:
            return Const(index.const, dtype)
        if index.const:
            total = self.op("add", INDEX, total, Const(index.const, INDEX))
        return self.convert(total, dtype)

    def value_index(self, value: Operand, low: int = -_BIG, high: int = _BIG) -> Index:
        """A scalar integer as an index, known to lie in [low, high]."""
        if type(value) is Const:
            return Index(int(value.value))
        wide = self.convert(value, INDEX)
        assert type(wide) is Value
        a, b = self.bounds.get(wide, (-_BIG, _BIG))
        self.bounds[wide] = (max(a, low), min(b, high))
        return Index(0, ((1, wide),))

    def convert(self, value: Operand, dtype: np.dtype) -> Operand:
        """A scalar converted to a dtype; of one that was widened, what it was."""
        if value.dtype == dtype:
            return value
        if type(value) is Const:
            with np.errstate(all="ignore"):
                return Const(value.value, dtype)
        if value in self.widened and self.widened[value].dtype == dtype:
            return self.widened[value]
        made = self.op("convert", dtype, value)
        if value.dtype.itemsize < dtype.itemsize and np.can_cast(value.dtype, dtype):
            self.widened[made] = value
        return made

    def divide(self, index: Index, d: int) -> tuple[Index, Index]:
        """Quotient and remainder of an index by a constant, rounding down."""
        if d == 1:
            return index, ZERO
        quotient = Index(index.const // d, tuple((c // d, v) for c, v in index.terms if not c % d))
        rest = Index(index.const % d, tuple((c, v) for c, v in index.terms if c % d))
        low, high = self.index_bounds(rest)
        if low >= 0 and high < d:
            return quotient, rest
        self._want_split(rest, d)
        x = self.integer(rest)
        q = self.op("floor_divide", INDEX, x, Const(d, INDEX))
        r = self.op("remainder", INDEX, x, Const(d, INDEX))
        assert type(q) is Value
        assert type(r) is Value
        self.quotients[q] = (d, r, rest)
        if low > -_BIG and high < _BIG:
            self.bounds[q] = (low // d, high // d)
        self.bounds[r] = (0, d - 1)
        return add_indices(quotient, Index(0, ((1, q),))), Index(0, ((1, r),))

    def _want_split(self, index: Index, d: int) -> None:
        for c, v in index.terms:
            n = self.axes.get(v, 0)
            if c > 0 and d % c == 0 and n > d // c and n % (d // c) == 0:
                self.wanted.append((v, d // c))

    def flatten(self, indices: Sequence[Index], shape: Sequence[int]) -> Index:
        """The row-major position of an element."""
        strides = strides_of(shape)
        flat = add_indices(*(scale_index(i, s) for i, s in zip(indices, strides, strict=True)))
        return self._rejoined(flat) if self.quotients else flat

    def _rejoined(self, index: Index) -> Index:
        """The index with c·(d·(x // d) + x % d) written as c·x again."""
        terms = {v: c for c, v in index.terms}
        for v, c in list(terms.items()):
            d, rest, divided = self.quotients.get(v, (0, v, index))
            if d and c == d * terms.get(rest, 0):
                c = terms.pop(rest)
                del terms[v]
                left = Index(index.const, tuple((k, u) for u, k in terms.items()))
                return self._rejoined(add_indices(left, scale_index(divided, c)))
        return index

    def unflatten(self, flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
        """The indices of the element at a row-major position."""
        out: list[Index] = []
        for n in reversed(shape[1:]):
            if n == 1:
                out.append(ZERO)
                continue
            flat, rest = self.divide(flat, n)
            out.append(rest)
        return (flat, *reversed(out)) if shape else ()

    def compare(self, name: str, index: Index, bound: int) -> Operand | None:
        """`index < bound` ("less") or `index >= bound`; None where it always holds."""
        low, high = self.index_bounds(index)
        if (name == "less" and high < bound) or (name == "greater_equal" and low >= bound):
            return None
        return self.op(name, BOOL, self.integer(index), Const(bound, INDEX))

    def all_of(self, conditions: Iterable[Operand | None]) -> Operand | None:
        """The conjunction of conditions; None where there is none."""
        total: Operand | None = None
        for c in conditions:
            if c is not None:
                total = c if total is None else self.op("bitwise_and", BOOL, total, c)
        return total
