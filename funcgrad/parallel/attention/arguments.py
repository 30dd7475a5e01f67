"""What attention of cut sequences takes: checks, dtypes, windows, what hides keys.

Arguments are those of `nn.dot_product_attention`, each device's part of them: queries, keys and
values cut along the sequence, rows of bias and mask as the queries, their columns whole.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.types import AxisName
from funcgrad.errors import ArgumentError, DTypeError, ShapeError, ShardingError
from funcgrad.ops.collective.reductions import names_of
from funcgrad.transforms.attention.operands import wide_dtype

_LEAST_SCALE = float(np.finfo(np.float32).tiny)


class Arguments(NamedTuple):
    """What was given, checked: arrays of one float dtype, with a batch axis; bias and mask with
    four axes, or None; scale a positive number; before and after: how far a query sees, or None."""

    query: Any
    key: Any
    value: Any
    bias: Any
    mask: Any
    scale: float
    before: int | None
    after: int | None
    batched: bool

    def result(self, out: Any) -> Any:
        """A result as the arguments were given: with a batch axis or without."""
        return out if self.batched else out[0]


def size_of(name: str, what: str, axis: AxisName) -> int:
    """The number of devices along a mesh axis (or several), which must be that of a `shard_map`."""
    axes, size = context.current().axes, 1
    for n in names_of(axis):
        if n not in axes:
            known = ", ".join(map(repr, axes)) or "none"
            raise ShardingError(
                f"{name}: {what}={axis!r} must name a mesh axis of the shard_map around it; axes "
                f"here: {known}"
            )
        size *= axes[n]
    return size


def arguments(
    name: str, query: Any, key: Any, value: Any, bias: Any, mask: Any, scale: float | None,
    is_causal: bool, window: Any, devices: int,
) -> Arguments:  # fmt: skip
    """The arguments of an attention of sequences cut over so many devices."""
    query, key, value = fnp.asarray(query), fnp.asarray(key), fnp.asarray(value)
    batched = query.ndim == 4
    if query.ndim == key.ndim == value.ndim == 3:
        query, key, value = query[None], key[None], value[None]
    _check(name, query, key, value)
    dtype = _dtype(name, query, key, value)
    whole = (query.shape[0], query.shape[2], query.shape[1], key.shape[1] * devices)
    bias = _pairs(name, "bias", bias, whole, wide_dtype(dtype))
    mask = _pairs(name, "mask", mask, whole, dtypes.BOOL)
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    # A scale that is traced, or that float32 rounds to 0, is part of the queries.
    if not (isinstance(scale, int | float) and _LEAST_SCALE < scale < math.inf):
        query, scale = fnp.multiply(query, scale).astype(dtype), 1.0
    before, after = window_of(name, is_causal, window)
    return Arguments(query, key, value, bias, mask, float(scale), before, after, batched)


def _check(name: str, query: Any, key: Any, value: Any) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if not (query.ndim == key.ndim == value.ndim == 4):
        raise ShapeError(f"{name}: need three arrays of (B, T, N, H) or (T, N, H), got {shapes}")
    same = key.shape == value.shape and key.shape[::3] == query.shape[::3]
    if not same or not key.shape[2] or query.shape[2] % key.shape[2]:
        raise ShapeError(
            f"{name}: batch and head sizes must agree, key and value have one shape, and the key "
            f"heads divide the query heads; got {shapes}"
        )
    if key.shape[1] != query.shape[1]:
        raise ShapeError(
            f"{name}: queries and keys must be the same places of one sequence, got {shapes}"
        )


def _dtype(name: str, query: Any, key: Any, value: Any) -> np.dtype:
    dtype = fnp.result_type(query, key, value)
    if dtypes.is_complex(dtype):
        raise DTypeError(
            f"{name}: softmax needs real numbers, got query {query.dtype}, key {key.dtype}, value "
            f"{value.dtype}"
        )
    return dtype if dtypes.is_float(dtype) else fnp.result_type(dtype, np.float32)


def _pairs(name: str, what: str, given: Any, whole: tuple[int, ...], dtype: np.dtype) -> Any:
    """A bias or mask with four axes, or None."""
    if given is None:
        return None
    x = fnp.asarray(given)
    if (x.dtype == dtypes.BOOL) != (dtype == dtypes.BOOL) or dtypes.is_complex(x.dtype):
        kind = "bools" if dtype == dtypes.BOOL else "real numbers"
        raise DTypeError(f"{name}: {what} must be of {kind}, got {x.dtype}")
    shape = (1,) * (4 - x.ndim) + x.shape
    if x.ndim > 4 or any(n not in (1, m) for n, m in zip(shape, whole, strict=True)):
        raise ShapeError(
            f"{name}: {what} must be broadcastable to (B, N, T, S) = {whole}, rows of this "
            f"device's queries and columns of all devices' keys; got {x.shape}"
        )
    return x.reshape(shape).astype(dtype)


def window_of(name: str, is_causal: bool, size: Any) -> tuple[int | None, int | None]:
    """How many keys before and after its place a query sees; None for all.

    >>> window_of("f", True, 3), window_of("f", False, (None, 2))
    ((3, 0), (None, 2))
    """
    both = tuple(size) if isinstance(size, tuple | list) else (size, size)
    fit = all(n is None or (isinstance(n, int | np.integer) and n >= 0) for n in both)
    if len(both) != 2 or not fit:
        raise ArgumentError(
            f"{name}: local_window_size must be a number of keys, 0 or more, or a pair of them "
            f"(left, right), got {size!r}"
        )
    before, after = (None if n is None else int(n) for n in both)
    return before, 0 if is_causal else after
