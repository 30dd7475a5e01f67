"""Initializers: functions init(key, shape, dtype) that give a layer's first weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, random
from funcgrad.core.context import current

Initializer = Callable[..., Any]


def _scaled(x: Any, factor: Any) -> Any:
    """x times a number or an array, in the dtype of x."""
    return x * fnp.asarray(factor, x.dtype)


def zeros(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
    """All zeros; the key isn't used. `out_sharding` is how they are to be cut over a mesh.

    >>> from funcgrad import nn, random
    >>> print(nn.initializers.zeros(random.key(0), (2,)))
    [0. 0.]
    """
    return fnp.zeros(shape, dtype, out_sharding=out_sharding)


def ones(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Any:
    """All ones; the key isn't used. `out_sharding` is how they are to be cut over a mesh.

    >>> from funcgrad import nn, random
    >>> print(nn.initializers.ones(random.key(0), (2,)))
    [1. 1.]
    """
    return fnp.ones(shape, dtype, out_sharding=out_sharding)


def constant(value: Any, dtype: Any = None) -> Initializer:
    """All equal to value.

    >>> from funcgrad import nn, random
    >>> print(nn.initializers.constant(3.0)(random.key(0), (2,)))
    [3. 3.]
    """
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = default) -> Any:
        return fnp.full(shape, value, current().float_dtype if dtype is None else dtype)

    return init


def uniform(scale: float = 1e-2, dtype: Any = None) -> Initializer:
    """Uniform on [0, scale).

    >>> from funcgrad import nn, random
    >>> nn.initializers.uniform()(random.key(0), (2, 3)).shape
    (2, 3)
    """
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = default) -> Any:
        return _scaled(random.uniform(key, shape, dtype), scale)

    return init


def normal(stddev: float = 1e-2, dtype: Any = None) -> Initializer:
    """Normal with mean 0 and a standard deviation.

    >>> from funcgrad import nn, random
    >>> nn.initializers.normal(0.02)(random.key(0), (2, 3)).shape
    (2, 3)
    """
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = default) -> Any:
        return _scaled(random.normal(key, shape, dtype), stddev)

    return init


def truncated_normal(
    stddev: float = 1e-2, dtype: Any = None, lower: float = -2.0, upper: float = 2.0
) -> Initializer:
    """Normal, cut at lower and upper standard deviations.

    >>> from funcgrad import nn, random
    >>> nn.initializers.truncated_normal()(random.key(0), (2, 3)).shape
    (2, 3)
    """
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = default) -> Any:
        return _scaled(random.truncated_normal(key, lower, upper, shape, dtype), stddev)

    return init


def _fans(
    shape: Sequence[int], in_axis: Any, out_axis: Any, batch_axis: Any
) -> tuple[float, float]:
    if len(shape) < 2 and in_axis == -2:
        raise ValueError(
            "initializers: variance scaling needs a shape of at least two axes, or in_axis=, got "
            f"{tuple(shape)}"
        )

    def product(axes: Any) -> int:
        return math.prod(shape[a] for a in ((axes,) if isinstance(axes, int) else axes))

    n_in, n_out, n_batch = product(in_axis), product(out_axis), product(batch_axis)
    field = math.prod(shape) / n_in / n_out / n_batch
    return n_in * field, n_out * field


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
    batch_axis: Sequence[int] = (),
    dtype: Any = None,
) -> Initializer:
    """Weights of variance scale / n, with n the "fan_in", "fan_out", "fan_avg" or
    "fan_geo_avg" (the geometric mean) of the shape.

    distribution: "truncated_normal", "normal" or "uniform"; complex weights are uniform in a disk,
    or have an absolute value of at most two standard deviations.

    >>> from funcgrad import nn, random
    >>> init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    >>> init(random.key(0), (4, 5)).shape
    (4, 5)
    """
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = default) -> Any:
        fan_in, fan_out = _fans(shape, in_axis, out_axis, batch_axis)
        fans = {
            "fan_in": fan_in,
            "fan_out": fan_out,
            "fan_avg": (fan_in + fan_out) / 2,
            "fan_geo_avg": math.sqrt(fan_in * fan_out),
        }
        if mode not in fans:
            raise ValueError(f"variance_scaling: mode must be one of {list(fans)}, got {mode!r}")
        variance = scale / max(fans[mode], 1.0)
        if (
            distribution != "normal"
            and dtype is not None
            and dtypes.is_complex(dtypes.canonical(dtype))
        ):
            return _complex(key, shape, dtypes.canonical(dtype), distribution, variance)
        if distribution == "truncated_normal":
            # Cutting at two standard deviations leaves a variance of 0.7737.
            stddev = math.sqrt(variance) / 0.87962566103423978
            return _scaled(random.truncated_normal(key, -2, 2, shape, dtype), stddev)
        if distribution == "normal":
            return _scaled(random.normal(key, shape, dtype), math.sqrt(variance))
        if distribution == "uniform":
            return _scaled(random.uniform(key, shape, dtype, -1), math.sqrt(3 * variance))
        raise ValueError(_UNKNOWN.format(distribution))

    return init


_UNKNOWN = "variance_scaling: distribution must be truncated_normal, normal or uniform, got {!r}"


def _complex(
    key: Any, shape: Sequence[int], dtype: np.dtype, distribution: str, variance: float
) -> Any:
    """Complex numbers of a variance and of all angles: uniform in a disk, or normal with an
    absolute value that is cut at two standard deviations."""
    absolute, angle = random.split(key)
    part = dtypes.real_part(dtype)
    r = random.uniform(absolute, shape, part)
    if distribution == "truncated_normal":
        # Cutting leaves a standard deviation of 0.9531.
        r = fnp.sqrt(-fnp.log(1 - (1 - math.exp(-4)) * r)) / 0.95311164380491208
    elif distribution == "uniform":
        r = fnp.sqrt(2 * r)
    else:
        raise ValueError(_UNKNOWN.format(distribution))
    turn = fnp.exp(2j * math.pi * random.uniform(angle, shape, part).astype(dtype))
    return (math.sqrt(variance) * r * turn).astype(dtype)


def _variant(name: str, scale: float, mode: str, distribution: str, source: str) -> Any:
    def make(
        in_axis: int | Sequence[int] = -2,
        out_axis: int | Sequence[int] = -1,
        batch_axis: Sequence[int] = (),
        dtype: Any = None,
    ) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""Variance {scale}/{mode}, distribution {distribution}. Source: {source}.

    >>> from funcgrad import nn, random
    >>> nn.initializers.{name}()(random.key(0), (4, 5)).shape
    (4, 5)
    """
    return make


_GLOROT = "Glorot & Bengio, 2010"
_HE = "He et al., 2015"
_LECUN = "LeCun et al., 1998"
glorot_uniform = _variant("glorot_uniform", 1.0, "fan_avg", "uniform", _GLOROT)
glorot_normal = _variant("glorot_normal", 1.0, "fan_avg", "truncated_normal", _GLOROT)
he_uniform = _variant("he_uniform", 2.0, "fan_in", "uniform", _HE)
he_normal = _variant("he_normal", 2.0, "fan_in", "truncated_normal", _HE)
lecun_uniform = _variant("lecun_uniform", 1.0, "fan_in", "uniform", _LECUN)
lecun_normal = _variant("lecun_normal", 1.0, "fan_in", "truncated_normal", _LECUN)
xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal


def orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """A (semi-)orthogonal matrix: Q of a normal one (Saxe et al., 2013).

    >>> from funcgrad import nn, random
    >>> q = nn.initializers.orthogonal()(random.key(0), (3, 3))
    >>> bool(fnp.allclose(q @ q.T, fnp.eye(3), atol=1e-5))
    True
    """
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = default) -> Any:
        if len(shape) < 2:
            raise ValueError(f"orthogonal: need a shape of at least two axes, got {tuple(shape)}")
        columns = shape[column_axis]
        rows = math.prod(n for i, n in enumerate(shape) if i != column_axis % len(shape))
        drawn = random.normal(key, (max(rows, columns), min(rows, columns)), dtype)
        q, r = fnp.linalg.qr(drawn)
        q = q * fnp.sign(fnp.diagonal(r))
        if rows < columns:
            q = q.T
        wide = [n for i, n in enumerate(shape) if i != column_axis % len(shape)]
        q = fnp.reshape(q, (*wide, columns))
        return _scaled(fnp.moveaxis(q, -1, column_axis), scale)

    return init


def delta_orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """Kernels of convolutions that are an orthogonal matrix in the middle, else zero (Xiao et al.,
    2018): of shape (…, in, out) with one to three axes in front, and in ≤ out.

    >>> from funcgrad import nn, random
    >>> kernel = nn.initializers.delta_orthogonal()(random.key(0), (3, 2, 2))
    >>> bool(fnp.allclose(kernel[1] @ kernel[1].T, fnp.eye(2), atol=1e-5))
    True
    """
    default = dtype

    def init(key: Any, shape: Sequence[int], dtype: Any = default) -> Any:
        if len(shape) not in (3, 4, 5) or shape[-1] < shape[-2]:
            raise ValueError(
                "delta_orthogonal: need a shape of three to five axes whose last one isn't smaller "
                f"than that before it, got {tuple(shape)}"
            )
        matrix = orthogonal(scale, column_axis, dtype)(key, shape[-2:])
        middle = tuple((n - 1) // 2 for n in shape[:-2])
        return fnp.zeros(shape, matrix.dtype).at[middle].set(matrix)

    return init
