"""Derivatives of users' functions, whole Jacobians, rules of their own, and what to keep.

- `captured`: traced values that functions of a custom rule close over, as arguments
- `checkpoint`: checkpoint: compute again in the backward pass instead of keeping intermediate
  values
- `custom`: functions with derivative rules of their own: `custom_jvp`, `custom_vjp`,
  `closure_convert`
- `forms`: other forms of what derivatives are given by: a value with its pullback, a pair of
  functions
- `grad`: gradients of functions of pytrees: `grad`, `value_and_grad`
- `implicit`: implicit derivatives: solutions of equations, differentiated without unrolling the
  solver
- `jacobian`: whole Jacobians: `jacfwd` column by column, `jacrev` row by row, and the `hessian` of
  both
- `linear`: derivatives as linear functions: jvp, linearize, vjp, and transposes of linear functions
- `pullback`: reverse mode inside of a shard_map: transposes that wait until it is known what varies
- `taylor`: Taylor mode: all derivatives along a curve at once, up to an order
"""
