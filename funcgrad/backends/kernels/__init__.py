"""Writing kernels in the loop language.

Of clusters:

- `cluster`: the rows in parallel, and in a row one loop after the other

That run through memory in an order of their own:

- `special`: what these are written with
- `depthwise`: convolutions of single channels, and their kernels' gradients
- `depthwise_last`: the same where channels come last
- `running`: running sums, products and extremes along an axis
- `eliminations`: small LU, Cholesky, and solving with triangular matrices
- `selections`: values moved to the extrema of windows, as max pooling's gradient does
- `selections_last`: the same where channels come last
- `updates`: updates in place
"""
