"""Windows, frames and spectra of signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import numpy as fnp
from funcgrad.export.onnx.read.elementwise import element_type
from funcgrad.export.onnx.read.graph import Node, integers, known


def _window(*terms: float) -> Callable:
    """Σ (-1)^k a_k cos(2πki/n)."""

    def rule(node: Node, size: Any) -> Any:
        (n,) = integers(size, "size")
        periods = n if node.get("periodic", 1) else max(n - 1, 1)
        angle = 2 * np.pi * np.arange(n) / periods
        total = sum((-1) ** k * a * np.cos(k * angle) for k, a in enumerate(terms))
        return fnp.asarray(total).astype(element_type(node.get("output_datatype", 1)))

    return rule


def _stft(node: Node, x: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    (hop,) = integers(step, "frame_step")
    n = len(window) if length is None else integers(length, "frame_length")[0]
    count = (x.shape[1] - n) // hop + 1
    places = np.arange(count)[:, None] * hop + np.arange(n)
    z = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
    frames = fnp.take(z, places, axis=1)
    frames = frames if window is None else frames * window
    found = fnp.fft.fft(frames, axis=-1)
    found = found[..., : n // 2 + 1] if node.get("onesided", 1) else found
    return fnp.stack([found.real, found.imag], -1).astype(x.dtype)


def _mel(node: Node, bands: Any, size: Any, rate: Any, low: Any, high: Any) -> Any:
    """Triangles that are even on the scale of mels, 2595 log10(1 + f / 700)."""
    m, n, hertz = (int(known(v, "a size").item()) for v in (bands, size, rate))
    start, stop = (
        2595 * np.log10(1 + float(known(v, "an edge").item()) / 700) for v in (low, high)
    )
    mels = np.linspace(start, stop, m + 3)[:-1]
    bins = np.floor((n + 1) * (700 * (10 ** (mels / 2595) - 1)) / hertz).astype(int)
    out = np.zeros((n // 2 + 1, m))
    for i, (a, b, c) in enumerate(zip(bins, bins[1:], bins[2:], strict=False)):
        if b == a:
            out[b, i] = 1
        else:
            out[a : b + 1, i] = np.arange(b - a + 1) / (b - a)
        if c > b:
            out[b:c, i] = (c - np.arange(b, c)) / (c - b)
    return fnp.asarray(out).astype(element_type(node.get("output_datatype", 1)))


RULES: dict[str, Callable] = {
    "BlackmanWindow": _window(0.42, 0.5, 0.08), "HammingWindow": _window(25 / 46, 21 / 46),
    "HannWindow": _window(0.5, 0.5), "MelWeightMatrix": _mel, "STFT": _stft,
}  # fmt: skip
