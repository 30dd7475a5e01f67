"""Types for annotations, by the names of `jax.typing`."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.core.array import Array

__all__ = ["ArrayLike", "DTypeLike"]

ArrayLike = Array | np.ndarray | np.generic | bool | int | float | complex
DTypeLike = str | type[Any] | np.dtype
