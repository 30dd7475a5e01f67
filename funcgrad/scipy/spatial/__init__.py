"""Geometry, as in SciPy's module of this name.

- `transform`: rotations in three dimensions
"""

from funcgrad.scipy.spatial import transform

__all__ = ["transform"]
