"""Images of any number of axes: `funcgrad.scipy.ndimage`, under SciPy's names.

>>> from funcgrad.scipy import ndimage
>>> image = fnp.zeros((5, 5)).at[2, 2].set(1.0)
>>> blurred = ndimage.gaussian_filter(image, 1.0)
>>> moved = lambda by: fnp.sum((ndimage.shift(blurred, by) - blurred) ** 2)
>>> fg.grad(moved)(fnp.array([0.5, 0.2])).round(2)
Array([0.03, 0.01], dtype=float32)

- `filters`: filters: each element becomes a weighted sum of those around it
- `interpolation`: arrays read at any coordinates: maps, zooms, rotations
"""

from funcgrad.scipy.ndimage.filters import (
    convolve,
    convolve1d,
    correlate,
    correlate1d,
    gaussian_filter,
    gaussian_filter1d,
    uniform_filter,
    uniform_filter1d,
)
from funcgrad.scipy.ndimage.interpolation import (
    affine_transform,
    map_coordinates,
    rotate,
    shift,
    zoom,
)

__all__ = [
    "affine_transform", "convolve", "convolve1d", "correlate", "correlate1d", "gaussian_filter",
    "gaussian_filter1d", "map_coordinates", "rotate", "shift", "uniform_filter",
    "uniform_filter1d", "zoom",
]  # fmt: skip
