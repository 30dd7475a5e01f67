"""Quantized arrays: codes, scales and zero points as plain arrays, and how they are laid out.

Each is a weight (`transforms.weights`) and a node of trees, so that it passes jit, scan, devices
and files as its arrays do. Its arrays have the axes of the array that it stands for: codes are
packed along the axis that products sum over, scales have an element for each group along it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.optim.eight_bit import dynamic_map
from funcgrad.quantization import formats
from funcgrad.transforms.weights.products import CONTRACTED, MIXED, Product, Rows
from funcgrad.transforms.weights.weight import Cut, Weight

# With so few rows and so large a weight, sums of its rows are quicker than a matrix product: what
# codes stand for is computed as they are read, for so many rows at a time if they are packed. (What
# a small weight's packed codes stand for stays in a cache, and is computed once for all rows.)
FEW_ROWS, LARGE, LARGE_PACKED, TOGETHER = 8, 1 << 18, 1 << 22, 4
# int32 holds the sum of so many products of a code less its zero point, and a weight's code.
MOST_SUMMED = (2**31 - 1) // (255 * 127)


@dataclass(frozen=True)
class QuantizedArray(Weight):
    """The base of quantized arrays: `axis` is the axis of groups, `to` the dtype they stand for."""

    @property
    def parts(self) -> dict[str, Any]:
        """The arrays that this is made of, by name; those that it lacks are left out."""
        names = (f.name for f in fields(self) if not f.metadata.get("static"))
        return {n: getattr(self, n) for n in names if getattr(self, n) is not None}

    @property
    def nbytes(self) -> int:
        """The bytes of all of them."""
        return sum(formats.nbytes(x) for x in tree.leaves(self))

    @property
    def bits(self) -> float:
        """The bits for an element, all counted."""
        return 8 * self.nbytes / max(1, int(np.prod(self.shape)))

    @property
    def dtype(self) -> np.dtype:
        return dtypes.canonical(self.to)  # type: ignore[attr-defined]

    def rounded_input(self, use: Product, x: Any) -> tuple[Any, Any] | None:
        """What a product takes x for, and where that is by rounding alone; None if x stays."""
        return None

    def product(self, use: Product, x: Any) -> Any:
        rows = use.rows_of_x(x, FEW_ROWS)
        packed = self.parts["codes"].shape != self.shape
        least = LARGE_PACKED if packed else LARGE
        if rows is None or len(self.shape) != 2 or int(np.prod(self.shape)) < least:
            return super().product(use, x)
        pieces, axis = rows
        one = super().product

        def several(pieces: Any) -> Any:
            return lax.concatenate([one(use, p) for p in pieces], axis)

        if len(pieces) <= TOGETHER or not packed:
            return several(pieces)
        # More readers would have what the codes stand for written down for them.
        halves = fnp.stack([fnp.stack(pieces[:TOGETHER]), fnp.stack(pieces[-TOGETHER:])])
        first, last = lax.map(several, halves)
        rest = lax.slice_in_dim(last, 2 * TOGETHER - len(pieces), TOGETHER, axis=axis)
        return lax.concatenate([first, rest], axis)

    def stacked(self) -> bool:
        ndim = len(self.shape)
        own = ndim > 0 and self.axis != -ndim  # type: ignore[attr-defined]
        return own and all(x.shape[:1] == self.shape[:1] for x in tree.leaves(self))

    def cut(self, axis: int, cut: Cut) -> Weight | None:
        def piece(x: Any) -> Any:
            return x if x.shape[axis] == 1 and self.shape[axis] != 1 else cut(x, axis)

        return self._each(axis, piece)

    def rows(self, use: Rows) -> Any:
        found = self._each(0, lambda x: use.take(x) if x.shape[0] == self.shape[0] else x)
        return None if found is None else found.dense()

    def _each(self, axis: int, change: Callable) -> Any:
        """The array with each part changed, if all have this axis as it is, or of size 1."""
        parts = tree.leaves(self)
        n, ndim = self.shape[axis], len(self.shape)
        if any(x.ndim != ndim or x.shape[axis] not in (1, n) for x in parts):
            return None
        codes = self.parts["codes"]
        return tree.map(change, self) if codes.shape[axis] == n else None


@tree.register_dataclass
@dataclass(frozen=True)
class IntArray(QuantizedArray):
    """Integers of 8, 4 or 2 bits: scale · (codes − zero) / divide.

    codes: int8, or uint8 in which 4 or 2 bits are packed along `axis`; unsigned if there are zero
    points, and else with half their range added where they are packed.
    scale: float32, an element for each group of `group` along `axis` (0: for all that is summed).
    zero: zero points, or None.
    divide: what the weight was multiplied with along the axes that are summed, or None.
    x_scale, x_zero: of the other operand of a product, where its range is static.
    less: what x_zero adds to sums of products, int32, of size 1 along axes that are summed; None
    where it is to be found anew.
    activations: "" computes products on the dense array, "dynamic" and "static" on integers.
    """

    codes: Any
    scale: Any
    zero: Any = None
    divide: Any = None
    x_scale: Any = None
    x_zero: Any = None
    less: Any = None
    width: int = tree.static(default=8)
    axis: int = tree.static(default=-2)
    group: int = tree.static(default=0)
    activations: str = tree.static(default="")
    to: str = tree.static(default="float32")

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.codes.shape)
        shape[self.axis] *= 8 // self.width
        return tuple(shape)

    def values(self) -> Any:
        """The codes, unpacked."""
        return formats.unpack(self.codes, self.width, self.axis)

    def dense(self) -> Any:
        parts = [self.scale] if self.zero is None else [self.scale, self.zero]
        q, scale, *zero = formats.grouped(self.values(), self.axis, self.group, *parts)
        x = q.astype("float32")
        if zero:
            x = x - zero[0].astype("float32")
        elif self.width < 8:
            x = x - np.float32(2 ** (self.width - 1))
        x = x * scale
        x = formats.join_groups(x, self.axis) if self.group else x
        x = x if self.divide is None else x / self.divide
        return x.astype(self.to)

    def product(self, use: Product, x: Any) -> Any:
        if not self.on_integers(use):
            return super().product(use, x)
        q, x_scale, zero = self._input_codes(use, x)
        q, codes, to = q.astype("int8"), use.view.arrange(self.codes), np.dtype("int32")
        if self.activations == "static":
            y = use.bind_padded(q, codes, zero.astype("int8"), preferred_element_type=to)
            axes = tuple(use.axes(CONTRACTED))
            known = self.less is not None and self.less.shape == _summed(self.shape, axes)
            less = self.less if known else _less(self.codes, zero, axes)
            y = y - use.over_result(less)
        else:
            y = use.bind(q, codes, preferred_element_type=to)
        scale = use.x_over_result(x_scale) * use.over_result(self.scale)
        return y.astype("float32") * scale

    def in_range(self, low: Any, high: Any, axes: Sequence[int]) -> IntArray:
        """The array for products over these axes with what lies between two numbers."""
        scale, zero = formats.affine_scale(low, high, -128, 127)
        one = self.width == 8 and not self.group and scale.size == 1
        less = _less(self.codes, zero.reshape(-1)[0], tuple(axes)) if one else None
        return replace(self, x_scale=scale, x_zero=zero, less=less)

    def cut(self, axis: int, cut: Cut) -> Weight | None:
        # Of fewer products, they add less.
        part = self.less is not None and self.less.shape[axis] != self.shape[axis]
        return super(IntArray, replace(self, less=None) if part else self).cut(axis, cut)

    def _input_codes(self, use: Product, x: Any) -> tuple[Any, Any, Any]:
        """Of what is multiplied: codes, as floats, scales and zero point."""
        x = x.astype("float32")
        x = x if self.divide is None else x / use.over_x(self.divide)
        if self.activations == "static":
            scale, zero = self.x_scale.reshape(-1)[0], self.x_zero.reshape(-1)[0]
            codes = formats.to_codes(x, scale, zero, -128, 127)
            # No code says NaN: the scale of its row does.
            unknown = fnp.any(fnp.isnan(x), axis=use.x_axes(), keepdims=True)
            return codes, fnp.where(unknown, np.float32(np.nan), scale), zero
        scale = formats.symmetric_scale(x, 8, use.x_axes())
        return formats.to_codes(x, scale, np.float32(0), -127, 127), scale, np.float32(0)

    def rounded_input(self, use: Product, x: Any) -> tuple[Any, Any] | None:
        if not self.on_integers(use):
            return None
        q, scale, zero = self._input_codes(use, x)
        found = (q - zero) * scale
        if self.divide is not None:
            found = found * use.over_x(self.divide)
            scale = scale * use.over_x(self.divide)
        # What was clipped is off by more than rounding.
        return found, fnp.abs(x.astype("float32") - found) <= scale * np.float32(0.500001)

    def on_integers(self, use: Product) -> bool:
        """Whether a product can be one of integers: each scale must be of one result, and a static
        range of one weight."""
        if not self.activations or self.width != 8 or self.group:
            return False
        if use.is_convolution and (use.of_several_images or self.divide is not None):
            return False
        roles = use.roles()
        summed = math.prod(self.shape[i] for i in use.axes(CONTRACTED, MIXED))
        shared = all(
            self.scale.shape[i] == 1 or role not in (CONTRACTED, MIXED)
            for i, role in enumerate(roles)
        )
        known = self.x_scale is not None and self.x_scale.size == 1 and MIXED not in roles
        one = self.activations != "static" or known
        return self.zero is None and shared and one and summed <= MOST_SUMMED


def _summed(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, of size 1 along some axes."""
    summed = {i % len(shape) for i in axes}
    return tuple(1 if i in summed else n for i, n in enumerate(shape))


def _less(codes: Any, zero: Any, axes: tuple[int, ...]) -> Any:
    """What a zero point adds to the sums over some axes of its products with codes."""
    return zero.astype("int32") * fnp.sum(codes.astype("int32"), axis=axes, keepdims=True)


@tree.register_dataclass
@dataclass(frozen=True)
class NF4Array(QuantizedArray):
    """Codes of 4 bits in a table of a normal distribution's quantiles, for blocks along `axis`.

    codes: uint8, packed. scale: float32, the largest size in each block; with double quantization
    uint8 places in the dynamic map, times `second` for each 256 of them, plus `mean`; both have an
    element for each matrix of a stack.
    """

    codes: Any
    scale: Any
    second: Any = None
    mean: Any = None
    axis: int = tree.static(default=-2)
    block: int = tree.static(default=64)
    to: str = tree.static(default="float32")

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.codes.shape)
        shape[self.axis] *= 2
        return tuple(shape)

    def scales(self) -> Any:
        """The scale of each block, in float32."""
        if self.second is None:
            return self.scale
        found = formats.from_table(self.scale, dynamic_map(signed=True))
        stack, n = self.second.shape[:-1], int(np.prod(found.shape[self.second.ndim - 1 :]))
        blocks = fnp.repeat(self.second, 256, axis=-1)[..., :n]
        flat = found.reshape(*stack, n) * blocks + self.mean
        return flat.reshape(found.shape)

    def dense(self) -> Any:
        codes = formats.unpack(self.codes, 4, self.axis)
        codes, scale = formats.grouped(codes, self.axis, self.block, self.scales())
        x = formats.from_table(codes, formats.NF4_TABLE) * scale
        return formats.join_groups(x, self.axis).astype(self.to)

    def stacked(self) -> bool:
        return super().stacked() and (self.second is None or self.second.ndim > 1)

    def simple(self) -> NF4Array:
        """The array with its scales in float32."""
        return replace(self, scale=self.scales(), second=None, mean=None)

    def cut(self, axis: int, cut: Cut) -> Weight | None:
        return super().cut(axis, cut) if self.second is None else self.simple().cut(axis, cut)

    def rows(self, use: Rows) -> Any:
        return super().rows(use) if self.second is None else self.simple().rows(use)


@tree.register_dataclass
@dataclass(frozen=True)
class Float8Array(QuantizedArray):
    """float8 numbers times a scale for each result of a product, or one for a whole matrix.

    activations: whether the other operand of a product is cast to float8, too, by the size of its
    rows; sums are float32 either way.
    """

    codes: Any
    scale: Any
    axis: int = tree.static(default=-2)
    activations: bool = tree.static(default=False)
    to: str = tree.static(default="float32")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)

    def dense(self) -> Any:
        return (formats.from_float8(self.codes) * self.scale).astype(self.to)

    def _narrow(self, use: Product) -> bool:
        shared = all(
            n == 1 or role not in (CONTRACTED, MIXED)
            for n, role in zip(self.scale.shape, use.roles(), strict=True)
        )
        return self.activations and not use.is_convolution and shared

    def _input_codes(self, use: Product, x: Any) -> tuple[Any, Any]:
        top = float(dtypes.finfo(self.codes.dtype).max)
        x = x.astype("float32")
        amax = fnp.max(fnp.abs(x), axis=use.x_axes(), keepdims=True)
        scale = formats.positive(amax / np.float32(top))
        return formats.to_float8(x / scale, self.codes.dtype), scale

    def rounded_input(self, use: Product, x: Any) -> tuple[Any, Any] | None:
        if not self._narrow(use):
            return None
        q, scale = self._input_codes(use, x)
        return q.astype("float32") * scale, True

    def product(self, use: Product, x: Any) -> Any:
        if not self._narrow(use):
            return super().product(use, x)
        q, x_scale = self._input_codes(use, x)
        codes = use.view.arrange(self.codes)
        y = use.bind(q, codes, preferred_element_type=np.dtype("float32"))
        return y * (use.x_over_result(x_scale) * use.over_result(self.scale))


@tree.register_dataclass
@dataclass(frozen=True)
class MXArray(QuantizedArray):
    """MXFP4: numbers of 4 bits (e2m1), and a power of two (E8M0) for each 32 along `axis`."""

    codes: Any
    scale: Any
    axis: int = tree.static(default=-2)
    block: int = tree.static(default=32)
    to: str = tree.static(default="float32")

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.codes.shape)
        shape[self.axis] *= 2
        return tuple(shape)

    def dense(self) -> Any:
        codes = formats.unpack(self.codes, 4, self.axis)
        powers = formats.power_of_two(self.scale)
        codes, powers = formats.grouped(codes, self.axis, self.block, powers)
        x = formats.join_groups(formats.from_e2m1(codes) * powers, self.axis)
        return x.astype(self.to)


def dequantize(x: Any) -> Any:
    """A quantized array (or another weight, or a tree of them) as the array that it stands for.

    >>> from funcgrad import quantization as q
    >>> w = q.quantize_int(fnp.array([[1.0, -2.0], [0.5, 2.0]]), bits=8)
    >>> w.nbytes, q.dequantize(w)
    (12, Array([[ 1. , -2. ],
           [ 0.503937..., 2. ]], dtype=float32))
    """
    is_weight = lambda x: isinstance(x, Weight)  # noqa: E731
    return tree.map(lambda w: w.dense() if is_weight(w) else w, x, is_leaf=is_weight)
