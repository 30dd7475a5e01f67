"""What to quantize, and into what: frozen dataclasses that `fg.quantize` and `fg.qat` take.

Each has `rules` (regular expressions that are searched for in leaves' names, or names of ops that
leaves go to; None: all that may) and `encode`, which makes a quantized array of a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError
from funcgrad.quantization import encode
from funcgrad.quantization.arrays import QuantizedArray
from funcgrad.quantization.observers import MinMax, Observer

Rules = str | Sequence[str] | None
# algorithm(w, x, axes, config) → a quantized array, from what is multiplied with w (rows)
Algorithm = Callable[[Any, Any, tuple[int, ...], Any], QuantizedArray]


@dataclass(frozen=True)
class Config:
    """The base of all configurations."""

    rules: Rules = field(default=None, kw_only=True)
    algorithm: Algorithm | None = field(default=None, kw_only=True)

    def encode(self, w: Any, axes: tuple[int, ...]) -> QuantizedArray:
        """A leaf as a quantized array; products sum over these axes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Int8Dynamic(Config):
    """int8 weights, a scale for each result, and int8 inputs of products, a scale for each row (of
    convolutions for each image), found as they come. Products are int8 × int8 → int32."""

    def encode(self, w: Any, axes: tuple[int, ...]) -> QuantizedArray:
        return replace(encode.quantize_int(w, 8, 0, axes), activations="dynamic")


@dataclass(frozen=True)
class Int8Static(Config):
    """int8 weights, and int8 inputs of products by ranges that `observer` found in calibration.
    Products are int8 × int8 → int32."""

    observer: Observer = field(default_factory=MinMax)

    def encode(self, w: Any, axes: tuple[int, ...]) -> QuantizedArray:
        return replace(encode.quantize_int(w, 8, 0, axes), activations="static")


@dataclass(frozen=True)
class WeightOnly(Config):
    """Weights of 8, 4 or 2 bits, groups of `group` sharing a scale (0: all of a result's weights);
    products are computed on what they stand for."""

    bits: int = 8
    group: int = 0
    symmetric: bool | None = None

    def __post_init__(self) -> None:
        if self.bits not in encode.formats.BITS:
            raise ArgumentError(f"WeightOnly: bits must be 8, 4 or 2, got {self.bits!r}")
        if isinstance(self.group, bool) or not isinstance(self.group, int) or self.group < 0:
            raise ArgumentError(
                f"WeightOnly: group must be a positive integer, or 0 for none, got {self.group!r}"
            )

    def encode(self, w: Any, axes: tuple[int, ...]) -> QuantizedArray:
        return encode.quantize_int(w, self.bits, self.group, axes, self.symmetric)


@dataclass(frozen=True)
class NF4(Config):
    """Weights in NF4, blocks of `block` sharing a scale; with double_quant scales of 8 bits."""

    block: int = 64
    double_quant: bool = True

    def encode(self, w: Any, axes: tuple[int, ...]) -> QuantizedArray:
        return encode.quantize_nf4(w, self.block, self.double_quant, axes)


@dataclass(frozen=True)
class Float8(Config):
    """Weights in float8; with `activations` inputs of products, too."""

    dtype: str = "float8_e4m3fn"
    per: str = "row"
    activations: bool = False

    def encode(self, w: Any, axes: tuple[int, ...]) -> QuantizedArray:
        found = encode.quantize_float8(w, self.dtype, self.per, axes)
        return replace(found, activations=self.activations)


@dataclass(frozen=True)
class MXFP4(Config):
    """Weights in MXFP4: blocks of 32 sharing a power of two."""

    def encode(self, w: Any, axes: tuple[int, ...]) -> QuantizedArray:
        return encode.quantize_mxfp4(w, axes)


def configs_of(what: str, config: Any) -> list[Config]:
    """The configurations that a user gave: one, or a dictionary from rules to them.

    >>> [c.rules for c in configs_of("quantize", {"emb": WeightOnly(8), "w": NF4()})]
    ['emb', 'w']
    """
    if isinstance(config, Config):
        return [config]
    if isinstance(config, Mapping) and config:
        found = [(rule, c) for rule, c in config.items() if isinstance(c, Config)]
        if len(found) == len(config):
            return [replace(c, rules=rule) for rule, c in found]
    raise ArgumentError(
        f"{what}: config must be one of quantization's, such as WeightOnly(bits=4), or a "
        f"dictionary from rules to such, got {config!r}"
    )


def finite(w: Any) -> bool:
    """Whether all numbers are finite."""
    return bool(fnp.isfinite(w.astype("float32")).all())
