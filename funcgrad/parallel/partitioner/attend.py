"""Attention on blocks: which of its axes may be cut, the bytes that it sends, and how it runs.

Heads and texts are cut as they are. Where the sequence is cut, keys go round a ring of the devices
or are gathered (`attention.ring`), or places are exchanged for heads, which is a change of layout
before and after; whichever sends less, unless `sequence_attention` says otherwise: also that blocks
are dealt out for the ring (`attention.zigzag`), so that devices share the work of a causal mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.ops.collective.reductions import psum_p
from funcgrad.parallel.attention.blocks import Results
from funcgrad.parallel.attention.pieces import Ring
from funcgrad.parallel.attention.ring import cotangents, mixed
from funcgrad.parallel.attention.zigzag import dealt
from funcgrad.parallel.partitioner.reshard import Sizes, extent, moved
from funcgrad.parallel.partitioner.site import Site
from funcgrad.transforms.attention.operands import Given, given_of, wide_dtype

Assigned = Mapping[str, Sequence[str]]
# What isn't the way that was asked for; more than any bytes, and still a number to compare.
NOT_WANTED = 2.0**50


class _Axes(NamedTuple):
    """The factors of queries, of keys, of statistics, of the bias, and of all that is given."""

    query: str
    key: str
    stats: str
    bias: str
    given: str


def _axes(q: ShapedArray, k: ShapedArray, given: Given, params: Mapping[str, Any]) -> _Axes:
    """t: places of queries; s: of keys, which are those of queries where a window counts them."""
    heads = "." if k.shape[2] == 1 < q.shape[2] else "n"
    counted = params["before"] is not None or params["after"] is not None or given.lengths
    if not counted:
        place, other = "t", "s"
    else:
        place, other = ("t", "t") if q.shape[1] == k.shape[1] else ("t!", "s!")

    def pairs(x: ShapedArray) -> str:
        names = zip(x.shape, ("b", "n", place, "c!"), strict=True)
        return " ".join("." if n == 1 else a for n, a in names)

    bias = "" if given.bias is None else pairs(given.bias)
    rest = "".join(f", {pairs(x) if x.ndim == 4 else 'b'}" for x in given.operands)
    return _Axes(f"b {place} n h!", f"b {other} {heads} h!", f"b n . {place}", bias, rest)


def dims(q: ShapedArray, k: ShapedArray, v: ShapedArray, *given: ShapedArray, **params: Any) -> str:
    """The factors of `attention`. Without windows keys may be whole where queries are cut, or cut
    alike, so that theirs is another factor.

    >>> x = ShapedArray((2, 8, 4, 5), "float32")
    >>> dims(x, x, x, scale=1.0, before=None, after=0)
    'b t n h!, b t n h!, b t n h! -> b t n h!, b n . t'
    """
    a = _axes(q, k, given_of(given), params)
    return f"{a.query}, {a.key}, {a.key}{a.given} -> {a.query}, {a.stats}"


def backward_dims(
    q: ShapedArray, k: ShapedArray, v: ShapedArray, out: ShapedArray, stats: ShapedArray,
    ct: ShapedArray, *given: ShapedArray, bias_too: bool, **params: Any,
) -> str:  # fmt: skip
    """The factors of `attention_backward`, in which keys are always cut as queries are: each device
    then has its own part of their cotangents.

    >>> x, stats = ShapedArray((2, 8, 1, 5), "float32"), ShapedArray((2, 1, 2, 8), "float32")
    >>> backward_dims(x, x, x, x, stats, x, bias_too=False, scale=1, before=None, after=None)[-31:]
    '-> b t n h!, b t n h!, b t n h!'
    """
    a = _axes(q, k, given_of(given), params)
    key = a.key.replace(" s ", " t ")
    ins = f"{a.query}, {key}, {key}, {a.query}, {a.stats}, {a.query}{a.given}"
    return f"{ins} -> {a.query}, {key}, {key}" + (f", {a.bias}" if bias_too else "")


# ---- how it runs


def attend(site: Site, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    """The results of `attention` on blocks."""
    ring = _ring(site.params, site.assigned, site.sizes)
    if ring is None or k.shape[1] == site.ins[1].shape[1]:
        return site.bind(q, k, v, *rest)
    given, scale = given_of(rest), site.params["scale"]
    if _is_shared(ring, q, k, given):
        order = dealt(ring.axis)
        turned = replace(ring, zigzag=True)
        q, k, v = (order.put(x, 1) for x in (q, k, v))
        out, stats = mixed(turned, scale, q, k, v, (), None, None)
        return order.back(out, 1), order.back(stats, 3)
    return mixed(ring, scale, q, k, v, given.lengths, given.bias, given.mask)


def attend_backward(site: Site, *xs: Any) -> list:
    """The results of `attention_backward` on blocks. Who shares a bias, or a key head, has parts of
    the sum of its cotangents."""
    ring = _ring(site.params, site.assigned, site.sizes)
    if ring is None:
        found = list(site.bind(*xs))
    else:
        found = _ring_cotangents(ring, site.params["scale"], xs[:6], given_of(xs[6:]))
        found = found[: 3 + site.params["bias_too"]]
    return [
        psum_p.bind(x, axis_name=axes) if axes else x
        for x, axes in zip(found, _due(site.ins, site.params, site.assigned), strict=True)
    ]


def _ring_cotangents(ring: Ring, scale: float, xs: Sequence[Any], given: Given) -> list:
    """Those of a ring: of query, key, value and bias."""
    q, k, v, out, stats, ct = xs
    if not _is_shared(ring, q, k, given):
        operands = q, k, v, given.lengths, given.bias, given.mask
        return list(cotangents(ring, scale, operands, Results(out, stats, ct)))
    order = dealt(ring.axis)
    q, k, v, out, ct = (order.put(x, 1) for x in (q, k, v, out, ct))
    results = Results(out, order.put(stats, 3), ct)
    turned = replace(ring, zigzag=True)
    found = cotangents(turned, scale, (q, k, v, (), None, None), results)
    return [*(order.back(x, 1) for x in found[:3]), None]


def _is_shared(ring: Ring, q: Any, k: Any, given: Given) -> bool:
    """Whether blocks are dealt out so that a causal mask leaves all devices the same work."""
    causal = ring.after == 0 and ring.before is None
    alike = q.shape[1] == k.shape[1] and q.shape[1] % 2 == 0
    return context.current().sequences == "zigzag" and causal and alike and not given.operands


def _ring(params: Mapping[str, Any], assigned: Assigned, sizes: Sizes) -> Ring | None:
    axes = tuple(a for a in assigned.get("t", ()) if sizes[a] > 1)
    if not axes:
        return None
    gathers = context.current().sequences == "gather"
    return Ring(axes, params["before"], params["after"], gathers=gathers)


def _due(
    ins: Sequence[ShapedArray], params: Mapping[str, Any], assigned: Assigned
) -> list[tuple[str, ...]]:
    """For each cotangent, the mesh axes over which devices have parts of its sum."""
    q, k = ins[:2]
    a = _axes(q, k, given_of(ins[6:]), params)
    outs = [a.query.split(), a.key.replace(" s ", " t ").split(), a.bias.split()]
    names = [outs[0], outs[1], outs[1], *([outs[2]] if params["bias_too"] else [])]
    factors = [f for f in ("b", "n", "t") if f in assigned]
    return [tuple(m for f in factors if f not in own for m in assigned[f]) for own in names]


# ---- what it sends


def sends(
    ins: Sequence[ShapedArray], params: Mapping[str, Any], assigned: Assigned, sizes: Sizes
) -> float:
    """The bytes that a device sends in `attention`; NOT_WANTED more in a way that isn't asked for.

    >>> x = ShapedArray((1, 8, 1, 4), "float32")
    >>> sends([x, x, x], {"before": None, "after": 0}, {"t": ("cp",)}, {"cp": 4})
    192.0
    """
    ring = _ring(params, assigned, sizes)
    total = _unwanted(ring)
    key = _axes(ins[0], ins[1], given_of(ins[3:]), params).key.split()[1]
    if ring is None or key not in assigned:
        return total
    turns, size = _turns(ring, ins, assigned, sizes)
    return (
        total + turns * size * ins[1].dtype.itemsize + _dealing(ring, ins, (2, 2), assigned, sizes)
    )


def backward_sends(
    ins: Sequence[ShapedArray], params: Mapping[str, Any], assigned: Assigned, sizes: Sizes
) -> float:
    """The bytes that a device sends in `attention_backward`, as `sends`: keys and values, their
    cotangents, which come home, and what sums of shared ones take.

    >>> x, stats = ShapedArray((1, 8, 1, 4), "float32"), ShapedArray((1, 1, 2, 8), "float32")
    >>> params = {"before": None, "after": 0, "bias_too": False}
    >>> backward_sends([x, x, x, x, stats, x], params, {"t": ("cp",)}, {"cp": 4})
    384.0
    """
    ring = _ring(params, assigned, sizes)
    total = _unwanted(ring)
    if ring is not None:
        turns, size = _turns(ring, ins, assigned, sizes)
        total += turns * size * (ins[1].dtype.itemsize + wide_dtype(ins[1].dtype).itemsize)
        total += _dealing(ring, ins, (4, 4), assigned, sizes)
    cuts = math.prod(extent(assigned.get(f, ()), sizes) for f in ("b", "t"))
    for x, axes in zip(ins[1:3], _due(ins, params, assigned)[1:3], strict=True):
        total += moved("all_reduce", x.nbytes / cuts, extent(axes, sizes))
    return total


def _unwanted(ring: Ring | None) -> float:
    way = context.current().sequences
    return 0.0 if way == "auto" or (way == "heads") == (ring is None) else NOT_WANTED


def _dealing(
    ring: Ring, ins: Sequence[ShapedArray], times: tuple[int, int], assigned: Assigned, sizes: Sizes
) -> float:
    """The bytes in which blocks are dealt out and come back: so many of queries', and of keys'."""
    q, k = ins[:2]
    if context.current().sequences != "zigzag" or (ring.before, ring.after) != (None, 0):
        return 0.0
    parts = math.prod(extent(axes, sizes) for axes in assigned.values())
    return (times[0] * q.nbytes + times[1] * k.nbytes) / parts


def _turns(
    ring: Ring, ins: Sequence[ShapedArray], assigned: Assigned, sizes: Sizes
) -> tuple[int, float]:
    """How often keys and values are sent, and how many elements a device has of both."""
    q, k = ins[:2]
    n, whole = extent(ring.axis, sizes), k.shape[2] == 1 < q.shape[2]
    parts = n * math.prod(extent(assigned.get(f, ()), sizes) for f in ("b", "n")[: 2 - whole])
    turns = n - 1 if ring.gathers else len(ring.turns_of(n, k.shape[1] // n))
    return turns, 2 * k.size / parts
