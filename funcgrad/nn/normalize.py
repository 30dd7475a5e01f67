"""The softmax family, standardization, one-hot codes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.context import current
from funcgrad.errors import DTypeError
from funcgrad.numpy._util import axes_of
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import position_dtype
from funcgrad.ops.elementwise.convert import stop_gradient
from funcgrad.transforms.derivatives.custom import custom_jvp
from funcgrad.transforms.recorded import recorded

Axis = int | Sequence[int] | None


def _float(name: str, x: Any, axis: Axis) -> Any:
    """An argument of `nn.<name>` as an array of an inexact dtype, which has this axis."""
    x = fnp.asarray(x)
    axes_of(f"nn.{name}", axis, x.ndim)
    return x if dtypes.is_inexact(x.dtype) else x.astype(current().float_dtype)


def _guarded_max(x: Any, axis: Axis, where: Any = None) -> Any:
    """The maximum along axis as a constant, 0 where it is infinite: what exponents are shifted by.

    Functions that use it don't depend on the shift, so its derivative isn't needed.
    """
    top = fnp.max(x, axis=axis, keepdims=True, where=where, initial=-fnp.inf)
    return stop_gradient(fnp.where(fnp.isfinite(top), top, fnp.zeros_like(top)))


@recorded
def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """exp(x) / Σ exp(x) along `axis`, computed without overflow.

    where: a mask; elements outside count as -inf and give 0.

    >>> from funcgrad import nn
    >>> print(nn.softmax(fnp.array([0.0, 0.0])))
    [0.5 0.5]
    """
    return _softmax(_masked(_float("softmax", x, axis), where), axis, where is not None)


def _masked(x: Any, where: Any) -> Any:
    return x if where is None else fnp.where(where, x, -fnp.inf)


@partial(custom_jvp, nondiff_argnums=(1, 2))
def _softmax(x: Any, axis: Axis, masked: bool) -> Any:
    weights = fnp.exp(x - _guarded_max(x, axis))
    total = fnp.sum(weights, axis=axis, keepdims=True)
    if masked:
        total = fnp.where(total == 0, fnp.ones_like(total), total)
    return weights / total


@_softmax.defjvp
def _softmax_jvp(axis: Axis, masked: bool, primals: Any, tangents: Any) -> Any:
    # In terms of the result alone: it is all that reverse mode keeps.
    y = _softmax(primals[0], axis, masked)
    moved = y * tangents[0]
    return y, moved - y * fnp.sum(moved, axis=axis, keepdims=True)


@recorded
def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Any:
    """log(softmax(x)) along `axis`, accurate where softmax underflows.

    where: a mask; elements outside count as -inf and give -inf.

    >>> from funcgrad import nn
    >>> print(nn.log_softmax(fnp.array([0.0, -1000.0])))
    [    0. -1000.]
    """
    x = _float("log_softmax", x, axis)
    out = _log_softmax(_masked(x, where), axis, where is not None)
    # The mask once more: what is constant outside of it has no derivative.
    return _masked(out, where)


@partial(custom_jvp, nondiff_argnums=(1, 2))
def _log_softmax(x: Any, axis: Axis, masked: bool) -> Any:
    shifted = x - _guarded_max(x, axis)
    total = fnp.sum(fnp.exp(shifted), axis=axis, keepdims=True)
    if masked:
        total = fnp.where(total == 0, fnp.ones_like(total), total)
    return shifted - fnp.log(total)


@_log_softmax.defjvp
def _log_softmax_jvp(axis: Axis, masked: bool, primals: Any, tangents: Any) -> Any:
    y = _log_softmax(primals[0], axis, masked)
    (t,) = tangents
    return y, t - fnp.sum(fnp.exp(y) * t, axis=axis, keepdims=True)


def logsumexp(
    a: Any,
    axis: Axis = None,
    b: Any = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: Any = None,
) -> Any:
    """log Σ b·exp(a) along `axis`, computed without overflow. -inf for an empty sum.

    return_sign: give the pair of log |Σ b·exp(a)| and the sum's sign; a negative sum without it is
    NaN. where: a mask of the elements that count.

    >>> from funcgrad import nn
    >>> print(nn.logsumexp(fnp.array([1000.0, 1000.0])))
    1000.69...
    """
    if return_sign:
        return _log_and_sign(a, axis, b, keepdims, where, True)
    return _logsumexp(a, axis, b, keepdims, where)


@recorded
def _logsumexp(a: Any, axis: Axis, b: Any, keepdims: bool, where: Any) -> Any:
    return _log_and_sign(a, axis, b, keepdims, where, False)[0]


def _log_and_sign(a: Any, axis: Axis, b: Any, keepdims: bool, where: Any, signed: bool) -> tuple:
    """As `logsumexp`; if not signed, the logarithm of a negative sum is NaN."""
    a = _float("logsumexp", a, axis)
    if where is not None:
        a = fnp.where(where, a, -fnp.inf)
    if b is not None:
        a = fnp.where(fnp.asarray(b) != 0, a, -fnp.inf)
    top = _guarded_max(a, axis)
    weights = fnp.exp(a - top)
    if b is not None:
        weights = weights * b
    total = fnp.sum(weights, axis=axis, keepdims=True)
    parts = [fnp.log(fnp.abs(total) if signed else total) + top, fnp.sign(total)]
    if not keepdims:
        parts = [fnp.squeeze(x, axis=_axes(axis, a.ndim)) for x in parts]
    return parts[0], parts[1]


def _axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return (axis,) if isinstance(axis, int) else tuple(axis)


def logmeanexp(x: Any, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Any:
    """The logarithm of the mean of exp(x) along `axis`, of the elements in the mask `where`.

    >>> from funcgrad import nn
    >>> print(nn.logmeanexp(fnp.array([1000.0, 1000.0])))
    1000.0
    """
    x = _float("logmeanexp", x, axis)
    counted = fnp.ones(x.shape, bool) if where is None else fnp.broadcast_to(where, x.shape)
    count = fnp.sum(counted, axis=axis, keepdims=keepdims, dtype=x.dtype)
    return logsumexp(x, axis, keepdims=keepdims, where=where) - fnp.log(count)


@recorded
def standardize(
    x: Any,
    axis: Axis = -1,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-5,
    where: Any = None,
    *,
    algorithm: str = "stable",
) -> Any:
    """(x - mean) / √(variance + epsilon) along `axis`; the moments are x's own if not given.

    Computed in float32 for floats of less precision, whose squares could overflow. where: a mask of
    the elements that the moments are taken of. algorithm: how the variance is, as the mean of
    (x - mean)² ("stable") or of x² less mean² ("fast").

    >>> from funcgrad import nn
    >>> print(nn.standardize(fnp.array([1.0, 3.0]), epsilon=0.0))
    [-1.  1.]
    """
    x = _float("standardize", x, axis)
    dtype = x.dtype
    if dtype.itemsize < 4:
        x = x.astype(fnp.float32)
    if mean is None:
        mean = fnp.mean(x, axis=axis, keepdims=True, where=where)
    if algorithm not in ("stable", "fast"):
        raise ValueError(f"standardize: algorithm must be 'stable' or 'fast', got {algorithm!r}")
    if variance is None and algorithm == "fast":
        squares = fnp.mean(fnp.square(x), axis=axis, keepdims=True, where=where)
        variance = fnp.maximum(fnp.subtract(squares, fnp.square(mean)), 0)
    elif variance is None:
        variance = fnp.mean(
            fnp.square(fnp.subtract(x, mean)), axis=axis, keepdims=True, where=where
        )
    elif isinstance(variance, int | float):
        variance = fnp.asarray(variance, x.dtype)
    return (fnp.subtract(x, mean) / fnp.sqrt(fnp.add(variance, epsilon))).astype(dtype)


@recorded
def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Any:
    """A vector with 1 at index x and 0 elsewhere, for each number in x, along a new `axis`.

    Numbers that aren't whole, and those outside [0, num_classes), give zeros.

    >>> from funcgrad import nn
    >>> print(nn.one_hot(fnp.array([0, 2]), 3))
    [[1. 0. 0.]
     [0. 0. 1.]]
    """
    x = fnp.asarray(x)
    dtype = current().float_dtype if dtype is None else dtype
    num_classes = integer("num_classes", num_classes)
    kind = position_dtype(num_classes)  # which holds the numbers of all classes
    if dtypes.is_float(x.dtype):
        kind = np.dtype(np.float32)
    elif not dtypes.is_integer(x.dtype):
        raise DTypeError(f"nn.one_hot: x must hold real numbers, got {x.dtype.name}")
    x = x.astype(kind) if x.dtype.itemsize < kind.itemsize else x
    classes = fnp.arange(num_classes, dtype=x.dtype)
    hot = (x[..., None] == classes).astype(dtype)
    return fnp.moveaxis(hot, -1, axis)
