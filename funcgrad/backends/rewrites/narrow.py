"""Floats of 8 bits and integers of 4, which loops know as bytes.

A cast is one operation of elements (`cast_p`), which fuses with what is near; what only moves
elements moves bytes. In between arrays have their dtypes: `memory_p` is an array's memory as
another dtype, and costs nothing. A float of 8 bits becomes float32 as its exponent and mantissa,
moved to float32's places, are scaled by a power of two; a float32 is rounded to nearest even by
integers' sums, what is below the normal numbers by a float's. Each has ml_dtypes' bits, signs of
NaN aside.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from funcgrad import dtypes
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal

BYTE, INT32, FLOAT32 = map(np.dtype, (np.uint8, np.int32, np.float32))
INTEGERS = (np.dtype(dtypes.int4), np.dtype(dtypes.uint4))
NARROW = frozenset((*dtypes.FLOAT8, *INTEGERS))
_INFINITY, _MANTISSA, _BIAS = 0x7F800000, 23, 127


# ---- programs


def _cast_abstract(x: ShapedArray, *, source: np.dtype, to: np.dtype) -> ShapedArray:
    return ShapedArray(x.shape, held(to))


def _cast_impl(xp: Any, x: Any, *, source: np.dtype, to: np.dtype) -> Any:
    return stored(xp, loaded(xp, x, source), to)


# From bytes that hold `source`, or to such that hold `to`.
cast_p = lowered("cast", _cast_abstract, _cast_impl, elementwise=True)
memory_p = lowered(
    "memory",
    lambda x, *, dtype: ShapedArray(x.shape, dtype),
    lambda xp, x, *, dtype: x.view(dtype),
)


def cast(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A `convert_element_type` of which one side is narrow; None for others."""
    return converted(flat, ins[0], eqn.outs[0].aval.dtype)


def converted(flat: Equations, x: Atom, to: np.dtype) -> Atom | None:
    """x in a dtype, if one of both is narrow and loops know the other.

    >>> from funcgrad.core.ir import Var
    >>> flat = Equations()
    >>> x = Var(ShapedArray((2,), dtypes.float8_e5m2))
    >>> converted(flat, x, np.dtype("f4")).aval, [e.prim.name for e in flat.eqns]
    (f32[2], ['memory', 'cast'])
    """
    source = x.aval.dtype
    if not NARROW & {source, to} or not {source, to} <= NARROW | LOOP_DTYPES:
        return None
    return of_bytes(flat, flat.add(cast_p, [bytes_of(flat, x)], source=source, to=to), to)


def moved(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """What only moves elements, or chooses some, of narrow ones; None for others."""
    (out,) = eqn.outs
    if out.aval.dtype not in NARROW:
        return None
    return of_bytes(flat, flat.again(eqn, [bytes_of(flat, x) for x in ins]), out.aval.dtype)


def reshaped(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom:
    """A reshape."""
    x = flat.reshape(bytes_of(flat, ins[0]), eqn.outs[0].aval.shape)
    return of_bytes(flat, x, eqn.outs[0].aval.dtype)


def bytes_of(flat: Equations, x: Atom) -> Atom:
    """The bytes of an array, if it is narrow."""
    if x.aval.dtype not in NARROW:
        return x
    if type(x) is Literal:
        return Literal(x.value.view(BYTE), ShapedArray((), BYTE))
    if x not in flat.bytes:
        flat.bytes[x] = flat.add(memory_p, [x], dtype=BYTE)
    return flat.bytes[x]


def of_bytes(flat: Equations, x: Atom, dtype: np.dtype) -> Atom:
    """The array of a dtype, if it is narrow, that bytes are."""
    if dtype not in NARROW:
        return x
    out = flat.add(memory_p, [x], dtype=dtype)
    flat.bytes[out] = x
    return out


# ---- elements


def held(dtype: np.dtype) -> np.dtype:
    """The dtype of a kernel's parameter for an array of a dtype."""
    return BYTE if dtype in NARROW else dtype


def loaded(xp: Any, x: Any, dtype: np.dtype) -> Any:
    """What an element of a dtype is worth, as float32 or an int32 if it is narrow.

    >>> loaded(np, np.uint8(0x38), np.dtype(dtypes.float8_e4m3fn))
    np.float32(1.0)
    """
    if dtype not in NARROW:
        return x
    code = x.astype(INT32)
    if dtype in INTEGERS:
        code = code & 15
        return code if dtype == dtypes.uint4 else (code ^ 8) - 8
    f = _Format(dtype)
    size = code & 0x7F
    scale = np.float32(2.0 ** (_BIAS - f.bias))
    bits = ((size << (_MANTISSA - f.mantissa)).view(FLOAT32) * scale).view(INT32)
    if f.infinity:
        bits = xp.where(size >= f.infinity, bits | _INFINITY, bits)
        bits = xp.where(size == f.infinity, np.int32(_INFINITY), bits)
        unknown = size > f.infinity
    else:
        unknown = code == f.nan if f.unsigned_zero else size == f.nan
    bits = xp.where(unknown, np.int32(_INFINITY | 1 << 22), bits)
    return (bits | ((code & 0x80) << 24)).view(FLOAT32)


def stored(xp: Any, x: Any, dtype: np.dtype) -> Any:
    """The byte that holds a number in a narrow dtype, rounded to it; itself in another dtype.

    >>> hex(stored(np, np.float32(-1.06), np.dtype(dtypes.float8_e4m3fn)))
    '0xb8'
    """
    if dtype not in NARROW:
        return _wide(xp, x, dtype)
    if dtype in INTEGERS:
        return _integer(xp, x, dtype)
    f = _Format(dtype)
    bits = x.astype(FLOAT32).view(INT32)  # doubles round twice, as ml_dtypes'
    size = bits & 0x7FFFFFFF
    shift = _MANTISSA - f.mantissa
    # Below the normal numbers a float's own sum rounds: its last bit is worth the least number.
    magic = np.float32(2.0 ** (f.least - f.mantissa + _MANTISSA))
    small = (size.view(FLOAT32) + magic).view(INT32) - magic.view(INT32)
    even = size + (((size >> shift) & 1) + ((1 << (shift - 1)) - 1))
    large = (even >> shift) - ((_BIAS - f.bias) << f.mantissa)
    code = xp.where(size < np.float32(2.0**f.least).view(INT32), small, large)
    code = xp.where(code > f.largest, np.int32(f.infinity or f.nan), code)
    code = xp.where(size >= _INFINITY, np.int32(f.infinity or f.nan), code)
    code = xp.where(size > _INFINITY, np.int32(f.nan), code)
    sign = (bits >> 24) & 0x80
    if f.unsigned_zero:
        sign = xp.where(code == 0, np.int32(0), sign)
    return (code | sign).astype(BYTE)


class _Format:
    """A float of 8 bits: its widths, the codes of its special values without their sign.

    least: the exponent of the least normal number; largest: the code of the largest finite one
    infinity: its code, 0 if there is none; unsigned_zero: whether the code of -0 is NaN
    """

    def __init__(self, dtype: np.dtype):
        info = ml_dtypes.finfo(dtype)
        self.mantissa, self.least = int(info.nmant), int(info.minexp)
        self.bias = 1 - self.least
        self.largest = int(np.asarray(info.max, dtype).view(np.uint8))
        with np.errstate(all="ignore"):
            special = np.array([np.inf, np.nan, -0.0], np.float32).astype(dtype)
        self.unsigned_zero = not np.signbit(special[2].astype(np.float32))
        infinity, self.nan = (int(c) for c in special[:2].view(np.uint8))
        self.infinity = infinity if np.isinf(special[0].astype(np.float32)) else 0


def _integer(xp: Any, x: Any, dtype: np.dtype) -> Any:
    """The byte of an integer of 4 bits: floats are held within its range, integers wrap around."""
    if x.dtype.kind in "fV":
        info, wide = dtypes.iinfo(dtype), x.astype(FLOAT32) if x.dtype.itemsize < 4 else x
        wide = xp.where(wide == wide, wide, wide.dtype.type(0))
        low, high = wide.dtype.type(int(info.min)), wide.dtype.type(int(info.max))
        x = xp.maximum(xp.minimum(wide, high), low)
    return (x.astype(INT32) & 15).astype(BYTE)


def _wide(xp: Any, x: Any, dtype: np.dtype) -> Any:
    """A float32 or an int32 in a dtype of loops: floats become integers as everywhere."""
    if dtype.kind == "b":
        return x != x.dtype.type(0)
    if x.dtype.kind == "f" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        zero, low, high = (x.dtype.type(n) for n in (0, int(info.min), int(info.max)))
        known = xp.where(x == x, x, zero)
        inside = xp.maximum(known, low).astype(dtype)
        return xp.where(known >= high, dtype.type(int(info.max)), inside)
    return x.astype(dtype)
