"""The plain backend: planned programs, run by an interpreter in NumPy.

- `interpret`: what planned programs mean
"""
