"""Reverse mode without `jit`: operations run at once and leave their rules on a tape.

- `cotangents`: what a tape does with cotangents
- `fused`: neighbouring operations on large arrays as one
- `linear_rule`: the derivative of an operation on operands of certain types, as functions of
  NumPy's arrays
- `residuals`: which values a compiled forward program leaves to its backward program
- `sliced`: cotangents of arrays that were read in slices, without an array of zeros around each
  slice
- `tape`: reverse mode at the root, where values are known
- `tracer`: the values that a tape follows
"""
