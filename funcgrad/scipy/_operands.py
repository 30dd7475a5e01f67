"""Arguments of SciPy's functions: arrays of one floating-point dtype that broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.aval import promote
from funcgrad.core.context import current
from funcgrad.core.trace import aval_of


def float_arrays(args: Sequence[Any]) -> list:
    """Arguments as arrays of one floating-point dtype, each of its own shape."""
    arrays = [fnp.asarray(a) for a in args]
    dtype, _ = promote([aval_of(a) for a in arrays])
    if not dtypes.is_inexact(dtype):
        dtype = current().float_dtype
    # From what was given: a Python number has more digits than the default float.
    return [
        a if a.dtype == dtype else fnp.asarray(x, dtype) for a, x in zip(arrays, args, strict=True)
    ]


def operands(args: Sequence[Any]) -> list:
    """Arguments as arrays of one floating-point dtype and one shape."""
    same = float_arrays(args)
    shape = np.broadcast_shapes(*(a.shape for a in same))
    return [fnp.broadcast_to(a, shape) if a.shape not in ((), shape) else a for a in same]
