"""Linear algebra under SciPy's names; leading axes are batch, where no docstring says otherwise.

- `condensed`: Schur's decomposition and Hessenberg form
- `factorizations`: Cholesky, LU, QR, singular values, eigenvalues, polar
- `functions`: functions of matrices (exponential, square root)
- `solvers`: linear equations, and Sylvester's
- `special_matrices`: matrices of a special structure
- `updates`: what `funcgrad.lax.linalg` has beyond
"""

from funcgrad.scipy.linalg.condensed import hessenberg, rsf2csf, schur
from funcgrad.scipy.linalg.factorizations import (
    cho_factor,
    cholesky,
    eigh,
    eigh_tridiagonal,
    lu,
    lu_factor,
    polar,
    qr,
    qr_multiply,
    svd,
)
from funcgrad.scipy.linalg.functions import expm, expm_frechet, funm, sqrtm
from funcgrad.scipy.linalg.solvers import (
    cho_solve,
    det,
    inv,
    lu_solve,
    solve,
    solve_banded,
    solve_sylvester,
    solve_triangular,
)
from funcgrad.scipy.linalg.special_matrices import (
    block_diag,
    circulant,
    companion,
    convolution_matrix,
    dft,
    fiedler,
    fiedler_companion,
    hadamard,
    hankel,
    helmert,
    hilbert,
    invhilbert,
    invpascal,
    leslie,
    pascal,
    toeplitz,
)

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "companion",
    "convolution_matrix", "det", "dft", "eigh", "eigh_tridiagonal", "expm", "expm_frechet",
    "fiedler", "fiedler_companion", "funm", "hadamard", "hankel", "helmert", "hessenberg",
    "hilbert", "inv", "invhilbert", "invpascal", "leslie", "lu", "lu_factor", "lu_solve", "pascal",
    "polar", "qr", "qr_multiply", "rsf2csf", "schur", "solve", "solve_banded",
    "solve_sylvester", "solve_triangular", "sqrtm", "svd", "toeplitz",
]  # fmt: skip
