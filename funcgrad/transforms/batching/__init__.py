"""Batching: one program for many lanes, and `vmap`.

- `trace`: the trace that batches: each value may carry a batch axis, each op maps over it
- `replay`: the same without `jit`, by what was found out of operations met before
- `batching`: functions of flat arguments, and programs, batched
- `vmap`: map a function of pytrees over an axis of its arguments
"""
