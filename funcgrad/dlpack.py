"""Arrays of other libraries, by the names of `jax.dlpack`.

>>> import funcgrad as fg, numpy as np
>>> fg.dlpack.from_dlpack(np.arange(3.0))
Array([0., 1., 2.], dtype=float64)
"""

from typing import Any

from funcgrad import dtypes
from funcgrad.numpy import from_dlpack

__all__ = ["from_dlpack", "is_supported_dtype"]


def is_supported_dtype(dtype: Any) -> bool:
    """Whether arrays of a dtype can be exchanged: those of NumPy can.

    >>> is_supported_dtype("float32"), is_supported_dtype("bfloat16")
    (True, False)
    """
    return dtypes.canonical(dtype).kind in "biufc"
