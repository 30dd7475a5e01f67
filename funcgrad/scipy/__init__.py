"""SciPy's functions, under its names, on arrays that differentiate, batch and compile.

Each subpackage is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"funcgrad.scipy.{name}")
    raise AttributeError(f"module 'funcgrad.scipy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
