"""Attention as one op, with derivatives whose memory is linear in the sequences' lengths.

attention gives the mixed values, and of each row what the backward op needs to compute the weights
anew (Dao et al., "FlashAttention", 2022). Its tangent is an op that is linear in the operands'
tangents, and whose transpose is the backward op. Higher derivatives are those of the formula.
"""

from __future__ import annotations

import numpy as np

from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.ir import interpret
from funcgrad.core.primitive import Primitive
from funcgrad.core.staging import formula_of
from funcgrad.core.trace import aval_of
from funcgrad.core.types import (
    BatchDims,
    Cotangent,
    Cotangents,
    Operand,
    Param,
    Tangent,
    Tangents,
    Value,
    Values,
)
from funcgrad.ops.base import batch_front, factor, full, instantiate, is_linear, sum_p
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.indexing.windows_at import index_in_dim
from funcgrad.ops.shape import broadcast_in_dim, reshape
from funcgrad.transforms.attention import formula as formula
from funcgrad.transforms.attention import reference as reference
from funcgrad.transforms.attention.operands import Given, check, given_of, stats_aval
from funcgrad.transforms.autodiff.jvp import jvp_flat
from funcgrad.transforms.batching.trace import BatchAxis

# Weights for no more keys than this are kept for the backward pass instead of computed anew: that
# would be a seventh product beside six, and a second exponential, and spare no memory that matters.
# Where windows hide keys, what computes anew skips them. (Measured on two cores, forward and
# backward, 16 to 64 features, anew/kept: 48 keys, causal 0.97; 64 keys 1.3, causal 0.85; 96 keys
# 1.2 and 0.71; 128 keys 1.15.)
KEPT, KEPT_IN_WINDOWS = 128, 48
# More than a sequence's places.
FAR = 1 << 30


# ---- types


def _abstract(q: ShapedArray, k: ShapedArray, v: ShapedArray, *given: ShapedArray, scale: float,
              before: int | None, after: int | None) -> list[ShapedArray]:  # fmt: skip
    check("attention", q, k, v, given)
    return [q.strong(), stats_aval(q)]


def _tangent_abstract(q: ShapedArray, k: ShapedArray, v: ShapedArray, out: ShapedArray,
                      stats: ShapedArray, dq: ShapedArray, dk: ShapedArray, dv: ShapedArray,
                      *given: ShapedArray, scale: float, before: int | None,
                      after: int | None) -> ShapedArray:  # fmt: skip
    check("attention_tangent", q, k, v, given)
    return q.strong()


def _backward_abstract(q: ShapedArray, k: ShapedArray, v: ShapedArray, out: ShapedArray,
                       stats: ShapedArray, ct: ShapedArray, *given: ShapedArray, scale: float,
                       before: int | None, after: int | None,
                       bias_too: bool) -> list[ShapedArray]:  # fmt: skip
    bias = check("attention_backward", q, k, v, given).bias
    return [q.strong(), k.strong(), v.strong(), *([bias.strong()] if bias_too else [])]


# ---- derivatives


def _value(q: Value, k: Value, v: Value, *given: Value, **params: Param) -> list:
    return formula.value(q, k, v, given_of(given), params)


def _tangent(
    q: Value, k: Value, v: Value, dq: Value, dk: Value, dv: Value, *given: Value, **params: Param
) -> Value:
    return formula.tangent(q, k, v, dq, dk, dv, given_of(given), params)


def _cotangents(
    q: Value, k: Value, v: Value, ct: Value, *given: Value, bias_too: bool, **params: Param
) -> list:
    return formula.cotangents(q, k, v, ct, given_of(given), params, bias_too)


def _backward_formula(q: Value, k: Value, v: Value, out: Value, stats: Value, ct: Value,
                      *given: Value, bias_too: bool, **params: Param) -> list:  # fmt: skip
    return formula.cotangents(q, k, v, ct, given_of(given), params, bias_too, (out, stats))


def _of_bias(given: Values, values: Tangents) -> Tangent | None:
    """Of values that belong to the given operands, that of the bias; None without one."""
    bias = given_of(given).bias
    return next((y for x, y in zip(given, values, strict=True) if x is bias), None)


def _jvp(primals: Values, tangents: Tangents, **params: Param) -> tuple[list, list]:
    q, k, v, *rest = primals
    db = _of_bias(rest, tangents[3:])
    changes = [*tangents[:3], Zero(aval_of(q)) if db is None else db]
    nothing = all(type(g) is Zero for g in changes)
    whole = params["before"] is None and params["after"] is None
    if aval_of(k).shape[1] <= (KEPT if whole else KEPT_IN_WINDOWS) and not nothing:
        f, dtype = formula.Formula(q, k, v, given_of(rest), **params), aval_of(q).dtype
        out, stats = f.value(dtype)
        return [out, stats], [f.change(dtype, *changes), Zero(aval_of(stats).tangent())]
    out, stats = attention_p.bind(*primals, **params)
    # The statistics are for backward, which knows how they depend on the operands.
    fixed = Zero(aval_of(stats).tangent())
    if nothing:
        return [out, stats], [Zero(aval_of(out).tangent()), fixed]
    *given, db = changes
    operands = q, k, v, out, stats, *map(instantiate, given), *rest
    more = [] if type(db) is Zero else [db]
    return [out, stats], [attention_tangent_p.bind(*operands, *more, **params), fixed]


def _tangent_jvp(primals: Values, tangents: Tangents, **params: Param) -> tuple[Value, Value]:
    out, given = attention_tangent_p.bind(*primals, **params), primals[8:]
    factors = [*tangents[:3], _of_bias(given, tangents[8:])]
    if all(g is None or type(g) is Zero for g in factors):
        changes = list(primals)
        for i, (x, g) in enumerate(zip(primals, tangents, strict=True)):
            if 5 <= i < 8 or x is given_of(given).change:
                changes[i] = instantiate(g)
        return out, attention_tangent_p.bind(*changes, **params)
    keep = [0, 1, 2, *range(5, len(primals))]
    _, (tangent,) = jvp_flat(
        lambda *xs: [_tangent(*xs, **params)],
        [primals[i] for i in keep], [tangents[i] for i in keep],
    )  # fmt: skip
    return out, tangent


def _backward_jvp(primals: Values, tangents: Tangents, **params: Param) -> tuple[list, list]:
    outs = attention_backward_p.bind(*primals, **params)
    factors = [*tangents[:3], _of_bias(primals[6:], tangents[6:])]
    if all(g is None or type(g) is Zero for g in factors):
        ct = instantiate(tangents[5])
        return outs, attention_backward_p.bind(*primals[:5], ct, *primals[6:], **params)
    keep = [0, 1, 2, *range(5, len(primals))]
    _, changes = jvp_flat(
        lambda *xs: _cotangents(*xs, **params),
        [primals[i] for i in keep], [tangents[i] for i in keep],
    )  # fmt: skip
    return outs, changes


def _tangent_transpose(ct: Value, q: Operand, k: Operand, v: Operand, out: Operand, stats: Operand,
                       *rest: Operand, **params: Param) -> list:  # fmt: skip
    for x in (q, k, v, out, stats):
        factor("attention_tangent", x)
    # The tangent of the bias comes last, if it is there.
    bias_too = len(rest) > 3 and is_linear(rest[-1])
    # Where it is a value, it says nothing of the others.
    given = given_of(rest[3 : len(rest) - bias_too])._replace(change=None).operands
    cts = attention_backward_p.bind(q, k, v, out, stats, ct, *given, bias_too=bias_too, **params)
    found = [c if is_linear(x) else None for c, x in zip(cts, rest[:3], strict=False)]
    return [None] * 5 + found + [None] * (len(rest) - 3 - bias_too) + cts[3:]


def _backward_transpose(cts: Cotangents, q: Operand, k: Operand, v: Operand, out: Operand,
                        stats: Operand, ct: Operand, *given: Operand, bias_too: bool,
                        **params: Param) -> list:  # fmt: skip
    for x in (q, k, v, out, stats):
        factor("attention_backward", x)
    operands = [*(instantiate(c) for c in cts[:3]), *given, *map(instantiate, cts[3:])]
    total = attention_tangent_p.bind(q, k, v, out, stats, *operands, **params)
    return [None] * 5 + [total] + [None] * len(given)


def _not_linear(ct: Cotangent, *args: Operand, **params: Param) -> None:
    factor("attention", next(x for x in args if is_linear(x)))


# ---- batches


def _folded(
    axis: BatchAxis, args: Values, dims: BatchDims, first: int, whole: bool = False
) -> list:
    """Operands with the batch axis as the outer part of their first axis.

    Behind the `first`, those that neither have the batch nor differ along their first axis stay as
    they are; with `whole`, the bias and its tangent don't.
    """
    b = aval_of(args[0]).shape[0 if dims[0] != 0 else 1]
    found = []
    for i, (x, d) in enumerate(zip(args, dims, strict=True)):
        shape = aval_of(x).shape
        pairs = i >= first and len(shape) == (4 if d is None else 5)
        mask = pairs and aval_of(x).dtype == bool
        if pairs and d is None and shape[0] == 1 and (mask or not whole):
            found.append(x)
            continue
        x = batch_front(x, d, axis.size)
        size, own, *rest = aval_of(x).shape
        if pairs and own != b:
            x = reshape(x, (size, *rest))
            x = broadcast_in_dim(x, (size, b, *rest), (0, *range(2, len(rest) + 2)))
        found.append(reshape(x, (size * b, *rest)))
    return found


def _unfolded(axis: BatchAxis, x: Value) -> Value:
    b, *shape = aval_of(x).shape
    return reshape(x, (axis.size, b // axis.size, *shape))


def _batch(axis: BatchAxis, args: Values, dims: BatchDims, **params: Param) -> tuple[list, list]:
    outs = attention_p.bind(*_folded(axis, args, dims, 3), **params)
    return [_unfolded(axis, x) for x in outs], [0, 0]


def _tangent_batch(
    axis: BatchAxis, args: Values, dims: BatchDims, **params: Param
) -> tuple[Value, int]:
    # Bias and its tangent are of one shape.
    whole = any(d is not None and np.ndim(x) == 5 for x, d in zip(args[8:], dims[8:], strict=True))
    operands = _folded(axis, args, dims, 8, whole)
    return _unfolded(axis, attention_tangent_p.bind(*operands, **params)), 0


def _backward_batch(
    axis: BatchAxis, args: Values, dims: BatchDims, *, bias_too: bool, **params: Param
) -> tuple[list, list]:
    operands = _folded(axis, args, dims, 6, bias_too)
    outs = attention_backward_p.bind(*operands, bias_too=bias_too, **params)
    outs = [_unfolded(axis, x) for x in outs]
    if bias_too:
        given = given_of([ShapedArray(_less(aval_of(x).shape, d), aval_of(x).dtype)
                          for x, d in zip(args[6:], dims[6:], strict=True)])  # fmt: skip
        shape = (axis.size, *given.bias.shape)
        if aval_of(outs[3]).shape != shape:
            outs[3] = reshape(sum_p.bind(outs[3], axes=(1,)), shape)
    return outs, [0] * len(outs)


def _less(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else shape[:axis] + shape[axis + 1 :]


# ---- axes


def _axes(q: ShapedArray, k: ShapedArray, given: Given, params: dict) -> tuple[str, ...]:
    """The axes of queries, keys, statistics, bias or mask, and of all that is given."""
    n, heads = q.shape[2], k.shape[2]
    own = {n: "n", 1: "."}.get(heads, "k!")
    free = params["before"] is None and params["after"] is None and not given.lengths
    head, place = "n" if own != "k!" else "n!", "t" if free else "t!"
    names = ("b", head, place, "s!")

    def pairs(x: ShapedArray) -> str:
        return " ".join("." if n == 1 else a for n, a in zip(x.shape, names, strict=True))

    bias = "" if given.bias is None else pairs(given.bias)
    rest = "".join(f", {pairs(x) if x.ndim == 4 else 'b'}" for x in given.operands)
    return f"b {place} {head} h!", f"b s! {own} h!", f"b {head} . {place}", bias, rest


def _dims(
    q: ShapedArray, k: ShapedArray, v: ShapedArray, *given: ShapedArray, **params: Param
) -> str:
    x, y, z, _, rest = _axes(q, k, given_of(given), params)
    return f"{x}, {y}, {y}{rest} -> {x}, {z}"


def _tangent_dims(q: ShapedArray, k: ShapedArray, v: ShapedArray, out: ShapedArray,
                  stats: ShapedArray, dq: ShapedArray, dk: ShapedArray, dv: ShapedArray,
                  *given: ShapedArray, **params: Param) -> str:  # fmt: skip
    x, y, z, _, rest = _axes(q, k, given_of(given), params)
    return f"{x}, {y}, {y}, {x}, {z}, {x}, {y}, {y}{rest} -> {x}"


def _backward_dims(q: ShapedArray, k: ShapedArray, v: ShapedArray, out: ShapedArray,
                   stats: ShapedArray, ct: ShapedArray, *given: ShapedArray, bias_too: bool,
                   **params: Param) -> str:  # fmt: skip
    x, y, z, bias, rest = _axes(q, k, given_of(given), params)
    text = f"{x}, {y}, {y}, {x}, {z}, {x}{rest} -> {x}, {y}, {y}"
    text += f", {bias}" if bias_too else ""
    # A part of the queries, or of the heads that share a key head, has a part of dk's sum.
    parts = {"t"}
    if y.split()[2] == ".":
        parts.add("n")
    if bias_too:
        parts |= {"b", "n"} - set(bias.split())
    return " ".join(_whole(f, parts) for f in text.split(" "))


def _whole(name: str, parts: set[str]) -> str:
    bare = name.rstrip(",!")
    return f"{bare}!{',' * name.endswith(',')}" if bare in parts else name


# ---- the ops


attention_p: Primitive = Primitive(
    name="attention",
    abstract=_abstract,
    impl=reference.value,
    jvp=_jvp,
    transpose=_not_linear,
    batch=_batch,
    dims=_dims,
    formula=_value,
    multiple=True,
    passes=2,
    strided=True,
)
attention_tangent_p: Primitive = Primitive(
    name="attention_tangent",
    abstract=_tangent_abstract,
    impl=lambda xp, *args, **params: interpret(
        formula_of(attention_tangent_p, [ShapedArray(x.shape, x.dtype) for x in args], params),
        xp,
        *args,
    )[0],
    jvp=_tangent_jvp,
    transpose=_tangent_transpose,
    batch=_tangent_batch,
    dims=_tangent_dims,
    formula=lambda q, k, v, out, stats, *rest, **params: _tangent(q, k, v, *rest, **params),
    passes=2,
)
attention_backward_p: Primitive = Primitive(
    name="attention_backward",
    abstract=_backward_abstract,
    impl=reference.cotangents,
    jvp=_backward_jvp,
    transpose=_backward_transpose,
    batch=_backward_batch,
    dims=_backward_dims,
    formula=_backward_formula,
    multiple=True,
    passes=2,
    strided=True,
)


def attention(
    query: Value,
    key: Value,
    value: Value,
    lengths: Values = (),
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    scale: float,
    before: int | None = None,
    after: int | None = None,
) -> Value:
    """softmax(query·keyᵀ·scale + bias)·value for each head, never with all weights in memory.

    query: (B, T, N, H); key and value: (B, S, K, H), where K divides N; of one float dtype
    lengths: () or int32 arrays (B,) of how many queries and how many keys count
    bias: float32, or float64 for operands of float64; mask: bool, False where a query doesn't see a
        key; both (B, N, T, S), where each of the sizes may be 1
    scale: positive. before, after: query t sees keys t - before … t + after (None: all)
    Queries without any key give 0. Raises ShapeError and DTypeError where operands don't fit.

    >>> x = np.ones((1, 2, 1, 4), np.float32)
    >>> attention(x, x, x, scale=0.5, after=0).shape
    (1, 2, 1, 4)
    """
    given = Given(tuple(lengths), bias, mask)
    return _bind(query, key, value, given, scale, before, after)[0]


def _bind(query: Value, key: Value, value: Value, given: Given, scale: float, before: int | None,
          after: int | None) -> list:  # fmt: skip
    if not scale > 0:
        raise ValueError(f"attention: scale must be positive, got {scale}")
    # Windows beyond all places are those of the largest number: places are counted in int32.
    before, after = (None if n is None else max(-FAR, min(n, FAR)) for n in (before, after))
    params = {"scale": float(scale), "before": before, "after": after}
    return attention_p.bind(query, key, value, *given.operands, **params)


def attention_and_empty(
    query: Value,
    key: Value,
    value: Value,
    given: Given,
    scale: float,
    before: int | None,
    after: int | None,
) -> tuple[Value, Value]:
    """`attention`, and which queries see no key at all, as bool (B, N, T).

    >>> x = np.ones((1, 2, 1, 4), np.float32)
    >>> attention_and_empty(x, x, x, Given(), 0.5, None, -1)[1]
    Array([[[ True, False]]], dtype=bool)
    """
    out, stats = _bind(query, key, value, given, scale, before, after)
    top = index_in_dim(stats, 0, axis=2, keepdims=False)
    return out, eq(top, full(aval_of(top).shape, np.inf, aval_of(top).dtype))
