"""Codes that stand for floats: DequantizeLinear and QuantizeLinear.

A program says `scale · (codes - zero)` and `clip(round(x / scale) + zero)` step by step, whoever
wrote it, and a product of two of them as one of integers. Here the steps are found again from the
last one.
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
from funcgrad.export.onnx.rules.products import contracted
from funcgrad.export.onnx.rules.structure import convert
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.elementwise.arithmetic import div, max, min, mul, sub
from funcgrad.ops.elementwise.convert import convert_element_type_p, select_n_p
from funcgrad.ops.elementwise.rounding import RoundingMethod, round_p
from funcgrad.ops.families import add

Ins = Sequence[Tensor]
BLOCKS = 21  # the opset that first has blocks, and integers of 4 bits
_NARROW = {I1: np.dtype(ml_dtypes.int4), U1: np.dtype(ml_dtypes.uint4)}


# ---- from codes to floats


def dequantized(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor] | None:
    """A product that is scale · (codes - zero) is DequantizeLinear."""
    for x, scale in (ins, ins[::-1]):
        product = _product_of_codes(g, x, scale)
        if product is not None:
            return [product]
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
    steps = _steps(x, dtype)
    if steps is None:
        return None
    value, scale, codes = steps
    attrs = _axes(value.shape, scale.shape)
    if attrs is None or "block_size" in attrs or codes.rank:
        return None
    scale = g.reshape(scale, _laid(scale.shape, attrs))
    codes = g.broadcast(codes, scale.shape, ())
    q = g.op("QuantizeLinear", value, scale, codes, shape=value.shape, dtype=dtype, **attrs)
    # The standard doesn't say what is made of NaN.
    return g.where(g.elementwise("IsNaN", value, dtype=np.dtype(bool)), g.constant(0, dtype), q)


def _steps(x: Tensor, dtype: np.dtype) -> tuple[Tensor, Tensor, Tensor] | None:
    """Value, scale and zero point (as codes) of what is clip(round(value / scale) + zero)."""
    info = np.iinfo(dtype)
    for prim, limit in ((min, info.max), (max, info.min)):
        bounded = made_by(x, prim)
        if bounded is None or bounded[1].constant is None or np.any(bounded[1].constant != limit):
            return None
        x = bounded[0]
    moved = made_by(x, add)
    x, zero = (x, x.graph.constant(np.float32(0))) if moved is None else moved
    rounded = made_by(x, round_p)
    if rounded is None or x.origin is None:
        return None
    if x.origin[0].params["rounding_method"] != RoundingMethod.TO_NEAREST_EVEN:
        return None
    quotient = made_by(rounded[0], div)
    codes = _as_integers(zero, dtype)
    return None if quotient is None or codes is None else (quotient[0], thin(quotient[1]), codes)


# ---- products of codes


def _product_of_codes(g: Graph, x: Tensor, scale: Tensor) -> Tensor | None:
    """What is scales · (codes @ codes - zero · sums of codes), of an operand with one scale and a
    stored matrix with one a column, as a product of two DequantizeLinear: what runtimes compute on
    integers. Rows with NaN, which no code says, are NaN."""
    operands, scales = _sums_of_codes(x), made_by(scale, mul)
    if operands is None or scales is None:
        return None
    q, codes, axis, zero = operands
    chosen, n = made_by(thin(scales[0]), select_n_p), codes.shape[1 - axis]
    steps, columns = _steps(_floats_of(q), I1), thin(scales[1])
    if chosen is None or steps is None or columns.shape != (*[1] * (x.rank - 1), n):
        return None
    unknown, one = chosen[0], thin(chosen[1])
    if steps[1] is not one or one.rank or not _is_nan(chosen[2]):
        return None
    # Runtimes look for these two side by side: codes of NaN don't matter here. Both operands
    # are unsigned, as instructions for signed ones saturate on processors without VNNI.
    a_zero, b_zero = (g.constant(z) for z in (np.uint8(zero + 128), np.full(n, 128, U1)))
    q = g.op("QuantizeLinear", steps[0], one, a_zero, shape=q.shape, dtype=U1)
    a = g.op("DequantizeLinear", q, one, a_zero, shape=q.shape, dtype=F4)
    name, moved = f"{source(codes)}.uint8", known(codes)
    assert moved is not None
    codes = g.constant((moved.astype("i4") + 128).astype(U1), name=name)
    b = g.op("DequantizeLinear", codes, g.reshape(columns, (n,)), b_zero, shape=codes.shape,
             dtype=F4, axis=1 - axis)  # fmt: skip
    made = contracted(g, a, b, ((q.rank - 1,), (axis,)), ((), ()), x.shape)
    return g.where(g.broadcast_small(unknown, x.shape), g.constant(np.float32(np.nan)), made)


def _sums_of_codes(x: Tensor) -> tuple[Tensor, Tensor, int, int] | None:
    """Of codes @ codes - zero · sums in float32: both, the axis of the matrix that is summed, and
    the zero point."""
    whole = made_by(x, convert_element_type_p)
    difference = made_by(whole[0], sub) if whole and x.dtype == F4 else None
    factors = made_by(difference[0], dot_general_p) if difference else None
    if not factors or difference is None or difference[0].origin is None:
        return None
    (q, codes), numbers = factors, difference[0].origin[0].params["dimension_numbers"]
    (contract, batch), sums = numbers, known(thin(difference[1]))
    if (q.dtype, codes.dtype) != (I1, I1) or codes.rank != 2 or batch[0] or sums is None:
        return None
    steps, matrix = _steps(_floats_of(q), I1), known(codes)
    zero = None if steps is None else known(steps[2])
    if matrix is None or zero is None or contract[0] != (q.rank - 1,) or zero.size != 1:
        return None
    axis = contract[1][0]
    wanted = int(zero.reshape(())) * matrix.astype(np.int64).sum(axis)
    fits = sums.size == wanted.size and np.array_equal(sums.reshape(-1), wanted)
    return (q, codes, axis, int(zero.reshape(()))) if fits else None


def _floats_of(codes: Tensor) -> Tensor:
    """What codes were converted from."""
    found = made_by(codes, convert_element_type_p)
    return codes if found is None else found[0]


def _is_nan(x: Tensor) -> bool:
    return x.constant is not None and bool(np.all(np.isnan(x.constant)))


RULES = {mul: dequantized, convert_element_type_p: converted}
