"""Kernels that run through memory in an order of their own, as this processor likes it.

- `depthwise`: convolutions of single channels, and their kernels' gradients
- `depthwise_last`: the same where channels come last
- `running`: running sums, products and extremes along an axis
- `eliminations`: small LU, Cholesky, and solving with triangular matrices
- `selections`: values moved to the extrema of windows, as max pooling's gradient does
- `selections_last`: the same where channels come last
- `rows`: updates by row
- `csr`: products of matrices of few entries, row by row
"""
