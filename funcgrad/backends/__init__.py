"""Compilers of programs: what `core.backend` loads when a program is first compiled.

The face of the layer:

- `target`: what programs are planned for, which all of these ask
- `machines`: what targets of machine code have in common
- `plan`: from a jaxpr to a planned program: every tensor gets an address
- `program`: planned programs: steps on memory, for a backend to emit
- `program_text`: what prints them
- `walker`: what does something with each of their steps
- `measure`: what they do: operations, bytes, exchanges
- `eager`: what eager operations with large results take of the compiler
- `late`: modules that are imported at their first use

What backends share, from a program to steps, in the order of their layers:

- `loops`: the loop language
- `lower`: elements of values, and operands of products, as ops define them
- `fusion`: which values get a place in memory, and which share a kernel
- `kernels`: writing kernels
- `rewrites`: program to program, before all that
- `drafts`: programs as steps, before anything has an address

Backends:

- `numpy_eval`: the trivial one, which defines what is right
- `plain`: planned programs, interpreted
- `llvm`: machine code for this processor
- `cuda`: NVIDIA's GPUs, simulated and assembled so far
"""
