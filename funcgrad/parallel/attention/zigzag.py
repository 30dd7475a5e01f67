"""An order of a sequence that gives each device the same work under a causal mask.

The sequence is cut into 2n parts; device i of n gets parts i and 2n - 1 - i, an early one and a
late one (Brandon et al., "Striped Attention", 2023; "zigzag" in later implementations).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import tree
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
