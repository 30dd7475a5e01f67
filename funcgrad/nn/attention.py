"""Scaled dot-product attention (Vaswani et al., "Attention Is All You Need", 2017)."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.nn.normalize import softmax
from funcgrad.transforms.attention import attention


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
) -> Any:
    """softmax(query·keyᵀ·scale + bias)·value for each head.

    query: (B, T, N, H) or (T, N, H); key, value: (B, S, K, H), where K divides N (grouped heads).
    bias: added to the logits, broadcastable to (B, N, T, S); mask: bool of that shape, False leaves
    a pair out. scale: 1/√H by default. is_causal: query t sees keys s ≤ t.
    *_seq_lengths: int (B,), the tokens that count; local_window_size: how many keys to the left and
    right a query sees. Softmax is computed in float32 for lower-precision inputs. Rows without any
    key give 0. Result: as query.

    Without bias and mask this is one op, whose memory is linear in the lengths, also backward; keys
    that no query of a block sees are skipped. There NaN and infinities of keys and values that a
    query doesn't see may or may not reach it, and a row whose logits are all -inf gives 0. Second
    derivatives, forward mode, bias and mask have all T·S weights in memory.

    >>> from funcgrad import nn
    >>> x = fnp.ones((1, 2, 1, 4))
    >>> nn.dot_product_attention(x, x, x, is_causal=True).shape
    (1, 2, 1, 4)
    """
    query, key, value = fnp.asarray(query), fnp.asarray(key), fnp.asarray(value)
    batched = query.ndim == 4
    if not batched:
        query, key, value = query[None], key[None], value[None]
    _check(query, key, value)
    window = _window(is_causal, local_window_size)
    given = (
        _seq_lengths("query_seq_lengths", query_seq_lengths, query.shape[0]),
        _seq_lengths("key_value_seq_lengths", key_value_seq_lengths, query.shape[0]),
    )
    if scale is None:
        scale = 1 / math.sqrt(query.shape[3])
    fuses = bias is None and mask is None and query.dtype == key.dtype == value.dtype
    if fuses and dtypes.is_float(query.dtype) and query.size and key.size:
        out = _fused(query, key, value, scale, window, given)
    else:
        out = _composed(query, key, value, scale, window, given, bias, mask)
    return out if batched else out[0]


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


def _seq_lengths(name: str, lengths: Any, batch: int) -> Any:
    """Lengths as an int array (batch,), or None."""
    if lengths is None:
        return None
    x = fnp.asarray(lengths)
    if not dtypes.is_integer(x.dtype):
        raise DTypeError(f"dot_product_attention: {name} must be integers, got {x.dtype}")
    if x.shape not in ((), (batch,)):
        raise ShapeError(
            f"dot_product_attention: {name} must be of shape ({batch},), a length a sequence, got "
            f"{x.shape}"
        )
    return fnp.broadcast_to(x, (batch,))


def _fused(query: Any, key: Any, value: Any, scale: Any, window: Any, given: Any) -> Any:
    """One op, which never has all weights in memory."""
    if not (isinstance(scale, int | float) and 0 < scale < math.inf):
        query, scale = (query * scale).astype(query.dtype), 1.0
    lengths = []
    if any(x is not None for x in given):
        for x, size in zip(given, (query.shape[1], key.shape[1]), strict=True):
            x = fnp.full(query.shape[:1], size, np.int32) if x is None else x.astype(np.int32)
            lengths.append(x)
    before, after = window
    return attention(query, key, value, lengths, scale=scale, before=before, after=after)


def _composed(
    query: Any, key: Any, value: Any, scale: Any, window: Any, given: Any, bias: Any, mask: Any
) -> Any:
    """Of ops, with all weights at once."""
    t, n = query.shape[1:3]
    s, k = key.shape[1:3]
    if k != n:
        key, value = (fnp.repeat(x, n // k, axis=2) for x in (key, value))
    wide = query.dtype if query.dtype.itemsize >= 4 else np.dtype(np.float32)
    logits = fnp.einsum("btnh,bsnh->bnts", query * scale, key, preferred_element_type=wide)
    if bias is not None:
        logits = logits + fnp.asarray(bias).astype(wide)
    allowed = _allowed(t, s, mask, window)
    lengths = _lengths(t, s, *given)
    if lengths is not None:
        allowed = lengths if allowed is None else fnp.logical_and(allowed, lengths)
    if allowed is not None:
        # A large finite value instead of -inf: a row without keys stays free of NaN.
        logits = fnp.where(allowed, logits, float(dtypes.finfo(wide).min) / 2)
    weights = softmax(logits, axis=-1).astype(value.dtype)
    if allowed is not None:
        weights = fnp.where(allowed, weights, fnp.zeros_like(weights))
    return fnp.einsum("bnts,bsnh->btnh", weights, value)


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


def _allowed(t: int, s: int, mask: Any, window: tuple[int | None, int | None]) -> Any:
    """Which pairs (query, key) count, or None for all."""
    allowed = None if mask is None else fnp.asarray(mask)
    if allowed is not None and allowed.dtype != np.bool_:
        raise DTypeError(
            f"dot_product_attention: mask must be of bools, got {allowed.dtype}; give numbers that "
            "are added to the logits as bias"
        )
    rows, columns = fnp.arange(t)[:, None], fnp.arange(s)[None, :]
    before, after = window
    conditions = [] if before is None else [columns >= rows - before]
    if after is not None:
        conditions.append(columns <= rows + after)
    for c in conditions:
        allowed = c if allowed is None else fnp.logical_and(allowed, c)
    return allowed


def _lengths(t: int, s: int, query_lengths: Any, key_lengths: Any) -> Any:
    """Which pairs are within the sequences' lengths, as (B, 1, T, S), or None."""
    allowed = None
    for lengths, size, at in ((query_lengths, t, (3,)), (key_lengths, s, (2,))):
        if lengths is None:
            continue
        within = fnp.arange(size)[None, :] < fnp.asarray(lengths)[:, None]
        within = fnp.expand_dims(within, (1, *at))
        allowed = within if allowed is None else fnp.logical_and(allowed, within)
    return allowed
