"""SciPy's functions on arrays that differentiate, batch and compile: `linalg`, `sparse.linalg` and
`special`, each under SciPy's names."""

from funcgrad.scipy import fft, linalg, sparse, special

__all__ = ["fft", "linalg", "sparse", "special"]
