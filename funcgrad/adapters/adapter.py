"""An adapter of a weight: W + s·AB, with A and B of a small rank (LoRA, Hu et al., 2021).

A has the axes of the weight that a product sums over, B those of its result; the rest are stacks of
weights, which both have. DoRA (Liu et al., 2024) divides the sum by its norm along A's axes, which
derivatives take as constant, and multiplies it with a learned magnitude.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.trace import Tracer
from funcgrad.transforms.weights.products import BATCH, CONTRACTED, FREE, Product, Rows
from funcgrad.transforms.weights.weight import Cut, Weight


@tree.register_dataclass
@dataclass(frozen=True)
class Adapter:
    """The factors beside a weight of shape (stack, ins, outs), its axes in any order.

    a: (stack, ins, rank) and b: (stack, rank, outs), the axes of each group in the weight's order;
    magnitude: (stack, outs) for DoRA, else None. ins, outs: the axes, as negative numbers. alpha
    and kind are what it was made from; lookup: whether rows of the weight are looked up, as of an
    embedding.
    """

    a: Any
    b: Any
    magnitude: Any = None
    ins: tuple[int, ...] = tree.static(default=(-2,))
    outs: tuple[int, ...] = tree.static(default=(-1,))
    alpha: float = tree.static(default=16.0)
    kind: str = tree.static(default="lora")
    lookup: bool = tree.static(default=False)
    base: str = tree.static(default="")

    @property
    def rank(self) -> int:
        """The number of columns of the first factor."""
        return self.a.shape[-1]

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied with: alpha over the rank, or over its root
        for rank-stabilized adapters (Kalajdzievski, 2023)."""
        return self.alpha / (math.sqrt(self.rank) if self.kind == "rslora" else self.rank)

    def stack(self, ndim: int) -> tuple[int, ...]:
        """The axes of the weight that both factors have."""
        return _stack(ndim, self.ins, self.outs)

    def delta(self, ndim: int) -> Any:
        """What the factors add to the weight, of its shape."""
        letters = {i: chr(ord("a") + ndim + i) for i in range(-ndim, 0)}
        stack, ins, outs = (
            "".join(letters[i] for i in axes) for axes in (self.stack(ndim), self.ins, self.outs)
        )
        every = "".join(letters[i] for i in range(-ndim, 0))
        return self.scale * fnp.einsum(f"{stack}{ins}Z,{stack}Z{outs}->{every}", self.a, self.b)

    def gain(self, adapted: Any) -> Any:
        """What DoRA multiplies the sum of weight and factors with, summed axes of size 1."""
        size = [1 if i in self.ins else adapted.shape[i] for i in range(-adapted.ndim, 0)]
        return self.magnitude.reshape(size) / norm_of(lax.stop_gradient(adapted), self.ins)


def _stack(ndim: int, ins: Sequence[int], outs: Sequence[int]) -> tuple[int, ...]:
    return tuple(i for i in range(-ndim, 0) if i not in (*ins, *outs))


def factor_shapes(
    shape: Sequence[int], ins: Sequence[int], outs: Sequence[int], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of both factors for a weight of this shape.

    >>> factor_shapes((5, 4, 3), (-2,), (-1,), 2)
    ((5, 4, 2), (5, 2, 3))
    """
    stack = [shape[i] for i in _stack(len(shape), ins, outs)]
    return (*stack, *(shape[i] for i in ins), rank), (*stack, rank, *(shape[i] for i in outs))


SAMPLED = 4096  # elements of an array that its fingerprint is of


def fingerprint(w: Any) -> str:
    """What tells a weight, an array or one of another kind, from others: a digest of its types and
    of some of its elements, evenly spread; "" where they aren't known, as under `jit`.

    >>> fingerprint(fnp.ones(3)) == fingerprint(fnp.ones(3)) != fingerprint(fnp.ones(4))
    True
    >>> fg.eval_shape(lambda x: len(fingerprint(x)) * x, fnp.ones(3)).shape, fingerprint(1.0) != ""
    ((3,), True)
    """
    digest = hashlib.sha256()
    for leaf in tree.leaves(w):
        x = leaf.concrete() if isinstance(leaf, Tracer) else leaf
        if isinstance(x, ShapeDtypeStruct) or not getattr(x, "is_fully_addressable", x is not None):
            return ""
        x = np.asarray(x)
        few = x.reshape(-1)[:: max(1, x.size // SAMPLED)]
        digest.update(f"{x.dtype}{x.shape}".encode() + few.tobytes())
    return digest.hexdigest()[:16]


def norm_of(w: Any, axes: tuple[int, ...]) -> Any:
    """The Euclidean norm along these axes, which stay with size 1."""
    return fnp.sqrt(fnp.sum(fnp.square(w), axis=axes, keepdims=True))


@tree.register_dataclass
@dataclass(frozen=True)
class Adapted(Weight):
    """A weight with an adapter; the base is an array, or a weight of another kind."""

    base: Any
    adapter: Adapter

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.base.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.base.dtype

    def plain(self) -> Any:
        """The base as an array."""
        return self.base.dense() if isinstance(self.base, Weight) else self.base

    def dense(self) -> Any:
        base = self.plain()
        found = base + self.adapter.delta(len(self.shape)).astype(base.dtype)
        if self.adapter.magnitude is not None:
            found = found * self.adapter.gain(found).astype(base.dtype)
        return found

    def product(self, use: Product, x: Any) -> Any:
        order = self._order(use)
        if order is None:
            return super().product(use, x)
        base = self.base
        y = base.product(use, x) if isinstance(base, Weight) else use.bind(x, use.operand(base))
        update = self._convolved(use, x) if use.is_convolution else self._product(use, x, order)
        y = y + (self.adapter.scale * update).astype(y.dtype)
        if self.adapter.magnitude is None:
            return y
        whole = self.plain() + self.adapter.delta(len(self.shape)).astype(self.dtype)
        return y * use.over_result(self.adapter.gain(whole)).astype(y.dtype)

    def _order(self, use: Product) -> bool | None:
        """Whether A comes first in a product; None if the factors can't be taken one by one."""
        roles, adapter = use.roles(), self.adapter
        kinds = [{roles[i] for i in axes} - {""} for axes in (adapter.ins, adapter.outs)]
        stack = {roles[i] for i in adapter.stack(len(roles))} - {""}
        if not stack <= {BATCH, FREE}:
            return None
        if use.is_convolution:
            p = use.eqn.params
            whole = p["feature_group_count"] == p["batch_group_count"] == 1
            out = self.shape[adapter.outs[0]] if len(adapter.outs) == 1 else 0
            fits = whole and not adapter.stack(len(roles)) and out > 1
            return True if fits and kinds == [{CONTRACTED}, {FREE}] else None
        if kinds[0] <= {CONTRACTED} and kinds[1] <= {FREE}:
            return True
        turned = kinds[0] <= {FREE} and kinds[1] <= {CONTRACTED} and adapter.magnitude is None
        return False if turned else None

    def _product(self, use: Product, x: Any, a_first: bool) -> Any:
        adapter, ndim = self.adapter, len(self.shape)
        stack, ins, outs = (
            [ndim + i for i in axes] for axes in (adapter.stack(ndim), adapter.ins, adapter.outs)
        )
        spelling = use.spelling(x)
        rank = next(spelling.free)
        a = use.factor(spelling, use.view.convert(adapter.a), [*stack, *ins, None], rank)
        b = use.factor(spelling, use.view.convert(adapter.b), [*stack, None, *outs], rank)
        first, second = (a, b) if a_first else (b, a)
        summed = set(spelling.x) & set(first[1]) - set(second[1])
        middle = "".join(dict.fromkeys(c for c in spelling.x + first[1] if c not in summed))
        h = fnp.einsum(f"{spelling.x},{first[1]}->{middle}", x.reshape(spelling.shape), first[0])
        y = fnp.einsum(f"{middle},{second[1]}->{spelling.out}", h, second[0])
        return y.reshape(use.eqn.outs[0].aval.shape)

    def _convolved(self, use: Product, x: Any) -> Any:
        """A convolution to as many channels as the rank, and a product over these."""
        adapter, ndim = self.adapter, len(self.shape)
        out = ndim + adapter.outs[0]
        view = use.view.resized(out, adapter.rank)
        kernel = view.convert(view.arrange(fnp.moveaxis(adapter.a, -1, out)))
        h = use.bind(x, kernel)
        channel = use.eqn.params["dimension_numbers"].out_spec[1]
        y = fnp.tensordot(h, use.view.convert(adapter.b), (channel, 0))
        return fnp.moveaxis(y, -1, channel)

    def rows(self, use: Rows) -> Any:
        base, adapter = self.base, self.adapter
        found = base.rows(use) if isinstance(base, Weight) else use.take(base)
        if found is None or adapter.magnitude is not None or adapter.ins != (-2,):
            return use.take(self.dense())
        update = adapter.scale * (use.take(adapter.a) @ adapter.b)
        return found + update.astype(found.dtype)

    def cut(self, axis: int, cut: Cut) -> Adapted | None:
        base, adapter, ndim = self.base, self.adapter, len(self.shape)
        base = base.cut(axis, cut) if isinstance(base, Weight) else cut(base, axis)
        stack = [ndim + i for i in adapter.stack(ndim)]
        a_axes = [*stack, *(ndim + i for i in adapter.ins)]
        outs = [ndim + i for i in adapter.outs]
        whole_norm = adapter.magnitude is None or axis not in a_axes[len(stack) :]
        if base is None or not whole_norm:
            return None
        a, b, magnitude = adapter.a, adapter.b, adapter.magnitude
        if axis in a_axes:
            a = cut(a, a_axes.index(axis))
        if axis in [*stack, *outs]:
            b_axes = [*stack, None, *outs]
            b = cut(b, b_axes.index(axis))
            if magnitude is not None:
                magnitude = cut(magnitude, [*stack, *outs].index(axis))
        return Adapted(base, replace(adapter, a=a, b=b, magnitude=magnitude))

    def stacked(self) -> bool:
        ndim = len(self.shape)
        first = ndim > 0 and -ndim in self.adapter.stack(ndim)
        return first and (not isinstance(self.base, Weight) or self.base.stacked())
