"""Passes: from a program to one that computes the same.

- `dce`: dead code elimination: keep the equations on which results or effects depend
- `simplify`: simplification of programs before a backend sees them
"""
