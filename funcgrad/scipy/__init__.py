"""SciPy's functions on arrays that differentiate, batch and compile: `special` and `stats`."""

from funcgrad.scipy import special, stats

__all__ = ["special", "stats"]
