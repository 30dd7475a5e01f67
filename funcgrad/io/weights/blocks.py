"""Blocks of quantized numbers as GGML has them: bytes to float32.

Each kind packs a block of 32 or 256 numbers into so many bytes: a scale (and a minimum), then few
bits a number. The layouts are those of ggml's reference (ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def _half(raw: np.ndarray, at: int) -> np.ndarray:
    """The float16 at a byte of each block, as a column."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """The low halves of bytes, then the high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _fifth_bits(raw: np.ndarray, at: int) -> np.ndarray:
    """32 bits of each block as a column each, as the fifth bit of a number."""
    bits = np.unpackbits(raw[:, at : at + 4], axis=1, bitorder="little")
    return bits << 4


def q4_0(raw: np.ndarray) -> np.ndarray:
    """d · (q - 8)"""
    return (_nibbles(raw[:, 2:18]).astype(np.float32) - 8) * _half(raw, 0)


def q4_1(raw: np.ndarray) -> np.ndarray:
    """d · q + m"""
    return _nibbles(raw[:, 4:20]).astype(np.float32) * _half(raw, 0) + _half(raw, 2)


def q5_0(raw: np.ndarray) -> np.ndarray:
    """d · (q - 16), the fifth bits apart"""
    q = _nibbles(raw[:, 6:22]) | _fifth_bits(raw, 2)
    return (q.astype(np.float32) - 16) * _half(raw, 0)


def q5_1(raw: np.ndarray) -> np.ndarray:
    """d · q + m, the fifth bits apart"""
    q = _nibbles(raw[:, 8:24]) | _fifth_bits(raw, 4)
    return q.astype(np.float32) * _half(raw, 0) + _half(raw, 2)


def q8_0(raw: np.ndarray) -> np.ndarray:
    """d · q of signed bytes"""
    return raw[:, 2:34].view(np.int8).astype(np.float32) * _half(raw, 0)


def _six_bits(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The eight scales and minima of 6 bits, packed in 12 bytes."""
    low, high, rest = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scales = np.concatenate([low & 63, (rest & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([high & 63, (rest >> 4) | ((high >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def q4_k(raw: np.ndarray) -> np.ndarray:
    """d · scale · q - dmin · min in each of eight groups of 32"""
    scales, minima = _six_bits(raw[:, 4:16])
    q = raw[:, 16:144].reshape(-1, 4, 32)
    q = np.stack([q & 15, q >> 4], axis=2).reshape(-1, 8, 32).astype(np.float32)
    d, least = _half(raw, 0) * scales, _half(raw, 2) * minima
    return (d[..., None] * q - least[..., None]).reshape(-1, 256)


def q6_k(raw: np.ndarray) -> np.ndarray:
    """d · scale · (q - 32) in each of sixteen groups of 16"""
    low = raw[:, 0:128].reshape(-1, 2, 2, 32)
    low = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = raw[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    q = (low | (((high >> shifts) & 3) << 4)).astype(np.float32) - 32
    scales = raw[:, 192:208].view(np.int8).astype(np.float32) * _half(raw, 208)
    return (q.reshape(-1, 16, 16) * scales[..., None]).reshape(-1, 256)


# For each number of a type: its name, the numbers and the bytes of a block, and its meaning.
KINDS: dict[int, tuple[str, int, int, Callable[[np.ndarray], np.ndarray]]] = {
    2: ("Q4_0", 32, 18, q4_0),
    3: ("Q4_1", 32, 20, q4_1),
    6: ("Q5_0", 32, 22, q5_0),
    7: ("Q5_1", 32, 24, q5_1),
    8: ("Q8_0", 32, 34, q8_0),
    12: ("Q4_K", 256, 144, q4_k),
    14: ("Q6_K", 256, 210, q6_k),
}
