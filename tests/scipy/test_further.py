"""Further special functions against SciPy and mpmath: values, special points, derivatives."""

import mpmath
import numpy as np
import pytest
from scipy import special as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import special

INF, NAN = np.inf, np.nan
RNG = np.random.default_rng(0)
REAL = np.concatenate([
    [-1e3, -70, -6.1, -3, -0.7, -1e-8, 1e-8, 1e-3, 0.5, 1.49, 1.51, 5.9, 6.1, 30, 59, 61, 1e8],
    RNG.uniform(-10, 10, 100),
])  # fmt: skip
COMPLEX = RNG.uniform(-10, 10, 500) + 1j * RNG.uniform(-10, 10, 500)
COMPLEX *= 10 ** RNG.uniform(-2, 1, 500)
# name: our function and SciPy's of one real argument, its points, and those without derivatives
UNARY = {
    "erfcx": (special.erfcx, sp.erfcx, REAL[REAL > -26], [0, INF, -INF, NAN]),
    "dawsn": (special.dawsn, sp.dawsn, REAL, [0, -0.0, INF, -INF, NAN]),
    "fresnel sine": (lambda x: special.fresnel(x)[0], lambda x: sp.fresnel(x)[0],
                     REAL[np.abs(REAL) < 1e4], [0, INF, -INF, NAN]),
    "fresnel cosine": (lambda x: special.fresnel(x)[1], lambda x: sp.fresnel(x)[1],
                       REAL[np.abs(REAL) < 1e4], [0, INF, -INF, NAN]),
    "sine integral": (lambda x: special.sici(x)[0], lambda x: sp.sici(x)[0], REAL,
                      [0, INF, -INF, NAN]),
    "cosine integral": (lambda x: special.sici(x)[1], lambda x: sp.sici(x)[1], REAL,
                        [0, INF, -INF, NAN]),
    "loggamma": (special.loggamma, sp.loggamma, REAL[REAL > 0], [0, INF, -1.5, NAN]),
    "boxcox": (lambda x: special.boxcox(x, 0.3), lambda x: sp.boxcox(x, 0.3), REAL[REAL > 0],
               [0, INF, -1, NAN]),
    "boxcox of 0": (lambda x: special.boxcox(x, 0), lambda x: sp.boxcox(x, 0), REAL[REAL > 0],
                    [0, INF, -1, NAN]),
    "boxcox1p": (lambda x: special.boxcox1p(x, 1e-9), lambda x: sp.boxcox1p(x, 1e-9),
                 REAL[REAL > 0], [0, -2, NAN]),
    "boxcox's exponent": (lambda x: special.boxcox(2.5, x), lambda x: sp.boxcox(2.5, x),
                          REAL[np.abs(REAL) < 100], [0, NAN]),
    "owens_t": (lambda x: special.owens_t(x, -0.7), lambda x: sp.owens_t(x, -0.7), REAL,
                [0, INF, -INF, NAN]),
    "owens_t's slope": (lambda x: special.owens_t(0.4, x), lambda x: sp.owens_t(0.4, x), REAL,
                        [0, NAN]),
    "hyp1f1": (lambda x: special.hyp1f1(0.7, 1.3, x), lambda x: sp.hyp1f1(0.7, 1.3, x),
               REAL[np.abs(REAL) < 500], [0, NAN]),
    "hyp2f1": (lambda x: special.hyp2f1(0.7, 1.3, 2.6, x), lambda x: sp.hyp2f1(0.7, 1.3, 2.6, x),
               np.concatenate([REAL[REAL < 0.9], [0.93]]), [0, 0.999, 1, NAN]),
    "comb": (lambda x: special.comb(x, 2.0), lambda x: sp.comb(x, 2.0), REAL[REAL > 3], [0, 1]),
    "bessel_jn": (lambda x: special.bessel_jn(x, v=3)[3], lambda x: sp.jv(3, x),
                  REAL[np.abs(REAL) < 20], [0]),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.sampled(6)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", UNARY)
def test_values(name, jit):
    ours, theirs, points, corners = UNARY[name]
    x = np.concatenate([points, np.array(corners, float)])
    got = (fg.jit(ours) if jit else ours)(x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, theirs(x), rtol=1e-11, atol=1e-15)
    narrow = x.astype(np.float32)
    assert ours(narrow).dtype == np.float32
    np.testing.assert_array_equal(fg.vmap(ours)(x), np.asarray(ours(x)))


def slope(f, x):
    h = 1e-4 * np.minimum(1, np.maximum(np.abs(x), 1e-3))
    f = [np.asarray(f(x + i * h), float) for i in (-2, -1, 1, 2)]
    return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", UNARY)
def test_derivatives(name):
    ours, _, points, _ = UNARY[name]
    x = points[(np.abs(points) > 1e-2) & (np.abs(points) < 12)]
    first = fg.vmap(fg.grad(ours))
    second = fg.vmap(fg.grad(fg.grad(ours)))
    for got, want in (
        (first(fnp.array(x)), slope(ours, x)), (second(fnp.array(x)), slope(first, x))
    ):  # fmt: skip
        scale = 1e-8 * np.max(np.abs(want))
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=min(scale, 1e-4) + 1e-9)


def test_derivatives_far_out():
    """There differences would cancel all digits."""
    x = np.array([59.0, 61.0, 1e4])
    for ours, reference in (
        (special.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x)),
        (special.dawsn, lambda x: mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(-x * x) * mpmath.erfi(x)),
    ):
        with mpmath.workdps(60):
            want = [float(mpmath.diff(reference, mpmath.mpf(v))) for v in x[:2]]
        np.testing.assert_allclose(fg.vmap(fg.grad(ours))(fnp.array(x[:2])), want, rtol=1e-8)


def test_complex_functions():
    z = COMPLEX[COMPLEX.imag**2 - COMPLEX.real**2 < 600]
    np.testing.assert_allclose(special.wofz(z), sp.wofz(z), rtol=1e-11)
    np.testing.assert_allclose(fg.jit(special.loggamma)(COMPLEX), sp.loggamma(COMPLEX), rtol=1e-11)
    assert special.wofz(np.complex64(1j)).dtype == np.complex64
    assert special.wofz(1.0).dtype == np.complex64
    near = COMPLEX[:20]
    h = 1e-6
    for ours in (special.wofz, special.loggamma):
        want = (np.asarray(ours(near + h)) - np.asarray(ours(near - h))) / (2 * h)
        _, got = fg.jvp(ours, (fnp.array(near),), (fnp.ones_like(near),))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_two_parameters():
    h, a = RNG.uniform(-10, 10, 300), RNG.uniform(-5, 5, 300) * 10 ** RNG.uniform(-2, 2, 300)
    np.testing.assert_allclose(special.owens_t(h, a), sp.owens_t(h, a), rtol=1e-11)
    n, k = np.meshgrid(np.arange(0.0, 40), np.arange(-1.0, 42))
    np.testing.assert_allclose(special.comb(n, k), sp.comb(n, k), rtol=1e-12)
    n, k = n[1:, 1:], k[1:, 1:]
    np.testing.assert_allclose(
        special.comb(n, k, repetition=True), sp.comb(n, k, repetition=True), rtol=1e-12
    )
    assert float(special.comb(1e9, 2.0)) == pytest.approx(1e9 * (1e9 - 1) / 2, rel=1e-6)


@pytest.mark.parametrize("count", [3, 4])
def test_hypergeometric_functions(count):
    rng = np.random.default_rng(count)
    args = [rng.uniform(-3, 4, 150) for _ in range(count - 2)] + [rng.uniform(0.1, 6, 150)]
    if count == 3:
        args.append(rng.uniform(-30, 30, 150) * 10 ** rng.uniform(-1, 1, 150))
        ours, reference = special.hyp1f1, mpmath.hyp1f1
    else:
        args.append(np.concatenate([rng.uniform(-1, 1, 100), -(10 ** rng.uniform(-1, 3, 50))]))
        ours, reference = special.hyp2f1, mpmath.hyp2f1
    want = [float(mpmath.re(reference(*map(float, a)))) for a in zip(*args, strict=True)]
    np.testing.assert_allclose(ours(*args), want, rtol=1e-10)
    # In the parameters, one after the other.
    point = [0.7, 1.3, 2.6, -0.4][: count - 1] + [-0.4]
    for i in range(count):

        def at(v, i=i):
            return ours(*(v if j == i else np.float64(p) for j, p in enumerate(point)))

        got = fg.jit(fg.grad(at))(np.float64(point[i]))
        np.testing.assert_allclose(got, slope(at, np.float64(point[i])), rtol=1e-7)


def test_hypergeometric_functions_at_special_points():
    args = [(-2, 3, 1.5, 7.0), (1, 2, 4, 1.0), (1, 2, 2, 1.0), (1, 1, 2, 0.95), (1, 2, -1, 0.3)]
    np.testing.assert_allclose(
        special.hyp2f1(*np.array(args).T), sp.hyp2f1(*np.array(args).T), rtol=1e-11
    )
    assert np.isnan(special.hyp2f1(1.0, 2.0, 3.0, 1.5))
    args = [(-2, 3, 50), (1, 2, -1e3), (2, 1, 600), (1, -1, 3), (0, 1, 3)]
    np.testing.assert_allclose(
        special.hyp1f1(*np.array(args).T), sp.hyp1f1(*np.array(args).T), rtol=1e-11
    )


def test_bernoulli_numbers():
    with fg.default_dtype("float64"):
        for n in (0, 1, 2, 60, 258):
            got = special.bernoulli(n)
            want = np.array([float(mpmath.bernoulli(k)) for k in range(n + 1)])
            want[1:2] = -0.5
            np.testing.assert_allclose(got, want, rtol=1e-13)


def test_bessel_functions_of_all_orders():
    z = np.array([0.0, 1e-3, 0.5, -4.0, 19.0])
    want = [sp.jv(k, z) for k in range(6)]
    np.testing.assert_allclose(special.bessel_jn(z, v=5), want, rtol=1e-11)


def test_spherical_harmonics():
    n, m = RNG.integers(0, 12, 200), RNG.integers(-12, 13, 200)
    theta, phi = RNG.uniform(0, np.pi, 200), RNG.uniform(0, 6, 200)
    want = sp.sph_harm_y(n, m, theta, phi)
    np.testing.assert_allclose(special.sph_harm_y(n, m, theta, phi), want, rtol=1e-11, atol=1e-14)
    got = fg.jit(lambda *a: special.sph_harm_y(*a, n_max=12))(n, m, theta, phi)
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-14)
    at = lambda t: special.sph_harm_y(3, 1, t, 0.0).real
    np.testing.assert_allclose(fg.grad(at)(np.float64(0.4)), slope(at, np.float64(0.4)), rtol=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: special.bernoulli(-1), "bernoulli: n must be 0 or more"),
        (lambda: special.bessel_jn(1.0, v=50), "0 ≤ v < n_iter, got 50 and 50"),
        (lambda: special.sph_harm_y(1.5, 0, 0.1, 0.1), "n must be integers"),
        (lambda: special.wofz("a"), "special.wofz: z"),
        (lambda: special.owens_t(1.0, 1j), "special.owens_t: a must be real"),
        (lambda: special.hyp2f1(1.0, np.ones(2), np.ones(3), 0.5), r"hyp2f1: .* b \(2,\)"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(fg.errors.FuncgradError, match=message):
        call()
