"""Operators on elements: arithmetic, functions, comparisons, activations, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad import dtypes, lax, nn
from funcgrad import numpy as fnp
from funcgrad.export.onnx.read.graph import Node

# The numbers of element types in ONNX.
ELEMENT_TYPES: dict[int, np.dtype] = {
    1: np.dtype("float32"), 2: np.dtype("uint8"), 3: np.dtype("int8"), 4: np.dtype("uint16"),
    5: np.dtype("int16"), 6: np.dtype("int32"), 7: np.dtype("int64"), 9: np.dtype(bool),
    10: np.dtype("float16"), 11: np.dtype("float64"), 12: np.dtype("uint32"),
    13: np.dtype("uint64"), 14: np.dtype("complex64"), 15: np.dtype("complex128"),
    16: np.dtype(ml_dtypes.bfloat16), 17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz), 19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz), 21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
}  # fmt: skip


def element_type(number: int) -> np.dtype:
    """The dtype of an element type's number."""
    if number not in ELEMENT_TYPES:
        raise ValueError(f"its element type, number {number} of ONNX's, is none of arrays")
    return ELEMENT_TYPES[number]


def _plain(function: Callable) -> Callable:
    return lambda node, *xs: function(*xs)


def _variadic(function: Callable) -> Callable:
    def rule(node: Node, *xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = function(total, x)
        return total

    return rule


def _div(x: Any, y: Any) -> Any:
    if dtypes.is_integer(x.dtype):
        x, y = fnp.broadcast_arrays(x, y)
        return lax.div(x, y)
    return fnp.true_divide(x, y)


def _mod(node: Node, x: Any, y: Any) -> Any:
    return fnp.fmod(x, y) if node.get("fmod", 0) else fnp.mod(x, y)


def _power(x: Any, y: Any) -> Any:
    if dtypes.is_integer(x.dtype) and dtypes.is_float(y.dtype):
        return fnp.trunc(fnp.power(x.astype("float64"), y.astype("float64"))).astype(x.dtype)
    return fnp.power(x, y.astype(x.dtype))


def _shift(node: Node, x: Any, y: Any) -> Any:
    shift = fnp.left_shift if node.get("direction") == "LEFT" else fnp.right_shift
    return shift(x, y)


def _cast(node: Node, x: Any) -> Any:
    return converted(x, element_type(node.get("to")), bool(node.get("saturate", 1)))


def converted(x: Any, dtype: np.dtype, saturate: bool = True) -> Any:
    """x as another type; floats of 8 bits are held within their range if asked for."""
    small = dtypes.is_float(dtype) and dtype.itemsize == 1
    if small and saturate and dtypes.is_float(x.dtype):
        top = float(dtypes.finfo(dtype).max)
        x = fnp.where(fnp.isnan(x), x, fnp.clip(x, -top, top))
    return x.astype(dtype)


def _clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else fnp.maximum(x, low)
    return x if high is None else fnp.minimum(x, high)


def _isinf(node: Node, x: Any) -> Any:
    up, down = node.get("detect_positive", 1), node.get("detect_negative", 1)
    wanted = fnp.isinf(x)
    wanted = wanted if up else wanted & (x < 0)
    return wanted if down else wanted & (x > 0)


def _gelu(node: Node, x: Any) -> Any:
    return nn.gelu(x, approximate=node.get("approximate", "none") == "tanh")


def _hard_sigmoid(node: Node, x: Any) -> Any:
    return fnp.clip(node.get("alpha", 0.2) * x + node.get("beta", 0.5), 0, 1).astype(x.dtype)


def _hard_swish(node: Node, x: Any) -> Any:
    return x * fnp.clip(x / 6 + 0.5, 0, 1)


def _elu(node: Node, x: Any) -> Any:
    return fnp.where(x > 0, x, node.get("alpha", 1.0) * fnp.expm1(fnp.minimum(x, 0)))


def _selu(node: Node, x: Any) -> Any:
    alpha = node.get("alpha", 1.6732632423543772)
    return node.get("gamma", 1.0507009873554805) * fnp.where(
        x > 0, x, alpha * fnp.expm1(fnp.minimum(x, 0))
    )


def _celu(node: Node, x: Any) -> Any:
    alpha = node.get("alpha", 1.0)
    return fnp.maximum(x, 0) + fnp.minimum(0, alpha * fnp.expm1(x / alpha))


def _leaky_relu(node: Node, x: Any) -> Any:
    return fnp.where(x < 0, node.get("alpha", 0.01) * x, x).astype(x.dtype)


def _shrink(node: Node, x: Any) -> Any:
    bias, edge = node.get("bias", 0.0), node.get("lambd", 0.5)
    return fnp.where(x < -edge, x + bias, fnp.where(x > edge, x - bias, 0)).astype(x.dtype)


def _thresholded(node: Node, x: Any) -> Any:
    return fnp.where(x > node.get("alpha", 1.0), x, 0).astype(x.dtype)


def _softmax(node: Node, x: Any) -> Any:
    return nn.softmax(x, axis=node.get("axis", -1)).astype(x.dtype)


def _log_softmax(node: Node, x: Any) -> Any:
    return nn.log_softmax(x, axis=node.get("axis", -1)).astype(x.dtype)


def _hardmax(node: Node, x: Any) -> Any:
    axis = node.get("axis", -1)
    best = fnp.expand_dims(fnp.argmax(x, axis=axis), axis)
    line = [1] * x.ndim
    line[axis] = -1
    return (fnp.reshape(fnp.arange(x.shape[axis]), line) == best).astype(x.dtype)


def _mean(node: Node, *xs: Any) -> Any:
    return _variadic(fnp.add)(node, *xs) / len(xs)


def _bitcast(node: Node, x: Any) -> Any:
    return lax.bitcast_convert_type(x, element_type(node.get("to")))


def _swish(node: Node, x: Any) -> Any:
    return x * nn.sigmoid(node.get("alpha", 1.0) * x)


RULES: dict[str, Callable] = {
    **{
        name: _plain(function)
        for name, function in {
            "Abs": fnp.abs, "Acos": fnp.arccos, "Acosh": fnp.arccosh, "Add": fnp.add,
            "And": fnp.logical_and, "Asin": fnp.arcsin, "Asinh": fnp.arcsinh,
            "Atan": fnp.arctan, "Atanh": fnp.arctanh, "BitwiseAnd": fnp.bitwise_and,
            "BitwiseNot": fnp.bitwise_not, "BitwiseOr": fnp.bitwise_or,
            "BitwiseXor": fnp.bitwise_xor, "Ceil": fnp.ceil, "Cos": fnp.cos, "Cosh": fnp.cosh,
            "Div": _div, "Equal": fnp.equal, "Erf": lax.erf, "Exp": fnp.exp,
            "Floor": fnp.floor, "Greater": fnp.greater, "GreaterOrEqual": fnp.greater_equal,
            "IsNaN": fnp.isnan, "Less": fnp.less, "LessOrEqual": fnp.less_equal, "Log": fnp.log,
            "Mish": nn.mish, "Mul": fnp.multiply, "Neg": fnp.negative, "Not": fnp.logical_not,
            "Or": fnp.logical_or, "Pow": _power, "Reciprocal": fnp.reciprocal,
            "Relu": lambda x: fnp.maximum(x, np.zeros((), x.dtype)), "Round": fnp.round,
            "Sigmoid": nn.sigmoid, "Sign": fnp.sign, "Sin": fnp.sin, "Sinh": fnp.sinh,
            "Softplus": nn.softplus, "Softsign": nn.soft_sign, "Sqrt": fnp.sqrt,
            "Sub": fnp.subtract, "Tan": fnp.tan, "Tanh": fnp.tanh, "Where": fnp.where,
            "Xor": fnp.logical_xor, "Identity": lambda x: x,
            "PRelu": lambda x, slope: fnp.where(x < 0, slope * x, x),
            "CastLike": lambda x, like: converted(x, like.dtype),
        }.items()
    },
    "BitShift": _shift, "Cast": _cast, "Celu": _celu, "Clip": _clip, "Elu": _elu, "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid, "HardSwish": _hard_swish, "Hardmax": _hardmax,
    "IsInf": _isinf, "LeakyRelu": _leaky_relu, "LogSoftmax": _log_softmax,
    "Max": _variadic(fnp.maximum), "Mean": _mean, "Min": _variadic(fnp.minimum), "Mod": _mod,
    "Selu": _selu, "Shrink": _shrink, "Softmax": _softmax, "Sum": _variadic(fnp.add),
    "BitCast": _bitcast, "Swish": _swish, "ThresholdedRelu": _thresholded,
}  # fmt: skip
