"""Caches of keys and values in fewer bits: keys by channel, values by token (Liu et al., *KIVI*,
2024), as channels of keys have outliers, and tokens of values are weighed one by one.
"""

from __future__ import annotations

from typing import Any

from funcgrad.quantization.arrays import IntArray
from funcgrad.quantization.encode import quantize_int


def quantize_keys(keys: Any, bits: int = 4, group: int = 32) -> IntArray:
    """Keys (…, tokens, heads, channels) as integers; `group` tokens share a scale and a zero point
    of each channel. The number of tokens must be a multiple of it: keep the rest as they are.

    >>> k = fg.quantization.quantize_keys(fnp.ones((2, 64, 4, 16)), bits=2)
    >>> k.shape, k.bits
    ((2, 64, 4, 16), 3.25)
    """
    return quantize_int(keys, bits, group, (-3,), False)


def quantize_values(values: Any, bits: int = 4, group: int = 32) -> IntArray:
    """Values (…, tokens, heads, channels) as integers; `group` channels share a scale and a zero
    point of each token.

    >>> fg.quantization.quantize_values(fnp.ones((2, 64, 4, 64)), bits=4).bits
    5.25
    """
    return quantize_int(values, bits, group, (-1,), False)
