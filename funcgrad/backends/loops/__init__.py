"""The loop language: what fused array code looks like before a backend makes it fast.

- `ir`: kernels, loops, statements, indices, as plain data that prints
- `interpret`: what they mean: an interpreter in NumPy
- `builder`: writing kernels: statements land in the outermost loop that can hold them
- `scalars`: scalar code of elementwise ops, traced by running their `impl` on symbols
- `collapse`: tidying a finished kernel: axes that run as one are joined
"""
