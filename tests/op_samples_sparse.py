"""Rows of products of sparse matrices, against a loop over entries."""

import numpy as np

from funcgrad.ops import csr
from tests.op_samples_base import I32, NUMBERS, Arg, Row, case

FEW = "eager jit vmap dims"


def places(*values):
    """Positions as an operand that is always the same."""
    fixed = np.array(values, np.int32)
    return Arg(fixed.shape, lambda rng, shape, dtype: fixed, I32, smooth=False)


def product(data, indices, starts, ends, dense):
    out = np.zeros((len(starts), dense.shape[1]), np.result_type(data, dense))
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for e in range(max(start, 0), min(end, len(data))):
            if 0 <= indices[e] < len(dense):
                out[i] += data[e] * dense[indices[e]]
    return out


def cases():
    """Rows with several entries (also in one place), with none, and entries that are none."""
    one = lambda columns, ends, dense, tests=None: case(
        (len(columns),), places(*columns), places(0, *ends[:-1]), places(*ends), dense, tests=tests
    )
    return (
        one([1, 0, 2, 2, 3, 1], [2, 2, 5], (4, 2)),
        one([1, 0, 1, 1, 0, 1, 1], [7, 7], (3, 1)),
        one([4, 0, -1, 1, 9, 9], [1, 4], (4, 3)),
        one([3, 1, 2, 0, 0, 0], [2, 9], (4, 1), tests=FEW),
        one([0, 1], [2, 2], (2, 70), tests="eager jit"),
        one([], [0, 0], (2, 2)),
        one([0, 1], [1, 2], (0, 2)),
    )


SPARSE = (
    Row(prim=csr.csr_matmul_p, oracle=product, dtypes=NUMBERS, cases=cases(), ulps=32, atol=64,
        jit_ulps=64, jit_atol=128),
)  # fmt: skip
