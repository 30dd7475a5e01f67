"""The special functions, each `f(xp, *arrays)` a scalar program over an array namespace.

Arrays are float32 or float64, all of one dtype and one shape (or such that they broadcast). numpy
complains of the infinities and NaN that are these functions' values at poles and outside their
domains, so callers run them under `np.errstate(all="ignore")`.
"""

from funcgrad.ops.special_math_erf import erf, erf_inv, erfc, log_ndtr, ndtr, ndtri
from funcgrad.ops.special_math_gamma import digamma, gammasgn, lgamma, polygamma, zeta

__all__ = [
    "digamma", "erf", "erf_inv", "erfc", "gammasgn", "lgamma", "log_ndtr", "ndtr", "ndtri",
    "polygamma", "zeta",
]  # fmt: skip
