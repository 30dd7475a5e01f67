"""Floats as integers of the same order, so that a loop's maximum is a vector of integer maxima.

Neither LLVM's vectorizer nor x86 has a fast maximum of floats that keeps NaN; integers have one.
Read as an integer, a float's bits are in order once those of negative floats, but the sign, are
flipped. NaN becomes the largest, or for a minimum the smallest, integer, and comes back as NaN.
"""

from __future__ import annotations

from funcgrad.backends.llvm.emit.text import Function

# For each type: integer type, bits without the sign, the bits of a positive NaN.
FORMATS = {
    "float": ("i32", 31, 0x7FFFFFFF, 0x7FC00000),
    "double": ("i64", 63, 0x7FFFFFFFFFFFFFFF, 0x7FF8000000000000),
}
COMBINE = {"maximum": "smax", "minimum": "smin"}


def to_ordered(f: Function, value: str, kind: str, combine: str) -> str:
    """The integer that stands for a float under `combine`."""
    word, shift, rest, nan = FORMATS[kind]
    if combine == "minimum":
        nan |= 1 << shift
    signed = nan - (1 << (shift + 1)) if nan >> shift else nan
    odd = f.let(f"fcmp uno {kind} {value}, {value}")
    bits = f.let(f"bitcast {kind} {value} to {word}")
    plain = f.let(f"select i1 {odd}, {word} {signed}, {word} {bits}")
    return _flip(f, plain, word, shift, rest)


def from_ordered(f: Function, value: str, kind: str) -> str:
    """The float that an integer stands for."""
    word, shift, rest, _ = FORMATS[kind]
    return f.let(f"bitcast {word} {_flip(f, value, word, shift, rest)} to {kind}")


def _flip(f: Function, value: str, word: str, shift: int, rest: int) -> str:
    sign = f.let(f"ashr {word} {value}, {shift}")
    mask = f.let(f"and {word} {sign}, {rest}")
    return f.let(f"xor {word} {value}, {mask}")
