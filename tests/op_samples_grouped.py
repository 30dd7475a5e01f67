"""Rows of products of groups of rows, against a loop over rows."""

import numpy as np

from funcgrad import dtypes
from funcgrad.transforms import grouped
from tests.op_samples_base import F32, I32, NUMBERS, Arg, Row, case

FEW = "eager jit vmap dims"


def counted(*counts):
    """Sizes of groups as an operand that is always the same."""
    sizes = np.array(counts, np.int32)
    return Arg(sizes.shape, lambda rng, shape, dtype: sizes, I32, smooth=False)


def group_of(sizes, b, rows):
    """The group of each row, -1 behind the last."""
    sizes = np.maximum(sizes[b % len(sizes)], 0)
    names = np.repeat(np.arange(len(sizes)), sizes)[:rows]
    return np.concatenate([names, np.full(rows - len(names), -1)])


def product(x, w, sizes, dtype):
    out = np.zeros((*x.shape[:2], w.shape[3]), np.result_type(x, w))
    for b in range(len(x)):
        for i, g in enumerate(group_of(sizes, b, x.shape[1])):
            if g >= 0:
                out[b, i] = x[b, i] @ w[b % len(w), g]
    return out


def outer(x, y, sizes, dtype):
    shape = (x.shape[0], sizes.shape[1], x.shape[2], y.shape[2])
    out = np.zeros(shape, np.result_type(x, y))
    for b in range(len(x)):
        for i, g in enumerate(group_of(sizes, b, x.shape[1])):
            if g >= 0:
                out[b, g] += np.outer(x[b, i], y[b % len(y), i])
    return out


def result(dtype, params):
    return params["dtype"] or dtype


def cases(second, dtype=None):
    """second(batches, rows, groups): the shape of the second operand."""
    one = lambda b, shared, r, sizes, tests=None: case(
        (b, r, 3), second(shared, r, len(sizes[0])), counted(*sizes), dtype=dtype, tests=tests
    )
    return (
        one(1, 1, 7, [[2, 0, 4]]),
        one(2, 2, 7, [[2, 1, 4], [0, 9, 1]]),
        one(2, 1, 7, [[3, 3]]),
        one(1, 1, 4, [[-1, 2, 1, 1, 7]], tests=FEW),
        one(2, 2, 37, [[0, 0]], tests=FEW),
        one(1, 1, 150, [[1, 140]], tests="eager jit"),
        one(1, 1, 0, [[0, 1]], tests="eager jit"),
        one(1, 1, 5, [[]], tests="eager jit"),
    )


def matrices(batches, rows, groups):
    return (batches, groups, 3, 2)


def vectors(batches, rows, groups):
    return (batches, rows, 2)


def row(prim, oracle, **more):
    return Row(
        prim=prim, oracle=oracle, result=result, ulps=32, atol=64, jit_ulps=64, jit_atol=128,
        **more,
    )  # fmt: skip


NARROW = (np.dtype("float16"), dtypes.canonical("bfloat16"), F32)
GROUPED = (
    row(grouped.ragged_dot_p, product, dtypes=NUMBERS, cases=cases(matrices)),
    row(grouped.ragged_dot_p, product, name="ragged_dot to float32", dtypes=NARROW,
        order=1, cases=cases(matrices, F32)[:1]),
    row(grouped.ragged_outer_p, outer, dtypes=NUMBERS, cases=cases(vectors)),
    row(grouped.ragged_outer_p, outer, name="ragged_outer to float32", dtypes=NARROW,
        order=1, cases=cases(vectors, F32)[:1]),
)  # fmt: skip
