"""Which element types ONNX Runtime's kernels for the CPU take, and what computes in their place.

The standard allows more than is implemented: there is no Conv of float64, no Where of bool. An op
that lacks a type is computed in a wider one that holds all of its values. Types that few kernels
take at all (narrower than float16, or of 4 bits) are held in wider ones between ops, too.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

F4, F8, I1, I4, I8, U1, BOOL = map(np.dtype, ("f4", "f8", "i1", "i4", "i8", "u1", "?"))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# Types that exist in ONNX under these names.
ONNX_NAMES = {
    **{np.dtype(c): n for c, n in (
        ("?", "BOOL"), ("i1", "INT8"), ("i2", "INT16"), ("i4", "INT32"), ("i8", "INT64"),
        ("u1", "UINT8"), ("u2", "UINT16"), ("u4", "UINT32"), ("u8", "UINT64"),
        ("f2", "FLOAT16"), ("f4", "FLOAT"), ("f8", "DOUBLE"),
    )},
    BFLOAT16: "BFLOAT16",
    np.dtype(ml_dtypes.float8_e4m3fn): "FLOAT8E4M3FN",
    np.dtype(ml_dtypes.float8_e4m3fnuz): "FLOAT8E4M3FNUZ",
    np.dtype(ml_dtypes.float8_e5m2): "FLOAT8E5M2",
    np.dtype(ml_dtypes.float8_e5m2fnuz): "FLOAT8E5M2FNUZ",
    np.dtype(ml_dtypes.int4): "INT4",
    np.dtype(ml_dtypes.uint4): "UINT4",
}  # fmt: skip

# What values of a type are held in between ops.
HELD = {d: F4 for d in ONNX_NAMES if d.kind not in "biu" and d not in map(np.dtype, "efd")} | {
    np.dtype(ml_dtypes.int4): I1,
    np.dtype(ml_dtypes.uint4): U1,
}

_FLOATS = "f2 f4 f8"
_NUMBERS = "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8"
_ONLY_SINGLE = (
    "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Erf", "Asinh", "Acosh", "Atanh", "Conv",
)  # fmt: skip
_KERNELS = {
    **dict.fromkeys(_ONLY_SINGLE, "f2 f4"),
    **dict.fromkeys(("Sqrt", "Exp", "Log", "Sin", "Cos", "Tanh", "Floor", "Ceil", "Round",
                     "Sigmoid", "Reciprocal", "IsNaN", "IsInf", "DFT"), _FLOATS),
    **dict.fromkeys(("Abs", "Sign", "Add", "Sub", "Mul", "Div", "Mod", "Less", "LessOrEqual",
                     "Greater", "GreaterOrEqual"), _NUMBERS),
    **dict.fromkeys(("ReduceSum", "ReduceProd", "CumSum"), "i4 i8 f4 f8"),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
                    "i1 i2 i4 i8 u1 u2 u4 u8"),
    "BitShift": "u1 u4 u8",
    "Neg": "i1 i2 i4 i8 f2 f4 f8",
    "Equal": "b1 " + _NUMBERS,
    "Pow": "f4 f8",
    "Max": "i1 i4 i8 u1 u4 u8 f2 f4 f8",
    "Min": "i1 i4 i8 u1 u4 u8 f2 f4 f8",
    "MatMul": "i4 i8 u4 u8 f2 f4 f8",
    "ReduceMax": "b1 i1 i4 i8 u1 f2 f4 f8",
    "ReduceMin": "b1 i1 i4 i8 u1 f2 f4 f8",
    "ArgMax": "i1 i4 i8 u1 f4 f8",
    "ArgMin": "i1 i4 i8 u1 f4 f8",
    "TopK": "i1 i2 i4 i8 u1 f4 f8",
    "Where": "i1 i4 i8 u1 u4 f2 f4 f8",
    "Pad": "b1 i1 i4 i8 u1 u4 u8 f4 f8",
    "Range": "i2 i4 i8 f4 f8",
}  # fmt: skip
KERNELS = {op: frozenset(map(np.dtype, types.split())) for op, types in _KERNELS.items()}
# The next type that holds all values of one (of uint64: all bits).
_NEXT = {np.dtype(a): np.dtype(b) for a, b in (
    ("?", "u1"), ("u1", "i4"), ("i1", "i4"), ("i2", "i4"), ("u2", "i4"), ("i4", "i8"),
    ("u4", "i8"), ("u8", "i8"), ("f2", "f4"), ("f4", "f8"),
)}  # fmt: skip


def carrier(op: str, dtype: np.dtype) -> np.dtype | None:
    """The type in which an op of operands of this type is computed; None if there is none.

    >>> carrier("Add", np.dtype("int8")), carrier("Conv", np.dtype("float64"))
    (dtype('int8'), None)
    """
    taken = KERNELS.get(op)
    if op == "BitShift" and dtype == np.dtype("u2"):
        return np.dtype("u4")
    found: np.dtype | None = dtype
    while taken is not None and found is not None and found not in taken:
        found = _NEXT.get(found)
    return found


def held(dtype: np.dtype) -> np.dtype:
    """The type in which values of a type are held between ops.

    >>> held(np.dtype("float16")), held(BFLOAT16)
    (dtype('float16'), dtype('float32'))
    """
    return HELD.get(dtype, dtype)
