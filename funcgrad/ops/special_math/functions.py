"""The special functions, each `f(xp, *arrays)` a scalar program over an array namespace.

Arrays are float32 or float64, all of one dtype and one shape (or such that they broadcast). numpy
complains of the infinities and NaN that are these functions' values at poles and outside their
domains, so callers run them under `np.errstate(all="ignore")`.
"""

from funcgrad.ops.special_math.bessel import bessel_i0e, bessel_i1e
from funcgrad.ops.special_math.bessel_iv import bessel_ive
from funcgrad.ops.special_math.bessel_jy import (
    bessel_j0,
    bessel_j1,
    bessel_y0,
    bessel_y1,
)
from funcgrad.ops.special_math.bessel_real import bessel_jn, bessel_kve, bessel_yn
from funcgrad.ops.special_math.beta import betainc
from funcgrad.ops.special_math.binomial import log_beta, log_binomial, log_poisson
from funcgrad.ops.special_math.erf import erf, erf_inv, erfc, log_ndtr, ndtr, ndtri
from funcgrad.ops.special_math.expint import exp1, expi, expn
from funcgrad.ops.special_math.gamma import digamma, gammasgn, lgamma, polygamma, zeta
from funcgrad.ops.special_math.igamma import igamma, igamma_grad_a, igammac, random_gamma_grad
from funcgrad.ops.special_math.log import entr, logit, spence, xlog1py, xlogy

__all__ = [
    "bessel_i0e", "bessel_i1e", "bessel_ive", "bessel_j0", "bessel_j1", "bessel_jn", "bessel_kve",
    "bessel_y0", "bessel_y1", "bessel_yn", "betainc", "digamma", "entr", "erf", "erf_inv", "erfc",
    "exp1", "expi", "expn", "gammasgn", "igamma", "igamma_grad_a", "igammac", "lgamma", "log_beta",
    "log_binomial", "log_ndtr", "log_poisson", "logit", "ndtr", "ndtri", "polygamma",
    "random_gamma_grad", "spence", "xlog1py", "xlogy", "zeta",
]  # fmt: skip
