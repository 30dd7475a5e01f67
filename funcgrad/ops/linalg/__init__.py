"""Decompositions of matrices and solving with them, with their derivatives.

- `decompositions`: QR, singular value and eigenvalue decompositions, with their derivatives
- `matrices`: matrix algebra that the derivatives of decompositions are written in
- `triangular`: triangular matrices: solving with them, and factoring into them (Cholesky, LU)
"""
