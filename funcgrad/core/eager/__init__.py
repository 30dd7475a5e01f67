"""What makes operations quick that run at once, without `jit`: their meaning is
`core.evaluation`.

- `aligned`: arrays whose memory begins where a line of the caches does
- `calls`: small programs that are evaluated again and again: as lists of NumPy calls, or compiled
- `evaluated`: operations evaluated before on operands of the same types
- `functions`: functions of arrays as they are called outside of transformations
- `impl_calls`: the calls of NumPy that an op's `impl` makes for operands of certain types, to make
  them at once
- `large`: large results of eager operations, which are worth more than a call of NumPy
- `numpy_calls`: A small program as a list of NumPy calls: what it does, without what finding out
  costs
- `single`: functions of the library that mostly do one operation: native code then does their calls
"""
