"""Samplers: their distributions (Kolmogorov-Smirnov and chi-square tests at fixed seeds), dtypes,
shapes, derivatives, and how they go through transforms."""

import numpy as np
import pytest
from scipy import stats

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, random

N = 4000
FLOATS = ["float16", "bfloat16", "float32", "float64"]

# name: (parameters, the distribution in SciPy)
CONTINUOUS = {
    "uniform": ((), stats.uniform()),
    "normal": ((), stats.norm()),
    "truncated_normal": ((-0.5, 2.0), stats.truncnorm(-0.5, 2.0)),
    "exponential": ((), stats.expon()),
    "gumbel": ((), stats.gumbel_r()),
    "laplace": ((), stats.laplace()),
    "logistic": ((), stats.logistic()),
    "cauchy": ((), stats.cauchy()),
    "maxwell": ((), stats.maxwell()),
    "lognormal": ((0.7,), stats.lognorm(0.7)),
    "pareto": ((2.5,), stats.pareto(2.5)),
    "rayleigh": ((1.7,), stats.rayleigh(scale=1.7)),
    "weibull_min": ((1.5, 2.5), stats.weibull_min(2.5, scale=1.5)),
    "triangular": ((-1.0, 0.5, 2.0), stats.triang(0.5, loc=-1, scale=3)),
    "gamma": ((0.4,), stats.gamma(0.4)),
    "beta": ((0.6, 2.0), stats.beta(0.6, 2.0)),
    "chisquare": ((3.0,), stats.chi2(3)),
    "t": ((3.0,), stats.t(3)),
    "f": ((5.0, 7.0), stats.f(5, 7)),
    "generalized_normal": ((1.5,), stats.gennorm(1.5)),
    "wald": ((1.5,), stats.invgauss(1.5)),
    "loggamma": ((2.0,), stats.loggamma(2.0)),
}
DISCRETE = {
    "geometric": ((0.3,), stats.geom(0.3)),
    "poisson": ((3.0,), stats.poisson(3.0)),
    "poisson_large": ((40.0,), stats.poisson(40.0)),
    "binomial": ((12, 0.3), stats.binom(12, 0.3)),
    "binomial_large": ((300, 0.7), stats.binom(300, 0.7)),
}
VMAPPED = ["normal", "gamma", "loggamma", "poisson", "poisson_large", "binomial", "binomial_large"]


def sampler(name):
    args = (CONTINUOUS | DISCRETE)[name][0]
    function = getattr(random, name.removesuffix("_large"))
    return lambda key, shape, dtype=None: function(key, *args, shape=shape, dtype=dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name):
    drawn = fg.jit(lambda k: sampler(name)(k, (N,)))(random.key(1))
    assert stats.kstest(np.asarray(drawn, float), CONTINUOUS[name][1].cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name):
    drawn = np.asarray(fg.jit(lambda k: sampler(name)(k, (N,)))(random.key(2)))
    assert_counts(drawn, DISCRETE[name][1])


def assert_counts(drawn, law):
    """Chi-square over values that are likely enough, the rest in two tails."""
    low, high = law.ppf([0.01, 0.99])
    values = np.arange(low, high + 1)
    counts = [np.sum(drawn < low), *(np.sum(drawn == v) for v in values), np.sum(drawn > high)]
    chances = [law.cdf(low - 1), *law.pmf(values), law.sf(high)]
    kept = np.array(chances) > 1e-9
    counts, chances = np.array(counts)[kept], np.array(chances)[kept]
    assert counts.sum() == drawn.size
    wanted = drawn.size * chances / chances.sum()
    assert stats.chisquare(counts, wanted).pvalue > 1e-3


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(name, dtype):
    drawn = sampler(name)(random.key(3), (64,), dtype)
    assert drawn.dtype.name == dtype
    values = np.asarray(drawn, float)
    low, high = CONTINUOUS[name][1].support()
    assert ((values >= low - 0.01) & (values <= high + 0.01)).all()
    assert np.isfinite(values).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_stays_inside(dtype):
    drawn = np.asarray(random.uniform(random.key(0), (20000,), dtype), float)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    drawn = np.asarray(random.uniform(random.key(0), (5000,), dtype, -3, 2), float)
    assert drawn.min() >= -3
    assert drawn.mean() == pytest.approx(-0.5, abs=0.1)


def test_default_dtype():
    with fg.default_dtype("float64"):
        assert random.normal(random.key(0)).dtype == np.float64
        assert random.gamma(random.key(0), 2.0).dtype == np.float64
    assert random.normal(random.key(0)).dtype == np.float32


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_normal(dtype):
    z = np.asarray(random.normal(random.key(4), (N,), dtype))
    assert z.dtype == dtype
    scaled = np.concatenate([z.real, z.imag]) * np.sqrt(2)
    assert stats.kstest(scaled, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z.real, z.imag)[0, 1]) < 0.05


@pytest.mark.parametrize("dtype", [f"{k}{b}" for k in ("int", "uint") for b in (8, 16, 32, 64)])
def test_randint_ranges(dtype):
    info = np.iinfo(dtype)
    least, most = int(info.min), int(info.max)
    key = random.key(5)
    whole = random.randint(key, (3000,), least, most + 1, dtype)
    assert whole.dtype == dtype
    span = float(most) - float(least)
    fraction = (np.asarray(whole, float) - least) / span
    assert stats.kstest(fraction, "uniform").pvalue > 1e-3
    some = np.asarray(random.randint(key, (7000,), 3, 10, dtype))
    assert stats.chisquare(np.bincount(some, minlength=10)[3:]).pvalue > 1e-3
    assert random.randint(key, (3,), 5, 5, dtype).tolist() == [5, 5, 5]
    assert random.randint(key, (3,), 7, 3, dtype).tolist() == [7, 7, 7]
    low = fnp.array([0, 10]).astype(dtype)
    assert [0, 10] <= random.randint(key, (2,), low, low + 1, dtype).tolist() <= [0, 10]


def test_randint_moves_limits_inside():
    key = random.key(0)
    wide = random.randint(key, (500,), -1000, fnp.array(1000), "int8")
    assert np.array_equal(wide, random.randint(key, (500,), -128, 128, "int8"))
    negative = random.randint(key, (500,), -5, 6, "uint8")
    assert np.asarray(negative).max() <= 5
    big = random.randint(key, (500,), 0, fnp.array(2**40, "int64"), "int32")
    assert np.array_equal(big, random.randint(key, (500,), 0, 2**31, "int32"))


def test_bernoulli_and_rademacher():
    p = fnp.array([0.0, 0.2, 1.0])
    mean = np.asarray(random.bernoulli(random.key(6), p, (N, 3))).mean(0)
    assert mean[0] == 0
    assert mean[2] == 1
    assert mean[1] == pytest.approx(0.2, abs=0.03)
    signs = np.asarray(random.rademacher(random.key(6), (N,), "int8"))
    assert signs.dtype == np.int8
    assert set(signs.tolist()) == {-1, 1}
    assert abs(signs.mean()) < 0.06


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_categorical(axis):
    p = np.array([[0.1, 0.6, 0.3], [0.0, 0.5, 0.5]])
    with np.errstate(divide="ignore"):
        logits = np.log(p if axis else p.T)
    drawn = np.asarray(random.categorical(random.key(7), logits, axis, shape=(N, 2)))
    for row, chances in enumerate(p):
        share = np.bincount(drawn[:, row], minlength=3) / N
        np.testing.assert_allclose(share, chances, atol=0.03)
    once = random.categorical(random.key(7), logits, axis, shape=(2, 2), replace=False)
    assert (np.asarray(once)[0] != np.asarray(once)[1]).all()


def test_categorical_broadcasts_logits():
    drawn = random.categorical(random.key(0), fnp.zeros((1, 3)), shape=(50, 4))
    assert drawn.shape == (50, 4)
    assert len({tuple(row) for row in drawn.T.tolist()}) == 4


def test_choice():
    a = np.arange(24).reshape(2, 6, 2)
    for replace in (True, False):
        drawn = np.asarray(random.choice(random.key(8), a, (2, 3), replace, axis=1))
        assert drawn.shape == (2, 2, 3, 2)
        index = drawn[0, ..., 0].ravel() // 2
        assert np.array_equal(drawn, a[:, index].reshape(2, 2, 3, 2))
        assert replace or len(set(index)) == 6
    p = np.array([0.5, 0.0, 0.2, 0.3])
    drawn = np.asarray(random.choice(random.key(8), 4, (N,), p=p))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / N, p, atol=0.03)
    assert random.choice(random.key(8), fnp.zeros(0), (0,)).shape == (0,)


def test_permutation():
    x = np.arange(3000)
    drawn = np.asarray(random.permutation(random.key(9), x))
    assert np.array_equal(np.sort(drawn), x)
    assert stats.kstest(drawn[:1000] / 3000, "uniform").pvalue > 1e-3
    rows = np.arange(12).reshape(4, 3)
    moved = np.asarray(random.permutation(random.key(9), rows))
    assert sorted(moved.tolist()) == rows.tolist()
    apart = np.asarray(random.permutation(random.key(9), rows, 1, independent=True))
    assert np.array_equal(np.sort(apart, 1), rows)
    first = fg.vmap(lambda k: random.permutation(k, 3)[0])(random.split(random.key(9), N))
    assert stats.chisquare(np.bincount(first)).pvalue > 1e-3


def test_vectors():
    mean, cov = np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 0.5]])
    for method in ("cholesky", "eigh", "svd"):
        x = random.multivariate_normal(random.key(10), mean, cov, (N,), method=method)
        assert x.dtype == np.float64
        np.testing.assert_allclose(np.mean(x, 0), mean, atol=0.1)
        np.testing.assert_allclose(np.cov(np.asarray(x).T), cov, atol=0.12)
    q = np.asarray(random.orthogonal(random.key(10), 4, (500,), "complex64", m=2))
    np.testing.assert_allclose(
        np.swapaxes(q.conj(), 1, 2) @ q, np.tile(np.eye(2), (500, 1, 1)), atol=1e-5
    )
    assert abs(q.mean()) < 0.05
    assert random.orthogonal(random.key(10), 2, m=3).shape == (2, 3)
    alpha = np.array([1.0, 2.0, 0.5])
    x = np.asarray(random.dirichlet(random.key(10), alpha, (N,)))
    np.testing.assert_allclose(x.sum(-1), 1, rtol=1e-5)
    assert stats.kstest(x[:, 1], stats.beta(2.0, 1.5).cdf).pvalue > 1e-3
    radius = np.linalg.norm(random.ball(random.key(10), 3, shape=(N,)), axis=-1)
    assert stats.kstest(radius**3, "uniform").pvalue > 1e-3
    counts = np.asarray(random.multinomial(random.key(10), 20, [0.2, 0.3, 0.5], shape=(500, 3)))
    assert (counts.sum(-1) == 20).all()
    np.testing.assert_allclose(counts.mean(0), [4, 6, 10], atol=0.4)
    m = np.asarray(random.double_sided_maxwell(random.key(10), 0.5, 2.0, (N,)))
    assert stats.kstest(np.abs(m - 0.5) / 2, "maxwell").pvalue > 1e-3
    assert np.mean(m > 0.5) == pytest.approx(0.5, abs=0.04)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_and_jit(name):
    keys = random.split(random.key(11), 5)
    draw = lambda k: sampler(name)(k, (3,))
    wanted = np.stack([draw(k) for k in keys])
    np.testing.assert_allclose(fg.vmap(draw)(keys), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fg.jit(fg.vmap(draw))(keys), wanted, rtol=1e-5, atol=1e-6)


def test_parameters_give_the_shape():
    key = random.key(0)
    assert random.gamma(key, fnp.ones((2, 3))).shape == (2, 3)
    assert random.beta(key, fnp.ones(3), fnp.ones((2, 1))).shape == (2, 3)
    assert random.poisson(key, fnp.ones(3), (2, 3)).shape == (2, 3)
    assert random.bernoulli(key, fnp.ones((2, 1))).shape == (2, 1)
    assert random.normal(key, 3).shape == (3,)
    assert random.normal(key, [2, 3]).shape == (2, 3)
    assert random.double_sided_maxwell(key, fnp.zeros(3), 1.0).shape == (3,)
    assert random.dirichlet(key, fnp.ones((2, 4))).shape == (2, 4)


def test_corners_of_discrete_laws():
    key = random.key(0)
    assert random.poisson(key, fnp.array([0.0, -1.0])).tolist() == [0, -1]
    drawn = np.asarray(
        random.binomial(
            key,
            fnp.array([5.0, 5.0, -1.0, 5.0, np.inf, 1e9]),
            fnp.array([0.0, 1.0, 0.5, np.nan, 0.5, 0.5]),
        )
    )
    np.testing.assert_array_equal(drawn[:5], [0, 5, np.nan, np.nan, np.inf])
    assert drawn[5] == pytest.approx(5e8, rel=1e-3)
    assert random.binomial(key, 10, 0.5, (4,), "float16").dtype == np.float16
    assert random.geometric(key, 1.0, (3,)).tolist() == [1, 1, 1]


def test_binomial_ends_whatever_it_is_given():
    """Each pair of numbers, at once, compiled and mapped: what is out of range gives NaN."""
    key = random.key(0)
    numbers = [0.0, 1.0, 0.5, 20.0, 1e30, np.inf, -1.0, -np.inf, np.nan]
    n, p = (x.ravel() for x in np.meshgrid(numbers, [*numbers, 1e-30, 1 - 2**-24]))
    draw = lambda n, p: random.binomial(key, n, p)
    bad = ~((n >= 0) & (p >= 0) & (p <= 1))
    for drawn in (draw(n, p), fg.jit(draw)(n, p), fg.vmap(draw)(n, p)):
        drawn = np.asarray(drawn)
        assert (np.isnan(drawn) == bad).all()
        assert (drawn[(p == 0) & ~bad] == 0).all()
        assert (drawn[(n == np.inf) & (p > 0) & ~bad] == np.inf).all()
        assert (drawn[p == 1] == np.floor(n).astype("f")[p == 1])[~bad[p == 1]].all()


def test_derivatives_of_transformed_draws():
    key = random.key(12)
    z = random.normal(key, (50,), "float64")
    slope = fg.grad(lambda s: fnp.sum(random.lognormal(key, s, (50,), "float64")))(0.3)
    assert float(slope) == pytest.approx(float(fnp.sum(z * fnp.exp(0.3 * z))), rel=1e-5)
    edge = fg.grad(lambda b: fnp.sum(random.uniform(key, (50,), "float64", 0.0, b)))(2.0)
    assert float(edge) == pytest.approx(float(fnp.sum(random.uniform(key, (50,)))), rel=0.3)


@pytest.mark.parametrize("a", [0.2, 1.0, 3.5])
def test_derivatives_of_gamma_draws(a):
    """d x/d a holds the distribution function of x fixed (implicit differentiation)."""
    key = random.key(13)
    x, slope = fg.jvp(
        lambda v: random.gamma(key, v, (20,), "float64"), (fnp.array(a, "float64"),), (1.0,)
    )
    x, h = np.asarray(x), 1e-5
    by_a = (stats.gamma.cdf(x, a + h) - stats.gamma.cdf(x, a - h)) / (2 * h)
    np.testing.assert_allclose(slope, -by_a / stats.gamma.pdf(x, a), rtol=1e-4)
    logs = fg.jvp(
        lambda v: random.loggamma(key, v, (20,), "float64"), (fnp.array(a, "float64"),), (1.0,)
    )[1]
    np.testing.assert_allclose(logs, np.asarray(slope) / x, rtol=1e-4)
    mean = fg.jit(fg.grad(lambda v: fnp.mean(random.gamma(key, v, (N,)))))(a)
    assert float(mean) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda k: random.normal(k, (2,), "int32"), errors.DTypeError, r"random\.normal: dtype"),
        (lambda k: random.randint(k, (2,), 0, 5, "float32"), errors.DTypeError, "integer"),
        (lambda k: random.randint(k, (2,), 0.5, 5), errors.DTypeError, "minval"),
        (lambda k: random.poisson(k, 1.0, (2,), "float32"), errors.DTypeError, "integer"),
        (lambda k: random.gamma(k, fnp.ones(3), (2,)), errors.ShapeError, r"\(2,\).* a \(3,\)"),
        (lambda k: random.categorical(k, fnp.zeros(3), shape=(5,), replace=False), ValueError,
         "5 of 3 categories"),
        (lambda k: random.categorical(k, fnp.zeros((2, 3)), shape=(5,)), errors.ShapeError,
         r"end with the shape \(2,\)"),
        (lambda k: random.categorical(k, 1.0), errors.ShapeError, "at least one axis"),
        (lambda k: random.choice(k, 3, (4,), replace=False), ValueError, "4 of 3"),
        (lambda k: random.choice(k, 0, (1,)), ValueError, "nothing to choose"),
        (lambda k: random.choice(k, 3, (1,), p=fnp.ones(2)), errors.ShapeError, r"shape \(3,\)"),
        (lambda k: random.permutation(k, fnp.array(1.0)), errors.ShapeError, "got a scalar"),
        (lambda k: random.multivariate_normal(k, fnp.zeros(2), fnp.eye(3)), errors.ShapeError,
         "don't fit"),
        (lambda k: random.multivariate_normal(k, fnp.zeros(2), fnp.eye(2), method="lu"), ValueError,
         "'lu'"),
    ],
)  # fmt: skip
def test_bad_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call(random.key(0))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_that_come_again(name):
    keys = [random.key(i) for i in range(2)] * 12
    draws = [sampler(name)(k, (3,)) for k in keys]
    for first, later in zip(draws, draws[2:], strict=False):
        np.testing.assert_array_equal(first, later)
    words = keys[0].data
    np.testing.assert_array_equal(sampler(name)(words, 3), draws[0])
    parameters = CONTINUOUS[name][0]
    if not parameters:
        np.testing.assert_array_equal(getattr(random, name)(key=words, shape=3), draws[0])
