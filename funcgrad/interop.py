"""Libraries that have to be told of a new kind of arrays before they take it.

Others find functions by the array API standard (`x.__array_namespace__()`) and need nothing:
SciPy with `SCIPY_ARRAY_API=1`, scikit-learn with `array_api_dispatch`, xarray, array-api-compat.
opt_einsum finds `einsum` by the name of the arrays' package.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from funcgrad import numpy as fnp


def register_einops() -> None:
    """Let `einops.rearrange`, `reduce`, `repeat`, `einsum`, `pack` and `unpack` take arrays, also
    under transformations. Calling it again does nothing. Raises ImportError where there is no
    einops.

    The functions of `einops.array_api` take arrays without it.

    >>> import funcgrad as fg
    >>> fg.interop.register_einops()  # doctest: +SKIP
    >>> einops.rearrange(fnp.ones((2, 3)), "a b -> b a").shape  # doctest: +SKIP
    (3, 2)
    """
    _einops_backend()


@cache
def _einops_backend() -> type:
    """einops' backend for arrays: it looks for those among the classes that are alive."""
    from einops._backends import NumpyBackend

    class FuncgradBackend(NumpyBackend):
        framework_name = "funcgrad"

        def __init__(self) -> None:
            self.np = fnp

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, fnp.ndarray)

        def from_numpy(self, x: Any) -> Any:
            return fnp.asarray(x)

        def to_numpy(self, x: Any) -> Any:
            return np.asarray(x)

    return FuncgradBackend
