"""Clusters of points, as in SciPy's module of this name.

- `vq`: nearest codes, and k-means
"""

from funcgrad.scipy.cluster import vq

__all__ = ["vq"]
