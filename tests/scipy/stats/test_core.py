"""Every distribution against SciPy over its support and beyond, its derivatives and inverses."""

import inspect
import warnings

import numpy as np
import pytest
from scipy import stats as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import stats
from funcgrad.scipy.stats.core import MOMENTS, OUTSIDE, QUANTILES, Distribution, derived

INF, NAN = np.inf, np.nan
# name: parameters, some of them at the edges
PARAMETERS = {
    **{key: [()] for key in
        ("cauchy", "expon", "gumbel_l", "gumbel_r", "halfcauchy", "halfnorm", "laplace", "levy",
         "logistic", "maxwell", "norm", "rayleigh", "uniform")},
    "bernoulli": [(0.0,), (0.3,), (1.0,)],
    "beta": [(0.3, 0.6), (1.0, 1.0), (2.0, 5.0), (0.5, 4.0), (300.0, 40.0)],
    "betabinom": [(0, 1.0, 2.0), (10, 0.4, 0.8), (50, 5.0, 2.0)],
    "binom": [(0, 0.4), (1, 0.5), (12, 0.0), (12, 0.3), (12, 1.0), (4000, 0.01)],
    "chi2": [(0.5,), (2.0,), (7.0,), (500.0,)],
    "f": [(1.0, 1.0), (3.0, 9.0), (40.0, 5.0), (8.0, 90.0)],
    "gamma": [(0.1,), (1.0,), (2.5,), (300.0,)],
    "gennorm": [(0.6,), (1.0,), (2.0,), (5.0,)],
    "geom": [(0.02,), (0.6,)],
    "hypergeom": [(20, 7, 12), (20, 0, 3), (5000, 900, 60)],
    "invgamma": [(0.4,), (1.0,), (3.0,), (50.0,)],
    "lognorm": [(0.2,), (1.0,), (3.0,)],
    "nbinom": [(0.5, 0.2), (4.0, 0.7), (30.0, 1.0)],
    "pareto": [(0.5,), (1.0,), (4.0,)],
    "poisson": [(0.0,), (0.1,), (5.0,), (700.0,)],
    "randint": [(-3, 9), (0, 1)],
    "t": [(0.7,), (1.0,), (3.5,), (400.0,), (INF,)],
    "truncnorm": [(-1.0, 2.0), (0.5, 3.0), (6.0, 9.0), (-9.0, -6.0), (-INF, 1.0), (3.0, INF)],
    "vonmises": [(0.01,), (1.0,), (30.0,)],
    "weibull_max": [(0.4,), (1.0,), (6.0,)],
    "weibull_min": [(0.4,), (1.0,), (6.0,)],
    "wrapcauchy": [(0.1,), (0.9,)],
    "zipf": [(1.6,), (3.0,)],
}  # fmt: skip
NAMES = [n for n in stats.__all__ if isinstance(getattr(stats, n), Distribution)]
CASES = [(n, p) for n in NAMES for p in PARAMETERS[n]]
CONTINUOUS = [(n, p) for n, p in CASES if not getattr(stats, n).discrete]
WHOLE = [(n, p) for n, p in CASES if getattr(stats, n).discrete]
EVERYWHERE = [-50.0, -5, -1, -0.3, 0.0, 0.2, 1.0, 1.7, 4.0, 8.0, 60.0, -INF, INF, NAN]
by_case = pytest.mark.parametrize(("name", "shapes"), CASES)


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def points(name, shapes):
    """In the middle, far out, at the ends, and where there is nothing."""
    theirs = getattr(sp, name)
    if getattr(stats, name).discrete:
        some = theirs.ppf([1e-6, 0.05, 0.3, 0.5, 0.8, 0.99], *shapes)
        return np.unique(np.concatenate([[-3, -1, 0, 1, 2, 3, 7, 12, 13, 40, 0.5, 1.5], some]))
    if name == "vonmises":
        return np.linspace(-3, 3, 9)
    inner = theirs.ppf([1e-4, 0.05, 0.3, 0.5, 0.7, 0.95, 0.9999], *shapes)
    return np.concatenate([inner, EVERYWHERE])


def inside(name, shapes):
    return getattr(sp, name).ppf([0.03, 0.2, 0.41, 0.6, 0.85, 0.97], *shapes)


@pytest.mark.sampled(12)
@by_case
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_values(name, shapes, jit):
    ours, theirs, x = getattr(stats, name), getattr(sp, name), points(name, shapes)
    for method in (m for m in OUTSIDE if hasattr(ours, m)):
        function = getattr(ours, method)
        function = fg.jit(function) if jit else function
        got, want = (
            np.asarray(function(x, *map(np.float64, shapes))),
            getattr(theirs, method)(x, *shapes),
        )
        # SciPy's densities are NaN at infinity, and its logarithms of 1 - tiny are 0.
        want = np.where(np.isinf(x) & np.isnan(want), got, want)
        atol = {"logpdf": 1e-11, "logpmf": 1e-11, "logcdf": 2e-12, "logsf": 2e-12}.get(method, 0)
        known = np.isfinite(want) | ~np.isfinite(got) | (want > 0)
        known |= np.abs(got) < 600  # beyond, SciPy's logarithms of tails underflow
        assert got.dtype == np.float64
        np.testing.assert_allclose(
            got[known], want[known], rtol=2e-9, atol=max(atol, 1e-300), err_msg=f"{method} at {x}"
        )


@pytest.mark.sampled(3)
@by_case
def test_values_in_float32(name, shapes):
    """The float64 function at the same points, an ulp of the point being part of the deal."""
    ours = getattr(stats, name)
    x = points(name, shapes).astype(np.float32)
    narrow = [np.float32(p) for p in shapes]
    wide = [np.float64(p) for p in narrow]
    beside = [np.nextafter(x, np.float32(d)).astype(float) for d in (-INF, INF)]
    for method in (m for m in OUTSIDE if hasattr(ours, m)):
        function = getattr(ours, method)
        got, want = np.asarray(function(x, *narrow)), np.asarray(function(x.astype(float), *wide))
        assert got.dtype == np.float32
        room = 2e-5 * np.abs(want) + (2e-5 if "log" in method else 1e-6 * ("f" in method))
        if not ours.discrete:
            for b in beside:
                room = room + 4 * np.nan_to_num(np.abs(np.asarray(function(b, *wide)) - want), 0)
        same = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= room)
        same |= np.abs(want) > 80
        assert same.all(), (method, x[~same], got[~same], want[~same])


@pytest.mark.sampled(12)
@by_case
def test_quantiles(name, shapes):
    ours = getattr(stats, name)
    if not hasattr(ours, "ppf"):
        pytest.skip("has none")
    q = np.array([1e-9, 1e-3, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999])
    for method, tail in (("ppf", "cdf"), ("isf", "sf")):
        x = getattr(ours, method)(q, *shapes)
        ends = np.asarray(getattr(ours, method)(np.array([0.0, 1.0, -0.1, 1.1, NAN]), *shapes))
        want = getattr(sp, name).ppf(np.array([0.0, 1.0]), *shapes)
        np.testing.assert_array_equal(ends[:2], want if method == "ppf" else want[::-1])
        assert np.isnan(ends[2:]).all()
        back = np.asarray(getattr(ours, tail)(x, *shapes))
        if ours.discrete:
            before = np.asarray(getattr(ours, tail)(np.asarray(x) - 1, *shapes))
            good = (back >= q) & (before < q) if tail == "cdf" else (back <= q) & (before > q)
            assert good.all(), (method, np.asarray(x))
        else:
            # An ulp of x moves what comes back.
            near = np.abs(np.asarray(getattr(ours, tail)(np.nextafter(x, INF), *shapes)) - back)
            assert (np.abs(back - q) <= 1e-11 * q + 8 * near + 4e-16).all(), (method, back, q)


@pytest.mark.sampled(12)
@by_case
def test_quantiles_in_float32(name, shapes):
    ours, q = getattr(stats, name), np.array([0.0, 0.1, 0.6, 0.9], np.float32)
    narrow = [np.float32(p) for p in shapes]
    for method in (m for m in QUANTILES if hasattr(ours, m)):
        got = getattr(ours, method)(q, *narrow)
        assert got.dtype == np.float32
        want = getattr(ours, method)(q.astype(float), *map(np.float64, narrow))
        if not ours.discrete:  # at a step, rounding decides
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-6)


@pytest.mark.sampled(3)
@by_case
def test_debugging_finds_no_nan(name, shapes):
    """Inside of the support no step of a computation is NaN."""
    ours, x = getattr(stats, name), inside(name, shapes)
    with fg.debug_nans(True):
        for method in (m for m in OUTSIDE if hasattr(ours, m)):
            assert not np.isnan(getattr(ours, method)(x, *shapes)).any()
        density = ours.logpmf if ours.discrete else ours.logpdf
        if not ours.discrete and INF not in np.abs(shapes):
            fg.grad(lambda x: fnp.sum(density(x, *shapes)))(fnp.array(x))


@by_case
def test_moments(name, shapes):
    with fg.default_dtype("float64"):
        for method in (m for m in (*MOMENTS, "std") if hasattr(getattr(stats, name), m)):
            got = np.asarray(getattr(getattr(stats, name), method)(*map(float, shapes)))
            want = getattr(getattr(sp, name), method)(*shapes)
            np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8, err_msg=method)


@pytest.mark.sampled(3)
@by_case
def test_location_and_scale(name, shapes):
    ours, theirs, x = getattr(stats, name), getattr(sp, name), inside(name, shapes)
    rest = {"loc": 3} if ours.discrete else {"loc": 3.0, "scale": 2.5}
    y = 3 + (x if ours.discrete else 2.5 * x)
    for method in (m for m in OUTSIDE if hasattr(ours, m)):
        want = getattr(theirs, method)(y, *shapes, **rest)
        np.testing.assert_allclose(
            getattr(ours, method)(y, *shapes, **rest), want, rtol=1e-8, atol=1e-11
        )
    for method in (m for m in QUANTILES if hasattr(ours, m)):
        want = getattr(theirs, method)([0.2, 0.7], *shapes, **rest)
        np.testing.assert_allclose(
            getattr(ours, method)(np.array([0.2, 0.7]), *shapes, **rest), want, rtol=1e-8
        )
    if not ours.discrete:
        assert np.isnan(ours.logpdf(y, *shapes, scale=np.array([0.0, -1.0])[:, None])).all()


def slope(f, x, most=INF):
    h = 1e-4 * np.minimum(np.maximum(np.abs(x), 1e-2), most)
    f = [np.asarray(f(x + i * h), float) for i in (-2, -1, 1, 2)]
    return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "shapes"), CONTINUOUS)
def test_derivatives(name, shapes):
    """Of first and second order in x, the tails' being the density; zero beyond the support."""
    ours, x = getattr(stats, name), inside(name, shapes)
    ends = getattr(sp, name).support(*shapes)
    room = np.minimum(np.abs(x - ends[0]), np.abs(x - ends[1]))
    if name == "laplace":
        x, room = x[np.abs(x) > 0.1], INF  # its peak is a corner
    for method in (m for m in ("logpdf", "cdf", "logsf", "sf") if hasattr(ours, m)):

        def at(x, method=method):
            return getattr(ours, method)(x, *shapes)

        first = fg.vmap(fg.grad(at))
        second = fg.vmap(fg.grad(fg.grad(at)))
        np.testing.assert_allclose(
            first(fnp.array(x)), slope(at, x, room), rtol=1e-6, atol=1e-8, err_msg=method
        )
        scale = 1e-7 + np.max(np.abs(slope(first, x, room))) * 1e-6
        np.testing.assert_allclose(
            second(fnp.array(x)), slope(first, x, room), rtol=1e-6, atol=scale, err_msg=method
        )
    if hasattr(ours, "cdf"):
        np.testing.assert_allclose(
            fg.vmap(fg.grad(lambda x: ours.cdf(x, *shapes)))(fnp.array(x)), ours.pdf(x, *shapes),
            rtol=1e-9,
        )  # fmt: skip
        for beyond in [e + s for e, s in zip(ends, (-1.0, 1.0), strict=True) if np.isfinite(e)]:
            for method in ("logpdf", "cdf", "logsf"):
                at = fg.grad(lambda x, method=method: getattr(ours, method)(x, *shapes))
                assert float(at(beyond)) == 0


# Whose distribution functions have no derivative in these parameters.
NO_DERIVATIVE = {"t": (0,), "f": (0, 1), "beta": (0, 1)}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "shapes"), [c for c in CONTINUOUS if c[1] and INF not in c[1]])
def test_derivatives_in_parameters(name, shapes):
    ours, x = getattr(stats, name), inside(name, shapes)
    if -INF in shapes:
        pytest.skip("at infinity there are none")
    methods = ["logpdf", *(["cdf", "logsf", "ppf"] if hasattr(ours, "cdf") else [])]
    for which in range(len(shapes)):
        for method in methods:
            if method != "logpdf" and which in NO_DERIVATIVE.get(name, ()):
                continue
            first = np.array([0.1, 0.4, 0.8]) if method == "ppf" else x

            def at(p, x, method=method, which=which):
                full = [*shapes[:which], p, *shapes[which + 1 :]]
                return getattr(ours, method)(x, *full)

            p = np.full(first.shape, shapes[which])
            got = fg.vmap(fg.grad(at))(fnp.array(p), fnp.array(first))
            ends = getattr(sp, name).support(*shapes)
            room = np.min(np.abs(x[:, None] - np.array(ends)))
            want = slope(lambda p, at=at, x=first: at(p, x), p, max(room, 1e-2))
            tol = 1e-6 * np.max(np.abs(want)) + 1e-8
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=tol, err_msg=method)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "shapes"), [("gamma", (2.5,)), ("beta", (2.0, 5.0)), ("t", (3.5,)), ("f", (3.0, 9.0))]
)
def test_derivatives_of_quantiles(name, shapes):
    """Those of an inverse: 1/pdf, and in turn its derivative; each under jit, too."""
    ours, q = getattr(stats, name), np.array([0.05, 0.4, 0.9])
    first = fg.vmap(fg.grad(lambda q: ours.ppf(q, *shapes)))
    density = ours.pdf(ours.ppf(q, *shapes), *shapes)
    np.testing.assert_allclose(first(fnp.array(q)), 1 / np.asarray(density), rtol=1e-9)
    second = fg.jit(fg.vmap(fg.grad(fg.grad(lambda q: ours.ppf(q, *shapes)))))
    np.testing.assert_allclose(second(fnp.array(q)), slope(first, q), rtol=1e-5)


@pytest.mark.parametrize(("name", "shapes"), WHOLE)
def test_probabilities_sum_to_one(name, shapes):
    ours = getattr(stats, name)
    if name == "zipf":
        pytest.skip("its tail is too long")
    k = np.arange(-5.0, 6000.0)
    p = np.asarray(ours.pmf(k, *shapes))
    np.testing.assert_allclose(p.sum(), 1, rtol=1e-9)
    if hasattr(ours, "cdf"):
        np.testing.assert_allclose(np.cumsum(p), ours.cdf(k, *shapes), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "want"),
    [
        (lambda: stats.norm.logcdf(-40.0), -804.608442),
        (lambda: stats.norm.logsf(40.0), -804.608442),
        (lambda: stats.norm.isf(1e-30), 11.464025),
        (lambda: stats.cauchy.sf(1e20), 3.1830989e-21),
        (lambda: stats.gumbel_r.sf(40.0), 4.248354e-18),
        (lambda: stats.truncnorm.logsf(29.0, 20.0, 30.0), -220.8702),
        (lambda: stats.poisson.logpmf(1e9, 1e9), -11.280571),
        (lambda: stats.binom.logpmf(5e6, 1e7, 0.5), -8.284839),
        (lambda: stats.beta.logpdf(0.5, 1e6, 1e6), 7.028537),
        (lambda: stats.t.logpdf(1.0, 1e12), -1.4189385),
    ],
)  # fmt: skip
def test_digits_are_kept_in_tails_and_for_large_parameters(call, want):
    np.testing.assert_allclose(call(), want, rtol=2e-6)


@pytest.mark.sampled(3)
@by_case
def test_vmap_and_broadcasting(name, shapes):
    ours = getattr(stats, name)
    method = ours.logpmf if ours.discrete else ours.logpdf
    x = np.asarray(inside(name, shapes), float).reshape(2, 3)
    np.testing.assert_array_equal(
        fg.vmap(lambda x: method(x, *shapes))(x), np.asarray(method(x, *shapes))
    )
    columns = [np.full((2, 1), p, float) for p in shapes]
    np.testing.assert_allclose(method(x, *columns), method(x, *shapes), rtol=1e-12, atol=1e-12)


def test_parameters_that_are_none_give_nan():
    for got in (
        stats.gamma.pdf(1.0, -1.0), stats.gamma.ppf(0.5, 0.0), stats.beta.cdf(0.5, 1.0, -2.0),
        stats.binom.pmf(1, 3, 1.5), stats.binom.pmf(1, 2.5, 0.5), stats.zipf.pmf(1, 1.0),
        stats.t.logpdf(0.0, NAN), stats.norm.pdf(0.0, scale=-1.0), stats.poisson.ppf(0.5, -1.0),
        stats.truncnorm.cdf(0.0, 2.0, 1.0), stats.hypergeom.pmf(1, 3, 4, 2),
        stats.gamma.mean(-1.0), stats.norm.ppf(0.5, scale=0.0),
    ):  # fmt: skip
        assert np.isnan(got)


def test_integers_and_dtypes():
    assert stats.norm.logpdf(np.array([1, 2])).dtype == np.float32
    assert stats.poisson.pmf(3, 2).dtype == np.float32
    assert stats.norm.pdf(np.float64(1), np.float32(0)).dtype == np.float64
    assert stats.norm.pdf(fnp.array([0.5], "bfloat16")).dtype == fnp.bfloat16
    with fg.default_dtype("float64"):
        assert stats.gamma.cdf(1, 2).dtype == np.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.norm.logpdf(), r"stats\.norm\.logpdf: .*'x'.* need norm\.logpdf\(x, loc"),
        (lambda: stats.gamma.cdf(1.0), r"stats\.gamma\.cdf: .*'a'"),
        (lambda: stats.gamma.cdf(1.0, 2.0, shape=1.0), r"stats\.gamma\.cdf: .*'shape'"),
        (lambda: stats.poisson.pmf(1, 2.0, scale=2.0), r"stats\.poisson\.pmf: .*'scale'"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize("nonsense", [None, "a", 10**30, object(), {}, 1j])
@pytest.mark.parametrize("method", ["logpdf", "cdf", "ppf"])
def test_nonsense_is_named(method, nonsense):
    for i, name in enumerate(["q" if method == "ppf" else "x", "a", "loc", "scale"]):
        args = [0.5, 2.0, 0.0, 1.0]
        args[i] = nonsense
        with pytest.raises(fg.errors.FuncgradError, match=rf"stats\.gamma\.{method}: {name}"):
            getattr(stats.gamma, method)(*args)
    with pytest.raises(fg.errors.ShapeError, match=r"broadcast: . \(2,\), a \(3,\)"):
        getattr(stats.gamma, method)(np.ones(2), np.ones(3))


def test_what_a_distribution_lacks():
    with pytest.raises(AttributeError, match=r"stats\.vonmises has no 'cdf': it has .*'logpdf'"):
        _ = stats.vonmises.cdf
    assert repr(stats.norm) == "stats.norm"
    assert "logcdf" in dir(stats.norm)
    signature = inspect.signature(stats.beta.logpdf)
    assert str(signature) == "(x, a, b, loc=0, scale=1)"
    assert stats.beta.logpdf.__doc__
    assert "logcdf" in derived({"sf": lambda x: x})
