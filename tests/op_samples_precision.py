"""The rows of mixed precision: how a loop reads the narrow copy of what it closes over, and what is
multiplied with narrow factors of derivatives."""

from funcgrad import dtypes
from funcgrad.transforms.precision.casts import narrowed_p
from funcgrad.transforms.precision.kept import scaled_p
from tests.op_samples_base import F32, F64, Row
from tests.op_samples_elementwise import shapes

BF16 = dtypes.canonical("bfloat16")

PRECISION = [
    # The copy has the derivatives of what it is a copy of: here of itself.
    Row(prim=narrowed_p, call=lambda x: narrowed_p.bind(x, x), oracle=lambda x: x, exact=True,
        dtypes=(F32, F64, BF16), ulps=0, jit_ulps=0, staged=False, cases=shapes(1)),
    Row(prim=scaled_p, call=lambda x, y: scaled_p.bind(x, y), oracle=lambda x, y: x * y, exact=True,
        dtypes=(F32, F64, BF16), ulps=0, jit_ulps=0, staged=False, cases=shapes(2)),
]  # fmt: skip
