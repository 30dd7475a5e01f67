"""The operands of attention's ops: their types, and which of them may be given.

Behind the first, those that are given say themselves what they are: lengths have one axis, a mask
is of bools, a bias of floats. What broadcasts along an axis of the logits has size 1 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.types import Value
from funcgrad.errors import DTypeError, ShapeError

FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which attention of a dtype is computed.

    >>> wide_dtype(np.dtype("float16"))
    dtype('float32')
    """
    return dtype if dtype.itemsize >= 4 else FLOAT32


class Given(NamedTuple):
    """Operands that may be there: arrays of any kind, or avals; None for those that aren't.

    lengths: none, or of queries and of keys; bias: added to the logits; mask: false where a query
    doesn't see a key; change: the tangent of bias
    """

    lengths: tuple[Any, ...] = ()
    bias: Any = None
    mask: Any = None
    change: Any = None

    @property
    def operands(self) -> list:
        """In the order in which they are an op's operands."""
        return [*self.lengths, *(x for x in self[1:] if x is not None)]


def given_of(xs: Sequence[Value | ShapedArray]) -> Given:
    """An op's further operands by what they are.

    >>> given_of([np.zeros((2, 1, 1, 3), bool)]).bias is None
    True
    """
    floats = [x for x in xs if x.ndim == 4 and x.dtype != dtypes.BOOL]
    masks = [x for x in xs if x.ndim == 4 and x.dtype == dtypes.BOOL]
    bias, change = [*floats, None, None][:2]
    return Given(tuple(x for x in xs if x.ndim != 4), bias, [*masks, None][0], change)


def logits_shape(q: ShapedArray, k: ShapedArray) -> tuple[int, ...]:
    """(batch, head, query, key)."""
    return (q.shape[0], q.shape[2], q.shape[1], k.shape[1])


def check(
    name: str, q: ShapedArray, k: ShapedArray, v: ShapedArray, rest: Sequence[ShapedArray]
) -> Given:
    """The operands that are given, all of them of types that fit."""
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise ShapeError(
            f"{name}: need query (B, T, N, H), key and value (B, S, K, H), got {q}, {k}, {v}"
        )
    same = k.shape == v.shape and k.shape[0] == q.shape[0] and k.shape[3] == q.shape[3]
    if not same or not k.shape[2] or q.shape[2] % k.shape[2]:
        raise ShapeError(f"{name}: sizes of query {q}, key {k} and value {v} don't fit")
    if not (q.dtype == k.dtype == v.dtype and dtypes.is_float(q.dtype)):
        raise DTypeError(f"{name}: need floats of one dtype, got {q}, {k} and {v}")
    given, whole = given_of(rest), logits_shape(q, k)
    if len(given.lengths) not in (0, 2) or any(
        x.shape != q.shape[:1] or x.dtype != INT32 for x in given.lengths
    ):
        raise ShapeError(
            f"{name}: lengths of queries and of keys must be two int32 arrays of shape "
            f"{q.shape[:1]}, got {', '.join(map(str, given.lengths))}"
        )
    for what, x in (("bias", given.bias), ("mask", given.mask), ("change of bias", given.change)):
        fits = x is None or all(n in (1, m) for n, m in zip(x.shape, whole, strict=True))
        if not fits:
            raise ShapeError(f"{name}: {what} must broadcast to {whole} by axes of 1, got {x}")
        if x is not None and x.dtype not in (wide_dtype(q.dtype), dtypes.BOOL):
            raise DTypeError(f"{name}: {what} must be of {wide_dtype(q.dtype)}, got {x}")
    return given


def stats_aval(q: ShapedArray) -> ShapedArray:
    """Of each row of logits, the largest, and the logarithm of the sum of exp(logit - largest), as
    (batch, head, 2, query). A row without any key has +inf and 0."""
    b, t, n, _ = q.shape
    return ShapedArray((b, n, 2, t), wide_dtype(q.dtype))
