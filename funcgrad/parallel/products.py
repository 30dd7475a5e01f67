"""Matrix products with their gather or scatter, block by block round a ring.

Where tensor parallelism gathers rows before a product, or scatters sums of rows after one, each
block's product runs while the next block is on its way (`programs.rings`): in a `shard_map` by
these functions, elsewhere where `jit` chooses so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import funcgrad.numpy as fnp
from funcgrad.core.context import scoped
from funcgrad.core.types import AxisName, Params
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.ops.collective.reductions import names_of
from funcgrad.parallel.attention.arguments import size_of
from funcgrad.parallel.programs.rings import Factor, gathered_products, scattered_product

Way = Literal["auto", "ring", "whole"]
WAYS = get_args(Way)


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
    _, x, w = _checked("all_gather_matmul", x, w, axis)
    (out,) = gathered_products(x, names_of(axis), x.ndim - 2, [Factor(w, False, _params(x))])
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
    return scattered_product(x, w, _params(x), names_of(axis), x.ndim - 2)


@contextmanager
def tensor_products(way: Way) -> Iterator[None]:
    """Within the block, how programs for a mesh do products of what is gathered before, and those
    whose sums are scattered after: the exchanges of tensor parallelism with activations cut along
    the sequence, forward and backward.

    way: "ring": block by block, as `all_gather_matmul` and `matmul_reduce_scatter` do; "whole": all
    is gathered before a product, and a sum is scattered when all of it is there, which holds
    outside of such a block: where devices share memory, the ring takes somewhat longer; "auto",
    for links that are slow beside products: the ring where a block has 4 MiB or more, there are no
    more than 16 devices, all of which aren't of one process, and what is gathered was computed
    just before. Weights, which are inputs, can be fetched early instead. It holds for programs that
    are traced and compiled within the block.

    What other operations want of a gathered array, too, is put together from the blocks. A device
    sends the same bytes in all ways, and sums differ in their order.

    Raises ArgumentError for other ways.

    >>> from funcgrad.parallel import AbstractMesh, NamedSharding, P, tensor_products
    >>> mesh = AbstractMesh(4, "tp")
    >>> types = [
    ...     fg.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))
    ...     for shape, spec in [((64, 32), P("tp")), ((32, 16), P(None, "tp"))]
    ... ]
    >>> product = fg.jit(fnp.matmul)
    >>> product.lower(*types).device_analysis().counts
    {'all_gather': 1}
    >>> with tensor_products("ring"):
    ...     product.lower(*types).device_analysis().counts
    {'permute': 3}
    """
    if way not in WAYS:
        known = ", ".join(map(repr, WAYS))
        raise ArgumentError(f"tensor_products: way must be one of {known}, got {way!r}")
    with scoped(products=way):
        yield


def _checked(name: str, x: Any, w: Any, axis: AxisName) -> tuple[int, Any, Any]:
    """The number of devices, and operands whose shapes fit."""
    x, w = fnp.asarray(x), fnp.asarray(w)
    if x.ndim < 2 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ShapeError(f"{name}: need x (…, T, K) and w (K, N), got {x.shape} and {w.shape}")
    dtype = fnp.result_type(x, w)
    return size_of(name, "axis", axis), x.astype(dtype), w.astype(dtype)


def _params(x: Any) -> Params:
    """Those of a product of x's last axis with a matrix, as of `dot_general`."""
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    return {"dimension_numbers": numbers, "preferred_element_type": None}
