"""Sparse linear algebra under SciPy's names: `funcgrad.scipy.sparse.linalg`."""

from funcgrad.scipy.sparse import linalg

__all__ = ["linalg"]
