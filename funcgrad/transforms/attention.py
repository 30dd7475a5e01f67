"""Attention as one op, with derivatives whose memory is linear in the sequences' lengths.

attention gives the mixed values and the logarithms of the sums of exponentials, from which the
backward op computes the weights anew (Dao et al., "FlashAttention", 2022). Its tangent is an op
that is linear in the operands' tangents, and whose transpose is the backward op. Higher derivatives
are those of the plain formula, written in ops: there all weights exist at once, as in derivatives
of short sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.ir import Jaxpr, interpret
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arithmetic import div, mul, sub
from funcgrad.ops.base import (
    batch_front,
    factor,
    full,
    instantiate,
    is_linear,
    sum_p,
    transpose_p,
)
from funcgrad.ops.compare import bitwise_and, eq, ge, lt
from funcgrad.ops.contract import dot_general
from funcgrad.ops.convert import convert_element_type, select, stop_gradient
from funcgrad.ops.families import add
from funcgrad.ops.reduce import max_p
from funcgrad.ops.shape import broadcast_in_dim, iota, reshape
from funcgrad.ops.transcendental import exp, log
from funcgrad.transforms.jvp import jvp_flat

FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)
# Elements of scores that the reference makes at a time.
MOST_SCORES = 1 << 22
# Weights for no more keys than this are kept for the backward pass instead of computed anew: that
# would be a seventh product beside six, and a second exponential, and spare no memory that matters.
# (Measured on one core, forward and backward, 64 features, anew/kept: 64 keys 1.6, causal 1.3; 128
# keys 1.4 and 1.03; 256 keys 1.1 and 0.7.)
KEPT = 128


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which attention of a dtype is computed.

    >>> wide_dtype(np.dtype("float16"))
    dtype('float32')
    """
    return dtype if dtype.itemsize >= 4 else FLOAT32


# ---- types


def _check(name: str, q: Any, k: Any, v: Any, lengths: Sequence[Any]) -> None:
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise ShapeError(
            f"{name}: need query (B, T, N, H), key and value (B, S, K, H), got {q}, {k}, {v}"
        )
    same = k.shape == v.shape and k.shape[0] == q.shape[0] and k.shape[3] == q.shape[3]
    if not same or not k.shape[2] or q.shape[2] % k.shape[2]:
        raise ShapeError(f"{name}: sizes of query {q}, key {k} and value {v} don't fit")
    if not (q.dtype == k.dtype == v.dtype and dtypes.is_float(q.dtype)):
        raise DTypeError(f"{name}: need floats of one dtype, got {q}, {k} and {v}")
    if len(lengths) not in (0, 2) or any(
        x.shape != q.shape[:1] or x.dtype != INT32 for x in lengths
    ):
        raise ShapeError(
            f"{name}: lengths of queries and of keys must be two int32 arrays of shape "
            f"{q.shape[:1]}, got {', '.join(map(str, lengths))}"
        )


def _abstract(q, k, v, *lengths, scale, before, after):
    _check("attention", q, k, v, lengths)
    b, t, n, _ = q.shape
    return [q.strong(), ShapedArray((b, n, t), wide_dtype(q.dtype))]


def _tangent_abstract(q, k, v, out, lse, dq, dk, dv, *lengths, scale, before, after):
    _check("attention_tangent", q, k, v, lengths)
    return q.strong()


def _backward_abstract(q, k, v, out, lse, ct, *lengths, scale, before, after):
    _check("attention_backward", q, k, v, lengths)
    return [q.strong(), k.strong(), v.strong()]


# ---- the reference, some queries at a time


class _Reference:
    """Attention on arrays, grouped by key head: (batch, key head, group, place, feature)."""

    def __init__(self, xp, q, k, v, lengths, scale, before, after):
        self.xp, self.lengths = xp, lengths
        self.scale, self.before, self.after = scale, before, after
        self.dtype = wide_dtype(q.dtype)
        self.b, self.t, self.n, self.h = q.shape
        self.s, self.heads = k.shape[1:3]
        self.q, self.k, self.v = self.grouped(q), self.grouped(k), self.grouped(v)

    def grouped(self, x: Any) -> Any:
        b, t, n, h = x.shape
        x = x.astype(self.dtype, copy=False).reshape(b, t, self.heads, n // self.heads, h)
        return self.xp.transpose(x, (0, 2, 3, 1, 4))

    def flat(self, x: Any, dtype: np.dtype) -> Any:
        """From (batch, key head, group, place, feature) to (batch, place, head, feature)."""
        b, k, g, t, h = x.shape
        return self.xp.transpose(x, (0, 3, 1, 2, 4)).reshape(b, t, k * g, h).astype(dtype)

    def blocks(self) -> list[slice]:
        """Queries at a time."""
        row = max(1, self.b * self.n * self.s)
        step = max(1, MOST_SCORES // row)
        return [slice(i, min(i + step, self.t)) for i in range(0, self.t, step)]

    def allowed(self, rows: slice) -> Any:
        """Which of these queries see which keys, as (batch or 1, 1, 1, queries, keys)."""
        xp = self.xp
        t, s = xp.arange(rows.start, rows.stop)[:, None], xp.arange(self.s)[None, :]
        found = xp.ones((1, 1, 1, rows.stop - rows.start, self.s), bool)
        if self.before is not None:
            found = found & (s >= t - self.before)
        if self.after is not None:
            found = found & (s <= t + self.after)
        if self.lengths:
            queries, keys = (x[:, None, None, None, None] for x in self.lengths)
            found = found & (t < queries) & (s < keys)
        return found

    def scores(self, rows: slice) -> Any:
        xp = self.xp
        scores = xp.matmul(self.q[:, :, :, rows], xp.swapaxes(self.k, -1, -2))
        scores = scores * self.dtype.type(self.scale)
        return xp.where(self.allowed(rows), scores, -xp.inf)


def _impl(xp, q, k, v, *lengths, scale, before, after):
    r = _Reference(xp, q, k, v, lengths, scale, before, after)
    out = xp.zeros(r.q.shape, r.dtype)
    lse = xp.zeros(r.q.shape[:4], r.dtype)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for rows in r.blocks():
            scores = r.scores(rows)
            top = xp.max(scores, axis=-1, keepdims=True, initial=-xp.inf)
            weights = xp.exp(scores - xp.where(top == -xp.inf, 0, top))
            total = xp.sum(weights, axis=-1, keepdims=True)
            none = total == 0
            mixed = xp.matmul(weights, r.v)
            out[:, :, :, rows] = xp.where(none, 0, mixed / xp.where(none, 1, total))
            lse[:, :, :, rows] = xp.where(none, xp.inf, top + xp.log(total))[..., 0]
    b, t, n, _ = q.shape
    return [r.flat(out, q.dtype), lse.reshape(b, n, t)]


def _backward_impl(xp, q, k, v, out, lse, ct, *lengths, scale, before, after):
    r = _Reference(xp, q, k, v, lengths, scale, before, after)
    out, ct = r.grouped(out), r.grouped(ct)
    lse = lse.reshape((*r.q.shape[:4], 1))
    dq, dk, dv = (xp.zeros(x.shape, r.dtype) for x in (r.q, r.k, r.v))
    with np.errstate(invalid="ignore", over="ignore"):
        for rows in r.blocks():
            at = (slice(None), slice(None), slice(None), rows)
            weights = xp.exp(r.scores(rows) - lse[at])
            dv += _summed(xp, weights, ct[at])
            delta = xp.sum(ct[at] * out[at], axis=-1, keepdims=True)
            ds = weights * (xp.matmul(ct[at], xp.swapaxes(r.v, -1, -2)) - delta)
            ds = ds * r.dtype.type(scale)
            dq[at] = xp.matmul(ds, r.k)
            dk += _summed(xp, ds, r.q[at])
    return [r.flat(x, q.dtype) for x in (dq, dk, dv)]


def _summed(xp, weights, x):
    """Σ weights·x over queries and the heads of a group."""
    return xp.sum(xp.matmul(xp.swapaxes(weights, -1, -2), x), axis=2, keepdims=True)


# ---- the formula in ops


class _Formula:
    """Weights (batch, key head, query, group, key) of attention, all at once."""

    def __init__(self, q, k, v, lengths, scale, before, after):
        aval = aval_of(q)
        self.dtype, self.scale = wide_dtype(aval.dtype), scale
        self.b, self.t, self.n, self.h = aval.shape
        self.s, self.heads = aval_of(k).shape[1:3]
        self.q, self.k, self.v = self.grouped(q), self.wide(k), self.wide(v)
        self.weights, self.lse = self._weights(self._allowed(lengths, before, after))

    def wide(self, x):
        return convert_element_type(x, self.dtype)

    def grouped(self, x):
        """(batch, query, key head, group, feature)."""
        shape = (self.b, self.t, self.heads, self.n // self.heads, self.h)
        return reshape(self.wide(x), shape)

    def by_query(self, x, dtype):
        """From (batch, key head, query, group, feature) to (batch, query, head, feature)."""
        x = transpose_p.bind(x, permutation=(0, 2, 1, 3, 4))
        return convert_element_type(reshape(x, (self.b, self.t, self.n, self.h)), dtype)

    def products(self, x, y):
        """Products of queries' x and keys' y over features."""
        return dot_general(x, y, (((4,), (3,)), ((0, 2), (0, 2))))

    def mixed(self, weights, y):
        """Sums of keys' y, for each query."""
        return dot_general(weights, y, (((4,), (1,)), ((0, 1), (0, 2))))

    def shared(self, weights, x, dtype):
        """Sums of queries' x, for each key, as (batch, key, key head, feature)."""
        total = dot_general(weights, x, (((2, 3), (1, 3)), ((0, 1), (0, 2))))
        return convert_element_type(transpose_p.bind(total, permutation=(0, 2, 1, 3)), dtype)

    def scaled(self, x):
        return mul(x, full((), self.scale, self.dtype))

    def less_mean(self, x):
        """weights·(x - Σ weights·x)."""
        part = mul(self.weights, x)
        return sub(part, mul(self.weights, self._along(sum_p.bind(part, axes=(4,)))))

    def _along(self, x):
        return broadcast_in_dim(x, (*aval_of(x).shape, self.s), (0, 1, 2, 3))

    def _allowed(self, lengths, before, after):
        shape = (self.b, self.heads, self.t, self.n // self.heads, self.s)
        t, s = iota(INT32, self.t), iota(INT32, self.s)
        pairs = [broadcast_in_dim(x, (self.t, self.s), (i,)) for i, x in enumerate((t, s))]
        offset = sub(pairs[1], pairs[0])
        found = []
        if before is not None:
            found.append(ge(offset, full((), -before, INT32)))
        if after is not None:
            found.append(lt(offset, full((), after + 1, INT32)))
        found = [broadcast_in_dim(x, shape, (2, 4)) for x in found]
        for length, place, axis in zip(lengths, (t, s), (2, 4), strict=False):
            size = (self.b, aval_of(place).shape[0])
            x = lt(broadcast_in_dim(place, size, (1,)), broadcast_in_dim(length, size, (0,)))
            found.append(broadcast_in_dim(x, shape, (0, axis)))
        total = None
        for x in found:
            total = x if total is None else bitwise_and(total, x)
        return total

    def _weights(self, allowed):
        scores = self.scaled(self.products(self.q, self.k))
        least = full((), -np.inf, self.dtype)
        if allowed is not None:
            scores = select(allowed, scores, broadcast_in_dim(least, aval_of(scores).shape, ()))
        top = max_p.bind(stop_gradient(scores), axes=(4,))
        zeros = full(aval_of(top).shape, 0, self.dtype)
        top = select(eq(top, least), zeros, top)
        weights = exp(sub(scores, self._along(top)))
        total = sum_p.bind(weights, axes=(4,))
        none = eq(total, zeros)
        total = select(none, full(aval_of(total).shape, 1, self.dtype), total)
        infinite = full(aval_of(total).shape, np.inf, self.dtype)
        lse = transpose_p.bind(add(top, log(total)), permutation=(0, 1, 3, 2))
        infinite = transpose_p.bind(infinite, permutation=(0, 1, 3, 2))
        none = transpose_p.bind(none, permutation=(0, 1, 3, 2))
        lse = reshape(select(none, infinite, lse), (self.b, self.n, self.t))
        return div(weights, self._along(total)), lse

    def value(self, dtype):
        """Both results of attention."""
        return [self.by_query(self.mixed(self.weights, self.v), dtype), self.lse]

    def change(self, dtype, dq, dk, dv):
        """The tangent of the mixed values, of tangents of which some may be `Zero`."""
        scores = [] if type(dq) is Zero else [self.products(self.grouped(dq), self.k)]
        scores += [] if type(dk) is Zero else [self.products(self.q, self.wide(dk))]
        terms = [] if type(dv) is Zero else [self.mixed(self.weights, self.wide(dv))]
        if scores:
            change = self.less_mean(self.scaled(scores[0] if len(scores) == 1 else add(*scores)))
            terms.append(self.mixed(change, self.v))
        return self.by_query(terms[0] if len(terms) == 1 else add(*terms), dtype)


def _tangent(q, k, v, dq, dk, dv, *lengths, **params):
    return [_Formula(q, k, v, lengths, **params).change(aval_of(q).dtype, dq, dk, dv)]


def _cotangents(q, k, v, ct, *lengths, **params):
    f = _Formula(q, k, v, lengths, **params)
    ct, dtype = f.grouped(ct), aval_of(q).dtype
    ds = f.scaled(f.less_mean(f.products(ct, f.v)))
    dq = f.by_query(f.mixed(ds, f.k), dtype)
    return [dq, f.shared(ds, f.q, dtype), f.shared(f.weights, ct, dtype)]


# ---- derivatives


def _jvp(primals, tangents, **params):
    nothing = all(type(g) is Zero for g in tangents[:3])
    q, k, v, *lengths = primals
    if aval_of(k).shape[1] <= KEPT and not nothing:
        f, dtype = _Formula(q, k, v, lengths, **params), aval_of(q).dtype
        out, lse = f.value(dtype)
        return [out, lse], [f.change(dtype, *tangents[:3]), Zero(aval_of(lse).tangent())]
    out, lse = attention_p.bind(*primals, **params)
    # The sums are for backward, which knows how they depend on the operands.
    fixed = Zero(aval_of(lse).tangent())
    if nothing:
        return [out, lse], [Zero(aval_of(out).tangent()), fixed]
    given = [instantiate(g) for g in tangents[:3]]
    tangent = attention_tangent_p.bind(*primals[:3], out, lse, *given, *primals[3:], **params)
    return [out, lse], [tangent, fixed]


def _tangent_jvp(primals, tangents, **params):
    out = attention_tangent_p.bind(*primals, **params)
    if all(type(g) is Zero for g in tangents[:3]):
        given = [instantiate(g) for g in tangents[5:8]]
        return out, attention_tangent_p.bind(*primals[:5], *given, *primals[8:], **params)
    keep = [0, 1, 2, *range(5, len(primals))]
    _, (tangent,) = jvp_flat(
        lambda *xs: _tangent(*xs, **params),
        [primals[i] for i in keep], [tangents[i] for i in keep],
    )  # fmt: skip
    return out, tangent


def _backward_jvp(primals, tangents, **params):
    outs = attention_backward_p.bind(*primals, **params)
    if all(type(g) is Zero for g in tangents[:3]):
        ct = instantiate(tangents[5])
        return outs, attention_backward_p.bind(*primals[:5], ct, *primals[6:], **params)
    keep = [0, 1, 2, *range(5, len(primals))]
    _, changes = jvp_flat(
        lambda *xs: _cotangents(*xs, **params),
        [primals[i] for i in keep], [tangents[i] for i in keep],
    )  # fmt: skip
    return outs, changes


def _tangent_transpose(ct, q, k, v, out, lse, *rest, **params):
    for x in (q, k, v, out, lse):
        factor("attention_tangent", x)
    cts = attention_backward_p.bind(q, k, v, out, lse, ct, *rest[3:], **params)
    given = [c if is_linear(x) else None for c, x in zip(cts, rest[:3], strict=True)]
    return [None] * 5 + given + [None] * len(rest[3:])


def _backward_transpose(cts, q, k, v, out, lse, ct, *lengths, **params):
    for x in (q, k, v, out, lse):
        factor("attention_backward", x)
    given = [instantiate(c) for c in cts]
    total = attention_tangent_p.bind(q, k, v, out, lse, *given, *lengths, **params)
    return [None] * 5 + [total] + [None] * len(lengths)


def _not_linear(ct, *args, **params):
    factor("attention", next(x for x in args if is_linear(x)))


# ---- batches and axes


def _folded(axis, args, dims):
    """Operands with the batch axis as the outer part of their first axis."""
    found = []
    for x, d in zip(args, dims, strict=True):
        x = batch_front(x, d, axis.size)
        size, b, *shape = aval_of(x).shape
        found.append(reshape(x, (size * b, *shape)))
    return found


def _unfolded(axis, x):
    b, *shape = aval_of(x).shape
    return reshape(x, (axis.size, b // axis.size, *shape))


def _batch(axis, args, dims, **params):
    outs = attention_p.bind(*_folded(axis, args, dims), **params)
    return [_unfolded(axis, x) for x in outs], [0, 0]


def _tangent_batch(axis, args, dims, **params):
    return _unfolded(axis, attention_tangent_p.bind(*_folded(axis, args, dims), **params)), 0


def _backward_batch(axis, args, dims, **params):
    outs = attention_backward_p.bind(*_folded(axis, args, dims), **params)
    return [_unfolded(axis, x) for x in outs], [0, 0, 0]


def _axes(q: ShapedArray, k: ShapedArray, lengths: Sequence, params: dict) -> tuple[str, ...]:
    """The axes of queries, keys, sums, and of the lengths."""
    n, heads = q.shape[2], k.shape[2]
    own = {n: "n", 1: "."}.get(heads, "k!")
    free = params["before"] is None and params["after"] is None and not lengths
    head, place = "n" if own != "k!" else "n!", "t" if free else "t!"
    queries, keys = f"b {place} {head} h!", f"b s! {own} h!"
    return queries, keys, f"b {head} {place}", "".join(", b" for _ in lengths)


def _dims(q, k, v, *lengths, **params):
    x, y, sums, rest = _axes(q, k, lengths, params)
    return f"{x}, {y}, {y}{rest} -> {x}, {sums}"


def _tangent_dims(q, k, v, out, lse, dq, dk, dv, *lengths, **params):
    x, y, sums, rest = _axes(q, k, lengths, params)
    return f"{x}, {y}, {y}, {x}, {sums}, {x}, {y}, {y}{rest} -> {x}"


def _backward_dims(q, k, v, out, lse, ct, *lengths, **params):
    x, y, sums, rest = _axes(q, k, lengths, params)
    # A part of the queries, or of the heads that share a key head, has a part of dk's sum.
    x, sums = x.replace("t ", "t! "), sums.removesuffix("t") + ("t!" if sums[-1] == "t" else "")
    if y.split()[2] == ".":
        x, sums = x.replace(" n ", " n! "), sums.replace(" n ", " n! ")
    return f"{x}, {y}, {y}, {x}, {sums}, {x}{rest} -> {x}, {y}, {y}"


attention_p: Primitive = Primitive(
    name="attention",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=_not_linear,
    batch=_batch,
    dims=_dims,
    multiple=True,
)
attention_tangent_p: Primitive = Primitive(
    name="attention_tangent",
    abstract=_tangent_abstract,
    impl=lambda xp, *args, **params: interpret(
        FORMULAS[attention_tangent_p]([ShapedArray(x.shape, x.dtype) for x in args], params),
        xp,
        *args,
    )[0],
    jvp=_tangent_jvp,
    transpose=_tangent_transpose,
    batch=_tangent_batch,
    dims=_tangent_dims,
)
attention_backward_p: Primitive = Primitive(
    name="attention_backward",
    abstract=_backward_abstract,
    impl=_backward_impl,
    jvp=_backward_jvp,
    transpose=_backward_transpose,
    batch=_backward_batch,
    dims=_backward_dims,
    multiple=True,
)


def _formula(fun: Callable) -> Callable[[Sequence[ShapedArray], dict], Jaxpr]:
    """The program of a function of operands and parameters, for operands of these types."""

    def program(avals: Sequence[ShapedArray], params: dict) -> Jaxpr:
        return stage_closed(lambda *args: fun(*args, **params), avals, "attention")

    return program


# What each op is, as a program of others: (avals, params) → jaxpr.
FORMULAS: dict[Primitive, Callable[[Sequence[ShapedArray], dict], Jaxpr]] = {
    attention_p: _formula(
        lambda q, k, v, *lengths, **params: _Formula(q, k, v, lengths, **params).value(
            aval_of(q).dtype
        )
    ),
    attention_tangent_p: _formula(
        lambda q, k, v, out, lse, *rest, **params: _tangent(q, k, v, *rest, **params)
    ),
    attention_backward_p: _formula(
        lambda q, k, v, out, lse, *rest, **params: _cotangents(q, k, v, *rest, **params)
    ),
}


def attention(
    query: Any,
    key: Any,
    value: Any,
    lengths: Sequence[Any] = (),
    *,
    scale: float,
    before: int | None = None,
    after: int | None = None,
) -> Any:
    """softmax(query·keyᵀ·scale)·value for each head, never with all weights in memory.

    query: (B, T, N, H); key and value: (B, S, K, H), where K divides N; of one float dtype
    lengths: () or int32 arrays (B,) of how many queries and how many keys count
    scale: positive. before, after: query t sees keys t - before … t + after (None: all)
    Queries without any key give 0. Raises ShapeError and DTypeError where operands don't fit.

    >>> import numpy as np
    >>> x = np.ones((1, 2, 1, 4), np.float32)
    >>> attention(x, x, x, scale=0.5, after=0).shape
    (1, 2, 1, 4)
    """
    if not scale > 0:
        raise ValueError(f"attention: scale must be positive, got {scale}")
    params = {"scale": float(scale), "before": before, "after": after}
    return attention_p.bind(query, key, value, *lengths, **params)[0]
