"""Ops on single elements, most of them one statement of a family.

- `arithmetic`: arithmetic: sums, products, quotients, powers, roots, and the parts of complex
  numbers
- `bessel`: the Bessel functions as ops
- `binomial`: logarithms of the beta function and of Poisson's and the binomial terms as ops
- `compare`: comparisons, logic and the bits of integers: ops without derivatives
- `convert`: ops that convert, choose and pass on values: casts, bitcasts, select, clamp, copies
- `float8`: casts between floats of 8 bits and wider ones by tables
- `integrals`: logarithms with a guarded zero, the exponential integrals and the dilogarithm as ops
- `rounding`: rounding: floats to whole floats, to their neighbours, and whether they are finite at
  all
- `special`: special functions as ops
- `transcendental`: exponentials, logarithms, powers, trigonometric and hyperbolic functions, and
  their inverses
"""
