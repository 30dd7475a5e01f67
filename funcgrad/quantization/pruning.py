"""Pruned weights: masks of two in four, or of the largest, with derivatives straight through.

SR-STE (Zhou et al., *Learning N:M fine-grained structured sparse networks*, 2021): weights that the
mask leaves out decay, so that what is left out changes less often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.core.array import raw
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.quantization.configs import Config
from funcgrad.quantization.convert import choices_of
from funcgrad.transforms.derivatives.custom import custom_vjp
from funcgrad.transforms.weights.applied import with_weights
from funcgrad.transforms.weights.leaves import named_leaves, with_leaves
from funcgrad.transforms.weights.uses import Strict
from funcgrad.transforms.weights.weight import Cut, Weight


def mask_2_4(w: Any, axis: int = -2) -> Any:
    """True at the two largest of each four along an axis; of equal ones at the first.

    >>> mask_2_4(fnp.array([1.0, -3.0, 2.0, 0.0]), -1)
    Array([False,  True,  True, False], dtype=bool)
    """
    w = fnp.asarray(w)
    if w.shape[axis] % 4:
        raise ShapeError(f"mask_2_4: axis {axis} of shape {w.shape} must be a multiple of four")
    fours = fnp.abs(fnp.moveaxis(w, axis, -1)).reshape(-1, 4)
    first = np.tril(np.ones((4, 4), bool), -1)
    a, b = fours[:, :, None], fours[:, None, :]
    ahead = fnp.sum((b > a) | ((b == a) & first), axis=-1)
    moved = fnp.moveaxis(w, axis, -1).shape
    return fnp.moveaxis((ahead < 2).reshape(moved), -1, axis)


def mask_magnitude(w: Any, sparsity: float) -> Any:
    """True at all but the smallest ⌊sparsity · size⌋ elements, by their sizes.

    >>> mask_magnitude(fnp.array([1.0, -3.0, 2.0, 0.0]), 0.25)
    Array([ True,  True,  True, False], dtype=bool)
    """
    if not 0 <= sparsity < 1:
        raise ArgumentError(f"mask_magnitude: sparsity must be in [0, 1), got {sparsity}")
    w = fnp.asarray(w)
    order = fnp.argsort(fnp.abs(w).ravel())
    drop = math.floor(sparsity * w.size)
    return fnp.ones(w.size, bool).at[order[:drop]].set(False).reshape(w.shape)


def sparsity_at(step: int, steps: int, final: float, initial: float = 0.0) -> float:
    """The cubic schedule of Zhu and Gupta (2017): much at first, little at the end.

    >>> [round(sparsity_at(i, 4, 0.8), 3) for i in range(5)]
    [0.0, 0.463, 0.7, 0.788, 0.8]
    """
    share = min(max(step / steps, 0.0), 1.0)
    return final + (initial - final) * (1 - share) ** 3


@custom_vjp
def _masked(w: Any, mask: Any, decay: Any) -> Any:
    return fnp.where(mask, w, fnp.zeros_like(w))


def _backward(kept: tuple, g: Any) -> tuple:
    w, mask, decay = kept
    return g + decay.astype(g.dtype) * fnp.where(mask, fnp.zeros_like(w), w), None, None


_masked.defvjp(lambda w, mask, decay: (_masked(w, mask, decay), (w, mask, decay)), _backward)


@tree.register_dataclass
@dataclass(frozen=True)
class Pruned(Weight):
    """A weight without what its mask leaves out. Derivatives are those of the whole, plus `decay`
    times what is left out; a mask that is None is that of two in four along `axis`, at each use."""

    w: Any
    mask: Any = None
    decay: float = tree.static(default=2e-4)
    axis: int = tree.static(default=-2)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.w.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.w.dtype

    def dense(self) -> Any:
        mask = mask_2_4(self.w, self.axis) if self.mask is None else self.mask
        return _masked(self.w, mask, np.float32(self.decay))

    def cut(self, axis: int, cut: Cut) -> Weight | None:
        if axis == len(self.shape) + self.axis:
            return None
        return tree.map(lambda x: cut(x, axis), self)

    def stacked(self) -> bool:
        return len(self.shape) + self.axis > 0


@dataclass(frozen=True)
class _Every(Config):
    """All leaves that a rule is for."""


def prune(
    f: Callable,
    params: Any,
    rules: str | Sequence[str] | None = None,
    sparsity: float | None = None,
    *,
    inputs: tuple | None = None,
    decay: float = 2e-4,
) -> tuple[Callable, Any]:
    """f(params, *inputs) with pruned weights: (pf, pparams), to evaluate and to train.

    sparsity: that share of each weight is left out for good, by size; None: two of each four along
    the axis that products sum over, chosen anew at each use. `fg.quantization.dequantize(pparams)`
    gives arrays with zeros. inputs: what f is called with, to know the axes; else the rows'. rules:
    which leaves, as those of `fg.quantize`.

    >>> pf, pparams = fg.quantization.prune(lambda p, x: x @ p["w"], {"w": fnp.ones((8, 2))})
    >>> pf(pparams, fnp.ones(8))
    Array([4., 4.], dtype=float32)
    """
    choices = choices_of("prune", f, params, _Every(rules=rules), inputs)
    leaves = named_leaves(params)
    pruned = {}
    for name, choice in choices.items():
        if choice.reason:
            continue
        w, axis = fnp.asarray(leaves[name]), choice.axes[-1]
        if sparsity is None and w.shape[axis] % 4:
            if choice.named:
                raise ShapeError(
                    f"prune: the parameter {name} of shape {w.shape} needs a multiple of four "
                    f"along axis {axis}"
                )
            continue
        mask = None if sparsity is None else mask_magnitude(w, sparsity)
        pruned[name] = Pruned(w, mask, decay, axis)
    strict = Strict("prune", [n for n, c in choices.items() if c.named])
    return with_weights(f, strict, what="prune"), with_leaves(params, pruned)


def compress_2_4(w: Any, axis: int = -2) -> tuple[Any, Any]:
    """What two in four leave: the values, half as many along the axis, and their places, 2 bits
    each, four to a byte: 9/16 of the bytes of 16-bit weights, 5/8 of those of 8 bits.

    >>> values, places = compress_2_4(fnp.array([1.0, -3.0, 2.0, 0.0] * 2), -1)
    >>> values, places
    (Array([-3.,  2., -3.,  2.], dtype=float32), Array([153], dtype=uint8))
    """
    x = np.moveaxis(np.asarray(raw(fnp.asarray(w))), axis, -1)
    if x.shape[-1] % 8:
        raise ShapeError(f"compress_2_4: axis {axis} of {w.shape} must be a multiple of eight")
    mask = np.moveaxis(np.asarray(raw(mask_2_4(w, axis))), axis, -1).reshape(-1, 4)
    at = np.argsort(~mask, axis=1, kind="stable")[:, :2]
    values = np.take_along_axis(x.reshape(-1, 4), at, 1).reshape(*x.shape[:-1], -1)
    digits = at.reshape(-1, 4).astype(np.uint8) << np.arange(0, 8, 2, dtype=np.uint8)
    places = digits.sum(1, dtype=np.uint8).reshape(*x.shape[:-1], -1)
    return tuple(fnp.asarray(np.moveaxis(p, -1, axis)) for p in (values, places))


def expand_2_4(values: Any, places: Any, axis: int = -2) -> Any:
    """The weights, with zeros, of what `compress_2_4` gave.

    >>> expand_2_4(*compress_2_4(fnp.array([1.0, -3.0, 2.0, 0.0] * 2), -1), -1)
    Array([ 0., -3.,  2.,  0.,  0., -3.,  2.,  0.], dtype=float32)
    """
    kept = fnp.moveaxis(fnp.asarray(values), axis, -1)
    digits = fnp.moveaxis(fnp.asarray(places), axis, -1)[..., None] >> np.arange(
        0, 8, 2, dtype="u1"
    )
    at = (digits & np.uint8(3)).reshape(*kept.shape[:-1], -1, 2)
    here = at[..., None] == np.arange(4, dtype=np.uint8)
    pairs = kept.reshape(*kept.shape[:-1], -1, 2)
    fours = fnp.sum(fnp.where(here, pairs[..., None], fnp.zeros((), kept.dtype)), axis=-2)
    return fnp.moveaxis(fours.reshape(*kept.shape[:-1], -1), -1, axis)
