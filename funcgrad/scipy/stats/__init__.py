"""Distributions and statistics under SciPy's names, on arrays that differentiate and compile.

- `core`: what a distribution is: formulas in standard form, from which all methods are derived
- `inverse`: quantiles without a formula
- `line`, `positive`, `whole`: the distributions, by their support
"""

from funcgrad.scipy.stats.line import (
    cauchy,
    gennorm,
    gumbel_l,
    gumbel_r,
    laplace,
    logistic,
    norm,
    t,
    truncnorm,
    vonmises,
    wrapcauchy,
)
from funcgrad.scipy.stats.positive import (
    beta,
    chi2,
    expon,
    f,
    gamma,
    halfcauchy,
    halfnorm,
    invgamma,
    levy,
    lognorm,
    maxwell,
    pareto,
    rayleigh,
    uniform,
    weibull_max,
    weibull_min,
)
from funcgrad.scipy.stats.whole import (
    bernoulli,
    betabinom,
    binom,
    geom,
    hypergeom,
    nbinom,
    poisson,
    randint,
    zipf,
)

__all__ = [
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "expon", "f", "gamma", "gennorm",
    "geom", "gumbel_l", "gumbel_r", "halfcauchy", "halfnorm", "hypergeom", "invgamma", "laplace",
    "levy", "logistic", "lognorm", "maxwell", "nbinom", "norm", "pareto", "poisson", "randint",
    "rayleigh", "t", "truncnorm", "uniform", "vonmises", "weibull_max", "weibull_min", "wrapcauchy",
    "zipf",
]  # fmt: skip
