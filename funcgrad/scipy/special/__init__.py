"""Special functions under SciPy's names, elementwise, with derivatives.

- `bessel`: Bessel functions
- `complex_erf`: the error function and its complement, of complex arguments too
- `functions`: those that are ops or short formulas of ops, of real arguments
- `further`: of complex arguments, as integrals, as recurrences
- `hypergeometric`: hypergeometric series
"""

from funcgrad.nn.normalize import log_softmax, logsumexp, softmax
from funcgrad.scipy.special.bessel import (
    bessel_jn,
    iv,
    ive,
    j0,
    j1,
    jn,
    jv,
    k0,
    k0e,
    k1,
    k1e,
    kn,
    kv,
    kve,
    y0,
    y1,
    yn,
    yv,
)
from funcgrad.scipy.special.complex_erf import erf, erfc
from funcgrad.scipy.special.functions import (
    beta,
    betainc,
    betaln,
    digamma,
    entr,
    erfcinv,
    erfinv,
    exp1,
    expi,
    expit,
    expn,
    factorial,
    gamma,
    gammainc,
    gammaincc,
    gammaln,
    gammasgn,
    i0,
    i0e,
    i1,
    i1e,
    kl_div,
    log_ndtr,
    logit,
    multigammaln,
    ndtr,
    ndtri,
    poch,
    polygamma,
    psi,
    rel_entr,
    rgamma,
    spence,
    xlog1py,
    xlogy,
    zeta,
)
from funcgrad.scipy.special.further import (
    bernoulli,
    boxcox,
    boxcox1p,
    comb,
    dawsn,
    erfcx,
    fresnel,
    loggamma,
    owens_t,
    sici,
    sph_harm_y,
    wofz,
)
from funcgrad.scipy.special.hypergeometric import hyp1f1, hyp2f1

__all__ = [
    "bernoulli", "bessel_jn", "beta", "betainc", "betaln", "boxcox", "boxcox1p", "comb", "dawsn",
    "digamma", "entr", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "exp1", "expi", "expit", "expn",
    "factorial", "fresnel", "gamma", "gammainc", "gammaincc", "gammaln", "gammasgn", "hyp1f1",
    "hyp2f1", "i0", "i0e", "i1", "i1e", "iv", "ive", "j0", "j1", "jn", "jv", "k0", "k0e", "k1",
    "k1e", "kl_div", "kn", "kv", "kve", "log_ndtr", "log_softmax", "loggamma", "logit", "logsumexp",
    "multigammaln", "ndtr", "ndtri", "owens_t", "poch", "polygamma", "psi", "rel_entr", "rgamma",
    "sici", "softmax", "spence", "sph_harm_y", "wofz", "xlog1py", "xlogy", "y0", "y1", "yn", "yv",
    "zeta",
]  # fmt: skip
