"""Whether the libraries computed the same: results in small, and the largest difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SAMPLE = 1 << 16


def sample(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays, of large ones some elements at fixed places: enough to compare with."""
    return [_some(np.asarray(array)) for array in arrays]


def _some(array: np.ndarray) -> np.ndarray:
    if array.size <= SAMPLE:
        return array
    places = np.random.default_rng(array.size).integers(0, array.size, SAMPLE)
    return array.reshape(-1)[places]


def difference(
    got: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float
) -> str | None:
    """What is wrong with results, in words; None if they agree.

    An element may be off by `tolerance` of the largest magnitude in its array, and by ten times
    that of its own.
    """
    if len(got) != len(wanted):
        return f"{len(got)} results instead of {len(wanted)}"
    for i, (x, y) in enumerate(zip(got, wanted, strict=True)):
        if x.shape != y.shape:
            return f"result {i} has shape {x.shape} instead of {y.shape}"
        x, y = (a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in (x, y))
        finite = np.isfinite(y)
        scale = np.max(np.abs(y[finite]), initial=0.0)
        if not np.allclose(x, y, rtol=10 * tolerance, atol=tolerance * scale, equal_nan=True):
            both = finite & np.isfinite(x)
            worst = np.max(np.abs(x - y)[both], initial=0.0)
            places = np.count_nonzero(~np.isclose(x, y, 10 * tolerance, tolerance * scale, True))
            return (
                f"result {i} differs at {places} of {x.size} elements, by up to {worst:.3g} "
                f"where the largest magnitude is {scale:.3g}"
            )
    return None
