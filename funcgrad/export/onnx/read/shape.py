"""Operators that make arrays, move elements, and ask for shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import numpy as fnp
from funcgrad.export.onnx.read.elementwise import element_type
from funcgrad.export.onnx.read.graph import Node, integers, known


def _constant(node: Node) -> np.ndarray:
    for key, dtype in (("value", None), ("value_float", "float32"), ("value_floats", "float32"),
                       ("value_int", "int64"), ("value_ints", "int64")):  # fmt: skip
        if key in node.attrs:
            return np.asarray(node.attrs[key], dtype)
    raise ValueError("a constant of strings or sparse values is no array")


def _constant_of_shape(node: Node, shape: Any) -> Any:
    value = np.asarray(node.get("value", np.zeros(1, np.float32))).reshape(())
    return np.full(integers(shape, "a shape"), value)


def _shape(node: Node, x: Any) -> np.ndarray:
    start, end = node.get("start", 0), node.get("end")
    return np.asarray(np.shape(x)[slice(start, end)], np.int64)


def _reshape(node: Node, x: Any, shape: Any) -> Any:
    sizes = integers(shape, "a shape") if np.size(shape) else []
    if not node.get("allowzero", 0):
        sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    return fnp.reshape(x, sizes)


def _axes(node: Node, given: Any, rank: int, default: Any = None) -> list[int]:
    axes = node.get("axes") if given is None else integers(given, "axes")
    axes = default if axes is None else axes
    return [a % rank for a in axes]


def _squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    return fnp.squeeze(x, tuple(_axes(node, axes, max(x.ndim, 1), ones)))


def _unsqueeze(node: Node, x: Any, axes: Any) -> Any:
    new = integers(axes, "axes")
    return fnp.expand_dims(x, tuple(new))


def _flatten(node: Node, x: Any) -> Any:
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return fnp.reshape(x, (math.prod(x.shape[:axis]), -1) if x.size else (
        math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))  # fmt: skip


def _transpose(node: Node, x: Any) -> Any:
    return fnp.transpose(x, node.get("perm"))


def _expand(node: Node, x: Any, shape: Any) -> Any:
    wanted = np.broadcast_shapes(x.shape, tuple(integers(shape, "a shape")))
    return fnp.broadcast_to(x, wanted)


def _tile(node: Node, x: Any, repeats: Any) -> Any:
    return fnp.tile(x, integers(repeats, "repeats"))


def _concat(node: Node, *xs: Any) -> Any:
    return fnp.concatenate(xs, axis=node.get("axis"))


def _split(node: Node, x: Any, split: Any = None) -> Any:
    axis, n = node.get("axis", 0), len(node.outs)
    size = x.shape[axis]
    if split is not None:
        sizes = integers(split, "sizes of parts")
    else:
        each = -(-size // node.get("num_outputs", n))
        sizes = [min(each, size - i * each) for i in range(n)]
    if sum(sizes) != size:
        raise ValueError(f"parts of sizes {sizes} don't make up an axis of size {size}")
    places = np.cumsum(sizes)[:-1].tolist()
    return list(fnp.split(x, places, axis=axis))


def _slice(node: Node, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    first, last = integers(starts, "starts"), integers(ends, "ends")
    which = list(range(len(first))) if axes is None else integers(axes, "axes")
    by = [1] * len(first) if steps is None else integers(steps, "steps")
    index: list[slice] = [slice(None)] * x.ndim
    for axis, start, stop, step in zip(which, first, last, by, strict=True):
        n = x.shape[axis]
        # Clamped as the standard says; below the first element is no place to count from.
        start, stop = (v + n if v < 0 else v for v in (start, stop))
        if step > 0:
            start, stop = min(max(start, 0), n), min(max(stop, 0), n)
            index[axis] = slice(start, stop, step)
        else:
            start, stop = min(max(start, 0), n - 1), min(max(stop, -1), n - 1)
            index[axis] = slice(start, None if stop < 0 else stop, step)
    return x[tuple(index)]


def _pad(node: Node, x: Any, pads: Any, value: Any = None, axes: Any = None) -> Any:
    amounts = integers(pads, "pads")
    which = list(range(x.ndim)) if axes is None else [a % x.ndim for a in integers(axes, "axes")]
    half = len(amounts) // 2
    config = [(0, 0)] * x.ndim
    for i, axis in enumerate(which):
        config[axis] = (amounts[i], amounts[half + i])
    cut = tuple(
        slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(config, x.shape, strict=True)
    )
    x = x[cut]
    config = [(max(a, 0), max(b, 0)) for a, b in config]
    mode = node.get("mode", "constant")
    if mode == "constant":
        fill = np.zeros((), x.dtype) if value is None else fnp.reshape(value, ())
        return fnp.pad(x, config, constant_values=fill)
    return fnp.pad(x, config, mode={"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])


def _range(node: Node, start: Any, stop: Any, step: Any) -> Any:
    first, last, by = (known(v, "a range").reshape(()) for v in (start, stop, step))
    return np.arange(first, last, by, dtype=first.dtype)  # type: ignore[call-overload]


def _eye_like(node: Node, x: Any) -> Any:
    kind = node.get("dtype")
    dtype = x.dtype if kind is None else element_type(kind)
    return fnp.eye(x.shape[0], x.shape[1], k=node.get("k", 0), dtype=dtype)


def _trilu(node: Node, x: Any, k: Any = None) -> Any:
    shift = 0 if k is None else int(known(k, "k").reshape(()))
    return (fnp.triu if node.get("upper", 1) else fnp.tril)(x, shift)


def _depth_to_space(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        y = fnp.transpose(fnp.reshape(x, (n, b, b, c // b**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = fnp.transpose(fnp.reshape(x, (n, c // b**2, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return fnp.reshape(y, (n, c // b**2, h * b, w * b))


def _space_to_depth(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    order = (0, 1, 3, 5, 2, 4) if node.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    y = fnp.transpose(fnp.reshape(x, (n, c, h // b, b, w // b, b)), order)
    return fnp.reshape(y, (n, c * b * b, h // b, w // b))


def _one_hot(node: Node, indices: Any, depth: Any, values: Any) -> Any:
    n = int(known(depth, "depth").reshape(()))
    axis = node.get("axis", -1)
    at = fnp.where(indices < 0, indices + n, indices)
    axis = axis % (indices.ndim + 1)
    line = [1] * (indices.ndim + 1)
    line[axis] = n
    hit = fnp.reshape(fnp.arange(n), line) == fnp.expand_dims(at, axis)
    return fnp.where(hit, values[1], values[0])


def _reverse_sequence(node: Node, x: Any, lengths: Any) -> Any:
    batch, time = node.get("batch_axis", 1), node.get("time_axis", 0)
    y = fnp.moveaxis(x, (batch, time), (0, 1))
    steps = fnp.arange(y.shape[1])[None, :]
    ends = fnp.asarray(lengths)[:, None]
    order = fnp.where(steps < ends, ends - 1 - steps, steps)
    order = fnp.reshape(order, order.shape + (1,) * (y.ndim - 2))
    y = fnp.take_along_axis(y, fnp.broadcast_to(order, y.shape), axis=1)
    return fnp.moveaxis(y, (0, 1), (batch, time))


RULES: dict[str, Callable] = {
    "Concat": _concat, "Constant": _constant, "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space, "Expand": _expand, "EyeLike": _eye_like,
    "Flatten": _flatten, "OneHot": _one_hot, "Pad": _pad, "Range": _range,
    "Reshape": _reshape, "ReverseSequence": _reverse_sequence, "Shape": _shape,
    "Size": lambda node, x: np.asarray(np.size(x), np.int64), "Slice": _slice,
    "SpaceToDepth": _space_to_depth, "Split": _split, "Squeeze": _squeeze, "Tile": _tile,
    "Transpose": _transpose, "Trilu": _trilu, "Unsqueeze": _unsqueeze,
}  # fmt: skip
