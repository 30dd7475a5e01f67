"""A namespace of symbols: elementwise ops, traced into scalar code by running their `impl`.

`Scalars` has NumPy's names and its values the operators, so the one formula that runs on arrays
also writes loops. Types follow NumPy (Python numbers adopt the other operand's), but that floats
of 16 bits are held as float32 inside an op and rounded once, at its end. What the namespace lacks
raises `Unsupported`: such an op runs on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad.backends.loops.builder import Builder
from funcgrad.backends.loops.ir import (
    MATH,
    OPS,
    Const,
    Loop,
    Op,
    Operand,
    Value,
    While,
)

BOOL, FLOAT32 = np.dtype(bool), np.dtype(np.float32)
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
LOOP_DTYPES = frozenset(
    [np.dtype(c) for c in "?bhiqBHIQfd"] + [*HALVES]
)  # fmt: skip


class Unsupported(Exception):
    """The symbolic namespace can't express an op, for the reason given."""


class Symbol:
    """A scalar of a dtype in a kernel under construction; `operand` is what holds it."""

    __slots__ = ("dtype", "operand", "xp")
    # NumPy's scalars leave their operators to ours.
    __array_ufunc__ = None

    shape = ()
    ndim = 0

    def __init__(self, xp: Scalars, operand: Operand, dtype: np.dtype):
        self.xp = xp
        self.operand = operand
        self.dtype = dtype

    @property
    def real(self) -> Symbol:
        """The symbol itself: there are no complex ones."""
        return self

    def astype(self, dtype: Any, copy: bool = True) -> Symbol:
        """Converted to a dtype (rounded to it, if it is a narrow one)."""
        return self.xp.convert(self, np.dtype(dtype))

    def copy(self) -> Symbol:
        """The symbol itself: it can't change."""
        return self

    def view(self, dtype: Any) -> Symbol:
        """The same bits as another dtype."""
        return self.xp.bitcast(self, dtype)

    def __bool__(self) -> bool:
        raise Unsupported("a branch on a value")

    def __pow__(self, other: Any) -> Symbol:
        return self.xp.power(self, other)

    def __rpow__(self, other: Any) -> Symbol:
        return self.xp.power(other, self)

    def __pos__(self) -> Symbol:
        return self


def _operators() -> None:
    names = {
        "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
        "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
        "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
    }  # fmt: skip
    for short, name in names.items():
        setattr(Symbol, f"__{short}__", lambda a, b, f=name: getattr(a.xp, f)(a, b))
        setattr(Symbol, f"__r{short}__", lambda a, b, f=name: getattr(a.xp, f)(b, a))
    compare = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
               "gt": "greater", "ge": "greater_equal"}  # fmt: skip
    for short, name in compare.items():
        setattr(Symbol, f"__{short}__", lambda a, b, f=name: getattr(a.xp, f)(a, b))
    for short, name in {"neg": "negative", "invert": "invert", "abs": "abs"}.items():
        setattr(Symbol, f"__{short}__", lambda a, f=name: getattr(a.xp, f)(a))


_operators()
Symbol.__hash__ = object.__hash__  # type: ignore[method-assign]

_ALIASES = {
    "absolute": "abs", "fabs": "abs", "true_divide": "divide", "mod": "remainder", "pow": "power",
    "bitwise_not": "invert", "bitwise_invert": "invert", "asin": "arcsin", "acos": "arccos",
    "atan": "arctan", "atan2": "arctan2", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh", "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
}  # fmt: skip


@lru_cache(maxsize=4096)
def _loop_types(name: str, kinds: tuple) -> tuple[np.dtype, ...]:
    """The dtypes of operands and result of NumPy's function on these dtypes (or Python types)."""
    if any(k in HALVES for k in kinds if isinstance(k, np.dtype)):
        wide = tuple(FLOAT32 if isinstance(k, np.dtype) and k in HALVES else k for k in kinds)
        return _loop_types(name, wide)
    return getattr(np, name).resolve_dtypes((*kinds, None))


class Scalars:
    """NumPy's names on symbols that write into a builder."""

    pi, e, inf, nan, newaxis = math.pi, math.e, math.inf, math.nan, None
    bool_ = np.bool_
    int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
    uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
    float16, float32, float64 = np.float16, np.float32, np.float64
    finfo, iinfo, dtype = staticmethod(np.finfo), staticmethod(np.iinfo), staticmethod(np.dtype)

    def __init__(self, builder: Builder):
        self.builder = builder

    # ---- values

    def symbol(self, operand: Operand, dtype: np.dtype) -> Symbol:
        """What a load gives, as a symbol of its dtype."""
        if dtype in HALVES:
            operand = self.builder.convert(operand, FLOAT32)
        return Symbol(self, operand, dtype)

    def result(self, value: Any, dtype: np.dtype) -> Operand:
        """What an op's impl gave, as an operand of the result's dtype."""
        symbol = value if type(value) is Symbol else self._constant(value, dtype)
        return self.builder.convert(symbol.operand, dtype)

    def _constant(self, value: Any, dtype: np.dtype | None = None) -> Symbol:
        if type(value) is Symbol:
            return value
        array = np.asarray(value, dtype)
        if array.ndim:
            raise Unsupported("an array among scalars")
        return self.symbol(Const(array, array.dtype), array.dtype)

    def asarray(self, value: Any, dtype: Any = None) -> Symbol:
        """A symbol, or a constant as one."""
        dtype = None if dtype is None else np.dtype(dtype)
        if type(value) is Symbol:
            return value if dtype is None else self.convert(value, dtype)
        return self._constant(value, dtype)

    array = asarray

    def full_like(self, x: Symbol, value: Any, dtype: Any = None) -> Symbol:
        """A constant of x's dtype."""
        return self._constant(value, x.dtype if dtype is None else np.dtype(dtype))

    def zeros_like(self, x: Symbol, dtype: Any = None) -> Symbol:
        """0 of x's dtype."""
        return self.full_like(x, 0, dtype)

    def ones_like(self, x: Symbol, dtype: Any = None) -> Symbol:
        """1 of x's dtype."""
        return self.full_like(x, 1, dtype)

    def convert(self, x: Symbol, dtype: np.dtype) -> Symbol:
        """x as another dtype."""
        if dtype not in LOOP_DTYPES:
            raise Unsupported(f"dtype {dtype}")
        if dtype == x.dtype:
            return x
        return self.symbol(self.builder.convert(x.operand, dtype), dtype)

    def bitcast(self, x: Symbol, dtype: Any) -> Symbol:
        """The same bits as a dtype of the same size."""
        dtype = np.dtype(dtype)
        if dtype.itemsize != x.dtype.itemsize or dtype not in LOOP_DTYPES:
            raise Unsupported(f"a bitcast of {x.dtype} to {dtype}")
        if dtype == x.dtype:
            return x
        held = self.builder.convert(x.operand, x.dtype)
        return self.symbol(self.builder.op("bitcast", dtype, held), dtype)

    # ---- ops

    def call(self, name: str, *args: Any) -> Symbol:
        """NumPy's function of this name, with its types."""
        kinds: tuple[Any, ...] = tuple(a.dtype if hasattr(a, "dtype") else type(a) for a in args)
        try:
            *ins, out = _loop_types(name, kinds)
        except TypeError as e:
            raise Unsupported(f"{name} of {kinds}: {e}") from None
        operands = [self._operand(a, d) for a, d in zip(args, ins, strict=True)]
        if out not in LOOP_DTYPES or out in HALVES:
            raise Unsupported(f"{name} gives {out}")
        # A float32 that stands for a narrower float keeps the name of that dtype.
        halves = [k for k in kinds if k in HALVES]
        nominal: np.dtype = halves[0] if halves and out == FLOAT32 and _all_narrow(kinds) else out
        return Symbol(self, self.builder.op(name, out, *operands), nominal)

    def _operand(self, value: Any, dtype: np.dtype) -> Operand:
        if type(value) is Symbol:
            return self.builder.convert(value.operand, dtype)
        if np.ndim(value):
            raise Unsupported("an array among scalars")
        with np.errstate(all="ignore"):
            return Const(value, dtype)

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        name = _ALIASES.get(name, name)
        if name not in OPS or name in ("where", "convert"):
            raise Unsupported(f"xp.{name}")
        return lambda *args: self.call(name, *args)

    def where(self, condition: Any, x: Any, y: Any) -> Symbol:
        """x where the condition holds, else y."""
        dtype = self._common(x, y)
        wide = FLOAT32 if dtype in HALVES else dtype
        c = self.truth(condition).operand
        a, b = self._operand(x, wide), self._operand(y, wide)
        return Symbol(self, self.builder.op("where", wide, c, a, b), dtype)

    def _common(self, *args: Any) -> np.dtype:
        dtypes = {a.dtype for a in args if hasattr(a, "dtype")}
        if len(dtypes) == 1:
            dtype = dtypes.pop()
            weak = [a for a in args if not hasattr(a, "dtype")]
            if dtype in HALVES or not weak:
                return dtype
            return np.result_type(dtype, *weak)
        return np.result_type(*(a.dtype if hasattr(a, "dtype") else a for a in args))

    def truth(self, x: Any) -> Symbol:
        """x as a bool: whether it is not zero."""
        x = self._constant(x)
        return x if x.dtype == BOOL else self.call("not_equal", x, 0)

    def logical_and(self, x: Any, y: Any) -> Symbol:
        """Whether both are true."""
        return self.call("bitwise_and", self.truth(x), self.truth(y))

    def logical_or(self, x: Any, y: Any) -> Symbol:
        """Whether one is true."""
        return self.call("bitwise_or", self.truth(x), self.truth(y))

    def logical_xor(self, x: Any, y: Any) -> Symbol:
        """Whether just one is true."""
        return self.call("bitwise_xor", self.truth(x), self.truth(y))

    def logical_not(self, x: Any) -> Symbol:
        """Whether x is false."""
        return self.call("invert", self.truth(x))

    def square(self, x: Symbol) -> Symbol:
        """x·x."""
        return self.call("multiply", x, x)

    def nextafter(self, x: Any, y: Any) -> Any:
        """The neighbour of x towards y; that of a narrow float is not float32's."""
        if x.dtype not in HALVES:
            return self.call("nextafter", x, y)
        bits, target = x.view(np.int16), y.view(np.int16)
        step = self.where((x < y) == (x > 0), np.int16(1), np.int16(-1))
        moved = self.where(x == 0, (target & np.int16(-0x8000)) | np.int16(1), bits + step)
        kept = self.where(x == y, target, moved).view(x.dtype)
        return self.where(self.isnan(x), x, self.where(self.isnan(y), y, kept))

    def reciprocal(self, x: Symbol) -> Symbol:
        """1/x."""
        return self.call("divide", 1, x)

    def positive(self, x: Symbol) -> Symbol:
        """x."""
        return x

    copy = positive

    conj = conjugate = real = positive

    def clip(self, x: Symbol, low: Any = None, high: Any = None) -> Symbol:
        """x, at least low and at most high."""
        x = x if low is None else self.call("maximum", x, low)
        return x if high is None else self.call("minimum", x, high)

    def power(self, x: Any, y: Any) -> Symbol:
        """x to the power y; by multiplication for small known integers."""
        if (
            type(y) is int
            and type(x) is Symbol
            and abs(y) <= 32
            and (y >= 0 or x.dtype.kind == "f")
        ):
            return self._integer_power(x, y)
        return self.call("power", x, y)

    def _integer_power(self, x: Symbol, n: int) -> Symbol:
        if n < 0:
            return self.call("divide", 1, self._integer_power(x, -n))
        total: Symbol | None = None
        while n:
            if n & 1:
                total = x if total is None else self.call("multiply", total, x)
            n >>= 1
            if n:
                x = self.call("multiply", x, x)
        return self.ones_like(x) if total is None else total

    # ---- loops

    def _carry(self, init: Sequence[Any]) -> list[Symbol]:
        known = [x.dtype for x in init if type(x) is Symbol and x.dtype.kind != "b"]
        first = known[0] if known else None
        return [
            self._constant(x, first if type(x) in (int, float) and first is not None else None)
            for x in init
        ]

    def _symbols(self, values: Sequence[Value], like: Sequence[Symbol]) -> tuple[Symbol, ...]:
        return tuple(Symbol(self, v, s.dtype) for v, s in zip(values, like, strict=True))

    def _nexts(self, values: Sequence[Any], like: Sequence[Symbol]) -> list[Operand]:
        return [self._operand(v, s.operand.dtype) for v, s in zip(values, like, strict=True)]

    def fori_loop(self, n: int, body: Callable, init: Sequence[Any]) -> tuple[Symbol, ...]:
        """carry = body(i, carry) for i = 0 … n-1."""
        starts = self._carry(init)

        def turn(i: Value, *carry: Value) -> list[Operand]:
            counter = Symbol(self, i, i.dtype)
            return self._nexts(body(counter, self._symbols(carry, starts)), starts)

        outs = self.builder.loop(n, turn, [s.operand for s in starts])
        return self._symbols(outs, starts)

    def while_loop(self, cond: Callable, body: Callable, init: Sequence[Any]) -> tuple[Symbol, ...]:
        """carry = body(carry) as long as cond(carry) holds."""
        starts = self._carry(init)

        def test(*carry: Value) -> Operand:
            return self.truth(cond(self._symbols(carry, starts))).operand

        def turn(*carry: Value) -> list[Operand]:
            return self._nexts(body(self._symbols(carry, starts)), starts)

        outs = self.builder.while_(test, turn, [s.operand for s in starts])
        return self._symbols(outs, starts)


def _all_narrow(kinds: tuple) -> bool:
    return all(k in HALVES or not isinstance(k, np.dtype) or k == BOOL for k in kinds)


def trace(
    builder: Builder, prim: Any, params: dict, args: Sequence[Operand], dtypes: Sequence[np.dtype],
    out: np.dtype, number: int = 0,
) -> Operand:  # fmt: skip
    """The scalar code of an elementwise op (of one of its results) on operands of these dtypes."""
    xp = Scalars(builder)
    symbols = [xp.symbol(a, d) for a, d in zip(args, dtypes, strict=True)]
    value = prim.impl(xp, *symbols, **params)
    return xp.result(value[number] if prim.multiple else value, out)


_COSTS: dict[Any, int | None] = {}


def cost(
    prim: Any, params: dict, dtypes: Sequence[np.dtype], out: np.dtype, number: int = 0
) -> int | None:
    """How many plain scalar ops an elementwise op is worth; None if loops can't express it."""
    key = (prim, tuple(dtypes), out, number, repr(params) if params else "")
    if key not in _COSTS:
        code = traced(prim, params, dtypes, out, number)
        _COSTS[key] = None if code is None else weigh(code)
    return _COSTS[key]


def traced(
    prim: Any, params: dict, dtypes: Sequence[np.dtype], out: np.dtype, number: int = 0
) -> Sequence[Any] | None:
    """The scalar code of an elementwise op, alone; None if loops can't express it."""
    if out not in LOOP_DTYPES or any(d not in LOOP_DTYPES for d in dtypes):
        return None
    builder = Builder()
    args = []
    for d in dtypes:
        v = Value(d)
        builder.depth[v] = 0
        args.append(v)
    try:
        trace(builder, prim, params, args, dtypes, out, number)
    except (Unsupported, TypeError, AttributeError, ValueError):
        # An impl that asks a symbol for what only arrays have is no scalar code either.
        return None
    return builder.blocks[0].stmts


def weigh(stmts: Sequence[Any]) -> int:
    """The cost of statements: loops count as sixteen turns."""
    total = 0
    for s in stmts:
        if isinstance(s, Op):
            total += 12 if s.name in MATH or s.name == "power" else 4 if s.name in _SLOW else 1
        elif isinstance(s, Loop | While):
            total += 16 * weigh(s.body)
    return total


_SLOW = {"divide", "sqrt", "floor_divide", "remainder", "fmod", "nextafter"}
