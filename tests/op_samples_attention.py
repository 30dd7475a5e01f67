"""Rows of attention, its tangent and its cotangents, against the formula in float64."""

import numpy as np

from funcgrad.transforms.attention import attention as at
from funcgrad.transforms.attention.operands import given_of, wide_dtype
from tests.op_samples_base import BOOL, FLOATS, I32, Arg, Domain, Row, case

ALL = {"scale": 0.5, "before": None, "after": None}
CAUSAL = {**ALL, "after": 0}
WINDOW = {"scale": 0.25, "before": 1, "after": 2}
BEHIND = {**ALL, "before": 5, "after": -3}
Q, K, GROUPED = (2, 3, 4, 3), (2, 5, 4, 3), (2, 5, 2, 3)
MQA = (2, 5, 1, 3)


def lengths(batch, high):
    return [Arg((batch,), Domain(0, high), I32, smooth=False) for _ in range(2)]


def operands(*shapes):
    return [Arg(s, Domain(-1, 1)) for s in shapes]


def cases(rest, tangent=False, **fixed):
    """rest: of the shapes of query and key, those of further operands; tangent: also of biases."""

    def one(q, k, params, *more, bias=None, tests=None):
        given = operands(*[bias] * (1 + tangent)) if bias else []
        more = [*more[:2], *given[:1], *more[2:], *given[1:]]
        params = {**params, **fixed}
        if fixed:
            params["bias_too"] = bias is not None
        return case(*operands(q, k, k, *rest(q, k)), *more, tests=tests, **params)

    few = "eager jit vmap dims"
    mask = lambda *shape: Arg(shape, Domain(0, 1), BOOL, smooth=False)
    return (
        one(Q, K, ALL),
        one(Q, GROUPED, CAUSAL),
        one(Q, MQA, WINDOW, tests=few),
        one(Q, K, BEHIND, tests=few),
        one(Q, GROUPED, ALL, *lengths(2, 6)),
        one(Q, GROUPED, ALL, bias=(1, 4, 3, 5)),
        one(Q, K, CAUSAL, bias=(2, 1, 1, 5), tests=few),
        one(Q, MQA, ALL, *lengths(2, 6), mask(1, 1, 3, 5), bias=(2, 4, 3, 1), tests=few),
        one(Q, GROUPED, ALL, bias=(2, 4, 3, 5), tests=few),
        one((1, 1, 1, 1), (1, 1, 1, 1), ALL, tests="eager jit"),
        one((1, 70, 2, 20), (1, 45, 1, 20), CAUSAL, tests="eager jit"),
    )


def weights(q, k, given, scale, before, after):
    (t, n), (s, heads) = q.shape[1:3], k.shape[1:3]
    scores = np.einsum("btnh,bsnh->bnts", q, np.repeat(k, n // heads, 2)) * scale
    given = given_of(given)
    scores = scores if given.bias is None else scores + given.bias
    offset = np.arange(s)[None] - np.arange(t)[:, None]
    allowed = np.ones(scores.shape, bool)
    allowed &= True if before is None else offset >= -before
    allowed &= True if after is None else offset <= after
    allowed &= True if given.mask is None else given.mask
    for length, size, axes in zip(given.lengths, (t, s), ((1, 3), (1, 2)), strict=False):
        allowed &= np.expand_dims(np.arange(size)[None] < length[:, None], axes)
    scores = np.where(allowed, scores, -np.inf)
    top = np.max(scores, -1, keepdims=True)
    found = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = np.sum(found, -1, keepdims=True)
    return found / np.where(total == 0, 1, total)


def mixed(w, v, n):
    return np.einsum("bnts,bsnh->btnh", w, np.repeat(v, n // v.shape[2], 2))


def less_mean(w, x):
    return w * (x - np.sum(w * x, -1, keepdims=True))


def value(q, k, v, *given, **params):
    return mixed(weights(q, k, given, **params), v, q.shape[2])


def tangent(q, k, v, dq, dk, dv, *given, **params):
    w, n = weights(q, k, given, **params), q.shape[2]
    k, dk = (np.repeat(x, n // x.shape[2], 2) for x in (k, dk))
    change = np.einsum("btnh,bsnh->bnts", dq, k) + np.einsum("btnh,bsnh->bnts", q, dk)
    change, db = change * params["scale"], given_of(given).change
    change = change if db is None else change + db
    return mixed(less_mean(w, change), v, n) + mixed(w, dv, n)


def cotangents(q, k, v, ct, *given, bias_too, **params):
    w, n = weights(q, k, given, **params), q.shape[2]
    b, s, heads, h = k.shape
    wide_k, wide_v = (np.repeat(x, n // heads, 2) for x in (k, v))
    ds = less_mean(w, np.einsum("btnh,bsnh->bnts", ct, wide_v))
    db = []
    if bias_too:
        shape = given_of(given).bias.shape
        axes = tuple(i for i, size in enumerate(shape) if size == 1)
        db = [np.sum(ds, axes, keepdims=True)]
    ds = ds * params["scale"]
    dq = np.einsum("bnts,bsnh->btnh", ds, wide_k)
    dk, dv = (
        np.einsum("bnts,btnh->bsnh", x, y).reshape(b, s, heads, n // heads, h).sum(3)
        for x, y in ((ds, q), (w, ct))
    )
    return [dq, dk, dv, *db]


def call_value(q, k, v, *given, **params):
    return at.attention_p.bind(q, k, v, *wide(q, given), **params)[0]


def wide(q, given):
    """Biases in the dtype of sums."""
    dtype = wide_dtype(q.dtype)
    return [x.astype(dtype) if x.ndim == 4 and x.dtype != bool else x for x in given]


def call_tangent(q, k, v, dq, dk, dv, *given, **params):
    own = given_of(given)._replace(change=None).operands
    out, stats = at.attention_p.bind(q, k, v, *own, **params)
    return at.attention_tangent_p.bind(q, k, v, out, stats, dq, dk, dv, *given, **params)


def call_cotangents(q, k, v, ct, *given, bias_too, **params):
    out, stats = at.attention_p.bind(q, k, v, *given, **params)
    operands = q, k, v, out, stats, ct, *given
    return at.attention_backward_p.bind(*operands, bias_too=bias_too, **params)


def row(prim, call, oracle, cases, **more):
    return Row(prim=prim, call=call, oracle=oracle, cases=cases, ulps=64, atol=64,
               jit_ulps=64, jit_atol=64, **more)  # fmt: skip


WIDE = tuple(d for d in FLOATS if d.itemsize >= 2)
ATTENTION = (
    row(at.attention_p, call_value, value, cases(lambda q, k: []), dtypes=WIDE),
    row(at.attention_tangent_p, call_tangent, tangent, cases(lambda q, k: [q, k, k], tangent=True),
        dtypes=WIDE[-2:], gradient_tol=1e-4),
    row(at.attention_backward_p, call_cotangents, cotangents,
        cases(lambda q, k: [q], bias_too=False), dtypes=WIDE[-2:], gradient_tol=1e-4,
        result=lambda dtype, params: [dtype] * (3 + params["bias_too"])),
)  # fmt: skip
