"""Factorizations and solves of matrices: the ops that `funcgrad.numpy.linalg` stands on."""

from funcgrad.ops.linalg.decompositions import eig, eigh, householder_product, qr, svd
from funcgrad.ops.linalg.triangular import cholesky, lu, lu_pivots_to_permutation, triangular_solve

__all__ = [
    "cholesky", "eig", "eigh", "householder_product", "lu", "lu_pivots_to_permutation", "qr",
    "svd", "triangular_solve",
]  # fmt: skip
