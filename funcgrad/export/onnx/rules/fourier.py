"""Fourier transforms, as DFT of pairs: a last axis has the real and the imaginary part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.backends.rewrites.complex_pairs import on_complex_p
from funcgrad.core.ir import Eqn
from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable
from funcgrad.export.onnx.kernels import I8
from funcgrad.ops.fft import FFT, IFFT, IRFFT, RFFT, fft_p


def on_complex(g: Graph, eqn: Eqn, ins: Sequence[Tensor]) -> list[Tensor]:
    """An op on complex numbers that are pairs: a Fourier transform of the last axis."""
    prim, p = eqn.params["prim"], eqn.params["params"]
    if prim is not fft_p:
        raise Untranslatable(f"{prim} of complex numbers")
    (x,), kind, (n,) = ins, p["fft_type"], p["fft_lengths"]
    shape = eqn.outs[0].aval.shape
    if kind is RFFT:
        axis = x.rank - 1
        x = g.reshape(x, (*x.shape, 1))
        return [_dft(g, x, axis, shape, onesided=1)]
    axis = x.rank - 2
    if kind in (FFT, IFFT):
        return [(_inverse if kind is IFFT else _dft)(g, x, axis, shape)]
    assert kind is IRFFT
    # The other half are the conjugates, backwards.
    half = n // 2 + 1
    order = np.r_[np.arange(half), np.arange(n - half, 0, -1)]
    signs = np.ones((n, 2), x.dtype)
    signs[half:, 1] = -1
    whole = (*x.shape[:axis], n, 2)
    x = g.op("Gather", x, g.constant(order, I8), axis=axis, shape=whole, data=[0])
    x = g.elementwise("Mul", x, g.constant(signs))
    y = _inverse(g, x, axis, whole)
    return [g.reshape(g.slice(y, axis + 1, 0, 1), shape)]


def _inverse(g: Graph, x: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
    """The conjugate of the conjugate's transform, over n: runtimes' own divide by n in float32."""
    n = max(int(x.shape[axis]), 1)
    turned = g.elementwise("Mul", x, g.constant([1, -1], x.dtype))
    y = _dft(g, turned, axis, shape)
    return g.elementwise("Mul", y, g.constant([1 / n, -1 / n], x.dtype))


def _dft(g: Graph, x: Tensor, axis: int, shape: Sequence[int], **how: int) -> Tensor:
    if 0 in map(int, (*x.shape, *shape)):
        return g.full(tuple(shape), 0, x.dtype)
    length = g.constant(x.shape[axis], I8)
    made = g.node("DFT", [x.name, length.name, g.constant(axis, I8).name], how)[0]
    return Tensor(g, made, x.dtype, tuple(shape))


RULES = {on_complex_p: on_complex}
