"""Attention whose keys and values go round a ring of devices: queries stay where they are.

A device has the keys of one other device at a time, so its memory is that of its own part of the
sequence, however long the whole is. Results of blocks are put together as they come; the backward
rule goes round once more, weights are made anew from the statistics of the whole, and the keys'
cotangents travel behind their keys (Liu et al., "Ring Attention with Blockwise Transformers",
2023).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.types import AxisName
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.parallel.attention.arguments import Arguments, arguments, size_of
from funcgrad.parallel.attention.blocks import (
    Operands,
    Results,
    Running,
    block,
    block_cotangents,
)
from funcgrad.parallel.attention.pieces import Piece, Ring
from funcgrad.parallel.attention.rotation import around, gathered
from funcgrad.transforms.attention.operands import wide_dtype
from funcgrad.transforms.derivatives.custom import custom_vjp


def ring_attention(
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
    zigzag: bool = False,
) -> Any:
    """`nn.dot_product_attention` of a sequence that is cut over a mesh axis, inside `shard_map`.

    query: (B, T, N, H), this device's T of the sequence's places, or (T, N, H); key, value:
    (B, T, K, H), the same places, where K divides N. bias, mask: broadcastable to (B, N, T, S),
    this device's rows and the columns of all S = n·T keys, in the order in which devices have
    them. axis: the mesh axis (or several) of n devices that cuts the sequence. zigzag: the sequence
    is in the order of `parallel.zigzag`, so that a causal mask leaves all devices the same work;
    without it, the last one has n times that of the first. All else, and the result, as in
    `nn.dot_product_attention`.

    Keys and values are sent n - 1 times, to the next device, while it works on those before; with
    a local window, as often as it reaches devices. Memory is that of a device's own part. Sums are
    in float32 for lower-precision inputs. Derivatives of all orders are those of the whole; the
    gradient sends keys, values and their cotangents n - 1 times each.

    Raises ShardingError where the axis is none of a `shard_map` around it, ShapeError and
    DTypeError where arrays don't fit, ArgumentError where zigzag meets a local window.

    >>> from funcgrad.parallel import P, make_mesh, ring_attention, shard_map
    >>> cut = P(None, "cp")
    >>> attend = lambda x: ring_attention(x, x, x, axis="cp", is_causal=True)
    >>> whole = shard_map(attend, mesh=make_mesh(4, "cp"), in_specs=cut, out_specs=cut)
    >>> x = random.normal(random.key(0), (1, 16, 2, 8))
    >>> wanted = nn.dot_product_attention(x, x, x, is_causal=True)
    >>> bool(fnp.allclose(whole(x), wanted, atol=1e-5))
    True
    """
    name = "ring_attention"
    devices = size_of(name, "axis", axis)
    a = arguments(name, query, key, value, bias, mask, scale, is_causal, local_window_size, devices)
    return a.result(attend(name, axis, a, zigzag))


def attend(name: str, axis: AxisName, a: Arguments, zigzag: bool) -> Any:
    """Attention round a ring, of checked arguments."""
    length = a.key.shape[1]
    if zigzag and (a.before is not None or a.after not in (None, 0)):
        raise ArgumentError(
            f"{name}: zigzag has no local_window_size: a window gives all devices the same work "
            f"already; got zigzag=True and a window of {(a.before, a.after)}"
        )
    if zigzag and length % 2:
        raise ShapeError(
            f"{name}: with zigzag a device has two parts of the sequence, of the same size: its "
            f"length must be divisible by 2·{lax.axis_size(axis)}, and a device's own by 2; got "
            f"{length} places a device"
        )
    # Without a causal mask the order of keys says nothing.
    ring = Ring(axis, a.before, a.after, zigzag and a.after == 0)
    if not a.query.size:
        return fnp.zeros_like(a.query)
    out, stats = _ring(ring, a.scale, a.query, a.key, a.value, (), a.bias, a.mask)
    if a.mask is None:
        return out
    # As in nn.dot_product_attention, who sees no key has no weights to go by.
    empty = fnp.swapaxes(stats[:, :, 0] == np.inf, 1, 2)[..., None]
    mean = lax.pmean(fnp.mean(a.value.astype(stats.dtype), axis=1, keepdims=True), axis)
    mean = fnp.repeat(mean, a.query.shape[2] // a.key.shape[2], axis=2)
    return fnp.where(empty, mean.astype(out.dtype), out)


# ---- both directions


def mixed(
    ring: Ring, scale: float, q: Any, k: Any, v: Any, lengths: tuple, bias: Any, mask: Any
) -> tuple:
    """The mixed values and statistics of all keys, as those of one block. lengths: how many queries
    and keys of whole sequences count, or none; they don't go with a zigzag order.

    >>> from funcgrad.parallel.attention.pieces import Ring
    >>> from funcgrad.parallel.attention.ring import mixed
    >>> part = lambda x: mixed(Ring("i"), 0.5, x, x, x, (), None, None)[0]
    >>> fg.vmap(part, axis_name="i")(fnp.ones((2, 1, 3, 1, 4))).shape
    (2, 1, 3, 1, 4)
    """
    pairs, queries = _Pairs(ring, q, k, lengths, bias, mask), _parts(ring, q, 1)

    def turn(number: Any, states: list, kv: Any) -> tuple[list, tuple]:
        states, keys = list(states), _parts(ring, kv, 2)
        for piece in ring.pieces(number, k.shape[1]):
            found = block(scale, piece.window, pairs.operands(number, piece, queries, keys))
            for i, there in piece.queries.each():
                states[i] = states[i].with_block(*found, there)
        return states, ()

    start, turns = [Running.none(x) for x in queries], ring.turns(k.shape[1])
    states, _ = _go(ring)(ring.axis, turns, turn, start, fnp.stack([k, v]), ring.alike)
    outs, stats = zip(*(s.result(q.dtype) for s in states), strict=True)
    return fnp.concatenate(outs, 1), fnp.concatenate(stats, 3)


def _forward(ring: Ring, scale: float, *operands: Any) -> tuple:
    results = mixed(ring, scale, *operands)
    return results, (operands, results)


def _backward(ring: Ring, scale: float, residuals: tuple, cts: tuple) -> tuple:
    """Statistics have no cotangents: nothing is made of them that has a derivative."""
    operands, (out, stats) = residuals
    dq, dk, dv, db = cotangents(ring, scale, operands, Results(out, stats, cts[0]))
    return dq, dk, dv, None, db, None


def cotangents(ring: Ring, scale: float, operands: tuple, results: Results) -> tuple:
    """Of query, key, value and bias (None without one), of operands as of `mixed` and what came of
    them.

    >>> from funcgrad.parallel.attention.pieces import Ring
    >>> from funcgrad.parallel.attention.ring import Results, cotangents, mixed
    >>> def part(x):
    ...     operands = x, x, x, (), None, None
    ...     results = Results(*mixed(Ring("i"), 0.5, *operands), x)
    ...     return cotangents(Ring("i"), 0.5, operands, results)[1]
    >>> fg.vmap(part, axis_name="i")(fnp.ones((2, 1, 3, 1, 4))).shape
    (2, 1, 3, 1, 4)
    """
    q, k, v, lengths, bias, mask = operands
    dtype = wide_dtype(q.dtype)
    pairs, queries = _Pairs(ring, q, k, lengths, bias, mask), _parts(ring, q, 1)
    known = [_parts(ring, x, axis) for x, axis in zip(results, (1, 3, 1), strict=True)]

    def turn(number: Any, carry: tuple, kv: Any) -> tuple[tuple, Any]:
        (dq, db), keys = map(list, carry), _parts(ring, kv, 2)
        dkv = [fnp.zeros(x.shape, dtype) for x in keys]
        for piece in ring.pieces(number, k.shape[1]):
            x = pairs.operands(number, piece, queries, keys)
            y = Results(*(piece.queries.of(parts) for parts in known))
            of_q, of_k, of_v, *of_bias = block_cotangents(scale, piece.window, x, y)
            for i, there in piece.queries.each():
                dq[i] = dq[i] + _only(there, of_q.astype(dtype))
                db[i] = pairs.plus(db[i], number, piece, *(_only(there, c) for c in of_bias))
            for i, there in piece.keys.each():
                dkv[i] = dkv[i] + _only(there, fnp.stack([of_k, of_v]).astype(dtype))
        return (dq, db), fnp.concatenate(dkv, 2)

    start = [fnp.zeros(x.shape, dtype) for x in queries], pairs.zeros()
    turns, kv = ring.turns(k.shape[1]), fnp.stack([k, v])
    (dq, db), dkv = _go(ring)(ring.axis, turns, turn, start, kv, ring.alike)
    dk, dv = dkv.astype(k.dtype)
    return fnp.concatenate(dq, 1).astype(q.dtype), dk, dv, pairs.joined(db)


def _go(ring: Ring) -> Any:
    return gathered if ring.gathers else around


_ring = custom_vjp(mixed, nondiff_argnums=(0, 1))
_ring.defvjp(_forward, _backward)


def _only(there: Any, x: Any) -> Any:
    return x if there is True else fnp.where(there, x, 0)


def _parts(ring: Ring, x: Any, axis: int) -> list:
    """A device's part of a sequence, as the parts that pieces are of; what all places share is in
    each."""
    if x is None or x.shape[axis] == 1 or ring.parts == 1:
        return [x] * ring.parts
    return fnp.split(x, ring.parts, axis)


class _Pairs:
    """What says which pairs count: lengths of whole sequences, the bias and the mask of a device's
    queries, and of which keys a turn reads them."""

    def __init__(self, ring: Ring, query: Any, key: Any, lengths: tuple, bias: Any, mask: Any):
        self.ring = ring
        self.queries, self.length = query.shape[1], key.shape[1]
        self.lengths, self.bias, self.mask = lengths, bias, mask

    def operands(self, turn: Any, piece: Piece, queries: list, keys: list) -> Operands:
        """What a piece reads at a turn."""
        q, (k, v) = piece.queries.of(queries), piece.keys.of(keys)
        bias, mask = (self._columns(turn, piece, x) for x in (self.bias, self.mask))
        return Operands(q, k, v, self._counting(turn, piece, q, k), bias, mask)

    def _counting(self, turn: Any, piece: Piece, q: Any, k: Any) -> tuple:
        """How many of a piece's queries and keys count; nothing where all do."""
        if piece.there is True and not self.lengths:
            return ()
        own, keys = np.int32(q.shape[1]), np.int32(k.shape[1])
        if self.lengths:
            first = lax.axis_index(self.ring.axis) * self.queries
            own = fnp.clip(self.lengths[0] - first, 0, own)
            keys = fnp.clip(self.lengths[1] - self._start(turn, piece), 0, keys)
        seen = fnp.where(piece.there, keys, 0)
        return tuple(fnp.broadcast_to(fnp.astype(n, np.int32), q.shape[:1]) for n in (own, seen))

    def _start(self, turn: Any, piece: Piece) -> Any:
        """The first of a piece's keys, among those of all devices."""
        source = (lax.axis_index(self.ring.axis) - turn) % lax.axis_size(self.ring.axis)
        return source * self.length + piece.keys.of([0, self.length // 2])

    def _columns(self, turn: Any, piece: Piece, x: Any) -> Any:
        if x is None:
            return None
        x = piece.queries.of(_parts(self.ring, x, 2))
        if x.shape[3] == 1:
            return x
        size = self.length // self.ring.parts
        return lax.dynamic_slice_in_dim(x, self._start(turn, piece), size, 3)

    # ---- the cotangent of the bias, as of `_parts`

    def zeros(self) -> list:
        """Before the first turn."""
        return [None if x is None else fnp.zeros_like(x) for x in _parts(self.ring, self.bias, 2)]

    def plus(self, total: Any, turn: Any, piece: Piece, more: Any = None) -> Any:
        """With what a piece adds."""
        if total is None or total.shape[3] == 1:
            return total if more is None else total + more
        start = self._start(turn, piece)
        more = more + lax.dynamic_slice_in_dim(total, start, more.shape[3], 3)
        return lax.dynamic_update_slice_in_dim(total, more, start, 3)

    def joined(self, totals: list) -> Any:
        """All parts as one."""
        if self.bias is None:
            return None
        return sum(totals) if self.bias.shape[2] == 1 else fnp.concatenate(totals, 2)
