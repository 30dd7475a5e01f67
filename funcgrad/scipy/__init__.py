"""SciPy's functions on arrays that differentiate, batch and compile: `funcgrad.scipy.special`."""

from funcgrad.scipy import special

__all__ = ["special"]
