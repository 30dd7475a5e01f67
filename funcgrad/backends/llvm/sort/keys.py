"""Numbers as unsigned integers that sort as they do, in generated code.

The rank of a float has its bits, all of them turned over if it is negative and the sign alone if it
isn't; NaN has the highest rank of all. Ranks are words of 32 bits, or 64 for dtypes of 8 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, Code, of_shape
from funcgrad.core.record import Record

# The bits of infinity: greater ones, the sign left out, are NaN.
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}
NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", *_INFINITY,
)  # fmt: skip


class Keys(Record):
    """How numbers of a dtype (one of `NAMES`) become ranks."""

    name: str

    @property
    def bits(self) -> int:
        """The width of a number in memory."""
        sizes = {"bool": 8, "bfloat16": 16}
        return sizes.get(self.name) or 8 * np.dtype(self.name).itemsize

    @property
    def floats(self) -> bool:
        """Whether numbers are floats, which have NaN and two zeros."""
        return self.name in _INFINITY

    @property
    def storage(self) -> ir.IntType:
        """The integer type of a number's bits."""
        return ir.IntType(self.bits)

    @property
    def word(self) -> ir.IntType:
        """The integer type of a rank."""
        return I64 if self.bits == 64 else I32

    def rank(self, code: Code, x: ir.Value, one_zero: bool = True) -> ir.Value:
        """The rank of numbers' bits, a scalar or a vector; without `one_zero`, -0.0 is less than
        0.0."""
        b, sign = code.b, like(x, 1 << self.bits - 1)
        if self.floats:
            if one_zero:
                x = b.select(b.icmp_unsigned("==", x, sign), like(x, 0), x)
            rest = b.and_(x, like(x, (1 << self.bits - 1) - 1))
            nan = b.icmp_unsigned(">", rest, like(x, _INFINITY[self.name]))
            turned = b.or_(b.ashr(x, like(x, self.bits - 1)), sign)
            x = b.select(nan, like(x, (1 << self.bits) - 1), b.xor(x, turned))
        elif self.name.startswith("int"):
            x = b.xor(x, sign)
        return x if self.bits >= 32 else b.zext(x, of_shape(x, I32))

    def unrank(self, code: Code, word: ir.Value) -> ir.Value:
        """The bits of the number of a rank."""
        b = code.b
        x = word if self.bits >= 32 else b.trunc(word, of_shape(word, self.storage))
        sign = like(x, 1 << self.bits - 1)
        if self.floats:
            # Ranks from the sign bit on are of numbers that aren't negative.
            turned = b.or_(b.xor(b.ashr(x, like(x, self.bits - 1)), like(x, -1)), sign)
            return b.xor(x, turned)
        return b.xor(x, sign) if self.name.startswith("int") else x


def like(x: ir.Value, value: int) -> ir.Constant:
    """A constant of the type of x, in each lane of a vector."""
    lane = x.type.element if isinstance(x.type, ir.VectorType) else x.type
    assert isinstance(lane, ir.IntType), lane
    value &= (1 << lane.width) - 1
    if isinstance(x.type, ir.VectorType):
        return ir.Constant(x.type, [value] * x.type.count)
    return ir.Constant(x.type, value)


def keys_of(dtype: Any) -> Keys | None:
    """The keys of a dtype, if it has some."""
    return Keys(dtype.name) if dtype.name in NAMES else None
