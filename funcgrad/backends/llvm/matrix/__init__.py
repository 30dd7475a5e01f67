"""Decompositions of large matrices, and solving with them, as generated code.

- `functions`: which host steps they run, and the functions that do
- `parts`: what they share: triangles that are solved with, products, batches
- `product`: the products of matrices that aren't large
- `small`: LU, Cholesky and triangular systems of small matrices, in little code
- `solve`: triangular systems, Cholesky
- `lu`: LU with partial pivoting
- `lu_parts`: the same of complex matrices
- `qr`: QR of small matrices, by Householder's reflections
- `qr_blocks`: QR of larger ones, by blocks of reflections
- `qr_panel`: the reflections of a block of columns
- `eigen`: eigenvalues and eigenvectors of symmetric matrices
- `ql`: eigenvalues of tridiagonal ones, and their rotations
- `values`: singular values, and eigenvalues of any matrices, by LAPACK
"""
