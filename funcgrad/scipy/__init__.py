"""SciPy's functions, under its names, on arrays that differentiate, batch and compile.

Each subpackage is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from funcgrad.core.process import lazy as _lazy

if TYPE_CHECKING:
    from funcgrad.scipy import (
        cluster,
        fft,
        integrate,
        interpolate,
        linalg,
        ndimage,
        optimize,
        signal,
        sparse,
        spatial,
        special,
        stats,
    )

__all__ = [
    "cluster", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal",
    "sparse", "spatial", "special", "stats",
]  # fmt: skip

__getattr__, __dir__ = _lazy.names(__name__, {}, __all__)
