"""Batching: one program for many lanes, and `vmap`.

- `batching`: batching: each value may carry a batch axis, each op maps over it by its batching rule
- `vmap`: vmap: map a function of pytrees over an axis of its arguments
"""
