"""jit, its stages, and programs of functions to look at.

- `choice`: which arguments of a function are meant, by position and by name
- `composite`: functions as units of a program: `composite` by a name, `platform_dependent` by the
  processor
- `jit`: jit: trace a function once for each type of its arguments, compile it, and call native code
- `keys`: what tells the programs of a function apart, and where they are kept
- `make_jaxpr`: programs of functions, for looking at: `make_jaxpr` and `eval_shape`
- `signature`: the arguments of a compiled function's calls: which are static, which donated, their
  names
- `stages`: the stages of `jit`: a program traced, lowered, compiled; each prints and shows itself
"""
