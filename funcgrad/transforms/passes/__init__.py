"""Passes: from a program to one that computes the same.

- `simplify`: simplification of programs before a backend sees them
- `turned`: convolutions without the transposes around them
"""
