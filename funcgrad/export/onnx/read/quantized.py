"""Operators on integers that stand for floats: x = scale · (q - zero point)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad import numpy as fnp
from funcgrad.export.onnx.read.elementwise import converted, element_type
from funcgrad.export.onnx.read.graph import Node
from funcgrad.export.onnx.read.layers import convolved


def _along(x: Any, of: Any, axis: int, block: int) -> Any:
    """Scales or zero points beside the elements that they belong to."""
    if of is None or np.ndim(of) == 0 or (np.ndim(of) == 1 and of.shape[0] == 1 and x.ndim != 1):
        return of if of is None else fnp.reshape(of, ())
    axis %= x.ndim
    if block:
        wide = fnp.repeat(of, block, axis=axis)
        return wide[tuple(slice(0, n) for n in x.shape)]
    return fnp.reshape(of, [-1 if i == axis else 1 for i in range(x.ndim)])


def _quantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    kind = node.get("output_dtype", 0)
    if zero is not None:
        dtype = zero.dtype
    else:
        dtype = element_type(kind) if kind else np.dtype("uint8")
    scale = _along(x, scale, axis, block)
    shift = _along(x, zero, axis, block)
    wide = (x / scale).astype(np.float32)
    if dtypes.is_float(dtype):
        return converted(wide, dtype, bool(node.get("saturate", 1)))
    limits = dtypes.iinfo(dtype)
    wide = fnp.round(wide)
    wide = wide if shift is None else wide + shift.astype(np.float32)
    return fnp.clip(wide, int(limits.min), int(limits.max)).astype(dtype)


def _dequantize(node: Node, q: Any, scale: Any, zero: Any = None) -> Any:
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    shift = _along(q, zero, axis, block)
    wide = q.astype(scale.dtype)
    if shift is not None:
        wide = wide - shift.astype(scale.dtype)
    return wide * _along(q, scale, axis, block)


def _dynamic(node: Node, x: Any) -> Any:
    top, low = fnp.maximum(fnp.max(x), 0), fnp.minimum(fnp.min(x), 0)
    scale = ((top - low) / 255).astype(np.float32)
    safe = fnp.where(scale == 0, np.float32(1), scale)
    zero = fnp.clip(fnp.round(-low / safe), 0, 255)
    q = fnp.clip(fnp.round(x / safe) + zero, 0, 255).astype(np.uint8)
    return [q, scale, zero.astype(np.uint8)]


def _integers(x: Any, zero: Any, rows: bool) -> Any:
    wide = x.astype(np.int32)
    if zero is None:
        return wide
    zero = zero.astype(np.int32)
    if zero.ndim == 1 and zero.shape[0] > 1 and rows:
        zero = zero[:, None]
    return wide - zero


def _matmul_integer(node: Node, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    return fnp.matmul(_integers(a, a_zero, True), _integers(b, b_zero, False))


def _qlinear_matmul(node: Node, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any,
                    b_zero: Any, y_scale: Any, y_zero: Any) -> Any:  # fmt: skip
    total = fnp.matmul(_integers(a, a_zero, True), _integers(b, b_zero, False))
    wide = fnp.round(total.astype(np.float32) * (a_scale * b_scale / y_scale).astype(np.float32))
    limits = np.iinfo(y_zero.dtype)
    return fnp.clip(wide + y_zero.astype(np.float32), limits.min, limits.max).astype(y_zero.dtype)


def _conv_integer(node: Node, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    return convolved(node, _integers(x, x_zero, False), _channels(w, w_zero))


def _channels(w: Any, zero: Any) -> Any:
    """A kernel without its zero points, which may be one for each result channel."""
    if zero is not None and np.size(zero) > 1:
        zero = fnp.reshape(zero, (-1,) + (1,) * (w.ndim - 1))
    return _integers(w, zero, False)


def _qlinear_conv(node: Node, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any,
                  y_scale: Any, y_zero: Any, bias: Any = None) -> Any:  # fmt: skip
    total = convolved(node, _integers(x, x_zero, False), _channels(w, w_zero), bias)
    scale = (x_scale * w_scale / y_scale).astype(np.float32)
    if np.size(scale) > 1:
        scale = fnp.reshape(scale, (-1,) + (1,) * (x.ndim - 2))
    wide = fnp.round(total.astype(np.float32) * scale)
    limits = np.iinfo(y_zero.dtype)
    return fnp.clip(wide + y_zero.astype(np.float32), limits.min, limits.max).astype(y_zero.dtype)


RULES: dict[str, Callable] = {
    "ConvInteger": _conv_integer, "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic, "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv, "QLinearMatMul": _qlinear_matmul, "QuantizeLinear": _quantize,
}  # fmt: skip
