"""Writing kernels in the loop language.

Of clusters:

- `cluster`: the rows in parallel, and in a row one loop after the other

That run through memory in an order of their own:

- `special`: what these are written with
- `updates`: updates in place
"""
