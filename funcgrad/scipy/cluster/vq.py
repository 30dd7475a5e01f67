"""Vector quantization: the nearest code of each observation, and codes by Lloyd's k-means."""

from __future__ import annotations

from typing import Any

import funcgrad.numpy as fnp
from funcgrad import lax, random
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.ops.arguments import integer
from funcgrad.scipy._operands import float_arrays, real_array


def _matrices(function: str, **given: Any) -> list:
    """Arrays of one floating-point dtype, as matrices of as many columns."""
    for name, value in given.items():
        real_array(function, name, value)
    arrays = float_arrays(list(given.values()))
    shapes = " and ".join(f"{n} {a.shape}" for n, a in zip(given, arrays, strict=True))
    ranks = {a.ndim for a in arrays}
    matrices = [a[:, None] if a.ndim == 1 else a for a in arrays]
    if ranks not in ({1}, {2}) or len({a.shape[1] for a in matrices}) > 1:
        raise ShapeError(f"{function}: need (n,) each, or (n, d) of one d, got {shapes}")
    return matrices


def whiten(obs: Any, check_finite: bool = True) -> Any:
    """Each column over its standard deviation, if that isn't 0.

    >>> from funcgrad.scipy.cluster import vq
    >>> print(vq.whiten(fnp.array([[1.0, 5.0], [3.0, 5.0]])))
    [[1. 5.]
     [3. 5.]]
    """
    (obs,) = float_arrays([real_array("vq.whiten", "obs", obs)])
    spread = fnp.std(obs, axis=0)
    return obs / fnp.where(spread == 0, 1.0, spread)


def vq(obs: Any, code_book: Any, check_finite: bool = True) -> tuple[Any, Any]:
    """The index of each observation's nearest code, and their distance.

    obs: (m, d) or (m,); code_book: (k, d) or (k,).

    >>> from funcgrad.scipy.cluster import vq
    >>> codes, distances = vq.vq(
    ...     fnp.array([[1.0, 2.0], [9.0, 9.0]]), fnp.array([[0.0, 2.0], [9.0, 8.0]])
    ... )
    >>> print(codes, distances)
    [0 1] [1. 1.]
    """
    obs, code_book = _matrices("vq.vq", obs=obs, code_book=code_book)
    if not code_book.shape[0]:
        raise ShapeError("vq.vq: code_book has no codes")
    gap = obs[:, None, :] - code_book
    square = fnp.sum(gap * gap, axis=-1)
    code = fnp.argmin(square, axis=-1)
    nearest = fnp.take_along_axis(square, code[:, None], axis=-1)[:, 0]
    apart = nearest > 0  # at 0 the root has no derivative
    return code, fnp.where(apart, fnp.sqrt(fnp.where(apart, nearest, 1.0)), 0.0)


def kmeans2(data: Any, k: Any, iter: int = 10, *, key: Any = None) -> tuple[Any, Any]:
    """Codes by k-means, and the nearest one of each observation.

    k: the first codes, or how many of the observations to draw with `key`. A code that is nobody's
    nearest stays.

    >>> from funcgrad.scipy.cluster import vq
    >>> codes, labels = vq.kmeans2(fnp.array([0.0, 1.0, 9.0, 10.0]), fnp.array([0.0, 5.0]))
    >>> print(codes, labels)
    [0.5 9.5] [0 0 1 1]
    """
    iter = integer("vq.kmeans2: iter", iter)
    data = real_array("vq.kmeans2", "data", data)
    if isinstance(k, int):
        if key is None or not 0 < k <= data.shape[0]:
            raise ArgumentError(
                f"vq.kmeans2: {k} codes are drawn of {data.shape[0]} observations with key=, "
                f"got {key!r}"
            )
        k = random.choice(key, data, (k,), replace=False)
    flat = data.ndim == 1
    data, codes = _matrices("vq.kmeans2", data=data, k=k)

    def turn(_: Any, codes: Any) -> Any:
        nearest = vq(data, codes)[0]
        member = (nearest[:, None] == fnp.arange(codes.shape[0])).astype(data.dtype)
        count = fnp.sum(member, axis=0)[:, None]
        return fnp.where(count > 0, (member.T @ data) / fnp.maximum(count, 1.0), codes)

    codes = lax.fori_loop(0, iter, turn, codes)
    return (codes[:, 0] if flat else codes), vq(data, codes)[0]


__all__ = ["kmeans2", "vq", "whiten"]
