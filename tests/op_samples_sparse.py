"""Rows of products of sparse matrices, against a loop over entries."""

import numpy as np

from funcgrad.ops import csr, csr_codes
from tests.op_samples_base import F32, F64, I32, NUMBERS, Arg, Row, case

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


def codes_product(data, indices, starts, ends, codes, scales, *, bits, columns):
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)[:, :columns] - 8
    return product(data, indices, starts, ends, codes * scales[:, None])


def codes_cases():
    """Of 8 bits, and of 4 with an odd number of columns."""

    def one(bits, columns, *shape):
        low, kind = (-128, np.int8) if bits == 8 else (0, np.uint8)
        drawn = lambda rng, shape, dtype: rng.integers(low, low + 256, shape).astype(kind)
        codes = Arg(shape, drawn, np.dtype(kind), smooth=False)
        starts, ends = places(0, 2, 2), places(2, 2, 5)
        where = places(1, 0, 2, -1, 3, 1)
        return case((6,), where, starts, ends, codes, shape[:1], bits=bits, columns=columns)

    return one(8, 3, 3, 3), one(4, 5, 3, 3), one(4, 1, 4, 1)


SPARSE = (
    Row(prim=csr.csr_matmul_p, oracle=product, dtypes=NUMBERS, cases=cases(), ulps=32, atol=64,
        jit_ulps=64, jit_atol=128),
    Row(prim=csr_codes.csr_matmul_codes_p, oracle=codes_product, dtypes=(F32, F64),
        cases=codes_cases(), ulps=32, atol=256, jit_ulps=64, jit_atol=256),
)  # fmt: skip
