"""Bits: shifts and counts of integers, and floats read as integers and back.

ONNX has no bitcast that runtimes implement: a float's bits are computed by arithmetic that is
exact, with tables of the powers of two. NaN becomes the one that NumPy makes.
"""

from __future__ import annotations

import numpy as np

from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable
from funcgrad.export.onnx.kernels import BOOL, F4, F8, I8

# Exponent and mantissa bits.
LAYOUTS = {np.dtype("f2"): (5, 10), F4: (8, 23), F8: (11, 52)}


def _unsigned(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


def _shift(g: Graph, x: Tensor, by: Tensor, direction: str) -> Tensor:
    """A shift of unsigned integers; those by the width or more give zero."""
    width = 8 * x.dtype.itemsize
    shifted = g.elementwise("BitShift", x, by, direction=direction)
    if by.constant is not None and by.constant.ndim == 0 and by.constant < width:
        return shifted
    far = g.compare("GreaterOrEqual", by, g.constant(width, by.dtype))
    return g.where(far, g.constant(0, x.dtype), shifted)


def left_shift(g: Graph, x: Tensor, by: Tensor) -> Tensor:
    """x · 2**by, of the bits that there are."""
    kind = _unsigned(x.dtype)
    return g.cast(_shift(g, g.cast(x, kind), g.cast(by, kind), "LEFT"), x.dtype)


def right_shift(g: Graph, x: Tensor, by: Tensor) -> Tensor:
    """x / 2**by, rounded down."""
    kind = _unsigned(x.dtype)
    if x.dtype == kind:
        return _shift(g, x, by, "RIGHT")
    # Of a negative number all zeros are shifted in where there were ones: by its complement.
    negative = g.compare("Less", x, g.constant(0, x.dtype))
    positive = g.where(negative, g.elementwise("BitwiseNot", x), x)
    moved = g.cast(_shift(g, g.cast(positive, kind), g.cast(by, kind), "RIGHT"), x.dtype)
    return g.where(negative, g.elementwise("BitwiseNot", moved), moved)


def bitwise_count(g: Graph, x: Tensor) -> Tensor:
    """The number of ones of |x|, as uint8."""
    size = g.elementwise("Abs", x) if x.dtype.kind == "i" else x
    ones = _ones(g, g.cast(g.cast(size, _unsigned(x.dtype)), np.dtype("u8")))
    return g.cast(ones, np.dtype("u1"))


def _ones(g: Graph, x: Tensor) -> Tensor:
    """The number of ones of uint64: sums of neighbouring bits, pairs, nibbles, bytes."""

    def c(value: int) -> Tensor:
        return g.constant(value, x.dtype)

    def shifted(v: Tensor, n: int) -> Tensor:
        return g.elementwise("BitShift", v, c(n), direction="RIGHT")

    def masked(v: Tensor, mask: int) -> Tensor:
        return g.elementwise("BitwiseAnd", v, c(mask))

    pairs = 0x5555555555555555
    x = g.elementwise("Sub", x, masked(shifted(x, 1), pairs))
    fours = 0x3333333333333333
    x = g.elementwise("Add", masked(x, fours), masked(shifted(x, 2), fours))
    x = masked(g.elementwise("Add", x, shifted(x, 4)), 0x0F0F0F0F0F0F0F0F)
    for n in (8, 16, 32):
        x = g.elementwise("Add", x, shifted(x, n))
    return masked(x, 0x7F)


def count_leading_zeros(g: Graph, x: Tensor) -> Tensor:
    """The number of zeros before the first one."""
    kind = _unsigned(x.dtype)
    wide = g.cast(g.cast(x, kind), np.dtype("u8"))
    for n in (1, 2, 4, 8, 16, 32):
        by = g.constant(n, wide.dtype)
        moved = g.elementwise("BitShift", wide, by, direction="RIGHT")
        wide = g.elementwise("BitwiseOr", wide, moved)
    width = g.constant(8 * kind.itemsize, wide.dtype)
    return g.cast(g.elementwise("Sub", width, _ones(g, wide)), x.dtype)


# ---- floats as integers


def bitcast(g: Graph, x: Tensor, dtype: np.dtype) -> Tensor:
    """The same bits as another type of the same width."""
    if x.dtype.kind in "iu" and dtype.kind in "iu":
        return g.cast(x, dtype)
    if x.dtype.kind == "f" and dtype.kind in "iu" and x.dtype in LAYOUTS:
        return g.cast(_bits(g, x), dtype)
    if x.dtype.kind in "iu" and dtype in LAYOUTS:
        return _float(g, g.cast(x, _unsigned(dtype)), dtype)
    raise Untranslatable(f"no bitcast of {x.dtype} to {dtype}")


def _float(g: Graph, bits: Tensor, dtype: np.dtype) -> Tensor:
    """The float that has these bits: its mantissa times a power of two from a table."""
    exponent_bits, mantissa_bits = LAYOUTS[dtype]
    top = (1 << exponent_bits) - 1
    wide = F8 if dtype == F8 else F4

    def c(value: int) -> Tensor:
        return g.constant(value, bits.dtype)

    exponent = g.elementwise(
        "BitwiseAnd", _shift(g, bits, c(mantissa_bits), "RIGHT"), c(top)
    )  # fmt: skip
    mantissa = g.elementwise("BitwiseAnd", bits, c((1 << mantissa_bits) - 1))
    least = 2 - (1 << (exponent_bits - 1)) - mantissa_bits
    powers = np.ldexp(np.ones(top + 1, wide), least + np.maximum(np.arange(top + 1), 1) - 1)
    powers[top] = 1
    normal = g.compare("Greater", exponent, c(0))
    whole = g.elementwise("Add", mantissa, g.where(normal, c(1 << mantissa_bits), c(0)))
    index = g.cast(exponent, I8)
    power = g.op("Gather", g.constant(powers), index, shape=index.shape, data=[0])
    size = g.elementwise("Mul", g.cast(g.cast(whole, I8), wide), power)
    nothing = g.compare("Equal", mantissa, c(0))
    special = g.where(nothing, g.constant(np.inf, wide), g.constant(np.nan, wide))
    size = g.where(g.compare("Equal", exponent, c(top)), special, size)
    sign = _shift(g, bits, c(exponent_bits + mantissa_bits), "RIGHT")
    negative = g.compare("Equal", sign, c(1))
    return g.cast(g.where(negative, g.elementwise("Neg", size), size), dtype)


def _bits(g: Graph, x: Tensor) -> Tensor:
    """The bits of a float: its exponent from a logarithm, corrected; then what is left of it."""
    exponent_bits, mantissa_bits = LAYOUTS[x.dtype]
    kind = _unsigned(x.dtype)
    least = 2 - (1 << (exponent_bits - 1))
    wide = g.cast(x, F8)
    size = g.elementwise("Abs", wide)
    zero = g.compare("Equal", wide, g.constant(0, F8))
    nan, inf = g.elementwise("IsNaN", wide, dtype=BOOL), g.elementwise("IsInf", wide, dtype=BOOL)
    edge = g.elementwise("Or", g.elementwise("Or", zero, nan), inf)
    size = g.where(edge, g.constant(1, F8), size)
    e = g.elementwise("Mul", g.elementwise("Log", size), g.constant(1 / np.log(2), F8))
    e = g.cast(g.elementwise("Floor", e), I8)
    low, high = -1074, 1023
    powers = g.constant(np.ldexp(1.0, np.arange(low, high + 1)))

    def power(n: Tensor) -> Tensor:
        place = g.elementwise("Sub", n, g.constant(low, I8))
        place = g.elementwise("Max", place, g.constant(0, I8))
        place = g.elementwise("Min", place, g.constant(high - low, I8))
        return g.op("Gather", powers, place, shape=place.shape, data=[0])

    above = g.compare("Less", size, power(e))
    e = g.elementwise("Sub", e, g.cast(above, I8))
    e1 = g.elementwise("Add", e, g.constant(1, I8))
    reached = g.elementwise(
        "And", g.compare("GreaterOrEqual", size, power(e1)),
        g.compare("Less", e, g.constant(high, I8)),
    )  # fmt: skip
    e = g.where(reached, e1, e)
    e = g.elementwise("Max", e, g.constant(least - 1, I8))
    denormal = g.compare("Less", e, g.constant(least, I8))
    unit = power(g.elementwise("Max", e, g.constant(least, I8)))
    # In two factors, as 2**1074 is none.
    scaled = g.elementwise(
        "Mul", g.elementwise("Div", size, unit), g.constant(2.0**mantissa_bits, F8)
    )
    mantissa = g.cast(scaled, I8)
    one = g.constant(1 << mantissa_bits, I8)
    field = g.elementwise("Sub", e, g.constant(least, I8))
    # The mantissa's leading one adds one to the exponent's field.
    made = g.elementwise("Add", g.elementwise("Mul", field, one), mantissa)
    made = g.where(denormal, mantissa, made)
    top = ((1 << exponent_bits) - 1) << mantissa_bits
    made = g.where(zero, g.constant(0, I8), made)
    made = g.where(inf, g.constant(top, I8), made)
    made = g.where(nan, g.constant(top | (1 << (mantissa_bits - 1)), I8), made)
    whole = g.cast(made, kind)
    reciprocal = g.elementwise("Div", g.constant(1, F8), wide)
    negative = g.elementwise(
        "Or", g.compare("Less", wide, g.constant(0, F8)),
        g.compare("Less", reciprocal, g.constant(0, F8)),
    )  # fmt: skip
    sign = g.constant(1 << (exponent_bits + mantissa_bits), kind)
    return g.where(negative, g.elementwise("Add", whole, sign), whole)


def nextafter(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """The float next to x, towards y."""
    kind = np.dtype(f"i{x.dtype.itemsize}")
    own = bitcast(g, x, kind)
    zero, one = g.constant(0, x.dtype), g.constant(1, kind)
    away = g.elementwise(
        "Xor", g.compare("Less", x, y), g.compare("Less", x, zero)
    )  # fmt: skip
    moved = g.elementwise("Add", own, g.where(away, one, g.constant(-1, kind)))
    tiny = g.constant(np.nextafter(x.dtype.type(0), x.dtype.type(1)), x.dtype)
    least = g.where(g.compare("Less", y, zero), g.elementwise("Neg", tiny), tiny)
    found = g.where(g.compare("Equal", x, zero), least, bitcast(g, moved, x.dtype))
    found = g.where(g.compare("Equal", x, y), y, found)
    nan = g.elementwise("Add", x, y)
    return g.where(g.elementwise("IsNaN", nan, dtype=BOOL), nan, found)
