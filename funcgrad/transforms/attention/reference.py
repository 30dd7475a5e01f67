"""Attention on arrays, and its cotangents: what the ops mean, some queries at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad.core.types import ArrayModule, PlainArray
from funcgrad.ops.folds import extreme
from funcgrad.transforms.attention.operands import given_of, wide_dtype

# Elements of scores that are made at a time.
MOST_SCORES = 1 << 22


class _Reference:
    """Attention on arrays, grouped by key head: (batch, key head, group, place, feature)."""

    def __init__(self, xp: ArrayModule, q: PlainArray, k: PlainArray, v: PlainArray,
                 rest: Sequence[PlainArray], scale: float, before: int | None,
                 after: int | None):  # fmt: skip
        self.xp, self.given = xp, given_of(rest)
        self.scale, self.before, self.after = scale, before, after
        self.dtype = wide_dtype(q.dtype)
        self.b, self.t, self.n, self.h = q.shape
        self.s, self.heads = k.shape[1:3]
        self.q, self.k, self.v = self.grouped(q), self.grouped(k), self.grouped(v)

    def grouped(self, x: PlainArray) -> PlainArray:
        b, t, n, h = x.shape
        x = x.astype(self.dtype, copy=False).reshape(b, t, self.heads, n // self.heads, h)
        return self.xp.transpose(x, (0, 2, 3, 1, 4))

    def flat(self, x: PlainArray, dtype: np.dtype) -> PlainArray:
        """From (batch, key head, group, place, feature) to (batch, place, head, feature)."""
        b, k, g, t, h = x.shape
        return self.xp.transpose(x, (0, 3, 1, 2, 4)).reshape(b, t, k * g, h).astype(dtype)

    def blocks(self) -> list[slice]:
        """Queries at a time."""
        row = max(1, self.b * self.n * self.s)
        step = max(1, MOST_SCORES // row)
        return [slice(i, min(i + step, self.t)) for i in range(0, self.t, step)]

    def of_pairs(self, x: PlainArray, rows: slice) -> PlainArray:
        """These queries' part of a bias or mask, grouped."""
        b, n, t, s = x.shape
        if t != 1:
            x, t = x[:, :, rows], rows.stop - rows.start
        heads = (1, 1) if n == 1 else (self.heads, n // self.heads)
        return x.reshape(b, *heads, t, s)

    def allowed(self, rows: slice) -> PlainArray:
        """Which of these queries see which keys, as (batch or 1, 1, 1, queries, keys)."""
        xp = self.xp
        t, s = xp.arange(rows.start, rows.stop)[:, None], xp.arange(self.s)[None, :]
        found = xp.ones((1, 1, 1, rows.stop - rows.start, self.s), bool)
        if self.before is not None:
            found = found & (s >= t - self.before)
        if self.after is not None:
            found = found & (s <= t + self.after)
        if self.given.lengths:
            queries, keys = (x[:, None, None, None, None] for x in self.given.lengths)
            found = found & (t < queries) & (s < keys)
        if self.given.mask is not None:
            found = found & self.of_pairs(self.given.mask, rows)
        return found

    def logits(self, rows: slice) -> PlainArray:
        xp = self.xp
        found = xp.matmul(self.q[:, :, :, rows], xp.swapaxes(self.k, -1, -2))
        found = found * self.dtype.type(self.scale)
        if self.given.bias is not None:
            found = found + self.of_pairs(self.given.bias, rows)
        return xp.where(self.allowed(rows), found, -xp.inf)


def value(xp: ArrayModule, q: PlainArray, k: PlainArray, v: PlainArray, *rest: PlainArray,
          scale: float, before: int | None, after: int | None) -> list:  # fmt: skip
    """The mixed values, and what `stats_aval` says."""
    r = _Reference(xp, q, k, v, rest, scale, before, after)
    out = xp.zeros(r.q.shape, r.dtype)
    stats = xp.zeros((*r.q.shape[:3], 2, r.t), r.dtype)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for rows in r.blocks():
            logits = r.logits(rows)
            top = extreme(xp, logits, (4,), "max", -np.inf)[..., None]
            weights = xp.exp(logits - xp.where(top == -xp.inf, 0, top))
            total = xp.sum(weights, axis=-1, keepdims=True)
            none = total == 0
            mixed = xp.matmul(weights, r.v)
            out[:, :, :, rows] = xp.where(none, 0, mixed / xp.where(none, 1, total))
            stats[:, :, :, 0, rows] = xp.where(none, xp.inf, top)[..., 0]
            stats[:, :, :, 1, rows] = xp.where(none, 0, xp.log(total))[..., 0]
    b, t, n, _ = q.shape
    return [r.flat(out, q.dtype), stats.reshape(b, n, 2, t)]


def cotangents(xp: ArrayModule, q: PlainArray, k: PlainArray, v: PlainArray, out: PlainArray,
               stats: PlainArray, ct: PlainArray, *rest: PlainArray, scale: float,
               before: int | None, after: int | None, bias_too: bool) -> list:  # fmt: skip
    """Of query, key and value, and of the bias where it is wanted too."""
    r = _Reference(xp, q, k, v, rest, scale, before, after)
    out, ct = r.grouped(out), r.grouped(ct)
    top, log_sum = (stats[:, :, i].reshape((*r.q.shape[:4], 1)) for i in range(2))
    dq, dk, dv = (xp.zeros(x.shape, r.dtype) for x in (r.q, r.k, r.v))
    bias = r.given.bias
    db = xp.zeros(bias.shape if bias_too else (), r.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for rows in r.blocks():
            at = (slice(None), slice(None), slice(None), rows)
            weights = xp.exp((r.logits(rows) - top[at]) - log_sum[at])
            dv += _summed(xp, weights, ct[at])
            delta = xp.sum(ct[at] * out[at], axis=-1, keepdims=True)
            ds = weights * (xp.matmul(ct[at], xp.swapaxes(r.v, -1, -2)) - delta)
            if bias_too:
                to = db if bias.shape[2] == 1 else db[:, :, rows]
                flat = ds.reshape(r.b, r.n, *ds.shape[3:])
                axes = tuple(i for i, n in enumerate(bias.shape) if n == 1)
                to += xp.sum(flat, axis=axes, keepdims=True)
            ds = ds * r.dtype.type(scale)
            dq[at] = xp.matmul(ds, r.k)
            dk += _summed(xp, ds, r.q[at])
    return [r.flat(x, q.dtype) for x in (dq, dk, dv)] + ([db] if bias_too else [])


def _summed(xp: ArrayModule, weights: PlainArray, x: PlainArray) -> PlainArray:
    """Σ weights·x over queries and the heads of a group."""
    return xp.sum(xp.matmul(xp.swapaxes(weights, -1, -2), x), axis=2, keepdims=True)
