"""Operators along axes: products, reductions, running sums, sorting, Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import lax
from funcgrad import numpy as fnp
from funcgrad import scipy as fscipy
from funcgrad.export.onnx.read.graph import Node, integers, known


def _axes(node: Node, x: Any, axes: Any) -> tuple[int, ...] | None:
    """The axes of a reduction, or None where nothing is reduced."""
    given = node.get("axes") if axes is None else integers(axes, "axes")
    if not given:
        return None if node.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
    return tuple(a % x.ndim for a in given)


def _reduction(function: Callable, each: Callable | None = None) -> Callable:
    def rule(node: Node, x: Any, axes: Any = None) -> Any:
        along = _axes(node, x, axes)
        if along is None:
            return x if each is None else each(x)
        out = function(x, axis=along, keepdims=bool(node.get("keepdims", 1)))
        return out.astype(x.dtype)

    return rule


def _logsumexp(x: Any, axis: Any, keepdims: bool) -> Any:
    return fscipy.special.logsumexp(x, axis=axis, keepdims=keepdims)


def _extremum(name: str) -> Callable:
    def function(x: Any, axis: Any, keepdims: bool) -> Any:
        if any(x.shape[a] == 0 for a in axis):
            low = name == "max"
            if x.dtype == np.bool_:
                value: Any = not low
            elif np.dtype(x.dtype).kind == "f":
                value = -np.inf if low else np.inf
            else:
                value = np.iinfo(x.dtype).min if low else np.iinfo(x.dtype).max
            shape = [
                1 if i in axis else n for i, n in enumerate(x.shape) if keepdims or i not in axis
            ]
            return fnp.full(shape, value, x.dtype)
        return getattr(fnp, name)(x, axis=axis, keepdims=keepdims)

    return function


def _position(find: str) -> Callable:
    def rule(node: Node, x: Any) -> Any:
        axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
        if node.get("select_last_index", 0):
            n = x.shape[axis]
            found = n - 1 - getattr(fnp, find)(fnp.flip(x, axis), axis=axis, keepdims=keep)
        else:
            found = getattr(fnp, find)(x, axis=axis, keepdims=keep)
        return found.astype(np.int64)

    return rule


def _running(function: Callable) -> Callable:
    def rule(node: Node, x: Any, axis: Any) -> Any:
        a = int(known(axis, "axis").reshape(()))
        y = fnp.flip(x, a) if node.get("reverse", 0) else x
        total = function(y, axis=a).astype(x.dtype)
        if node.get("exclusive", 0):
            first = 0 if function is fnp.cumsum else 1
            pads = [(0, 0)] * x.ndim
            pads[a] = (1, 0)
            cut = [slice(None)] * x.ndim
            cut[a] = slice(0, x.shape[a])
            total = fnp.pad(total, pads, constant_values=first)[tuple(cut)]
        return fnp.flip(total, a) if node.get("reverse", 0) else total

    return rule


def _top_k(node: Node, x: Any, k: Any) -> Any:
    axis, n = node.get("axis", -1), int(known(k, "k").reshape(()))
    y = fnp.moveaxis(x, axis, -1)
    if node.get("largest", 1):
        values, places = lax.top_k(y, n)
    else:
        places = fnp.argsort(y, axis=-1, stable=True)[..., :n]
        values = fnp.take_along_axis(y, places, axis=-1)
    return [fnp.moveaxis(values, -1, axis), fnp.moveaxis(places.astype(np.int64), -1, axis)]


def _matmul(node: Node, x: Any, y: Any) -> Any:
    return fnp.matmul(x, y)


def _gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    a = a.T if node.get("transA", 0) else a
    b = b.T if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    out = fnp.matmul(a, b)
    out = out if alpha == 1 else (alpha * out).astype(out.dtype)
    if c is None:
        return out
    return out + (c if beta == 1 else (beta * c).astype(out.dtype))


def _einsum(node: Node, *xs: Any) -> Any:
    return fnp.einsum(node.get("equation"), *xs)


def _det(node: Node, x: Any) -> Any:
    return fnp.linalg.det(x)


def _dft(node: Node, x: Any, length: Any = None, axis: Any = None) -> Any:
    given = node.get("axis", 1 if node.opset < 20 else -2)
    a = given if axis is None else int(known(axis, "axis").reshape(()))
    a = a % x.ndim
    inverse, half = node.get("inverse", 0), node.get("onesided", 0)
    n = 2 * (x.shape[a] - 1) if inverse and half else x.shape[a]
    n = n if length is None else int(known(length, "the length").reshape(()))
    z = x[..., 0] if x.shape[-1] == 1 else lax.complex(x[..., 0], x[..., 1])
    if half and inverse:
        return fnp.fft.irfft(z, n, axis=a)[..., None].astype(x.dtype)
    if half:
        z = fnp.fft.rfft(z, n, axis=a)
    else:
        z = fnp.fft.ifft(z, n, axis=a) if inverse else fnp.fft.fft(z, n, axis=a)
    return fnp.stack([z.real, z.imag], -1).astype(x.dtype)


RULES: dict[str, Callable] = {
    "ArgMax": _position("argmax"), "ArgMin": _position("argmin"),
    "CumSum": _running(fnp.cumsum), "CumProd": _running(fnp.cumprod), "DFT": _dft, "Det": _det,
    "Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul,
    "ReduceL1": _reduction(lambda x, **k: fnp.sum(fnp.abs(x), **k), fnp.abs),
    "ReduceL2": _reduction(lambda x, **k: fnp.sqrt(fnp.sum(fnp.square(x), **k)), fnp.abs),
    "ReduceLogSum": _reduction(lambda x, **k: fnp.log(fnp.sum(x, **k)), fnp.log),
    "ReduceLogSumExp": _reduction(_logsumexp),
    "ReduceMax": _reduction(_extremum("max")), "ReduceMean": _reduction(fnp.mean),
    "ReduceMin": _reduction(_extremum("min")), "ReduceProd": _reduction(fnp.prod),
    "ReduceSum": _reduction(fnp.sum),
    "ReduceSumSquare": _reduction(lambda x, **k: fnp.sum(fnp.square(x), **k), fnp.square),
    "TopK": _top_k,
}  # fmt: skip
