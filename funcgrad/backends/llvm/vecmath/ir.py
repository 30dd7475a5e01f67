"""Values with Python operators over an IRBuilder: the notation the vector math is written in.

A `Num` is a scalar LLVM value (float, double, an integer, or a condition). Operators emit one
plain IEEE instruction each, without fast-math flags; contraction is asked for by `fma`. Everything
here is straight-line and has a vector form, so that LLVM's loop vectorizer turns a loop around it
into full-width code.
"""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder

F32, F64 = ir.FloatType(), ir.DoubleType()
I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)


class Num:
    """A scalar LLVM value; `+ - * /`, comparisons (ordered) and bit operators emit instructions."""

    __slots__ = ("b", "v")

    def __init__(self, builder: IRBuilder, value: ir.Value) -> None:
        self.b = builder
        self.v = value

    @property
    def type(self) -> ir.Type:
        """LLVM's type of the value."""
        return self.v.type

    @property
    def is_float(self) -> bool:
        """Whether it is a float or a double."""
        return isinstance(self.v.type, (ir.FloatType, ir.DoubleType))

    @property
    def width(self) -> int:
        """Bits of the element: 32 or 64."""
        return 32 if self.type in (F32, I32) else 64

    def const(self, c: float | int) -> Num:
        """The constant `c` in this value's type."""
        if isinstance(self.type, ir.IntType):
            half, full = 1 << (self.type.width - 1), 1 << self.type.width
            return Num(self.b, ir.Constant(self.type, (int(c) + half) % full - half))
        return Num(self.b, ir.Constant(self.type, float(c)))

    def _arith(self, other: Num | float, f: str, i: str | None, swap: bool = False) -> Num:
        o = other if isinstance(other, Num) else self.const(other)
        left, right = (o, self) if swap else (self, o)
        op = f if self.is_float else i
        assert left.type == right.type, (f, str(left.type), str(right.type))
        return Num(self.b, getattr(self.b, str(op))(left.v, right.v))

    def __add__(self, o: Num | float) -> Num:
        return self._arith(o, "fadd", "add")

    def __radd__(self, o: float) -> Num:
        return self._arith(o, "fadd", "add", swap=True)

    def __sub__(self, o: Num | float) -> Num:
        return self._arith(o, "fsub", "sub")

    def __rsub__(self, o: float) -> Num:
        return self._arith(o, "fsub", "sub", swap=True)

    def __mul__(self, o: Num | float) -> Num:
        return self._arith(o, "fmul", "mul")

    __rmul__ = __mul__

    def __truediv__(self, o: Num | float) -> Num:
        return self._arith(o, "fdiv", None)

    def __rtruediv__(self, o: float) -> Num:
        return self._arith(o, "fdiv", None, swap=True)

    def __neg__(self) -> Num:
        return Num(self.b, self.b.fneg(self.v)) if self.is_float else 0 - self

    def __and__(self, o: Num | int) -> Num:
        return self._arith(o, "and_", "and_")

    def __or__(self, o: Num | int) -> Num:
        return self._arith(o, "or_", "or_")

    def __xor__(self, o: Num | int) -> Num:
        return self._arith(o, "xor", "xor")

    def __invert__(self) -> Num:
        return Num(self.b, self.b.not_(self.v))

    def __lshift__(self, o: int) -> Num:
        return self._arith(o, "shl", "shl")

    def __rshift__(self, o: int) -> Num:
        """An arithmetic shift; `lshr` is the logical one."""
        return self._arith(o, "ashr", "ashr")

    def lshr(self, o: int) -> Num:
        """A logical shift to the right."""
        return self._arith(o, "lshr", "lshr")

    def _compare(self, op: str, other: Num | float) -> Num:
        o = other if isinstance(other, Num) else self.const(other)
        if self.is_float:
            emit = self.b.fcmp_unordered if op == "!=" else self.b.fcmp_ordered
            return Num(self.b, emit(op, self.v, o.v))
        return Num(self.b, self.b.icmp_signed(op, self.v, o.v))

    def __lt__(self, o: Num | float) -> Num:
        return self._compare("<", o)

    def __le__(self, o: Num | float) -> Num:
        return self._compare("<=", o)

    def __gt__(self, o: Num | float) -> Num:
        return self._compare(">", o)

    def __ge__(self, o: Num | float) -> Num:
        return self._compare(">=", o)

    def eq(self, o: Num | float) -> Num:
        """Equal and ordered, as Python's `==`."""
        return self._compare("==", o)

    def ne(self, o: Num | float) -> Num:
        """Unequal or unordered, as Python's `!=`."""
        return self._compare("!=", o)

    def bits(self) -> Num:
        """A float's bits as an integer, an integer's bits as a float."""
        to = {F32: I32, F64: I64, I32: F32, I64: F64}[self.type]
        return Num(self.b, self.b.bitcast(self.v, to))

    def to_float(self) -> Num:
        """An integer rounded to the float of its width."""
        return Num(self.b, self.b.sitofp(self.v, F32 if self.width == 32 else F64))

    def to_int(self) -> Num:
        """A float truncated to the integer of its width; it must fit."""
        return Num(self.b, self.b.fptosi(self.v, I32 if self.width == 32 else I64))

    def widen(self) -> Num:
        """float to double, i32 to i64."""
        if self.is_float:
            return Num(self.b, self.b.fpext(self.v, F64))
        return Num(self.b, self.b.sext(self.v, I64))

    def narrow(self) -> Num:
        """double to float (rounded), i64 to i32 (low bits)."""
        if self.is_float:
            return Num(self.b, self.b.fptrunc(self.v, F32))
        return Num(self.b, self.b.trunc(self.v, I32))


def intrinsic(name: str, *args: Num) -> Num:
    """A call of an LLVM intrinsic overloaded on one type, such as "sqrt"."""
    x = args[0]
    fn = x.b.module.intrinsic(name, x.type, [x.type] * len(args))
    return Num(x.b, x.b.call(fn, [a.v for a in args]))


def _like(ref: Num, x: Num | float) -> Num:
    return x if isinstance(x, Num) else ref.const(x)


def fma(a: Num, b: Num | float, c: Num | float) -> Num:
    """a·b + c, rounded once."""
    return intrinsic("fma", a, _like(a, b), _like(a, c))


def sqrt(x: Num) -> Num:
    """The square root, correctly rounded."""
    return intrinsic("sqrt", x)


def fabs(x: Num) -> Num:
    """|x|: x without its sign bit."""
    return intrinsic("fabs", x)


def floor(x: Num) -> Num:
    """The greatest integer that is no greater."""
    return intrinsic("floor", x)


def rint(x: Num) -> Num:
    """The nearest integer, ties to even."""
    return intrinsic("rint", x)


def trunc(x: Num) -> Num:
    """The integer next to it towards zero."""
    return intrinsic("trunc", x)


def copysign(x: Num, sign: Num) -> Num:
    """The magnitude of x with the sign bit of another number."""
    return intrinsic("copysign", x, sign)


def where(cond: Num, a: Num | float, b: Num | float) -> Num:
    """`a` where `cond` holds, else `b`; at least one of them is a Num."""
    ref = a if isinstance(a, Num) else b
    assert isinstance(ref, Num)
    return Num(cond.b, cond.b.select(cond.v, _like(ref, a).v, _like(ref, b).v))


def at_most(x: Num, hi: float | Num) -> Num:
    """min(x, hi), where a NaN in `x` stays one (one vector instruction)."""
    h = _like(x, hi)
    return where(h < x, h, x)


def at_least(x: Num, lo: float | Num) -> Num:
    """max(x, lo), where a NaN in `x` stays one."""
    low = _like(x, lo)
    return where(low > x, low, x)


def horner(x: Num, coeffs: Sequence[float]) -> Num:
    """Σ coeffs[i]·xⁱ, by one chain of fma."""
    acc = x.const(coeffs[-1])
    for c in reversed(coeffs[:-1]):
        acc = fma(acc, x, c)
    return acc


def poly(x: Num, coeffs: Sequence[float]) -> Num:
    """Σ coeffs[i]·xⁱ: Horner's last two steps, for accuracy, over even + x·odd, a shorter chain."""
    if len(coeffs) < 7:
        return horner(x, coeffs)
    s, tail = x * x, coeffs[2:]
    q = fma(horner(s, tail[1::2]), x, horner(s, tail[0::2]))
    return fma(fma(q, x, coeffs[1]), x, coeffs[0])


class Layout:
    """The bit layout of an IEEE format, and the constants of exponent arithmetic in it."""

    def __init__(self, mantissa: int, bias: int) -> None:
        self.mantissa = mantissa
        self.bias = bias
        self.one = bias << mantissa
        self.exponent_mask = -1 << mantissa
        self.infinity = ((2 * bias) + 1) << mantissa
        # Adding `magic` rounds to an integer, which then sits in the sum's low bits.
        self.magic = 1.5 * 2.0**mantissa
        self.min_normal = 2.0 ** (1 - bias)


LAYOUT = {32: Layout(23, 127), 64: Layout(52, 1023)}

# ln 2 in two parts; the first has trailing zeros, so that an exponent times it is exact.
LN2_PARTS = {
    32: (0.693145751953125, 1.428606765330187e-06),
    64: (0.6931471805598903, 5.497923018708371e-14),
}


def nearest(x: Num, scale: float, offset: int = 0) -> tuple[Num, Num]:
    """k = round(x·scale) as a float, and an integer with k + offset in its low bits; |k| < 2^20, of
    doubles 2^50."""
    magic = LAYOUT[x.width].magic + offset
    t = fma(x, scale, magic) if scale != 1.0 else x + magic
    return t - magic, t.bits()


def power_of_two(k: Num) -> Num:
    """2^j, from an integer whose low bits hold j + bias (exponents of normal numbers only)."""
    return (k << LAYOUT[k.width].mantissa).bits()


def two_sum(a: Num, b: Num) -> tuple[Num, Num]:
    """a + b as a rounded sum and its exact error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fast_two_sum(a: Num, b: Num) -> tuple[Num, Num]:
    """`two_sum` where |a| ≥ |b| or a = 0 (Dekker)."""
    s = a + b
    return s, b - (s - a)


def two_product(a: Num, b: Num | float) -> tuple[Num, Num]:
    """a·b as a rounded product and its exact error."""
    p = a * b
    return p, fma(a, b, -p)


def lookup(index: Num, symbol: str, values: Sequence[float]) -> Num:
    """values[index], doubles in a constant array of the module (a gather, once vectorized)."""
    module = index.b.module
    if symbol not in module.globals:
        array = ir.ArrayType(F64, len(values))
        table = ir.GlobalVariable(module, array, symbol)
        table.initializer = ir.Constant(array, [ir.Constant(F64, v) for v in values])
        table.global_constant = True
        table.linkage = "internal"
    table = module.globals[symbol]
    address = index.b.gep(table, [I64(0), index.v], table.value_type, inbounds=True)
    return Num(index.b, index.b.load(address, F64))


def libm(name: str, *args: Num) -> Num:
    """A call of the C library's function of doubles: correct, but scalar."""
    module = args[0].b.module
    fn = module.globals.get(name)
    if fn is None:
        fn = ir.Function(module, ir.FunctionType(F64, [F64] * len(args)), name)
        fn.attributes.add("nounwind")
    return Num(args[0].b, args[0].b.call(fn, [a.v for a in args]))
