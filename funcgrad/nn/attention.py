"""Scaled dot-product attention (Vaswani et al., "Attention Is All You Need", 2017)."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.transforms.attention.attention import attention_and_empty
from funcgrad.transforms.attention.operands import Given, wide_dtype
from funcgrad.transforms.recorded import recorded

_LEAST_SCALE = float(np.finfo(np.float32).tiny)


@recorded
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
) -> Any:
    """softmax(query·keyᵀ·scale + bias)·value for each head.

    query: (B, T, N, H) or (T, N, H); key, value: (B, S, K, H), where K divides N (grouped heads).
    bias: added to the logits, broadcastable to (B, N, T, S); mask: bool of that shape, False leaves
    a pair out. scale: 1/√H by default. is_causal: query t sees keys s ≤ t.
    *_seq_lengths: int (B,), the tokens that count; local_window_size: how many keys to the left and
    right a query sees. Softmax is computed in float32 for lower-precision inputs. Result: as query.
    implementation: None or JAX's "xla", which are the same here.

    As in JAX, a query that sees no key gets the mean of all values, one beyond its sequence's
    length gets 0. NaN and infinities of keys that a query doesn't see don't reach it, those of
    values may. A row whose logits are all -inf counts as one without keys; without mask, window
    and lengths of keys it gives 0.

    This is one op, which never has all T·S weights in memory, nor have its derivatives of any
    order; keys that no query of a block sees are skipped.

    >>> from funcgrad import nn
    >>> x = fnp.ones((1, 2, 1, 4))
    >>> nn.dot_product_attention(x, x, x, is_causal=True).shape
    (1, 2, 1, 4)
    """
    if implementation not in (None, "xla"):
        raise ValueError(
            f"dot_product_attention: implementation must be None or 'xla', got {implementation!r}"
        )
    query, key, value = fnp.asarray(query), fnp.asarray(key), fnp.asarray(value)
    batched = query.ndim == 4
    if not batched:
        query, key, value = query[None], key[None], value[None]
    _check(query, key, value)
    dtype = _dtype(query, key, value)
    wide = wide_dtype(dtype)
    given = Given(
        _lengths(query, key, query_seq_lengths, key_value_seq_lengths),
        _pairs("bias", bias, query, key, wide),
        _pairs("mask", mask, query, key, np.dtype(np.bool_)),
    )
    window = _window(is_causal, local_window_size)
    if not query.size or not key.size:
        return fnp.zeros_like(query if batched else query[0])
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    # A scale that float32 rounds to 0 would make NaN of what is hidden by -inf.
    if not (isinstance(scale, int | float) and _LEAST_SCALE < scale < math.inf):
        query, scale = fnp.multiply(query, scale).astype(dtype), 1.0
    out, empty = attention_and_empty(query, key, value, given, scale, *window)
    t, s = query.shape[1], key.shape[1]
    past = window[0] is not None and t - 1 - window[0] >= s
    if mask is not None or key_value_seq_lengths is not None or past:
        out = _filled(out, empty, value, query_seq_lengths)
    return out if batched else out[0]


def _filled(out: Any, empty: Any, value: Any, query_lengths: Any) -> Any:
    """The mean of all values for queries without keys, as they have no weights to go by."""
    empty = fnp.swapaxes(empty, 1, 2)
    if query_lengths is not None:
        there = fnp.arange(out.shape[1]) < fnp.asarray(query_lengths).reshape(-1, 1)
        empty = fnp.logical_and(empty, there[:, :, None])
    mean = fnp.mean(value.astype(wide_dtype(value.dtype)), axis=1, keepdims=True)
    mean = fnp.repeat(mean, out.shape[2] // value.shape[2], axis=2).astype(out.dtype)
    return fnp.where(empty[..., None], mean, out)


def _dtype(query: Any, key: Any, value: Any) -> np.dtype:
    """The float dtype that query, key and value have in common."""
    dtype = fnp.result_type(query, key, value)
    if dtypes.is_complex(dtype):
        raise DTypeError(
            "dot_product_attention: softmax needs real numbers, got query "
            f"{query.dtype}, key {key.dtype}, value {value.dtype}"
        )
    return dtype if dtypes.is_float(dtype) else fnp.result_type(dtype, np.float32)


def _window(is_causal: bool, size: Any) -> tuple[int | None, int | None]:
    """How many keys before and after its place a query sees; None for all."""
    both = tuple(size) if isinstance(size, tuple | list) else (size, size)
    fit = all(n is None or (hasattr(n, "__index__") and operator.index(n) >= 0) for n in both)
    if len(both) != 2 or not fit:
        raise ValueError(
            "dot_product_attention: local_window_size must be a number of keys, 0 or more, or a "
            f"pair of them (left, right), got {size!r}"
        )
    before, after = both
    if is_causal:
        after = 0 if after is None else min(after, 0)
    return before, after


def _lengths(query: Any, key: Any, queries: Any, keys: Any) -> tuple[Any, ...]:
    """How many queries and keys of each sequence count, as int32; () where all do."""
    if queries is None and keys is None:
        return ()
    batch, found = query.shape[0], []
    for name, lengths, size in (
        ("query_seq_lengths", queries, query.shape[1]),
        ("key_value_seq_lengths", keys, key.shape[1]),
    ):
        x = fnp.asarray(size if lengths is None else lengths)
        if not dtypes.is_integer(x.dtype):
            raise DTypeError(f"dot_product_attention: {name} must be integers, got {x.dtype}")
        if x.shape not in ((), (batch,)):
            raise ShapeError(
                f"dot_product_attention: {name} must be of shape ({batch},), a length a sequence, "
                f"got {x.shape}"
            )
        found.append(fnp.broadcast_to(x.astype(np.int32), (batch,)))
    return tuple(found)


def _pairs(name: str, given: Any, query: Any, key: Any, dtype: np.dtype) -> Any:
    """A bias or mask with four axes, or None."""
    if given is None:
        return None
    x = fnp.asarray(given)
    if dtype == np.bool_ and x.dtype != np.bool_:
        raise DTypeError(
            f"dot_product_attention: mask must be of bools, got {x.dtype}; give numbers that are "
            "added to the logits as bias"
        )
    if dtypes.is_complex(x.dtype):
        raise DTypeError(f"dot_product_attention: bias must be of real numbers, got {x.dtype}")
    whole = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    shape = (1,) * (4 - x.ndim) + x.shape
    if x.ndim > 4 or any(n not in (1, m) for n, m in zip(shape, whole, strict=True)):
        raise ShapeError(
            f"dot_product_attention: {name} must be broadcastable to (B, N, T, S) = {whole}, got "
            f"{x.shape}"
        )
    return x.reshape(shape).astype(dtype)


def _check(query: Any, key: Any, value: Any) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if not (query.ndim == key.ndim == value.ndim == 4):
        raise ShapeError(
            f"dot_product_attention: need three arrays of (B, T, N, H) or (T, N, H), got {shapes}"
        )
    same = key.shape == value.shape and key.shape[0] == query.shape[0]
    if not same or key.shape[3] != query.shape[3] or query.shape[2] % key.shape[2]:
        raise ShapeError(
            "dot_product_attention: batch and head sizes must agree, key and value have one shape, "
            f"and the key heads divide the query heads; got {shapes}"
        )
