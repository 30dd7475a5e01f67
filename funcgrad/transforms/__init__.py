"""Transformations: of functions (by tracing them) and of programs (jaxpr to jaxpr).

From below: passes over programs and the three traces of differentiation, batching, ops that hold
programs, the tape of eager gradients, and what users call.

- `arguments`: from a user's arguments to flat arrays and back, with names for errors
- `attention`: attention as one op, whose memory is linear in the lengths of the sequences
- `autodiff`: the three steps of differentiation
- `batching`: batching: one program for many lanes, and `vmap`
- `callbacks`: calls of Python from programs
- `control`: control flow: ops that hold programs, and the functions that make them
- `derivatives`: derivatives of users' functions, whole Jacobians, rules of their own, and what to
  keep
- `grouped`: products of groups of rows as two ops, which go through each group's rows by blocks
- `host`: values on the host: waiting for them, fetching them, and which there are
- `jit`: jit, its stages, and programs of functions to look at
- `key_reuse`: random keys that are used twice
- `passes`: passes: from a program to one that computes the same
- `precision`: programs in mixed precision
- `recorded`: functions of the library that are written down once for each type of their operands
- `refs`: mutable arrays: made, among arguments, and programs that touch them as ones with a state
- `tape`: reverse mode without `jit`: operations run at once and leave their rules on a tape
- `weights`: functions of parameters, called with what isn't an array in a parameter's place
"""
