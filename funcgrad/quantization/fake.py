"""Fake quantization: weights in floats that act as their quantized arrays do, to the bit, and have
derivatives as if nothing were rounded, where nothing is clipped (straight through; Bengio et al.,
2013). Learned steps: Esser et al., *Learned step size quantization*, 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.quantization import formats
from funcgrad.quantization.arrays import IntArray, QuantizedArray
from funcgrad.quantization.configs import Config, Int8Static, WeightOnly
from funcgrad.quantization.encode import quantize_int
from funcgrad.transforms.derivatives.custom import custom_vjp
from funcgrad.transforms.derivatives.linear import vjp
from funcgrad.transforms.weights.products import Product, Rows
from funcgrad.transforms.weights.weight import Cut, Weight


@custom_vjp
def straight(x: Any, rounded: Any) -> Any:
    """`rounded`, with the derivative of x.

    >>> fg.grad(lambda x: 3 * straight(x, fnp.round(x)))(1.4)
    Array(3., dtype=float32, weak_type=True)
    """
    return rounded


straight.defvjp(lambda x, rounded: (rounded, None), lambda _, g: (g, fnp.zeros_like(g)))


@custom_vjp
def _damped(x: Any, factor: Any) -> Any:
    return x


_damped.defvjp(lambda x, factor: (x, factor), lambda factor, g: (g * factor, None))


@tree.register_dataclass
@dataclass(frozen=True)
class Fake(Weight):
    """A weight in training. w: the array; step: learned scales, or None for those that the
    configuration takes of w; x_low, x_high: the range of a static product's input."""

    w: Any
    step: Any = None
    x_low: Any = None
    x_high: Any = None
    config: Config = field(default_factory=WeightOnly, metadata={"static": True})
    axes: tuple[int, ...] = tree.static(default=(-2,))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.w.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.w.dtype

    @property
    def _layout(self) -> tuple[int, int]:
        """Bits and group of a weight whose steps are learned."""
        config = self.config
        return (config.bits, config.group) if isinstance(config, WeightOnly) else (8, 0)

    def encode(self) -> QuantizedArray:
        """The quantized array that this acts as."""
        w = lax.stop_gradient(self.w)
        if self.step is None:
            found = self.config.encode(w, self.axes)
        else:
            bits, group = self._layout
            step = lax.stop_gradient(self.step)
            found = quantize_int(w, bits, group, self.axes, True, scale=step)
            if not isinstance(self.config, WeightOnly):
                kind = "static" if isinstance(self.config, Int8Static) else "dynamic"
                found = replace(found, activations=kind)
        if isinstance(found, IntArray) and self.x_low is not None:
            low, high = map(lax.stop_gradient, (self.x_low, self.x_high))
            found = found.in_range(low, high, self.axes)
        return found

    def dense(self) -> Any:
        rounded = self.encode().dense()
        if self.step is None:
            return straight(self.w, rounded)
        return straight(self._learned().astype(self.dtype), rounded)

    def _learned(self) -> Any:
        """The rounded array as a function of the array and the steps."""
        bits, group = self._layout
        axis = self.axes[-1]
        low, high = formats.limits(bits, True)
        per_step = self.w.size / self.step.size
        step = _damped(self.step, np.float32(1 / math.sqrt(per_step * high)))
        w, step = formats.grouped(self.w.astype("float32"), axis, group, step)
        u = w / step
        u = fnp.where(u < low, np.float32(low), fnp.where(u > high, np.float32(high), u))
        x = straight(u, fnp.round(u)) * step
        return formats.join_groups(x, axis) if group else x

    def product(self, use: Product, x: Any) -> Any:
        if self.encode().rounded_input(use, x) is None:
            return super().product(use, x)

        leaves, structure = tree.flatten(self)

        @custom_vjp
        def real(x: Any, *leaves: Any) -> Any:
            return structure.unflatten(leaves).encode().product(use, x)

        def fake(x: Any, *leaves: Any) -> Any:
            weight = structure.unflatten(leaves)
            found, inside = weight.encode().rounded_input(use, lax.stop_gradient(x))
            found = found.astype(x.dtype)
            rounded = fnp.where(inside, straight(x, found), found)
            return use.bind(rounded, use.operand(weight.dense())).astype("float32")

        def forward(*args: Any) -> tuple:
            return real(*args), args

        real.defvjp(forward, lambda args, g: vjp(fake, *args)[1](g))
        return real(x, *leaves)

    def rows(self, use: Rows) -> Any:
        return use.take(self.dense())

    def cut(self, axis: int, cut: Cut) -> Weight | None:
        n = len(self.shape)
        if axis - n in range(min(self.axes), 0):
            return None
        parts = tree.leaves(self)
        whole = all(x.shape[axis] in (1, self.shape[axis]) for x in parts)
        each = lambda x: x if x.shape[axis] == 1 != self.shape[axis] else cut(x, axis)  # noqa: E731
        return tree.map(each, self) if whole else None

    def stacked(self) -> bool:
        n = len(self.shape)
        return -n < min(self.axes) and all(x.shape[0] == self.shape[0] for x in tree.leaves(self))
