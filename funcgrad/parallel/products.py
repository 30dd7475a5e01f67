"""Matrix products with their gather or scatter, block by block round a ring.

Where tensor parallelism gathers rows before a product, or scatters sums of rows after one, each
block's product runs while the next block is on its way (Wang et al., "Overlap Communication with
Dependent Computation via Decomposition", 2023).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.core.types import AxisName
from funcgrad.errors import ShapeError
from funcgrad.parallel.attention.arguments import size_of
from funcgrad.parallel.attention.rotation import shift


def all_gather_matmul(x: Any, w: Any, axis: AxisName) -> Any:
    """`all_gather(x, axis) @ w` inside `shard_map`, rows gathered: (…, n·T, N) from this device's
    x (…, T, K) and w (K, N).

    Each device multiplies what it has while it sends it on: n - 1 permutes of x's size. The
    gradient of x is that of `matmul_reduce_scatter`, sent the other way round. Raises ShardingError
    where the axis is none of a `shard_map` around it, ShapeError where shapes don't fit.

    >>> from funcgrad.parallel import P, all_gather_matmul, make_mesh, shard_map
    >>> mesh = make_mesh(2, "tp")
    >>> product = shard_map(
    ...     lambda x, w: all_gather_matmul(x, w, "tp"),
    ...     mesh=mesh, in_specs=(P("tp"), P(None, "tp")), out_specs=P(None, "tp"),
    ... )  # fmt: skip
    >>> product(fnp.ones((4, 3)), fnp.ones((3, 2))).shape
    (4, 2)
    """
    n, x, w = _checked("all_gather_matmul", x, w, axis)
    rows, own = x.shape[-2], lax.axis_index(axis)
    out = fnp.zeros((*x.shape[:-2], n * rows, w.shape[1]), fnp.result_type(x, w))
    for turn in range(n):
        following = shift(x, axis, 1) if turn < n - 1 else None
        start = (own - turn) % n * rows
        out = lax.dynamic_update_slice_in_dim(out, fnp.matmul(x, w), start, out.ndim - 2)
        x = following
    return out


def matmul_reduce_scatter(x: Any, w: Any, axis: AxisName) -> Any:
    """`psum_scatter(x @ w, axis)` inside `shard_map`, rows scattered: this device's (…, T, N) of
    the sum over the n devices' products of x (…, n·T, K) and w (K, N).

    Each block's sum goes round and arrives where it belongs; a device multiplies the next block
    while a sum is on its way: n - 1 permutes of the result's size, sums of narrow floats in
    float32. Raises ShardingError where the axis is none of a `shard_map` around it, ShapeError
    where shapes don't fit or n doesn't divide the rows.

    >>> from funcgrad.parallel import P, make_mesh, matmul_reduce_scatter, shard_map
    >>> mesh = make_mesh(2, "tp")
    >>> product = shard_map(
    ...     lambda x, w: matmul_reduce_scatter(x, w, "tp"),
    ...     mesh=mesh, in_specs=(P(None, "tp"), P("tp")), out_specs=P("tp"),
    ... )  # fmt: skip
    >>> product(fnp.ones((2, 4)), fnp.ones((4, 3)))
    ShardedArray([[4., 4., 4.],
                  [4., 4., 4.]], dtype=float32, P('tp') on Mesh('tp': 2))
    """
    name = "matmul_reduce_scatter"
    n, x, w = _checked(name, x, w, axis)
    if x.shape[-2] % n:
        raise ShapeError(
            f"{name}: the {n} devices along {axis!r} must divide the rows of x, got {x.shape}"
        )
    rows, own, dtype = x.shape[-2] // n, lax.axis_index(axis), fnp.result_type(x, w)
    wide = np.dtype(np.float32) if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype

    def product(turn: int) -> Any:
        block = lax.dynamic_slice_in_dim(x, (own - 1 - turn) % n * rows, rows, x.ndim - 2)
        return fnp.matmul(block, w, preferred_element_type=wide)

    total = product(0)
    for turn in range(1, n):
        total = shift(total, axis, 1) + product(turn)
    return total.astype(dtype)


def _checked(name: str, x: Any, w: Any, axis: AxisName) -> tuple[int, Any, Any]:
    """The number of devices, and operands whose shapes fit."""
    x, w = fnp.asarray(x), fnp.asarray(w)
    if x.ndim < 2 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ShapeError(f"{name}: need x (…, T, K) and w (K, N), got {x.shape} and {w.shape}")
    return size_of(name, "axis", axis), x, w
