"""Linear algebra, of which ONNX has nothing, as loops of other operations.

- `factors`: triangular systems, Cholesky, LU and QR factors, column by column
- `spectra`: eigenvalues and singular values, by rotations of many pairs of columns at a time

Each turn of a loop computes on whole matrices and chooses what it wants by masks, so that any
leading axes are a batch and the models are small.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.core.primitive import Primitive
from funcgrad.export.onnx.linalg import factors, spectra

# What each primitive computes, as a function of its operands and parameters.
FORMULAS: dict[Primitive, Callable] = {**factors.FORMULAS, **spectra.FORMULAS}
