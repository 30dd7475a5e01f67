"""Attention of cut sequences by exchange: places for heads, attention of whole sequences, and back.

Each device gets all places of its share of the heads (Jacobs et al., "DeepSpeed Ulysses", 2023):
two all-to-alls, whatever the mask. A ring beside it lets more devices take part than there are
heads (Fang and Zhao, "A Unified Sequence Parallelism Approach", 2024).
"""

from __future__ import annotations

from typing import Any

import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.types import AxisName
from funcgrad.errors import ShapeError
from funcgrad.parallel.attention.arguments import Arguments, arguments, size_of
from funcgrad.parallel.attention.ring import attend


def ulysses_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    axis: AxisName,
    scale: float | None = None,
    is_causal: bool = False,
    local_window_size: int | tuple[int, int] | None = None,
) -> Any:
    """`nn.dot_product_attention` of a sequence that is cut over a mesh axis, inside `shard_map`, by
    an exchange of places for heads.

    Arguments and the result as in `ring_attention`: query (B, T, N, H), key and value
    (B, T, K, H), this device's T places; bias and mask broadcastable to (B, N, T, S), this device's
    rows. The n devices of the axis divide N; they divide K, or K divides them, and key heads are
    repeated. Two all-to-alls are all that is sent, one of query, key and value, one of the result;
    they are each other's gradients. A device needs memory for whole sequences of N/n heads.

    Raises ShardingError where the axis is none of a `shard_map` around it, ShapeError and
    DTypeError where arrays or heads don't fit.

    >>> from funcgrad.parallel import P, make_mesh, shard_map, ulysses_attention
    >>> cut = P(None, "cp")
    >>> attend = lambda x: ulysses_attention(x, x, x, axis="cp", is_causal=True)
    >>> whole = shard_map(attend, mesh=make_mesh(2, "cp"), in_specs=cut, out_specs=cut)
    >>> x = random.normal(random.key(0), (1, 16, 2, 8))
    >>> wanted = nn.dot_product_attention(x, x, x, is_causal=True)
    >>> bool(fnp.allclose(whole(x), wanted, atol=1e-5))
    True
    """
    name = "ulysses_attention"
    devices = size_of(name, "axis", axis)
    a = arguments(name, query, key, value, bias, mask, scale, is_causal, local_window_size, devices)
    x = _by_heads(name, axis, devices, a)
    mixed = nn.dot_product_attention(
        x.query, x.key, x.value, x.bias, x.mask, scale=x.scale,
        local_window_size=(x.before, x.after),
    )  # fmt: skip
    return a.result(_by_places(axis, mixed))


def hybrid_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    ring_axis: AxisName,
    head_axis: AxisName,
    scale: float | None = None,
    is_causal: bool = False,
    local_window_size: int | tuple[int, int] | None = None,
    zigzag: bool = False,
) -> Any:
    """`nn.dot_product_attention` of a sequence that is cut over two mesh axes, inside `shard_map`:
    places are exchanged for heads along one, keys go round the other.

    Arguments and the result as in `ring_attention`. The sequence is cut by
    `P(None, (ring_axis, head_axis))`, `ring_axis` the outer one; `head_axis` divides the heads as
    in `ulysses_attention`. zigzag: the sequence is in the order of
    `parallel.zigzag(x, size of ring_axis)`. As many devices may take part as both axes have, with
    rings of the first one's size; put the axis whose devices are nearest to each other at the
    heads.

    Raises what `ring_attention` and `ulysses_attention` raise.

    >>> from funcgrad.parallel import P, hybrid_attention, make_mesh, shard_map
    >>> mesh, cut = make_mesh((2, 2), ("ring", "heads")), P(None, ("ring", "heads"))
    >>> attend = lambda x: hybrid_attention(x, x, x, ring_axis="ring", head_axis="heads")
    >>> whole = shard_map(attend, mesh=mesh, in_specs=cut, out_specs=cut)
    >>> x = random.normal(random.key(0), (1, 16, 2, 8))
    >>> bool(fnp.allclose(whole(x), nn.dot_product_attention(x, x, x), atol=1e-5))
    True
    """
    name = "hybrid_attention"
    devices = size_of(name, "head_axis", head_axis)
    rings = size_of(name, "ring_axis", ring_axis)
    a = arguments(name, query, key, value, bias, mask, scale, is_causal, local_window_size,
                  devices * rings)  # fmt: skip
    mixed = attend(name, ring_axis, _by_heads(name, head_axis, devices, a), zigzag)
    return a.result(_by_places(head_axis, mixed))


def _by_heads(name: str, axis: AxisName, devices: int, a: Arguments) -> Arguments:
    """All places of the axis's devices, of a device's share of the heads."""
    heads, key_heads = a.query.shape[2], a.key.shape[2]
    if heads % devices or (key_heads % devices and devices % key_heads):
        raise ShapeError(
            f"{name}: the {devices} devices along {axis!r} must divide the query heads, and divide "
            f"the key heads or be a multiple of them; got {heads} query heads and {key_heads} key "
            "heads"
        )
    key, value = a.key, a.value
    if key_heads % devices:
        key, value = (fnp.repeat(x, devices // key_heads, axis=2) for x in (key, value))
    # One exchange: what a device sends to another one lies together.
    shares = [x.reshape(*x.shape[:2], devices, -1, x.shape[3]) for x in (a.query, key, value)]
    whole = lax.all_to_all(fnp.concatenate(shares, 3), axis, 2, 1, tiled=True)[:, :, 0]
    ends = [shares[0].shape[3], shares[0].shape[3] + shares[1].shape[3]]
    query, key, value = fnp.split(whole, ends, 2)
    bias, mask = (_of_heads(axis, devices, a, x) for x in (a.bias, a.mask))
    return a._replace(query=query, key=key, value=value, bias=bias, mask=mask)


def _of_heads(axis: AxisName, devices: int, a: Arguments, x: Any) -> Any:
    """The rows of all of the axis's devices, of a device's heads, of a bias or mask."""
    if x is None:
        return None
    own_rows, own_heads = x.shape[2] == a.query.shape[1], x.shape[1] == a.query.shape[2]
    if own_rows and own_heads:
        return lax.all_to_all(x, axis, 1, 2, tiled=True)
    if own_rows:
        return lax.all_gather(x, axis, axis=2, tiled=True)
    if own_heads:
        size = x.shape[1] // devices
        return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * size, size, 1)
    return x


def _by_places(axis: AxisName, mixed: Any) -> Any:
    """All heads of a device's places."""
    return lax.all_to_all(mixed, axis, 1, 2, tiled=True)
