"""Programs for those who extend the library, by the names of `jax.extend`.

- `core`: what programs are made of
"""

from funcgrad.extend import core

__all__ = ["core"]
