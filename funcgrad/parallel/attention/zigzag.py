"""An order of a sequence that gives each device the same work under a causal mask.

The sequence is cut into 2n parts; device i of n gets parts i and 2n - 1 - i, an early one and a
late one (Brandon et al., "Striped Attention", 2023; "zigzag" in later implementations).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.types import AxisName
from funcgrad.errors import ArgumentError, ShapeError


def zigzag(x: Any, devices: int, axis: int = 1) -> Any:
    """x (a pytree), whole, in the order of which `devices` equal cuts along `axis` are what
    `ring_attention(..., zigzag=True)` takes: parts 0, 2n - 1, 1, 2n - 2, ….

    Whatever belongs to places is to be in the same order: tokens, targets, positions
    (`zigzag(fnp.arange(length), devices, axis=0)`), rows and columns of a bias. Raises ShapeError
    where 2·devices doesn't divide the axis.

    >>> from funcgrad.parallel import zigzag
    >>> zigzag(fnp.arange(8), 2, axis=0)
    Array([0, 1, 6, 7, 2, 3, 4, 5], dtype=int32)
    """

    def pairs(x: Any) -> Any:
        early, late = fnp.split(x.reshape(2 * devices, -1, *x.shape[1:]), 2)
        return fnp.stack([early, fnp.flip(late, 0)], axis=1)

    return tree.map(lambda x: _reordered("zigzag", x, devices, axis, pairs), x)


def unzigzag(x: Any, devices: int, axis: int = 1) -> Any:
    """x (a pytree), whole, in the order that it had before `zigzag`.

    >>> from funcgrad.parallel import unzigzag, zigzag
    >>> unzigzag(zigzag(fnp.arange(8), 2, axis=0), 2, axis=0)
    Array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """

    def halves(x: Any) -> Any:
        parts = x.reshape(devices, 2, -1, *x.shape[1:])
        return fnp.concatenate([parts[:, 0], fnp.flip(parts[:, 1], 0)])

    return tree.map(lambda x: _reordered("unzigzag", x, devices, axis, halves), x)


def _reordered(name: str, x: Any, devices: int, axis: int, order: Callable) -> Any:
    """x with the parts of an axis in another order, which is found of them as the first axis."""
    x = fnp.asarray(x)
    if not isinstance(devices, int) or devices < 1:
        raise ArgumentError(f"{name}: devices must be a positive integer, got {devices!r}")
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"{name}: axis {axis} is none of an array of shape {x.shape}")
    if x.shape[axis] % (2 * devices):
        raise ShapeError(
            f"{name}: axis {axis} of shape {x.shape} must be divisible by 2·devices = {2 * devices}"
        )
    front = fnp.moveaxis(x, axis, 0)
    return fnp.moveaxis(order(front).reshape(front.shape), 0, axis)


class Dealt(NamedTuple):
    """Blocks of a sequence in its own order, dealt out as zigzag has them, and back: each device's
    halves go where they belong, all first ones at once, then all second ones."""

    axis: AxisName
    firsts: tuple[tuple[int, int], ...]
    seconds: tuple[tuple[int, int], ...]

    def put(self, x: Any, axis: int) -> Any:
        """A device's block, for that of the zigzag order."""
        first, second = fnp.split(x, 2, axis)
        first, second = (
            lax.ppermute(half, self.axis, pairs)
            for half, pairs in ((first, self.firsts), (second, self.seconds))
        )
        return fnp.concatenate(self._swapped(first, second), axis)

    def back(self, x: Any, axis: int) -> Any:
        """The inverse of `put`."""
        halves = self._swapped(*fnp.split(x, 2, axis))
        both = (tuple((b, a) for a, b in pairs) for pairs in (self.firsts, self.seconds))
        halves = [lax.ppermute(h, self.axis, p) for h, p in zip(halves, both, strict=True)]
        return fnp.concatenate(halves, axis)

    def _swapped(self, first: Any, second: Any) -> list:
        """Of a device with an even number the first half is the early one, of others the second."""
        even = lax.axis_index(self.axis) % 2 == 0
        return [fnp.where(even, first, second), fnp.where(even, second, first)]


def dealt(axis: AxisName) -> Dealt:
    """How blocks of a sequence that is cut over a mesh axis are dealt out.

    >>> from funcgrad.parallel.attention.zigzag import dealt
    >>> deal = lambda x: dealt("i").put(x, 0)
    >>> fg.vmap(deal, axis_name="i")(fnp.arange(8).reshape(2, 4)).tolist()
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    n = lax.axis_size(axis)
    to = [part if part < n else 2 * n - 1 - part for part in range(2 * n)]
    return Dealt(axis, tuple(enumerate(to[::2])), tuple(enumerate(to[1::2])))
