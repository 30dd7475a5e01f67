"""Images resampled: `resize` and `scale_and_translate`, as `jax.image` has them.

Along each axis the result is a product with a matrix of weights: an interpolating kernel around the
place where each result's centre lies in the image. Pixels have their centres at i + 0.5. Where an
image shrinks, the kernel is widened by as much (antialiasing), so that it averages.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ArgumentError, ShapeError, within
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.ops.arguments import canonical_axes, shape_of

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]


class ResizeMethod(enum.Enum):
    """How pixels are interpolated; methods may be given by these or by their names in lower case,
    CUBIC_PYTORCH as "cubic-pytorch"."""

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """The method that has a name.

        >>> from funcgrad.image import ResizeMethod
        >>> ResizeMethod.from_string("bilinear")
        <ResizeMethod.LINEAR: 1>
        """
        if s not in _METHODS:
            raise ValueError(
                within(f'Unknown resize method "{s}": it is one of {sorted(_METHODS)}')
            )
        return _METHODS[s]


_METHODS = {
    "nearest": ResizeMethod.NEAREST,
    **dict.fromkeys(["linear", "bilinear", "trilinear", "triangle"], ResizeMethod.LINEAR),
    "lanczos3": ResizeMethod.LANCZOS3,
    "lanczos5": ResizeMethod.LANCZOS5,
    **dict.fromkeys(["cubic", "bicubic", "tricubic"], ResizeMethod.CUBIC),
    **dict.fromkeys(["cubic-pytorch", "bicubic-pytorch"], ResizeMethod.CUBIC_PYTORCH),
    "area": ResizeMethod.AREA,
}


def _linear(x: Any) -> Any:
    return fnp.maximum(1 - x, 0)


def _lanczos(radius: float) -> Callable:
    def kernel(x: Any) -> Any:
        near = x <= 1e-3
        safe = fnp.where(near, 1.0, math.pi * x)
        value = radius * fnp.sin(safe) * fnp.sin(safe / radius) / (safe * safe)
        return fnp.where(x > radius, 0.0, fnp.where(near, 1.0, value))

    return kernel


def _cubic(a: float) -> Callable:
    """Keys' convolution kernel (1981) with the slope `a` at 1."""

    def kernel(x: Any) -> Any:
        inner = ((a + 2) * x - (a + 3)) * x * x + 1
        outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return fnp.where(x >= 2, 0.0, fnp.where(x >= 1, outer, inner))

    return kernel


_KERNELS: dict[ResizeMethod, Callable] = {
    ResizeMethod.LINEAR: _linear,
    ResizeMethod.LANCZOS3: _lanczos(3.0),
    ResizeMethod.LANCZOS5: _lanczos(5.0),
    ResizeMethod.CUBIC: _cubic(-0.5),
    ResizeMethod.CUBIC_PYTORCH: _cubic(-0.75),
}


def _weights(m: int, n: int, scale: Any, shift: Any, method: ResizeMethod, antialias: bool) -> Any:
    """The matrix (m, n) that takes m pixels to n."""
    step = 1 / scale
    out = fnp.arange(n, dtype=step.dtype)
    sample = (out + 0.5) * step - shift * step - 0.5
    repeats = 2 if method is ResizeMethod.CUBIC_PYTORCH else 0  # the image's edges
    pixels = fnp.arange(-repeats, m + repeats, dtype=step.dtype)[:, None]
    if method is ResizeMethod.AREA:
        left = (out - shift) * step
        shared = fnp.minimum(left + step, pixels + 1) - fnp.maximum(left, pixels)
        weights = fnp.maximum(shared, 0)
    else:
        width = fnp.maximum(step, 1) if antialias else 1
        weights = _KERNELS[method](fnp.abs(sample - pixels) / width)
    if repeats and m:
        first = fnp.sum(weights[: repeats + 1], 0, keepdims=True)
        last = fnp.sum(weights[-repeats - 1 :], 0, keepdims=True)
        inner = weights[repeats + 1 : -repeats - 1]
        weights = fnp.concatenate([first, inner, last]) if m > 1 else fnp.sum(weights, 0)[None]
    total = fnp.sum(weights, 0, keepdims=True)
    enough = fnp.abs(total) > 1000 * float(np.finfo(np.float32).eps)
    weights = fnp.where(enough, weights / fnp.where(enough, total, 1), 0)
    if repeats:
        return weights
    return fnp.where((sample >= -0.5) & (sample <= m - 0.5), weights, 0)


def _resampled(
    x: Any, shape: tuple[int, ...], axes: Sequence[int], scales: Sequence[Any],
    shifts: Sequence[Any], method: ResizeMethod, antialias: bool, precision: Any,
) -> Any:  # fmt: skip
    if method is ResizeMethod.CUBIC_PYTORCH and antialias:
        method = ResizeMethod.CUBIC
    for d, scale, shift in zip(axes, scales, shifts, strict=True):
        weights = _weights(x.shape[d], shape[d], scale, shift, method, antialias).astype(x.dtype)
        product = fnp.tensordot(x, weights, ((d,), (0,)), precision=precision)
        x = fnp.moveaxis(product, -1, d)
    return x


def _arguments(name: str, image: Any, shape: Any, method: Any) -> tuple:
    image = as_array(name, image, "image")
    shape = shape_of(name, shape)
    if len(shape) != image.ndim:
        raise ShapeError(
            f"{name}: shape must have length equal to the number of dimensions of image: {shape}, "
            f"got image {image.aval}"
        )
    if isinstance(method, str):
        method = ResizeMethod.from_string(method)
    if not isinstance(method, ResizeMethod):
        raise ArgumentError(f"{name}: method must be a ResizeMethod or its name, got {method!r}")
    return image, shape, method


def resize(
    image: Any,
    shape: Sequence[int],
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = "highest",
) -> Any:
    """An image resampled to a shape; axes of the same length are left as they are.

    method: "nearest", "linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5" or "area", see
    `ResizeMethod`. antialias: average what an image loses where it shrinks. All but "nearest" give
    floating-point numbers.

    >>> from funcgrad import image
    >>> image.resize(fnp.array([[1.0, 3.0]]), (1, 4), "linear")
    Array([[1. , 1.5, 2.5, 3. ]], dtype=float32)
    >>> image.resize(fnp.arange(4), (2,), "nearest")
    Array([1, 3], dtype=int32)
    """
    image, sizes, how = _arguments("resize", image, shape, method)
    axes = [d for d in range(image.ndim) if image.shape[d] != sizes[d]]
    if any(not image.shape[d] for d in axes):
        raise ShapeError(f"resize: an image {image.aval} without pixels has no shape {sizes}")
    if how is ResizeMethod.NEAREST:
        for d in axes:
            m, n = image.shape[d], sizes[d]
            # In float32, which decides ties: JAX's choice.
            places = (np.arange(n, dtype=np.float32) + np.float32(0.5)) * np.float32(m)
            image = fnp.take(image, np.floor(places / np.float32(n)).astype(np.int32), d)
        return image
    (image,) = promote_inexact("resize", image)
    dtype = _wide(image)
    scales = [fnp.asarray(sizes[d] / image.shape[d] if sizes[d] else 1.0, dtype) for d in axes]
    shifts = [fnp.zeros((), dtype)] * len(axes)
    return _resampled(image, sizes, axes, scales, shifts, how, antialias, precision)


def _wide(image: Any) -> np.dtype:
    """The dtype of weights: what the image's numbers need, and no less than float32."""
    return np.dtype(
        max(dtypes.real_part(image.dtype), np.dtype(np.float32), key=lambda d: d.itemsize)
    )


def scale_and_translate(
    image: Any,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: Any,
    translation: Any,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = "highest",
) -> Any:
    """An image of a shape to which place x of the given one went by x * scale + translation.

    spatial_dims: the axes that `scale` and `translation`, vectors, speak of. Results whose places
    are outside of the image are 0. Derivatives exist in all three arrays. See `resize`.

    >>> from funcgrad import image
    >>> x = fnp.array([1.0, 2.0, 3.0])
    >>> image.scale_and_translate(x, (3,), (0,), fnp.ones(1), fnp.ones(1), "linear")
    Array([0., 1., 2.], dtype=float32)
    """
    name = "scale_and_translate"
    image, sizes, how = _arguments(name, image, shape, method)
    if how is ResizeMethod.NEAREST:
        raise ArgumentError(f"{name}: method nearest isn't supported; use linear")
    (image,) = promote_inexact(name, image)
    axes = canonical_axes(name, spatial_dims, image.ndim)
    scale, translation = promote_inexact(name, fnp.asarray(scale), fnp.asarray(translation))
    for argument, x in (("scale", scale), ("translation", translation)):
        if x.shape != (len(axes),):
            raise ShapeError(
                f"{name}: {argument} must be a vector with a number for each of the axes {axes}, "
                f"got {x.aval}"
            )
    kind = fnp.promote_types(scale.dtype, _wide(image))
    scale, translation = scale.astype(kind), translation.astype(kind)
    return _resampled(image, sizes, axes, list(scale), list(translation), how, antialias, precision)
