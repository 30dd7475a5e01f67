"""What a program is: avals, primitives, jaxprs, traces and arrays.

The idea stands in the files of this folder; what makes it quick, kind to processes and good to look
at is in packages of its own.

- `array`: arrays: immutable values on the host, and what is behind an operand there
- `aval`: abstract values: what a program knows of an array before it runs (shape, dtype, weakness)
- `backend`: the one protocol through which programs reach a backend; backends load when first asked
  for
- `buffers`: the memory behind arrays, NumPy's or another's, and what is asked of it
- `caches`: what the package keeps to be quicker the next time, and how to let it go
- `checks`: what operations are watched for, where a user asks for it
- `closed`: programs with the values that they captured, beside them or inside as constants
- `context`: the one context variable: which trace is current, which axes are named, which settings
  hold
- `dce`: dead code elimination: keep the equations on which results or effects depend
- `dims`: axis mappings: the one rule of an op about axes, written as in einsum
- `display`: how programs and arrays look, as text and in notebooks
- `eager`: what makes operations quick that run at once, without `jit`: their meaning is
  `core.array`
- `evaluation`: the root: the trace that evaluates operations at once
- `ir`: jaxprs: programs as plain data
- `methods`: the operators, methods and properties that arrays and tracers share
- `places`: arrays elsewhere: in another memory, or cut over devices; and the way there
- `primitive`: primitives: the vocabulary of programs
- `process`: care of the process
- `record`: classes of named values that cost nothing to define
- `refs`: mutable arrays: what a `Ref` is, and how programs see those from outside of them
- `rewriting`: rewriting programs: what each transform of programs needs beside its rules
- `settings`: what users set for the length of a block
- `shapes`: types that stand for arrays: shapes and dtypes as users write them, and types with
  shardings
- `sharding`: meshes, partition specs and shardings: how an array is cut over devices
- `source`: where in the user's code an operation stands: the line errors and printed programs name
- `staging`: staging: run a Python function on tracers and write down the program it performs
- `telemetry`: what is told of a process while it runs: events and spans of time
- `trace`: traces and tracers: how a transform sees the operations of a running Python function
- `types`: names for what Python's types can't say of values, pytrees and parameters
- `views`: where the elements of a view come from
"""
