"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.core.ir import Eqn
from funcgrad.export.onnx.dims import product
from funcgrad.export.onnx.graph import Graph, Tensor
from funcgrad.export.onnx.kernels import F4, I1, I4, U1, held
from funcgrad.export.onnx.rules.structure import padded
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.convolution.padding import dilated, positions

Ins = Sequence[Tensor]
Axes = Sequence[int]


def _sum_type(dtype: np.dtype) -> np.dtype:
    """The type in which products are summed: narrow floats in float32, narrow integers in int32."""
    if dtype.kind == "f":
        return F4 if dtype.itemsize < 4 else dtype
    return np.dtype("i4") if dtype.itemsize < 4 else dtype


def dot(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """A contraction as a matrix product: batch axes first, then free ones, then contracted ones."""
    out = held(eqn.outs[0].aval.dtype)
    contract, batch = eqn.params["dimension_numbers"]
    shape = eqn.outs[0].aval.shape
    if out == I4 and {x.dtype for x in ins} <= {I1, U1}:
        x, y = ins
        return [contracted(g, x, y, contract, batch, shape, "MatMulInteger", I4)]
    kind = _sum_type(out)
    x, y = (g.cast(v, kind) for v in ins)
    return [g.cast(contracted(g, x, y, contract, batch, shape), out)]


def contracted(
    g: Graph, x: Tensor, y: Tensor, contract: Sequence[Axes], batch: Sequence[Axes],
    shape: Sequence[int], kind: str = "MatMul", dtype: np.dtype | None = None,
) -> Tensor:  # fmt: skip
    """The sums of products along axes that two arrays share, of a dtype if not of theirs."""
    (cx, cy), (bx, by) = contract, batch
    fx = [i for i in range(x.rank) if i not in cx and i not in bx]
    fy = [i for i in range(y.rank) if i not in cy and i not in by]
    shape = tuple(shape)
    depth = product([x.shape[i] for i in cx])
    if int(depth) == 0:
        return g.full(shape, 0, dtype or x.dtype)
    xs = [x.shape[i] for i in fx]
    ys = [y.shape[i] for i in fy]
    shared = [x.shape[i] for i in bx]
    # A matrix product takes any number of rows' axes in front of a plain matrix.
    rows = xs if not bx and xs else [product(xs)]
    x = g.reshape(g.transpose(x, [*bx, *fx, *cx]), (*shared, *rows, depth))
    y = g.reshape(g.transpose(y, [*by, *cy, *fy]), (*shared, depth, product(ys)))
    made = g.op(kind, x, y, shape=(*shared, *rows, product(ys)), dtype=dtype)
    return g.reshape(made, shape)


# ---- convolutions


def convolution(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """A convolution: Conv of float32, else a sum of matrix products over the kernel's elements."""
    p, out = eqn.params, held(eqn.outs[0].aval.dtype)
    kind = _sum_type(out)
    numbers, batch_groups = p["dimension_numbers"], p["batch_group_count"]
    x, w = (g.cast(v, kind) for v in ins)
    x = g.transpose(x, numbers.lhs_spec)
    w = g.transpose(w, numbers.rhs_spec)
    groups = p["feature_group_count"] * batch_groups
    if batch_groups > 1:
        n, c, *size = x.shape
        split = g.reshape(x, (batch_groups, n // batch_groups, c, *size))
        order = (1, 0, 2, *range(3, x.rank + 1))
        x = g.reshape(g.transpose(split, order), (n // batch_groups, batch_groups * c, *size))
    back = [numbers.out_spec.index(i) for i in range(x.rank)]
    wanted = tuple(eqn.outs[0].aval.shape[a] for a in numbers.out_spec)
    made = _convolved(g, x, w, groups, wanted, p)
    return [g.cast(g.transpose(made, back), out)]


def _convolved(
    g: Graph, x: Tensor, w: Tensor, groups: int, shape: Sequence[int], p: dict
) -> Tensor:
    if 0 in map(int, (*shape, *x.shape, *w.shape)):
        return g.full(tuple(shape), 0, x.dtype)
    strides, holes = list(p["window_strides"]), list(p["rhs_dilation"])
    pads, base = list(p["padding"]), p["lhs_dilation"]
    plain = x.dtype == F4 and len(strides) in (1, 2, 3)
    if not plain or any(n < 0 for pair in pads for n in pair) or any(b > 1 for b in base):
        config = [(low, high, b - 1) for (low, high), b in zip(pads, base, strict=True)]
        x = padded(g, x, g.constant(0, x.dtype), [(0, 0, 0)] * 2 + config)
        pads = [(0, 0)] * len(pads)
    if plain:
        attrs: dict[str, Any] = {
            "strides": strides, "dilations": holes, "group": groups,
            "pads": [int(a) for a, _ in pads] + [int(b) for _, b in pads],
            "kernel_shape": [int(n) for n in w.shape[2:]],
        }  # fmt: skip
        return g.op("Conv", x, w, shape=tuple(shape), **attrs)
    return _by_elements(g, x, w, groups, tuple(shape), strides, holes)


def _by_elements(
    g: Graph, x: Tensor, w: Tensor, groups: int, shape: tuple, strides: Axes, holes: Axes
) -> Tensor:
    """A convolution without padding: for each element of the kernel, what it meets times it."""
    n, _, *size = x.shape
    o, i, *kernel = w.shape
    counts = [positions(s, dilated(k, d), t) for s, k, d, t in zip(size, kernel, holes, strides,
                                                                 strict=True)]  # fmt: skip
    x = g.reshape(x, (n, groups, i, *size))
    w = g.reshape(w, (groups, o // groups, i, *kernel))
    total: Tensor | None = None
    for offsets in np.ndindex(*kernel):
        seen, weights = x, w
        for axis, (at, m) in enumerate(zip(offsets, counts, strict=True)):
            start = at * holes[axis]
            stop = start + (m - 1) * strides[axis] + 1
            seen = g.slice(seen, 3 + axis, start, stop, strides[axis], m)
            weights = g.slice(weights, 3 + axis, at, at + 1)
        seen = g.reshape(seen, (n, groups, i, product(counts)))
        term = g.op("MatMul", g.reshape(weights, (groups, o // groups, i)), seen,
                    shape=(n, groups, o // groups, product(counts)))  # fmt: skip
        total = term if total is None else g.elementwise("Add", total, term)
    assert total is not None
    return g.reshape(total, shape)


RULES = {dot_general_p: dot, conv_general_dilated_p: convolution}
