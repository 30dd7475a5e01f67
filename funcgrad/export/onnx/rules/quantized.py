"""Codes that stand for floats: DequantizeLinear and QuantizeLinear.

A program says `scale · (codes - zero)` and `clip(round(x / scale) + zero)` step by step, whoever
wrote it. Here the steps are found again from the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad.core.ir import Eqn
from funcgrad.export.onnx.dims import is_static
from funcgrad.export.onnx.graph import Graph, Tensor
from funcgrad.export.onnx.kernels import F4, I1, U1
from funcgrad.export.onnx.rules.origins import known, made_by, source, thin
from funcgrad.export.onnx.rules.structure import convert
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.elementwise.arithmetic import div, max, min, mul, sub
from funcgrad.ops.elementwise.convert import convert_element_type_p
from funcgrad.ops.elementwise.rounding import RoundingMethod, round_p
from funcgrad.ops.families import add

Ins = Sequence[Tensor]
BLOCKS = 21  # the opset that first has blocks, and integers of 4 bits
_NARROW = {I1: np.dtype(ml_dtypes.int4), U1: np.dtype(ml_dtypes.uint4)}


# ---- from codes to floats


def dequantized(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor] | None:
    """A product that is scale · (codes - zero) is DequantizeLinear."""
    for x, scale in (ins, ins[::-1]):
        found = _codes(x)
        if found is not None and scale.dtype == F4:
            made = _dequantize(g, *found, thin(scale))
            return None if made is None else [made]
    return None


def _codes(x: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Codes and zero point of what is, in float32, their difference (or the codes alone)."""
    difference = made_by(x, sub)
    x, zero = (x, None) if difference is None else difference
    converted = made_by(x, convert_element_type_p)
    if converted is None or converted[0].dtype not in _NARROW or x.dtype != F4:
        return None
    (codes,) = converted
    if zero is None:
        return codes, None
    whole = _as_integers(zero, codes.dtype)
    return None if whole is None else (codes, whole)


def _as_integers(x: Tensor, dtype: np.dtype) -> Tensor | None:
    """A zero point in the type of codes, if all of it are numbers of that type."""
    small = thin(x)
    if (value := known(small)) is not None:
        info = np.iinfo(dtype)
        fits = np.all((value == np.round(value)) & (value >= info.min) & (value <= info.max))
        return small.graph.constant(value.astype(dtype)) if fits else None
    spread = made_by(x, broadcast_p)
    converted = made_by(x if spread is None else spread[0], convert_element_type_p)
    if converted is None or converted[0].dtype != dtype:
        return None
    return small.graph.reshape(converted[0], small.shape)


def _dequantize(g: Graph, codes: Tensor, zero: Tensor | None, scale: Tensor) -> Tensor | None:
    attrs = _axes(codes.shape, scale.shape)
    if attrs is None or ("block_size" in attrs and g.root.opset < BLOCKS):
        return None
    if zero is not None and zero.shape != scale.shape:
        if zero.rank:
            return None
        zero = g.broadcast(zero, scale.shape, ())
    laid, shape = _laid(scale.shape, attrs), codes.shape
    if codes.rank == 2:
        # What reads a matrix from this node is, by ONNX Runtime, rounded to 8 bits for a product
        # of integers. So it has an axis more.
        shape = (1, *shape)
        attrs = {name: n + (name == "axis") for name, n in attrs.items()}
        laid = (1, *laid) if "block_size" in attrs else laid
    parts = [(codes, shape)] if zero is None else [(codes, shape), (zero, laid)]
    q, *zeros = _narrowed(g, parts)
    scale = g.reshape(scale, laid)
    made = g.op("DequantizeLinear", q, scale, *zeros, shape=shape, dtype=F4, **attrs)
    return g.reshape(made, codes.shape)


def _axes(shape: Sequence[int], of: Sequence[int]) -> dict[str, Any] | None:
    """Which axis scales of a shape belong to, and how many elements each is for; None if ONNX has
    nothing like it.

    >>> _axes((4, 3), (1, 3)), _axes((2, 32, 3), (2, 1, 3)), _axes((4, 3), (1, 1))
    ({'axis': 1}, {'axis': 1, 'block_size': 32}, {})
    """
    wide = [i for i, n in enumerate(of) if int(n) != 1]
    if len(wide) <= 1:
        return {"axis": wide[0]} if wide else {}
    one = [i for i, n in enumerate(of) if int(n) == 1 and int(shape[i]) != 1]
    if len(one) != 1 or not is_static(shape):
        return None
    return {"axis": one[0], "block_size": int(shape[one[0]])}


def _laid(shape: Sequence[int], attrs: dict[str, int]) -> tuple[int, ...]:
    """The shape in which a node takes scales and zero points of a (broadcast) shape."""
    if "block_size" in attrs:
        return tuple(shape)
    return (shape[attrs["axis"]],) if attrs else ()


def _narrowed(g: Graph, parts: Sequence[tuple[Tensor, tuple[int, ...]]]) -> list[Tensor]:
    """Codes and zero points in the shapes given, in 4 bits if they are stored and fit; what is
    computed from stored ones, as these were packed, is stored in its place."""
    values = [_known(x, shape) for x, shape in parts]
    if any(v is None or not v.size for v in values):
        return [g.reshape(x, shape) for x, shape in parts]
    arrays: list[Any] = values
    dtype = parts[0][0].dtype
    info = ml_dtypes.iinfo(_NARROW[dtype])
    fits = all(info.min <= v.min() and v.max() <= info.max for v in arrays)
    kind = _NARROW[dtype] if fits and g.root.opset >= BLOCKS else dtype
    name = source(parts[0][0])
    out = []
    for (x, shape), value, suffix in zip(parts, arrays, ("", ".zero"), strict=False):
        if kind == dtype and x.stored is not None and x.shape == shape:
            out.append(x)
        else:
            out.append(g.constant(value.astype(kind), name=f"{name}{suffix}.{kind}"))
    return out


def _known(x: Tensor, shape: tuple[int, ...]) -> np.ndarray | None:
    value = known(thin(x))
    if value is None:
        return None
    return np.broadcast_to(value, [int(n) for n in x.shape]).reshape([int(n) for n in shape])


# ---- from floats to codes


def converted(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Another type; of what is clip(round(x / scale) + zero), by QuantizeLinear."""
    made = None
    if eqn.outs[0].aval.dtype in _NARROW and ins[0].dtype == F4:
        made = _quantized(g, ins[0], eqn.outs[0].aval.dtype)
    return convert(g, eqn, ins) if made is None else [made]


def _quantized(g: Graph, x: Tensor, dtype: np.dtype) -> Tensor | None:
    info = np.iinfo(dtype)
    for prim, limit in ((min, info.max), (max, info.min)):
        bounded = made_by(x, prim)
        if bounded is None or bounded[1].constant is None or np.any(bounded[1].constant != limit):
            return None
        x = bounded[0]
    moved = made_by(x, add)
    x, zero = (x, g.constant(np.float32(0))) if moved is None else moved
    rounded = made_by(x, round_p)
    if rounded is None or x.origin is None:
        return None
    if x.origin[0].params["rounding_method"] != RoundingMethod.TO_NEAREST_EVEN:
        return None
    quotient = made_by(rounded[0], div)
    codes = _as_integers(zero, dtype)
    if quotient is None or codes is None:
        return None
    value, scale = quotient[0], thin(quotient[1])
    attrs = _axes(value.shape, scale.shape)
    if attrs is None or "block_size" in attrs or codes.rank:
        return None
    scale = g.reshape(scale, _laid(scale.shape, attrs))
    codes = g.broadcast(codes, scale.shape, ())
    q = g.op("QuantizeLinear", value, scale, codes, shape=value.shape, dtype=dtype, **attrs)
    # The standard doesn't say what is made of NaN.
    return g.where(g.elementwise("IsNaN", value, dtype=np.dtype(bool)), g.constant(0, dtype), q)


RULES = {mul: dequantized, convert_element_type_p: converted}
