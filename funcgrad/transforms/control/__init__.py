"""Control flow: ops that hold programs, and the functions that make them.

- `bodies`: what branches and loops share: staging their bodies, and types that must agree
- `calls`: ops that call one program, such as `jit` and `checkpoint`
- `cond`: branches: `cond` and `switch`
- `custom_call`: calls of functions that have their own derivative rules
- `custom_vmap`: functions with a rule of their own for `vmap`, and such that it calls in a loop
- `jit_primitive`: the `jit` primitive
- `parallel_scan`: `associative_scan`, in logarithmically many steps, and `map`, one element at a
  time
- `repeated`: functions applied to elements of an array as often as these are selected
- `scan`: loops of known length: `scan`
- `while_loop`: loops whose length depends on values
"""
