"""Decompositions of matrices and solving with them, with their derivatives.

- `choices`: names of ways to compute them
- `condensed`: Hessenberg, tridiagonal and Schur form, the order of columns of a pivoted QR
- `decompositions`: QR, singular value and eigenvalue decompositions, with their derivatives
- `lapack`: what LAPACK has and NumPy doesn't offer
- `matrices`: matrix algebra that the derivatives of decompositions are written in
- `reflections`: products of Householder's reflections
- `triangular`: triangular matrices: solving with them, and factoring into them (Cholesky, LU)
"""
