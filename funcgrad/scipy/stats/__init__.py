"""Distributions and statistics under SciPy's names, on arrays that differentiate and compile.

- `core`: what a distribution is: formulas in standard form, from which all methods are derived
- `inverse`: quantiles without a formula
- `line`, `positive`, `whole`: the distributions, by their support
- `vectors`: distributions of several variables
- `kde`: densities estimated from samples
- `samples`: statistics of samples: moments, ranks, modes
- `comparison`: correlations and Student's tests
"""

from funcgrad.scipy.stats.comparison import (
    pearsonr,
    spearmanr,
    ttest_1samp,
    ttest_ind,
    ttest_rel,
)
from funcgrad.scipy.stats.kde import gaussian_kde
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
from funcgrad.scipy.stats.samples import (
    describe,
    entropy,
    gmean,
    hmean,
    iqr,
    kurtosis,
    mode,
    moment,
    rankdata,
    sem,
    skew,
    trim_mean,
    variation,
    zscore,
)
from funcgrad.scipy.stats.vectors import dirichlet, multinomial, multivariate_normal
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
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "describe", "dirichlet", "entropy",
    "expon", "f", "gamma", "gaussian_kde", "gennorm", "geom", "gmean", "gumbel_l", "gumbel_r",
    "halfcauchy", "halfnorm", "hmean", "hypergeom", "invgamma", "iqr", "kurtosis", "laplace",
    "levy", "logistic", "lognorm", "maxwell", "mode", "moment", "multinomial",
    "multivariate_normal", "nbinom", "norm", "pareto", "pearsonr", "poisson", "randint", "rankdata",
    "rayleigh", "sem", "skew", "spearmanr", "t", "trim_mean", "truncnorm", "ttest_1samp",
    "ttest_ind", "ttest_rel", "uniform", "variation", "vonmises", "weibull_max", "weibull_min",
    "wrapcauchy", "zipf", "zscore",
]  # fmt: skip
