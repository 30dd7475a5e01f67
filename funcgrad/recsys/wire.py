"""Sums of rows on their way between devices in fewer bits, as are their cotangents.

bfloat16 halves the bytes; of 8-bit floats each row has a scale of its own, and its largest element
becomes the largest that the dtype has (as in Yang et al., "Training deep learning recommendation
model with quantized collective communications", 2020). What arrives is summed in float32.
"""

from __future__ import annotations

from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.transforms.derivatives.custom import custom_vjp


def coded_all_to_all(x: Any, axes: tuple[str, ...], wire: str | None) -> Any:
    """`lax.all_to_all` of blocks (devices, …, width) along the leading axis, in a dtype of
    `layouts.WIRES` or, without one, as they are. Its derivative is exchanged in it, too."""
    if wire is None:
        return lax.all_to_all(x, axes, 0, 0, tiled=True)
    moved = custom_vjp(lambda x: _moved(x, axes, wire))
    # Block i of device j and block j of device i change places: it is its own transpose.
    moved.defvjp(lambda x: (_moved(x, axes, wire), None), lambda _, ct: (_moved(ct, axes, wire),))
    return moved(x)


def _moved(x: Any, axes: tuple[str, ...], wire: str) -> Any:
    dtype = dtypes.canonical(wire)
    if dtype.itemsize > 1:
        return lax.all_to_all(x.astype(dtype), axes, 0, 0, tiled=True).astype(x.dtype)
    largest = fnp.max(fnp.abs(x), axis=-1, keepdims=True)
    scale = fnp.where(largest > 0, largest, 1) / float(fnp.finfo(dtype).max)
    codes = lax.all_to_all((x / scale).astype(dtype), axes, 0, 0, tiled=True)
    scale = lax.all_to_all(scale, axes, 0, 0, tiled=True)
    return codes.astype(x.dtype) * scale
