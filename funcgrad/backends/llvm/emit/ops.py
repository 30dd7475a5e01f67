"""The scalar ops of the loop IR in LLVM: one small function an op, found by its name.

Arithmetic is IEEE without fast-math flags; only a reduction's own op may be reassociated, which is
what `flags` passes in. Each op becomes plain instructions or intrinsics with vector forms wherever
there are some, so that LLVM's loop vectorizer takes the loop around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.llvm.emit.text import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Function,
    constant,
    value_type,
)
from funcgrad.backends.loops.ir import MATH

FLOATS = (BFLOAT16, FLOAT16, FLOAT32, FLOAT64)


class Site(NamedTuple):
    """Where an op is written: the function, the operands' dtype and its LLVM type."""

    f: Function
    dtype: np.dtype
    type: str

    @property
    def is_float(self) -> bool:
        """Whether operands are floats."""
        return self.dtype in FLOATS

    @property
    def signed(self) -> bool:
        """Whether operands are integers with a sign."""
        return self.dtype.kind == "i"

    @property
    def bits(self) -> int:
        """The width of an operand."""
        return 8 * self.dtype.itemsize

    def const(self, value: Any) -> str:
        """A number of the operands' dtype, as it is written in LLVM's text."""
        return constant(value, self.dtype)

    def let(self, op: str, *args: str) -> str:
        """The result of an instruction on operands."""
        return self.f.let(f"{op} {self.type} {', '.join(args)}")

    def where(self, condition: str, x: str, y: str) -> str:
        """x where a condition holds, else y."""
        return self.f.let(f"select i1 {condition}, {self.type} {x}, {self.type} {y}")

    def call(self, name: str, *args: str) -> str:
        """The result of an intrinsic on operands."""
        return self.f.intrinsic(name, self.type, *args)

    def both(self, a: str, b: str) -> str:
        """Whether two conditions hold."""
        return self.f.let(f"and i1 {a}, {b}")

    def either(self, a: str, b: str) -> str:
        """Whether one of two conditions holds, or both."""
        return self.f.let(f"or i1 {a}, {b}")


def apply(
    f: Function, name: str, out: np.dtype, dtypes: Sequence[np.dtype], args: Sequence[str],
    flags: str = "",
) -> str:  # fmt: skip
    """The result of an op on operands; `flags` are fast-math flags of a floating-point op."""
    if name == "convert":
        return convert(f, args[0], dtypes[0], out)
    if name == "where":
        kind = value_type(out)
        return f.let(f"select i1 {args[0]}, {kind} {args[1]}, {kind} {args[2]}")
    site = Site(f, dtypes[0], value_type(dtypes[0]))
    if name == "bitcast":
        return _bitcast(site, args[0], out)
    if name in _COMPARE:
        return _compare(site, name, *args)
    if name in _PLAIN:
        return _plain(site, name, flags, *args)
    if name in _OPS:
        result = _OPS[name](site, *args)
        return _resize(f, result, dtypes[0], out) if name in _COUNTS else result
    if name in MATH:
        return f.math(name, site.type, *args)
    raise AssertionError(f"no scalar op {name}")


# ---- one instruction

# By name: the instruction for floats, integers and bools.
_PLAIN = {
    "add": ("fadd", "add", "or"), "subtract": ("fsub", "sub", "xor"),
    "multiply": ("fmul", "mul", "and"), "divide": ("fdiv", "", ""),
    "bitwise_and": ("", "and", "and"), "bitwise_or": ("", "or", "or"),
    "bitwise_xor": ("", "xor", "xor"),
}  # fmt: skip
_COMPARE = {
    "equal": ("oeq", "eq"), "not_equal": ("une", "ne"), "less": ("olt", "lt"),
    "less_equal": ("ole", "le"), "greater": ("ogt", "gt"), "greater_equal": ("oge", "ge"),
}  # fmt: skip


def _plain(s: Site, name: str, flags: str, a: str, b: str) -> str:
    op = _PLAIN[name][0 if s.is_float else 2 if s.dtype == BOOL else 1]
    assert op, f"{name} of {s.dtype}"
    return s.let(f"{op} {flags}".strip() if s.is_float else op, a, b)


def _compare(s: Site, name: str, a: str, b: str) -> str:
    float_op, op = _COMPARE[name]
    if s.is_float:
        return s.let(f"fcmp {float_op}", a, b)
    sign = "" if op in ("eq", "ne") else "s" if s.signed else "u"
    return s.let(f"icmp {sign}{op}", a, b)


# ---- conversions


def convert(f: Function, x: str, source: np.dtype, to: np.dtype) -> str:
    """numpy's astype; what floats outside an integer's range give is up to the processor."""
    if source == to:
        return x
    if source == BFLOAT16:
        return convert(f, _from_bfloat16(f, x), FLOAT32, to)
    if source == FLOAT16 and to != FLOAT32:
        return convert(f, f.let(f"fpext half {x} to float"), FLOAT32, to)
    old, new = value_type(source), value_type(to)
    if to == BOOL:
        if source in FLOATS:
            return f.let(f"fcmp une {old} {x}, {constant(0, source)}")
        return f.let(f"icmp ne {old} {x}, 0")
    if to == BFLOAT16:
        return _to_bfloat16(f, convert(f, x, source, FLOAT32))
    if source in FLOATS:
        if to in FLOATS:
            return _float_to_float(f, x, source, to)
        return _float_to_integer(f, x, old, to)
    if to in FLOATS:
        if to == FLOAT16:
            return convert(f, convert(f, x, source, FLOAT32), FLOAT32, to)
        return f.let(f"{'sitofp' if source.kind == 'i' else 'uitofp'} {old} {x} to {new}")
    return _resize(f, x, source, to)


def _resize(f: Function, x: str, source: np.dtype, to: np.dtype) -> str:
    old, new = value_type(source), value_type(to)
    before, after = int(old[1:]), int(new[1:])
    if before == after:
        return x
    op = "trunc" if after < before else "sext" if source.kind == "i" else "zext"
    return f.let(f"{op} {old} {x} to {new}")


def _float_to_integer(f: Function, x: str, old: str, to: np.dtype) -> str:
    # Without `freeze` a float out of range would make everything after it undefined.
    wide = to if to.itemsize >= 4 else np.dtype(np.int32)
    op = "fptoui" if wide.kind == "u" else "fptosi"
    value = f.let(f"{op} {old} {x} to {value_type(wide)}")
    return _resize(f, f.let(f"freeze {value_type(wide)} {value}"), wide, to)


def _float_to_float(f: Function, x: str, source: np.dtype, to: np.dtype) -> str:
    old, new = value_type(source), value_type(to)
    if to.itemsize > source.itemsize:
        return f.let(f"fpext {old} {x} to {new}")
    if source == FLOAT64 and to == FLOAT16:
        x, old = _round_to_odd(f, x), "float"
    return f.let(f"fptrunc {old} {x} to {new}")


def _round_to_odd(f: Function, x: str) -> str:
    """double to float such that rounding the result once more is rounding once."""
    near = f.let(f"fptrunc double {x} to float")
    back = f.let(f"fpext float {near} to double")
    inexact = f.let(f"fcmp one double {back}, {x}")
    bits = f.let(f"bitcast float {near} to i32")
    size, back_size = f.intrinsic("fabs", "double", x), f.intrinsic("fabs", "double", back)
    above = f.let(f"fcmp ogt double {back_size}, {size}")
    step = f.let(f"select i1 {above}, i32 -1, i32 0")
    toward_zero = f.let(f"add i32 {bits}, {step}")
    odd = f.let(f"or i32 {toward_zero}, 1")
    chosen = f.let(f"select i1 {inexact}, i32 {odd}, i32 {bits}")
    return f.let(f"bitcast i32 {chosen} to float")


def _from_bfloat16(f: Function, x: str) -> str:
    wide = f.let(f"zext i16 {x} to i32")
    return f.let(f"bitcast i32 {f.let(f'shl i32 {wide}, 16')} to float")


def _to_bfloat16(f: Function, x: str) -> str:
    """Round to nearest even; a NaN stays one."""
    bits = f.let(f"bitcast float {x} to i32")
    odd = f.let(f"and i32 {f.let(f'lshr i32 {bits}, 16')}, 1")
    bias = f.let(f"add i32 {odd}, 32767")
    rounded = f.let(f"add i32 {bits}, {bias}")
    quiet = f.let(f"or i32 {bits}, {64 << 16}")
    is_nan = f.let(f"fcmp uno float {x}, {x}")
    # Shifted last, so that what is made a float again is only masked.
    chosen = f.let(f"select i1 {is_nan}, i32 {quiet}, i32 {rounded}")
    return f.let(f"trunc i32 {f.let(f'lshr i32 {chosen}, 16')} to i16")


def _bitcast(s: Site, x: str, out: np.dtype) -> str:
    if s.dtype == BOOL or out == BOOL:
        return convert(s.f, x, s.dtype, out)
    to = value_type(out)
    return x if to == s.type else s.f.let(f"bitcast {s.type} {x} to {to}")


# ---- sign, order, rounding


def _negative(s: Site, x: str) -> str:
    if s.dtype == BOOL:
        return x
    return s.let("fneg", x) if s.is_float else s.let("sub", "0", x)


def _abs(s: Site, x: str) -> str:
    if s.is_float:
        return s.call("fabs", x)
    if not s.signed:
        return x
    s.f.module.declare(f"llvm.abs.{s.type}", s.type, [s.type, "i1"])
    return s.f.call(f"llvm.abs.{s.type}", s.type, [s.type, "i1"], [x, "false"])


def _sign(s: Site, x: str) -> str:
    zero, one = s.const(0), s.const(1)
    if s.is_float:
        above, below = s.let("fcmp ogt", x, zero), s.let("fcmp olt", x, zero)
        null = s.where(s.let("fcmp oeq", x, zero), zero, x)
        return s.where(above, one, s.where(below, s.const(-1), null))
    if not s.signed:
        return s.where(s.let("icmp ne", x, "0"), one, "0")
    positive = s.where(s.let("icmp sgt", x, "0"), one, "0")
    return s.where(s.let("icmp slt", x, "0"), "-1", positive)


def _extreme(name: str) -> Callable:
    def emit(s: Site, a: str, b: str) -> str:
        if s.is_float:
            return s.call(f"{name}imum", a, b)
        if s.dtype == BOOL:
            return s.let("or" if name == "max" else "and", a, b)
        return s.call(f"{'s' if s.signed else 'u'}{name}", a, b)

    return emit


def _rounding(name: str) -> Callable:
    return lambda s, x: s.call(name, x) if s.is_float else x


def _nextafter(s: Site, x: str, y: str) -> str:
    kind = f"i{s.bits}"
    zero = s.const(0)
    bits = s.f.let(f"bitcast {s.type} {x} to {kind}")
    up = s.let("fcmp olt", x, y)
    positive = s.let("fcmp ogt", x, zero)
    away = s.f.let(f"icmp eq i1 {up}, {positive}")
    step = s.f.let(f"select i1 {away}, {kind} 1, {kind} -1")
    moved = s.f.let(f"bitcast {kind} {s.f.let(f'add {kind} {bits}, {step}')} to {s.type}")
    tiny = s.call("copysign", s.const(np.finfo(s.dtype).smallest_subnormal), y)
    result = s.where(s.let("fcmp oeq", x, zero), tiny, moved)
    result = s.where(s.let("fcmp oeq", x, y), y, result)
    return s.where(s.let("fcmp uno", x, y), s.let("fadd", x, y), result)


# ---- division


def _divisor(s: Site, b: str) -> tuple[str, str, str]:
    """A divisor that can't trap, and whether the real one is 0 and is -1."""
    if _is_plain_divisor(b):
        return b, "false", "false"
    zero = s.let("icmp eq", b, "0")
    minus = s.let("icmp eq", b, "-1") if s.signed else "false"
    return s.where(s.either(zero, minus), "1", b), zero, minus


def _is_plain_divisor(b: str) -> bool:
    return not b.startswith("%") and b not in ("0", "-1")


def _power_of_two(b: str) -> int | None:
    """The k of a divisor 2ᵏ that is a constant. LLVM knows no quotients that are rounded down."""
    n = int(b) if b.isdecimal() else 0
    return n.bit_length() - 1 if n > 0 and n & (n - 1) == 0 else None


def _rest(s: Site, a: str, b: str) -> tuple[str, str]:
    """The truncated remainder, and whether rounding down has to correct it."""
    rest = s.let("srem", a, b)
    opposite = s.let("icmp slt", s.let("xor", rest, b), "0")
    return rest, s.both(opposite, s.let("icmp ne", rest, "0"))


def _floor_divide(s: Site, a: str, b: str) -> str:
    if s.is_float:
        return _float_floor_divide(s, a, b)
    shift = _power_of_two(b)
    if s.signed and shift is not None:
        return s.let("ashr", a, str(shift))
    safe, zero, minus = _divisor(s, b)
    if s.signed:
        _, low = _rest(s, a, safe)
        quotient = s.let("sdiv", a, safe)
        quotient = s.where(low, s.let("sub", quotient, "1"), quotient)
        quotient = s.where(minus, s.let("sub", "0", a), quotient)
    else:
        quotient = s.let("udiv", a, safe)
    return s.where(zero, "0", quotient)


def _remainder(s: Site, a: str, b: str) -> str:
    if s.is_float:
        return _float_remainder(s, a, b)
    if s.signed and _power_of_two(b) is not None:
        return s.let("and", a, str(int(b) - 1))
    safe, zero, _ = _divisor(s, b)
    if s.signed:
        rest, low = _rest(s, a, safe)
        rest = s.where(low, s.let("add", rest, safe), rest)
    else:
        rest = s.let("urem", a, safe)
    return s.where(zero, "0", rest)


def _fmod(s: Site, a: str, b: str) -> str:
    if s.is_float:
        return s.let("frem", a, b)
    safe, zero, _ = _divisor(s, b)
    return s.where(zero, "0", s.let("srem" if s.signed else "urem", a, safe))


def _float_parts(s: Site, a: str, b: str) -> tuple[str, str, str]:
    """fmod, whether it is not zero, and whether its sign is not the divisor's as well."""
    rest, zero = s.let("frem", a, b), s.const(0)
    some = s.let("fcmp une", rest, zero)
    differ = s.f.let(f"xor i1 {s.let('fcmp olt', rest, zero)}, {s.let('fcmp olt', b, zero)}")
    return rest, some, s.both(some, differ)


def _float_remainder(s: Site, a: str, b: str) -> str:
    rest, some, low = _float_parts(s, a, b)
    fixed = s.where(low, s.let("fadd", rest, b), rest)
    by_zero = s.let("fcmp oeq", b, s.const(0))
    return s.where(s.either(some, by_zero), fixed, s.call("copysign", s.const(0), b))


def _float_floor_divide(s: Site, a: str, b: str) -> str:
    rest, _, low = _float_parts(s, a, b)
    zero, one = s.const(0), s.const(1)
    quotient = s.let("fdiv", s.let("fsub", a, rest), b)
    quotient = s.where(low, s.let("fsub", quotient, one), quotient)
    floor = s.call("floor", quotient)
    short = s.let("fcmp ogt", s.let("fsub", quotient, floor), s.const(0.5))
    floor = s.where(short, s.let("fadd", floor, one), floor)
    plain = s.let("fdiv", a, b)
    null = s.call("copysign", zero, plain)
    result = s.where(s.let("fcmp une", quotient, zero), floor, null)
    return s.where(s.let("fcmp oeq", b, zero), plain, result)


def _power(s: Site, a: str, b: str) -> str:
    if s.is_float:
        return s.f.math("power", s.type, a, b)
    symbol = f"fg.power.{s.type}"
    s.f.module.needed.setdefault(symbol, _INTEGER_POWER.replace("T", s.type))
    return s.f.call(symbol, s.type, [s.type] * 2, [a, b])


_INTEGER_POWER = """define internal T @fg.power.T(T %x, T %n) nounwind {
entry:
  br label %test
test:
  %base = phi T [%x, %entry], [%square, %turn]
  %rest = phi T [%n, %entry], [%half, %turn]
  %total = phi T [1, %entry], [%next, %turn]
  %more = icmp ne T %rest, 0
  br i1 %more, label %turn, label %done
turn:
  %bit = and T %rest, 1
  %odd = icmp ne T %bit, 0
  %product = mul T %total, %base
  %next = select i1 %odd, T %product, T %total
  %square = mul T %base, %base
  %half = lshr T %rest, 1
  br label %test
done:
  ret T %total
}"""


# ---- bits


def _invert(s: Site, x: str) -> str:
    return s.let("xor", x, "true" if s.dtype == BOOL else "-1")


def _shift(op: str) -> Callable:
    def emit(s: Site, x: str, n: str) -> str:
        inside = s.let("icmp ult", n, str(s.bits))
        if op == "right" and s.signed:
            return s.let("ashr", x, s.where(inside, n, str(s.bits - 1)))
        shifted = s.let("shl" if op == "left" else "lshr", x, s.where(inside, n, "0"))
        return s.where(inside, shifted, "0")

    return emit


def _count_leading_zeros(s: Site, x: str) -> str:
    name = f"llvm.ctlz.{s.type}"
    s.f.module.declare(name, s.type, [s.type, "i1"])
    return s.f.call(name, s.type, [s.type, "i1"], [x, "false"])


def _is_negative(s: Site, x: str) -> str:
    bits = s.f.let(f"bitcast {s.type} {x} to i{s.bits}") if s.is_float else x
    return s.f.let(f"icmp slt i{s.bits} {bits}, 0")


def _against_infinity(compare: str) -> Callable:
    return lambda s, x: s.let(f"fcmp {compare}", s.call("fabs", x), s.const(np.inf))


# ---- compositions


def _logaddexp(s: Site, x: str, y: str) -> str:
    gap = s.call("fabs", s.let("fsub", x, y))
    tail = s.f.math("log1p", s.type, s.f.math("exp", s.type, s.let("fneg", gap)))
    top = s.call("maximum", x, y)
    # Of two equal infinities the gap is NaN, which the sum must not be.
    tail = s.where(s.let("fcmp oeq", x, y), s.const(np.log(2.0)), tail)
    return s.let("fadd", top, tail)


_OPS: dict[str, Callable[..., str]] = {
    "negative": _negative,
    "abs": _abs,
    "sign": _sign,
    "maximum": _extreme("max"),
    "minimum": _extreme("min"),
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "rint": _rounding("rint"),
    "trunc": _rounding("trunc"),
    "sqrt": lambda s, x: s.call("sqrt", x),
    "copysign": lambda s, x, y: s.call("copysign", x, y),
    "nextafter": _nextafter,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "power": _power,
    "invert": _invert,
    "left_shift": _shift("left"),
    "right_shift": _shift("right"),
    "bitwise_count": lambda s, x: s.call("ctpop", x),
    "count_leading_zeros": _count_leading_zeros,
    "isnan": lambda s, x: s.let("fcmp uno", x, x),
    "isinf": _against_infinity("oeq"),
    "isfinite": _against_infinity("olt"),
    "signbit": _is_negative,
    "logaddexp": _logaddexp,
}
_COUNTS = ("bitwise_count", "count_leading_zeros")
