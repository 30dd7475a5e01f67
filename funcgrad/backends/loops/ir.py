"""The loop IR: what fused array code looks like before a backend makes it fast.

A `Kernel` reads and writes flat buffers. Its body runs once for each point of its outer axes, whose
points are independent: they may run in any order, and in parallel. The body is a list of
statements on scalars in SSA form: `Op`, `Load`, `Store`, and nested `Loop` and `While`, which carry
values from one turn to the next. Indices are affine in axes and integer values; what isn't (a
division by a constant, a gathered index) is computed by `Op`s first. `interpret` defines the
meaning; two kernels that print alike are the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from funcgrad.core.record import Record, replace
from funcgrad.dtypes import short_name

INDEX = np.dtype(np.int64)

# The scalar ops: NumPy's functions of these names, on scalars of one dtype (but for `where`, whose
# first operand is a bool, and the shifts, conversions and predicates as their names say).
# - Integers wrap around. Division by zero gives 0, the least integer divided by -1 itself, and a
#   shift by the number of bits or more (or a negative one) shifts everything out, as in NumPy.
# - maximum and minimum propagate NaN; sign(NaN) is NaN; rint rounds half to even.
# - Arithmetic is on bool, integers, float32 and float64. The narrower floats are for loads, stores
#   and `convert` alone.
ARITHMETIC = {
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "floor_divide": 2, "remainder": 2,
    "fmod": 2, "power": 2, "maximum": 2, "minimum": 2, "negative": 1, "abs": 1, "sign": 1,
    "floor": 1, "ceil": 1, "rint": 1, "trunc": 1, "sqrt": 1, "copysign": 2, "nextafter": 2,
}  # fmt: skip
BITS = {
    "bitwise_and": 2, "bitwise_or": 2, "bitwise_xor": 2, "invert": 1, "left_shift": 2,
    "right_shift": 2, "bitwise_count": 1, "count_leading_zeros": 1,
}  # fmt: skip
MATH = {
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1, "sin": 1,
    "cos": 1, "tan": 1, "arcsin": 1, "arccos": 1, "arctan": 1, "arctan2": 2, "sinh": 1, "cosh": 1,
    "tanh": 1, "arcsinh": 1, "arccosh": 1, "arctanh": 1, "cbrt": 1, "hypot": 2, "logaddexp": 2,
}  # fmt: skip
PREDICATES = {
    "equal": 2, "not_equal": 2, "less": 2, "less_equal": 2, "greater": 2, "greater_equal": 2,
    "isnan": 1, "isinf": 1, "isfinite": 1, "signbit": 1,
}  # fmt: skip
# `convert` is numpy's astype to the result's dtype (float to integer truncates; what lies outside
# the integer's range gives some value, NaN too); `bitcast` keeps the bits of a same-sized dtype.
OTHER = {"where": 3, "convert": 1, "bitcast": 1}
OPS = ARITHMETIC | BITS | MATH | PREDICATES | OTHER

# How carried values combine where the order doesn't matter: the ops a loop may reassociate.
REDUCTIONS = (
    "add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor",
)  # fmt: skip


class Value:
    """A scalar: an axis, or what a statement makes. Equal only to itself."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: np.dtype):
        self.dtype = dtype


class Const:
    """A constant operand; `value` is a numpy scalar of `dtype`."""

    __slots__ = ("dtype", "value")

    def __init__(self, value: Any, dtype: np.dtype):
        self.dtype = dtype
        self.value = np.asarray(value).astype(dtype)[()]


Operand = Value | Const


class Index:
    """The integer `const + Σ coefficient·value`; each value appears once, none with 0."""

    __slots__ = ("const", "terms")

    def __init__(self, const: int, terms: tuple[tuple[int, Value], ...] = ()):
        self.const = const
        self.terms = terms


class Buffer(Record, eq=False):
    """`size` elements in a row. A kernel's parameters are "in", "out" or "inout" (what it reads
    and also writes); "scratch" is uninitialized memory of its own for one point of the outer axes.

    What a kernel reads and writes through its parameters doesn't overlap, but where its `in_place`
    allows it. One that is written in rows with gaps (others' rows) spans those, too.
    """

    name: str
    dtype: np.dtype
    size: int
    role: Literal["in", "out", "inout", "scratch"]
    align: int = 0  # bytes; 0 stands for those of an element


class Op(Record, eq=False):
    """out = name(*args), one of `OPS`."""

    out: Value
    name: str
    args: tuple[Operand, ...]


class Load(Record, eq=False):
    """out = buffer[index], in bounds; where a guard is given and false: 0, and no access."""

    out: Value
    buffer: Buffer
    index: Index
    guard: Operand | None = None


class Store(Record, eq=False):
    """buffer[index] = value; where a guard is given and false: nothing."""

    buffer: Buffer
    index: Index
    value: Operand
    guard: Operand | None = None


class Carry(Record, eq=False):
    """A value carried through a loop: `inside` is `start` in the first turn, afterwards the `next`
    of the turn before; `out` is the last `next` (`start` if there was no turn).

    With `combine` (one of `REDUCTIONS`), next = combine(inside, x) of an x that doesn't depend on
    `inside`, and the loop may combine in any order: it is a reduction that may be vectorized.
    """

    inside: Value
    start: Operand
    next: Operand
    out: Value
    combine: str | None = None


class Loop(Record, eq=False):
    """Run the body for axis = 0 … size-1. The turns of a `parallel` loop are independent (no turn
    reads or writes what another writes) but for what carries combine; any other runs in order."""

    axis: Value
    size: int
    body: tuple[Stmt, ...]
    carries: tuple[Carry, ...] = ()
    parallel: bool = False


class While(Record, eq=False):
    """Run `test` and, as long as `condition` (a bool that it made) holds, the body, over and over.
    `test` and the body see the carried values as `inside`."""

    test: tuple[Stmt, ...]
    condition: Operand
    body: tuple[Stmt, ...]
    carries: tuple[Carry, ...]


Stmt = Op | Load | Store | Loop | While


class Axis(Record, eq=False):
    """An outer axis of a kernel: index value and size."""

    value: Value
    size: int


class Kernel(Record, eq=False):
    """Run the body for each point of the outer axes, which are independent.

    buffers: the parameters in order, then scratch
    in_place: pairs (o, i) of parameters such that buffer o ("out") may be the same memory as buffer
        i ("in"): each element of i is read only at the point that writes it in o, before that
    """

    name: str
    buffers: tuple[Buffer, ...]
    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def params(self) -> tuple[Buffer, ...]:
        """The buffers that a caller passes."""
        return tuple(b for b in self.buffers if b.role != "scratch")

    @property
    def points(self) -> int:
        """The number of points of the outer axes."""
        n = 1
        for a in self.axes:
            n *= a.size
        return n

    def __repr__(self) -> str:
        return kernel_text(self)


def walk(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Each statement of a body, nested ones after the loop that holds them."""
    for s in body:
        yield s
        if isinstance(s, While):
            yield from walk(s.test)
        if isinstance(s, Loop | While):
            yield from walk(s.body)


def scalars(s: Stmt) -> tuple[Operand, ...]:
    """What a statement itself reads of values, but for those that are in an index."""
    if isinstance(s, Op):
        return s.args
    if isinstance(s, Load | Store):
        guard = () if s.guard is None else (s.guard,)
        return (*guard, s.value) if isinstance(s, Store) else guard
    carried = tuple([x for c in s.carries for x in (c.start, c.next)])
    return (*carried, s.condition) if isinstance(s, While) else carried


def reads(s: Stmt) -> tuple[Operand, ...]:
    """What a statement itself reads of values."""
    places = tuple([v for _, v in s.index.terms]) if isinstance(s, Load | Store) else ()
    return (*scalars(s), *places)


def used_as_scalars(body: Sequence[Stmt]) -> set[Value]:
    """The values that a body reads, but for those that only indices name."""
    return {a for s in walk(body) for a in scalars(s) if isinstance(a, Value)}


def rewritten(body: Sequence[Stmt], change: Callable[[Stmt], Stmt]) -> tuple[Stmt, ...]:
    """The statements as `change` gives them, those inside of a loop before the loop itself."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, While):
            s = replace(s, test=rewritten(s.test, change), body=rewritten(s.body, change))
        elif isinstance(s, Loop):
            s = replace(s, body=rewritten(s.body, change))
        out.append(change(s))
    return tuple(out)


# ---- text


class _Names:
    """i, j, k, … for axes and v0, v1, … for the rest, in order of appearance."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.axes = 0
        self.values = 0

    def axis(self, v: Value) -> str:
        n = self.axes
        self.names[v] = "ijklmnopqrstuwxyz"[n] if n < 17 else f"i{n}"
        self.axes += 1
        return self.names[v]

    def new(self, v: Value) -> str:
        self.names[v] = f"v{self.values}"
        self.values += 1
        return self.names[v]

    def __call__(self, v: Operand) -> str:
        if isinstance(v, Const):
            return f"{v.value.item()!r}:{short_name(v.dtype)}"
        return self.names.get(v) or f"unbound{id(v)}"


def index_text(index: Index, names: Any) -> str:
    """An index as a sum: 64*i + j + 3."""
    parts = [names(v) if c == 1 else f"{c}*{names(v)}" for c, v in index.terms]
    if index.const or not parts:
        parts.append(str(index.const))
    return " + ".join(parts).replace("+ -", "- ")


def _stmt_lines(s: Stmt, names: _Names, indent: str) -> Iterator[str]:
    if isinstance(s, Op):
        args = " ".join(names(a) for a in s.args)
        typed = f":{short_name(s.out.dtype)}" if s.name in ("convert", "bitcast") else ""
        yield f"{indent}{names.new(s.out)} = {s.name}{typed} {args}"
    elif isinstance(s, Load):
        guard = f" if {names(s.guard)}" if s.guard is not None else ""
        yield f"{indent}{names.new(s.out)} = {s.buffer.name}[{index_text(s.index, names)}]{guard}"
    elif isinstance(s, Store):
        guard = f" if {names(s.guard)}" if s.guard is not None else ""
        place = f"{s.buffer.name}[{index_text(s.index, names)}]"
        yield f"{indent}{place} = {names(s.value)}{guard}"
    else:
        yield from _loop_lines(s, names, indent)


def _loop_lines(s: Loop | While, names: _Names, indent: str) -> Iterator[str]:
    starts = [names(c.start) for c in s.carries]
    if isinstance(s, Loop):
        head = f"{'parallel' if s.parallel else 'loop'} {names.axis(s.axis)} < {s.size}"
    else:
        head = "while"
    carried = [
        f"{names.new(c.inside)} = {c.combine + ' ' if c.combine else ''}from {start}"
        for c, start in zip(s.carries, starts, strict=True)
    ]
    yield f"{indent}{', '.join([head, *carried])}:"
    inner = indent + "  "
    if isinstance(s, While):
        yield from body_lines(s.test, names, inner)
        yield f"{inner}stop unless {names(s.condition)}"
    yield from body_lines(s.body, names, inner)
    if s.carries:
        nexts = ", ".join(f"{names(c.inside)} <- {names(c.next)}" for c in s.carries)
        yield f"{inner}next {nexts}"
    for c in s.carries:
        names.names[c.out] = names(c.inside)


def body_lines(body: Sequence[Stmt], names: Any, indent: str) -> Iterator[str]:
    """The lines of statements."""
    for s in body:
        yield from _stmt_lines(s, names, indent)


def kernel_text(kernel: Kernel, name: str | None = None) -> str:
    """A kernel as text; the text without its name (`name=""`) identifies its code."""
    names = _Names()
    listed = ", ".join(
        f"{b.role} {b.name}: {short_name(b.dtype)}[{b.size}]" for b in kernel.buffers
    )
    lines = [f"kernel {kernel.name if name is None else name}({listed})"]
    if kernel.in_place:
        pairs = ", ".join(
            f"{kernel.buffers[o].name} over {kernel.buffers[i].name}" for o, i in kernel.in_place
        )
        lines.append(f"  in place: {pairs}")
    indent = "  "
    if kernel.axes:
        axes = ", ".join(f"{names.axis(a.value)} < {a.size}" for a in kernel.axes)
        lines.append(f"  parallel {axes}:")
        indent = "    "
    return "\n".join([*lines, *body_lines(kernel.body, names, indent)])
