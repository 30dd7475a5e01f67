"""Attention, its tangent and its cotangents as programs of other ops, some queries at a time.

Where all weights are many, a loop goes over blocks of queries and keeps no weights: derivatives of
it compute a block's weights anew. So memory is linear in the lengths at any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tangent, Value, Values
from funcgrad.ops.base import full, move_axis, sum_p, transpose_p, zeros
from funcgrad.ops.contract import dot_general
from funcgrad.ops.elementwise.arithmetic import div, mul, sub
from funcgrad.ops.elementwise.compare import bitwise_and, eq, ge, lt
from funcgrad.ops.elementwise.convert import convert_element_type, select, stop_gradient
from funcgrad.ops.elementwise.transcendental import exp, log
from funcgrad.ops.families import add
from funcgrad.ops.indexing.windows_at import index_in_dim, slice_in_dim
from funcgrad.ops.reduce import max_p
from funcgrad.ops.shape import broadcast_in_dim, concatenate, iota, reshape
from funcgrad.transforms.attention.operands import INT32, Given, wide_dtype
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.derivatives.checkpoint import checkpoint

# Weights at a time, of no fewer than LEAST queries.
MOST_WEIGHTS, LEAST = 1 << 20, 32


class Formula:
    """Weights (batch, key head, query, group, key) of attention, for queries from `start` on.

    stats: (batch, query, head, 2), what weights are normalized by, if not by their own sums.
    """

    def __init__(self, q: Value, k: Value, v: Value, given: Given, scale: float, before: int | None,
                 after: int | None, start: Value = 0, stats: Value | None = None):  # fmt: skip
        aval = aval_of(q)
        self.dtype, self.scale = wide_dtype(aval.dtype), scale
        self.b, self.t, self.n, self.h = aval.shape
        self.s, self.heads = aval_of(k).shape[1:3]
        self.shape = (self.b, self.heads, self.t, self.n // self.heads, self.s)
        self.start, self.given = start, given
        self.q, self.k, self.v = self.grouped(q), self.wide(k), self.wide(v)
        logits = self._logits(self._allowed(before, after))
        if stats is None:
            self.weights, self.top, self.log_sum = self._weights(logits)
        else:
            self.weights = self._weights_by(logits, stats)

    def wide(self, x: Value) -> Value:
        """Operands in the dtype that is computed in."""
        return convert_element_type(x, self.dtype)

    def grouped(self, x: Value) -> Value:
        """(batch, query, key head, group, feature)."""
        shape = (self.b, self.t, self.heads, self.n // self.heads, self.h)
        return reshape(self.wide(x), shape)

    def by_query(self, x: Value, dtype: np.dtype) -> Value:
        """From (batch, key head, query, group, feature) to (batch, query, head, feature)."""
        x = transpose_p.bind(x, permutation=(0, 2, 1, 3, 4))
        return convert_element_type(reshape(x, (self.b, self.t, self.n, self.h)), dtype)

    def products(self, x: Value, y: Value) -> Value:
        """Products of queries' x and keys' y over features."""
        return dot_general(x, y, (((4,), (3,)), ((0, 2), (0, 2))))

    def mixed(self, weights: Value, y: Value) -> Value:
        """Sums of keys' y, for each query."""
        return dot_general(weights, y, (((4,), (1,)), ((0, 1), (0, 2))))

    def shared(self, weights: Value, x: Value) -> Value:
        """Sums of queries' x, for each key, as (batch, key, key head, feature)."""
        total = dot_general(weights, x, (((2, 3), (1, 3)), ((0, 1), (0, 2))))
        return transpose_p.bind(total, permutation=(0, 2, 1, 3))

    def scaled(self, x: Value) -> Value:
        """Products times the scale of attention."""
        return mul(x, full((), self.scale, self.dtype))

    def less_mean(self, x: Value) -> Value:
        """weights·(x - Σ weights·x)."""
        part = mul(self.weights, x)
        return sub(part, mul(self.weights, self._along(sum_p.bind(part, axes=(4,)))))

    def _along(self, x: Value) -> Value:
        return broadcast_in_dim(x, (*aval_of(x).shape, self.s), (0, 1, 2, 3))

    def of_pairs(self, x: Value) -> Value:
        """A bias or mask (batch, head, query, key), some of size 1, for all weights."""
        b, n, t, s = aval_of(x).shape
        heads = (1, 1) if n == 1 else self.shape[1:4:2]
        x = transpose_p.bind(reshape(x, (b, *heads, t, s)), permutation=(0, 1, 3, 2, 4))
        kept = [i for i, size in enumerate(aval_of(x).shape) if size != 1]
        x = reshape(x, [aval_of(x).shape[i] for i in kept])
        return broadcast_in_dim(x, self.shape, kept)

    def to_pairs(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Weights summed to the shape of a bias: what `of_pairs` transposes to."""
        x = transpose_p.bind(x, permutation=(0, 1, 3, 2, 4))
        x = reshape(x, (self.b, self.n, self.t, self.s))
        axes = tuple(i for i, n in enumerate(shape) if n == 1)
        return reshape(sum_p.bind(x, axes=axes) if axes else x, shape)

    def _allowed(self, before: int | None, after: int | None) -> Value | None:
        t, s = iota(INT32, self.t), iota(INT32, self.s)
        if type(self.start) is not int or self.start:
            start = full((), self.start, INT32) if type(self.start) is int else self.start
            t = add(t, broadcast_in_dim(start, (self.t,), ()))
        pairs = [broadcast_in_dim(x, (self.t, self.s), (i,)) for i, x in enumerate((t, s))]
        offset = sub(pairs[1], pairs[0])
        found = []
        if before is not None:
            found.append(ge(offset, full((), -before, INT32)))
        if after is not None:
            found.append(lt(offset, full((), after + 1, INT32)))
        found = [broadcast_in_dim(x, self.shape, (2, 4)) for x in found]
        for length, place, axis in zip(self.given.lengths, (t, s), (2, 4), strict=False):
            size = (self.b, aval_of(place).shape[0])
            x = lt(broadcast_in_dim(place, size, (1,)), broadcast_in_dim(length, size, (0,)))
            found.append(broadcast_in_dim(x, self.shape, (0, axis)))
        if self.given.mask is not None:
            found.append(self.of_pairs(self.given.mask))
        total = None
        for x in found:
            total = x if total is None else bitwise_and(total, x)
        return total

    def _logits(self, allowed: Value | None) -> Value:
        logits = self.scaled(self.products(self.q, self.k))
        if self.given.bias is not None:
            logits = add(logits, self.of_pairs(self.given.bias))
        if allowed is not None:
            logits = select(allowed, logits, full(self.shape, -np.inf, self.dtype))
        return logits

    def _weights_by(self, logits: Value, stats: Value) -> Value:
        stats = reshape(stats, (self.b, self.t, self.heads, self.n // self.heads, 2))
        stats = transpose_p.bind(stats, permutation=(4, 0, 2, 1, 3))
        top, log_sum = (self._along(index_in_dim(stats, i, 0, False)) for i in range(2))
        return exp(sub(sub(logits, top), log_sum))

    def _weights(self, logits: Value) -> tuple[Value, Value, Value]:
        """The weights, and what `stats_aval` says, as (batch, key head, query, group)."""
        least = full((), -np.inf, self.dtype)
        top = max_p.bind(stop_gradient(logits), axes=(4,))
        zero = full(self.shape[:4], 0, self.dtype)
        top = select(eq(top, least), zero, top)
        weights = exp(sub(logits, self._along(top)))
        total = sum_p.bind(weights, axes=(4,))
        none = eq(total, zero)
        total = select(none, full(self.shape[:4], 1, self.dtype), total)
        top = select(none, full(self.shape[:4], np.inf, self.dtype), top)
        return div(weights, self._along(total)), top, log(total)

    def value(self, dtype: np.dtype) -> list:
        """Both results of attention."""
        stats = [
            reshape(transpose_p.bind(x, permutation=(0, 1, 3, 2)), (self.b, self.n, 1, self.t))
            for x in (self.top, self.log_sum)
        ]
        return [self.by_query(self.mixed(self.weights, self.v), dtype), concatenate(stats, 2)]

    def change(self, dtype: np.dtype, dq: Tangent, dk: Tangent, dv: Tangent, db: Tangent) -> Value:
        """The tangent of the mixed values, of tangents of which some may be `Zero`."""
        logits = [] if type(dq) is Zero else [self.products(self.grouped(dq), self.k)]
        logits += [] if type(dk) is Zero else [self.products(self.q, self.wide(dk))]
        logits = [self.scaled(logits[0] if len(logits) == 1 else add(*logits))] if logits else []
        logits += [] if type(db) is Zero else [self.of_pairs(db)]
        terms = [] if type(dv) is Zero else [self.mixed(self.weights, self.wide(dv))]
        if logits:
            total = logits[0] if len(logits) == 1 else add(*logits)
            terms.append(self.mixed(self.less_mean(total), self.v))
        return self.by_query(terms[0] if len(terms) == 1 else add(*terms), dtype)

    def cotangents(
        self, dtype: np.dtype, ct: Value, out: Value | None = None
    ) -> tuple[Value, Value, Value, Value]:
        """Of query in its dtype, and of key, value and logits in that of sums. out: the result, if
        it isn't that of these weights alone."""
        ct = self.grouped(ct)
        products = self.products(ct, self.v)
        if out is None:
            logits = self.less_mean(products)
        else:
            mean = sum_p.bind(mul(ct, self.grouped(out)), axes=(4,))
            mean = self._along(transpose_p.bind(mean, permutation=(0, 2, 1, 3)))
            logits = mul(self.weights, sub(products, mean))
        ds = self.scaled(logits)
        dq = self.by_query(self.mixed(ds, self.k), dtype)
        return dq, self.shared(ds, self.q), self.shared(self.weights, ct), logits


# ---- whole programs


def value(q: Value, k: Value, v: Value, given: Given, params: dict) -> list:
    """Both results of attention."""

    def some(start: Value, q: Value, given: Given) -> tuple[list, list]:
        return [], Formula(q, k, v, given, start=start, **params).value(aval_of(q).dtype)

    out, stats = _by_queries(some, k, [q], given, (1, 3))[1]
    return [out, stats]


def tangent(
    q: Value, k: Value, v: Value, dq: Value, dk: Value, dv: Value, given: Given, params: dict
) -> Value:
    """The tangent of the mixed values."""

    def some(start: Value, q: Value, dq: Value, given: Given) -> tuple[list, list]:
        formula, db = Formula(q, k, v, given, start=start, **params), given.change
        db = Zero(aval_of(q)) if db is None else db
        return [], [formula.change(aval_of(q).dtype, dq, dk, dv, db)]

    return _by_queries(some, k, [q, dq], given, (1,))[1][0]


def cotangents(q: Value, k: Value, v: Value, ct: Value, given: Given, params: dict, bias_too: bool,
               results: Values = ()) -> list:  # fmt: skip
    """Of query, key and value, and of the bias where it is wanted too.

    results: attention's, by which weights are normalized: those to the keys may be a part of all.
    """
    dtype, shape = aval_of(q).dtype, aval_of(given.bias).shape if bias_too else ()
    # A bias that all queries share has a sum, another one rows.
    shared = bias_too and shape[2] == 1

    def some(start: Value, q: Value, ct: Value, *rest: Value) -> tuple[list, list]:
        out, stats, given = rest if results else (None, None, *rest)
        formula = Formula(q, k, v, given, start=start, stats=stats, **params)
        dq, dk, dv, logits = formula.cotangents(dtype, ct, out)
        own = (*shape[:2], 1 if shared else formula.t, *shape[3:])
        db = [formula.to_pairs(logits, own)] if bias_too else []
        return ([dk, dv, *db], [dq]) if shared else ([dk, dv], [dq, *db])

    types = [ShapedArray(s, wide_dtype(dtype)) for s in (*[aval_of(k).shape] * 2, shape)]
    sums = types if shared else types[:2]
    axes = (1, 2) if bias_too and not shared else (1,)
    queries = [q, ct]
    if results:
        out, stats = results
        queries += [out, transpose_p.bind(stats, permutation=(0, 3, 1, 2))]
    (dk, dv, *sums), (dq, *rows) = _by_queries(some, k, queries, given, axes, sums)
    return [dq, *(convert_element_type(x, dtype) for x in (dk, dv)), *sums, *rows]


def _by_queries(
    some: Callable,
    k: Value,
    queries: Values,
    given: Given,
    axes: Sequence[int],
    sums: Sequence[ShapedArray] = (),
) -> tuple[list, list]:
    """(sums, rows) = some(start, *queries, given) of blocks of queries: sums, of these types, are
    added up, rows joined along `axes`."""
    b, t, n, _ = aval_of(queries[0]).shape
    step = max(LEAST, MOST_WEIGHTS // max(1, b * n * aval_of(k).shape[1]))
    if step >= t:
        return some(0, *queries, given)
    step = -(-t // -(-t // step))
    turns = t // step
    parts = [(x, 1) for x in queries]
    parts += [(x, 2) for x in given[1:] if x is not None and aval_of(x).shape[2] != 1]

    def of_block(start: Value, block: Values) -> tuple[list, list]:
        rest = iter(block[len(queries) :])
        pairs = [x if x is None or aval_of(x).shape[2] == 1 else next(rest) for x in given[1:]]
        return some(start, *block[: len(queries)], Given(given.lengths, *pairs))

    def turn(carry: tuple[Value, list], block: Values) -> tuple[tuple[Value, list], list]:
        start, totals = carry
        # Derivatives keep no weights.
        more, rows = checkpoint(of_block)(start, block)
        start = add(start, full((), step, INT32))
        return (start, [add(x, y) for x, y in zip(totals, more, strict=True)]), rows

    blocks = [_cut(x, axis, turns, step) for x, axis in parts]
    first = full((), 0, INT32), [zeros(x) for x in sums]
    (start, totals), rows = scan(turn, first, blocks)
    rows = [_joined(x, axis) for x, axis in zip(rows, axes, strict=True)]
    if t % step:
        last = [slice_in_dim(x, turns * step, t, axis=axis) for x, axis in parts]
        more, last = of_block(start, last)
        totals = [add(x, y) for x, y in zip(totals, more, strict=True)]
        rows = [concatenate(pair, axis) for *pair, axis in zip(rows, last, axes, strict=True)]
    return totals, rows


def _cut(x: Value, axis: int, turns: int, step: int) -> Value:
    """The parts of an axis as a new first axis."""
    x = slice_in_dim(x, 0, turns * step, axis=axis)
    shape = aval_of(x).shape
    return move_axis(reshape(x, (*shape[:axis], turns, step, *shape[axis + 1 :])), axis, 0)


def _joined(x: Value, axis: int) -> Value:
    """What `_cut` cut."""
    x = move_axis(x, 0, axis)
    *_, turns, step = (shape := aval_of(x).shape)[: axis + 2]
    return reshape(x, (*shape[:axis], turns * step, *shape[axis + 2 :]))
