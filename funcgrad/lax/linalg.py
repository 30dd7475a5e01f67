"""Factorizations and solves of matrices: the ops that `funcgrad.numpy.linalg` stands on."""

from typing import TYPE_CHECKING

from funcgrad.core.process import lazy as _lazy
from funcgrad.ops.linalg.choices import EighImplementation, EigImplementation, SvdAlgorithm
from funcgrad.ops.linalg.condensed import hessenberg, tridiagonal
from funcgrad.ops.linalg.decompositions import eig, eigh, qr, svd
from funcgrad.ops.linalg.reflections import householder_product, ormqr
from funcgrad.ops.linalg.triangular import cholesky, lu, lu_pivots_to_permutation, triangular_solve

if TYPE_CHECKING:
    from funcgrad.scipy.linalg.updates import (
        cholesky_update,
        qdwh,
        schur,
        symmetric_product,
        tridiagonal_solve,
    )

__all__ = [
    "EigImplementation", "EighImplementation", "SvdAlgorithm", "cholesky", "cholesky_update", "eig",
    "eigh", "hessenberg", "householder_product", "lu", "lu_pivots_to_permutation", "ormqr", "qdwh",
    "qr", "schur", "svd", "symmetric_product", "triangular_solve", "tridiagonal",
    "tridiagonal_solve",
]  # fmt: skip

# What is made of more than ops is loaded when it is first asked for.
_LATER = {
    "funcgrad.scipy.linalg.updates":
        "cholesky_update qdwh schur symmetric_product tridiagonal_solve",
}  # fmt: skip

__getattr__, __dir__ = _lazy.names(__name__, _LATER)
