"""Attention to some of the keys, and its cotangents; results of blocks put together.

A block's result comes with the largest logit and the logarithm of the sum of each row, by which
results of several blocks are one (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018). Given those of the whole, a block's cotangents are its part of the whole's. Both
are the ops of `transforms.attention`; derivatives of any order are those of its formula.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.transforms.attention import formula
from funcgrad.transforms.attention.attention import attention_backward_p, attention_p
from funcgrad.transforms.attention.operands import Given, wide_dtype
from funcgrad.transforms.derivatives.custom import custom_jvp
from funcgrad.transforms.derivatives.linear import jvp


class Window(NamedTuple):
    """Query t of a block sees its keys t - before … t + after (None: all)."""

    before: int | None = None
    after: int | None = None


class Operands(NamedTuple):
    """What a block reads: query (B, T, N, H), key and value (B, S, K, H), how many of its queries
    and keys count (two int32 (B,), or none), bias and mask (B, N, T, S) or None."""

    q: Any
    k: Any
    v: Any
    lengths: tuple[Any, ...] = ()
    bias: Any = None
    mask: Any = None

    @property
    def given(self) -> Given:
        """As attention's ops take them."""
        return Given(self.lengths, self.bias, self.mask)


def _params(scale: float, window: Window) -> dict[str, Any]:
    return {"scale": scale, "before": window.before, "after": window.after}


# ---- results


@partial(custom_jvp, nondiff_argnums=(0, 1))
def block(scale: float, window: Window, x: Operands) -> list:
    """The mixed values (B, T, N, H), and (B, N, 2, T): each row's largest logit and the logarithm
    of Σ exp(logit - largest). A row without keys has 0, +inf and 0.

    >>> from funcgrad.parallel.attention.blocks import Operands, Window, block
    >>> q = fnp.ones((1, 2, 1, 4))
    >>> [r.shape for r in block(0.5, Window(after=0), Operands(q, q, q))]
    [(1, 2, 1, 4), (1, 1, 2, 2)]
    """
    return attention_p.bind(x.q, x.k, x.v, *x.given.operands, **_params(scale, window))


@block.defjvp
def _block_jvp(scale: float, window: Window, primals: tuple, tangents: tuple) -> tuple:
    (x,), (t,) = primals, tangents

    def fun(q: Any, k: Any, v: Any, bias: Any) -> list:
        given = Given(x.lengths, bias, x.mask)
        return formula.value(q, k, v, given, _params(scale, window))

    return jvp(fun, (x.q, x.k, x.v, x.bias), (t.q, t.k, t.v, t.bias))


class Running(NamedTuple):
    """Σ exp(logit - top)·value and Σ exp(logit - top) of the keys seen so far: (B, T, N, H) and
    twice (B, T, N), in the dtype that sums are in. Without any keys: 0, -inf and 0."""

    mixed: Any
    top: Any
    total: Any

    @staticmethod
    def none(q: Any) -> Running:
        """Before the first block of these queries."""
        dtype = wide_dtype(q.dtype)
        rows = q.shape[:3]
        return Running(fnp.zeros(q.shape, dtype), fnp.full(rows, -np.inf, dtype),
                       fnp.zeros(rows, dtype))  # fmt: skip

    def with_block(self, out: Any, stats: Any, there: Any = True) -> Running:
        """With the keys of a block, if it is `there`."""
        top, log_sum = (fnp.swapaxes(stats[:, :, i], 1, 2) for i in range(2))
        top = fnp.where(fnp.logical_and(there, top < np.inf), top, -np.inf)
        largest = fnp.maximum(self.top, top)
        base = fnp.where(largest == -np.inf, 0, largest)
        old, new = fnp.exp(self.top - base), fnp.exp(top - base + log_sum)
        mixed = self.mixed * old[..., None] + out.astype(self.mixed.dtype) * new[..., None]
        return Running(mixed, largest, self.total * old + new)

    def result(self, dtype: Any) -> tuple[Any, Any]:
        """The mixed values and statistics, as those of one block of all keys."""
        none = self.total == 0
        total = fnp.where(none, 1, self.total)
        out = (self.mixed / total[..., None]).astype(dtype)
        stats = fnp.stack([fnp.where(none, np.inf, self.top), fnp.log(total)], axis=1)
        return out, fnp.transpose(stats, (0, 3, 1, 2))


# ---- cotangents


class Results(NamedTuple):
    """Of attention to all keys: the mixed values, statistics, and the cotangent of the former."""

    out: Any
    stats: Any
    ct: Any


@partial(custom_jvp, nondiff_argnums=(0, 1))
def block_cotangents(scale: float, window: Window, x: Operands, y: Results) -> list:
    """What a block's keys add to the cotangents of query, and those of key, value and of the bias,
    if there is one.

    >>> from funcgrad.parallel.attention import blocks
    >>> q = fnp.ones((1, 2, 1, 4))
    >>> x = blocks.Operands(q, q, q)
    >>> y = blocks.Results(*blocks.block(0.5, blocks.Window(), x), q)
    >>> [c.shape for c in blocks.block_cotangents(0.5, blocks.Window(), x, y)]
    [(1, 2, 1, 4), (1, 2, 1, 4), (1, 2, 1, 4)]
    """
    return attention_backward_p.bind(
        x.q, x.k, x.v, y.out, y.stats, y.ct, *x.given.operands,
        bias_too=x.bias is not None, **_params(scale, window),
    )  # fmt: skip


@block_cotangents.defjvp
def _cotangents_jvp(scale: float, window: Window, primals: tuple, tangents: tuple) -> tuple:
    (x, y), (dx, dy) = primals, tangents

    def fun(q: Any, k: Any, v: Any, bias: Any, y: Results) -> list:
        given, bias_too = Given(x.lengths, bias, x.mask), bias is not None
        params, results = _params(scale, window), (y.out, y.stats)
        return formula.cotangents(q, k, v, y.ct, given, params, bias_too, results)

    return jvp(fun, (x.q, x.k, x.v, x.bias, y), (dx.q, dx.k, dx.v, dx.bias, dy))
