"""Rows of the ops of mixed precision: a copy made ahead of a loop, and how the loop reads it."""

import numpy as np

from funcgrad import dtypes
from funcgrad.transforms.precision.casts import cast_ahead_p, narrowed_p
from tests.op_samples_base import F32, F64, Row
from tests.op_samples_elementwise import shapes

BF16 = dtypes.canonical("bfloat16")

PRECISION = [
    Row(prim=cast_ahead_p, oracle=lambda x, new_dtype: np.asarray(x).astype(new_dtype),
        dtypes=(F32,), exact=True, ulps=0, jit_ulps=0, order=0, special=(F32,), staged=False,
        cases=shapes(1, new_dtype=BF16), result=lambda dtype, p: p["new_dtype"]),
    # The copy has the derivatives of what it is a copy of: here of itself.
    Row(prim=narrowed_p, call=lambda x: narrowed_p.bind(x, x), oracle=lambda x: x, exact=True,
        dtypes=(F32, F64, BF16), ulps=0, jit_ulps=0, staged=False, cases=shapes(1)),
]  # fmt: skip
