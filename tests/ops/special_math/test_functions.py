"""The special functions against mpmath in 40 digits, and against what they may be written with."""

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import special as scipy_special

from funcgrad.ops.special_math import functions
from funcgrad.ops.special_math.base import while_
from tests.ops.special_math.accuracy import (
    F32,
    F64,
    INF,
    NAN,
    Row,
    above_one,
    around,
    beta_triples,
    check_accuracy,
    gamma_pairs,
    magnitudes,
    one_minus,
    run,
    uniform,
)


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"), mpmath.workdps(40):
        yield


# ---- references


def ndtr_reference(x):
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def log_ndtr_reference(x):
    return mpmath.log1p(-ndtr_reference(-x)) if x > 0 else mpmath.log(ndtr_reference(x))


def erf_inv_reference(x):
    """Newton's method from scipy's value, on erf or where that is near 1 on erfc."""
    z = mpf(scipy_special.erfinv(float(abs(x))))
    for _ in range(3):
        excess = mpmath.erf(z) - abs(x) if z < 1 else 1 - abs(x) - mpmath.erfc(z)
        z -= excess * mpmath.exp(z * z) * mpmath.sqrt(mpmath.pi) / 2
    return z * mpmath.sign(x)


def ndtri_reference(p):
    """Newton's method on log ndtr from scipy's value."""
    q = min(p, 1 - p)
    z = mpf(scipy_special.ndtri(float(q)))
    for _ in range(4):
        density = mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi)
        z -= mpmath.log(ndtr_reference(z) / q) * ndtr_reference(z) / density
    return z if p < 0.5 else -z


def zeta_reference(s, q):
    """Euler and Maclaurin's sum far out; mpmath's own loses small values."""
    if q < 0:
        whole = int(mpmath.floor(q))
        head = mpmath.fsum((q + k) ** -int(s) for k in range(-whole))
        return zeta_reference(s, q - whole) + head
    w, rising = q + 40, s
    total = mpmath.fsum((q + k) ** -s for k in range(40)) + w ** (1 - s) / (s - 1) + w**-s / 2
    for j in range(1, 25):
        total += mpmath.bernoulli(2 * j) / mpmath.factorial(2 * j) * rising * w ** (1 - s - 2 * j)
        rising *= (s + 2 * j - 1) * (s + 2 * j)
    return total


def lower(a, x):
    return mpmath.gammainc(a, 0, x, regularized=True)


def upper(a, x):
    return mpmath.gammainc(a, x, mpmath.inf, regularized=True)


def igamma_grad_a_reference(a, x):
    """A difference quotient in 80 digits, of the smaller tail."""
    with mpmath.workdps(80):
        h = mpf(10) ** -25 * a
        if x < a:
            return (lower(a + h, x) - lower(a - h, x)) / (2 * h)
        return (upper(a - h, x) - upper(a + h, x)) / (2 * h)


def random_gamma_grad_reference(a, x):
    density = x ** (a - 1) * mpmath.exp(-x) / mpmath.gamma(a)
    return -igamma_grad_a_reference(a, x) / density


def betainc_reference(a, b, x):
    """By powers of x, or as an integral over the logit; mpmath's own doesn't end everywhere."""
    with mpmath.workdps(25 + int(abs(mpmath.log10(a)) + abs(mpmath.log10(b)))):
        if x * (a + b + 2) > a + 1:
            return 1 - _left_of_the_mean(b, a, 1 - x, x)
        return _left_of_the_mean(a, b, x, 1 - x)


def _left_of_the_mean(a, b, x, y):
    log_beta = mpmath.loggamma(a + 1) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
    power = mpmath.exp(a * mpmath.log(x) + b * mpmath.log(y) - log_beta)
    if a < 3:
        term, total, n = mpf(1), mpf(1), 0
        while term > total * mpf(10) ** -mpmath.mp.dps:
            term, n = term * (a + b + n) / (a + 1 + n) * x, n + 1
            total += term
        return power * total
    scale = 1 / (mpmath.sqrt((a + b) * x * y) + max(a * y - b * x, 0))

    def integrand(w):
        u = w * scale
        return mpmath.exp(-a * u - (a + b) * mpmath.log1p(x * mpmath.expm1(-u)))

    return power * a * scale * mpmath.quad(integrand, [0, 4, 16, 64], maxdegree=5)


def betainc_conditioning(a, b, x):
    """How the value moves with x and with 1 - x, relatively."""
    log_beta = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
    power = mpmath.exp((a - 1) * mpmath.log(x) + (b - 1) * mpmath.log1p(-x) - log_beta)
    return max(x, 1 - x) * power


def spence_reference(x):
    if x > 1.5:
        return -(mpmath.log(x) ** 2) / 2 - spence_reference(1 / x)
    return mpmath.polylog(2, 1 - x).real


def polygamma_reference(n, x):
    return (-1) ** (int(n) + 1) * mpmath.factorial(n) * zeta_reference(n + 1, x)


# ---- accuracy: a row a function


def near_negative_axis(x):
    """What lgamma's and digamma's terms are as large as, left of zero."""
    return float(max(1, abs(mpmath.loggamma(-x)))) if x < 0 else 0.0


ROWS = [
    Row("erf", mpmath.erf, (uniform(-6, 6), uniform(-1, 1), magnitudes(-320, 0)), 4, 4),
    Row("erfc", mpmath.erfc, (uniform(-6, 10), uniform(0, 27), magnitudes(-320, 1)), 1, 8),
    Row("erf_inv", erf_inv_reference, (uniform(-1, 1), one_minus, magnitudes(-300, 0)), 5, 6),
    Row("ndtr", ndtr_reference, (uniform(-8, 8), uniform(-38, 0), uniform(-14, 0)), 1, 8),
    Row("log_ndtr", log_ndtr_reference, (uniform(-8, 8), uniform(-30, 30)), 1, 14),
    Row("ndtri", ndtri_reference, (uniform(0, 1), one_minus, magnitudes(-320, 0)), 1, 8),
    Row("lgamma", mpmath.loggamma, (uniform(0, 4), around(1, 2, 3, width=1e-3),
        magnitudes(-300, 300), uniform(3, 100)), 1, 6),
    Row("lgamma", lambda x: mpmath.loggamma(x).real, (uniform(-5, 0), uniform(-100, 0),
        magnitudes(-300, 0, sign=-1)), 2, 6, near_negative_axis),
    Row("digamma", mpmath.digamma, (uniform(0, 4), around(1.46163, width=1e-3),
        magnitudes(-300, 300)), 1, 5),
    Row("digamma", mpmath.digamma, (uniform(-5, 0), uniform(-100, 0)), 2, 6, near_negative_axis),
    Row("zeta", zeta_reference, ((above_one, magnitudes(-3, 4)), (above_one, magnitudes(-3, 300))),
        1, 16),
    Row("polygamma", polygamma_reference, ((lambda rng, _: rng.integers(1, 9, 100),
        magnitudes(-1, 4)),), 1, 8),
    Row("polygamma", polygamma_reference, ((lambda rng, _: rng.integers(1, 2000, 100),
        magnitudes(0, 4)),), 1, 8, lambda n, x: (n + 1) * abs(polygamma_reference(n, x))),
    *(
        Row(name, reference, (gamma_pairs(-6, 1.3, 3), gamma_pairs(0, 3, 8), gamma_pairs(5, 5, 2),
            (magnitudes(-3, 0, 40), magnitudes(-5, 1, 40))), 1, 120)
        for name, reference in [("igamma", lower), ("igammac", upper)]
    ),
    *(
        Row(name, reference, (gamma_pairs(-4, 1.3, 3, 15), gamma_pairs(1.3, 3, 4, 15),
            (magnitudes(-3, 0, 15), magnitudes(-5, 1, 15))), 1, 60)
        for name, reference in [("igamma_grad_a", igamma_grad_a_reference),
                                ("random_gamma_grad", random_gamma_grad_reference)]
    ),
    Row("betainc", betainc_reference, ((magnitudes(-2, 2.5), magnitudes(-2, 2.5),
        uniform(0, 1, 100)), (uniform(1, 50), uniform(1, 50), uniform(0, 0.5))), 1, 200),
    Row("betainc", betainc_reference, ((magnitudes(-300, 0), magnitudes(-300, 10),
        uniform(0, 1, 100)), (magnitudes(0, 10), magnitudes(-300, 0), one_minus)), 1, 16,
        betainc_conditioning),
    Row("betainc", betainc_reference, (beta_triples(-3, 3), beta_triples(-3, 10),
        beta_triples(4, 12)), 1, 20, betainc_conditioning),
    *(
        Row(name, lambda x, n=order: mpmath.besseli(n, x) * mpmath.exp(-abs(x)),
            (uniform(-25, 25), magnitudes(-300, 300), uniform(-80, 80)), 6, 8)
        for name, order in [("bessel_i0e", 0), ("bessel_i1e", 1)]
    ),
    Row("xlogy", lambda x, y: x * mpmath.log(y), ((uniform(-9, 9), uniform(0, 4)),), 5, 4),
    Row("xlog1py", lambda x, y: x * mpmath.log1p(y), ((uniform(-9, 9), uniform(-0.9, 4)),), 5, 4),
    Row("entr", lambda x: -x * mpmath.log(x), (uniform(0, 4), magnitudes(-300, 30)), 5, 4),
    Row("logit", lambda p: mpmath.log(p / (1 - p)), (uniform(0, 1), one_minus, magnitudes(-320, -1),
        around(0.5, width=1e-4)), 6, 4),
    Row("spence", spence_reference, (uniform(0, 4), magnitudes(-300, 300),
        around(0.5, 1, 2, width=1e-5)), 1, 14),
    Row("exp1", mpmath.e1, (uniform(0, 3), magnitudes(-300, 1.9)), 1, 10),
    Row("expi", mpmath.ei, (uniform(-3, 30), magnitudes(-300, 1.9)), 1, 8, lambda x: 0.1),
    Row("expn", lambda n, x: mpmath.expint(n, x).real, ((lambda rng, _: rng.integers(0, 30, 100),
        magnitudes(-3, 1.5)),), 1, 50),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_accuracy(row, dtype):
    check_accuracy(row, dtype)


# ---- special values, and all bit patterns

VALUES = {
    "erf": ([-INF, -0.0, INF, NAN], [-1, -0.0, 1, NAN]),
    "erfc": ([-INF, 0, INF, NAN, 1e30], [2, 1, 0, NAN, 0]),
    "erf_inv": ([-1, -0.0, 1, 1.5, -INF, NAN], [-INF, -0.0, INF, NAN, NAN, NAN]),
    "ndtr": ([-INF, 0, INF, NAN], [0, 0.5, 1, NAN]),
    "log_ndtr": ([-INF, INF, NAN], [-INF, -0.0, NAN]),
    "ndtri": ([0, 0.5, 1, -0.1, 1.1, NAN], [-INF, 0, INF, NAN, NAN, NAN]),
    "lgamma": ([0, -0.0, -1, -2, 1, 2, INF, -INF, NAN], [INF, INF, INF, INF, 0, 0, INF, INF, NAN]),
    "digamma": ([0, -0.0, -1, -2, INF, -INF, NAN], [-INF, INF, NAN, NAN, INF, NAN, NAN]),
    "gammasgn": ([0, -0.0, 2, -0.5, -1.5, -1, INF, -INF, NAN], [1, -1, 1, -1, 1, NAN, 1, NAN, NAN]),
    "zeta": (
        [2, 3, 3, 2, 3, 1, 0.5, 2.5, 2, INF, NAN, 2],
        [0, 0, -0.0, -1, -1, 2, 2, -0.5, INF, 2, 1, NAN],
        [INF, INF, -INF, INF, NAN, INF, NAN, NAN, 0, 0, NAN, NAN],
    ),
    "polygamma": (
        [1, 2, 0, 1, -1, 1.5, 1, NAN, 1],
        [0, -1, -1, INF, 1, 1, -1, 1, NAN],
        [INF, NAN, NAN, 0, NAN, NAN, INF, NAN, NAN],
    ),
    "igamma": (
        [0, 0, 0, 1, 1, 1, -1, INF, INF, NAN, 1],
        [0, 1, INF, 0, INF, -1, 1, 1, INF, 1, NAN],
        [NAN, 1, 1, 0, 1, NAN, NAN, 0, NAN, NAN, NAN],
    ),
    "igammac": (
        [0, 0, 0, 1, 1, 1, -1, INF, INF, NAN, 1],
        [0, 1, INF, 0, INF, -1, 1, 1, INF, 1, NAN],
        [NAN, 0, 0, 1, 0, NAN, NAN, 1, NAN, NAN, NAN],
    ),
    "igamma_grad_a": (
        [0, 1, 1, 1, -1, INF, NAN, 1],
        [1, 0, INF, -1, 1, 1, 1, NAN],
        [NAN, 0, 0, NAN, NAN, NAN, NAN, NAN],
    ),
    "random_gamma_grad": (
        [0, 1, 1, 1, -1, INF, NAN, 1, 1e20],
        [1, 0, INF, -1, 1, 1, 1, NAN, 1e20],
        [NAN, 0, NAN, NAN, NAN, NAN, NAN, NAN, 1],
    ),
    "betainc": (
        [1, 1, 0, 0, 0, 1, 1, INF, INF, 1, 1, -1, NAN, 1],
        [1, 1, 1, 0, 1, 0, INF, 1, INF, 1, 1, 1, 1, 1],
        [0, 1, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5, -0.5, 1.5, 0.5, 0.5, NAN],
        [0, 1, 1, NAN, 0, 0, 1, 0, NAN, NAN, NAN, NAN, NAN, NAN],
    ),
    "log_poisson": (
        [0, 0, 2, 0, INF, -1, 1, NAN, 1],
        [0, 2, 0, INF, 1, 1, -1, 1, NAN],
        [0, -2, -INF, -INF, -INF, NAN, NAN, NAN, NAN],
    ),
    "log_binomial": (
        [0, 0, 0, 1, 0, 1, 0, 1, -1, 1, 1, 1, NAN, 1],
        [0, 0, 1, 0, 1, 0, 1, 0, 1, -1, 1, 1, 1, 1],
        [0, 1, 0, 1, 1, 0, 0.5, 0.5, 0.5, 0.5, -0.5, 1.5, 0.5, NAN],
        [0, 0, 0, 0, -INF, -INF, *[np.log(0.5)] * 2, NAN, NAN, NAN, NAN, NAN, NAN],
    ),
    "log_beta": (
        [1, 0, 0, INF, 1, -1, NAN, 1],
        [1, 1, 0, 1, INF, 1, 1, NAN],
        [0, INF, INF, -INF, -INF, NAN, NAN, NAN],
    ),
    "bessel_i0e": ([0, -0.0, INF, -INF, NAN], [1, 1, 0, 0, NAN]),
    "bessel_i1e": ([0, -0.0, INF, -INF, NAN], [0, -0.0, 0, -0.0, NAN]),
    "bessel_j0": ([0, -0.0, INF, -INF, NAN], [1, 1, 0, 0, NAN]),
    "bessel_j1": ([0, -0.0, INF, -INF, NAN], [0, -0.0, 0, -0.0, NAN]),
    "bessel_y0": ([0, -0.0, -1, INF, NAN], [-INF, -INF, NAN, 0, NAN]),
    "bessel_y1": ([0, -0.0, -1, INF, NAN], [-INF, -INF, NAN, 0, NAN]),
    "bessel_jn": (
        [0, 1, 2, -3, 3, 0.5, -0.5, -1.5, 0.5, 901, NAN, INF, 1],
        [0, 0, INF, 0, 0, 0, 0, 0, -1, 1, 1, 1, NAN],
        [1, 0, 0, -0.0, 0, 0, INF, -INF, NAN, NAN, NAN, NAN, NAN],
    ),
    "bessel_yn": (
        [0, 1, 2, -3, 3, 0.5, -0.5, 901, NAN, INF, 1],
        [0, 0, INF, 0, -1, 0, 0, 1, 1, 1, NAN],
        [-INF, -INF, 0, INF, NAN, -INF, 0, NAN, NAN, NAN, NAN],
    ),
    "bessel_ive": (
        [0, 1, 2.5, -0.5, -1.5, 0.5, 1, NAN, INF, 1],
        [0, 0, 0, 0, 0, -1, INF, 1, 1, NAN],
        [1, 0, 0, INF, -INF, NAN, 0, NAN, 0, NAN],
    ),
    "bessel_kve": (
        [0, 1, -2.5, 45, 0.5, 1, NAN, INF, 1],
        [0, 0, 0, 0, -1, INF, 1, 1, NAN],
        [INF, INF, INF, INF, NAN, 0, NAN, INF, NAN],
    ),
    "xlogy": (
        [0, 0, 0, 0, 1, -1, NAN, 2],
        [0, -1, INF, NAN, 0, 0, 1, -1],
        [0, 0, 0, NAN, -INF, INF, NAN, NAN],
    ),
    "xlog1py": (
        [0, 0, 0, 0, 1, -1, NAN, 2],
        [-1, -2, INF, NAN, -1, -1, 1, -2],
        [0, 0, 0, NAN, -INF, INF, NAN, NAN],
    ),
    "entr": ([0, 1, -1, INF, -INF, NAN], [0, 0, -INF, -INF, -INF, NAN]),
    "logit": ([0, 0.5, 1, -0.1, 1.1, NAN], [-INF, 0, INF, NAN, NAN, NAN]),
    "spence": ([1, INF, -1, NAN], [0, -INF, NAN, NAN]),
    "exp1": ([0, INF, -1, NAN], [INF, 0, NAN, NAN]),
    "expi": ([0, INF, -INF, NAN], [-INF, INF, -0.0, NAN]),
    "expn": (
        [0, 1, 2, 3, 2, -1, 1.5, 1, NAN],
        [0, 0, 0, 0, INF, 1, 1, -1, 1],
        [INF, INF, 1, 0.5, 0, NAN, NAN, NAN, NAN],
    ),
}


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", VALUES)
def test_special_values(name, dtype):
    *args, want = VALUES[name]
    got = run(name, *args, dtype=dtype)
    np.testing.assert_array_equal(got, np.asarray(want, dtype))
    signed = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got)[signed], np.signbit(want)[signed])


# Where scipy and this library differ on purpose, or scipy loses digits.
SCIPY_NAMES = {"erf_inv": "erfinv", "lgamma": "gammaln", "digamma": "psi", "bessel_i0e": "i0e"}


PATTERNS = (
    "erf", "erfc", "erf_inv", "ndtr", "log_ndtr", "ndtri", "lgamma", "digamma", "gammasgn",
    "bessel_i0e", "logit", "entr",
)  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_random_bit_patterns(name):
    """All exponents, denormals, infinities and NaN among them, against scipy in float64."""
    bits = np.random.default_rng(3).integers(0, 2**32, 20000, dtype=np.uint32)
    x = bits.view(F32)
    x = x[(x != -INF) | (name != "lgamma")]
    got = run(name, x, dtype=F32)
    want = getattr(scipy_special, SCIPY_NAMES.get(name, name))(x.astype(F64)).astype(F32)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-45)


@pytest.mark.parametrize("name", functions.__all__)
def test_shapes(name):
    """Empty arrays, scalars, and scalars beside arrays."""
    *args, _ = VALUES[name]
    assert run(name, *(np.zeros((0, 3)) for _ in args)).shape == (0, 3)
    assert run(name, *(0.25 for _ in args)).shape == ()
    first, *rest = (np.asarray(a, F64) for a in args)
    got = run(name, first, *(r[0] for r in rest))
    np.testing.assert_array_equal(got, run(name, first, *(np.full_like(first, r[0]) for r in rest)))


# ---- all iterations end

EDGES = (5e-324, 2e-308, 1e-38, 1e-16, 0.1, 0.5, 1 - 2**-53, 1, 1 + 2**-52, 2.5, 20, 1e3, 2e4, 1e16,
         1e38, 1e300, 1.7e308, INF)  # fmt: skip


class Counted:
    """numpy, whose loops fail after more turns than a special function may take."""

    def __getattr__(self, name):
        return getattr(np, name)

    def while_loop(self, cond, body, init):
        turns = 0

        def unfinished(carry):
            nonlocal turns
            turns += 1
            assert turns <= 1001
            return cond(carry)

        return while_(np, unfinished, body, init)


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", functions.__all__)
def test_ends_everywhere(name, dtype):
    """Also outside of its domain: the compiled loops can't be interrupted."""
    *args, _ = VALUES[name]
    edges = np.unique(np.concatenate([EDGES, np.negative(EDGES), [0, NAN]]).astype(dtype))
    grid = np.meshgrid(*[edges] * len(args))
    y = getattr(functions, name)(Counted(), *grid)
    assert y.dtype == dtype
    unknown = np.any([np.isnan(x) for x in grid], axis=0)
    assert np.isnan(y[unknown]).all()


# ---- a special function is a scalar program


class Scalars:
    """A namespace with nothing beside what a compiler of scalar programs offers."""

    allowed = (
        "abs", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "arctan",
        "floor", "rint", "trunc", "minimum", "maximum", "power", "sign", "isnan", "isinf",
        "signbit", "copysign", "where",
    )  # fmt: skip

    def __getattr__(self, name):
        if name not in self.allowed:
            raise AttributeError(f"{name} is no operation of scalar programs")
        return lambda *args: Scalar(getattr(np, name)(*map(unwrap, args)))

    def astype(self, x, dtype):
        return x.astype(dtype)

    def while_loop(self, cond, body, init):
        assert all(isinstance(c, Scalar) for c in init), "the carry of a loop needs a dtype"
        carry = tuple(init)
        dtypes = [c.dtype for c in carry]
        active = unwrap(cond(carry))
        while active.any():
            new = body(carry)
            assert [n.dtype for n in new] == dtypes
            pairs = zip(new, carry, strict=True)
            carry = tuple(Scalar(np.where(active, n.value, c.value)) for n, c in pairs)
            active = unwrap(cond(carry))
        return carry

    def fori_loop(self, n, body, init):
        assert all(isinstance(c, Scalar) for c in init), "the carry of a loop needs a dtype"
        carry = tuple(init)
        dtypes = [c.dtype for c in carry]
        for _ in range(n):
            carry = tuple(body(None, carry))
            assert [c.dtype for c in carry] == dtypes
        return carry


class Scalar:
    """A value that has operators and a dtype, and neither a truth value nor items."""

    def __init__(self, value):
        self.value = np.asarray(value)

    dtype = property(lambda self: self.value.dtype)

    def astype(self, dtype):
        return Scalar(self.value.astype(dtype))

    def __bool__(self):
        raise TypeError("a scalar program branched on a value")

    __array__ = __getitem__ = __iter__ = None
    __hash__ = None


def unwrap(x):
    return x.value if isinstance(x, Scalar) else x


def _operator(name):
    def method(self, *other):
        return Scalar(getattr(self.value, name)(*map(unwrap, other)))

    return method


OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "neg", "lt", "le", "gt",
    "ge", "eq", "ne", "and", "or", "invert",
)  # fmt: skip
for _name in OPERATORS:
    setattr(Scalar, f"__{_name}__", _operator(f"__{_name}__"))


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", functions.__all__)
def test_is_a_scalar_program(name, dtype):
    *args, _ = VALUES[name]
    args = [np.asarray(a, dtype) for a in args]
    got = getattr(functions, name)(Scalars(), *map(Scalar, args))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.value, run(name, *args, dtype=dtype))
