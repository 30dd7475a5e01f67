"""Functions of single elements.

- `arithmetic`: arithmetic of two operands: sums, quotients, powers, extrema, and what stands on
  them
- `floats`: rounding, and the parts of floats: sign, mantissa, exponent, neighbours
- `functions`: functions of one number: exponentials, logarithms, roots, trigonometric and
  hyperbolic ones
- `logic`: comparisons, logic, bits, and whether numbers are finite or close
- `pairs`: functions of two numbers: angles, hypotenuses, sums of exponentials, common divisors
"""
