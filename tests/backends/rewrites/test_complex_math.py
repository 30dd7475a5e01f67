"""Functions of complex numbers by their parts, against NumPy's: accuracy and special values."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp

FUNCTIONS = (
    "abs", "exp", "log", "sqrt", "sin", "cos", "sinh", "cosh", "tan", "tanh", "log1p", "expm1",
    "sign", "square", "reciprocal",
)  # fmt: skip
DTYPES = (np.complex64, np.complex128)


def special(dtype):
    """Every pair of values at which something overflows, is lost or has a sign."""
    info = np.finfo(dtype)
    sizes = [
        0, 0.5, 1, 2.5, 1e-3, np.inf, np.nan, info.max, info.max / 4, info.tiny, info.tiny * 4,
        info.smallest_subnormal, 90, 100, 750, 1e10, 1e-20, np.pi, 3e4,
        np.sqrt(info.max), np.sqrt(info.tiny),
    ]  # fmt: skip
    parts = [s * x for x in sizes for s in (1, -1)]
    return np.array([complex(a, b) for a in parts for b in parts]).astype(dtype)


def spread(dtype):
    """Numbers of all sizes, and some near 1."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.integers(-8, 3, (2, 5000))
    wide = rng.normal(size=(2, 5000)) * sizes
    near = 1 + 1e-4 * rng.normal(size=500) + 1e-3j * rng.normal(size=500)
    return np.concatenate([wide[0] + 1j * wide[1], near]).astype(dtype)


def both(name, z):
    """Compiled and NumPy's."""
    f = getattr(fnp, name)
    return np.asarray(fg.jit(f)(z)), np.asarray(f(z))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(name):
    z = spread(np.complex64)
    got, _ = both(name, z)
    exact = np.asarray(getattr(fnp, name)(z.astype(np.complex128)))
    info = np.finfo(np.float32)
    # What is smaller than the least normal number has fewer digits.
    normal = np.isfinite(got) & (abs(exact) > info.tiny)
    error = abs(got - exact)[normal] / abs(exact)[normal]
    assert error.max() < 4 * info.eps
    assert np.isfinite(exact.astype(np.complex64))[~np.isfinite(got)].sum() == 0


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "log1p"])  # NumPy's is coarse
def test_accuracy_of_double(name):
    got, wanted = both(name, spread(np.complex128))
    there = np.isfinite(wanted) & (abs(wanted) > np.finfo(float).tiny)
    assert (abs(got - wanted)[there] / abs(wanted)[there]).max() < 4 * np.finfo(float).eps
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))


def test_log1p_near_zero():
    z = np.array([1e-9 + 1e-8j, -1e-12j, 1e-20])
    got, _ = both("log1p", z)
    series = z - z**2 / 2 + z**3 / 3
    np.testing.assert_allclose(got, series, rtol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("sign", "log1p")])
def test_finite_results_at_special_values(name, dtype):
    """Where NumPy gives a finite number, so does the formula, with the same signs of zeros."""
    z = special(dtype)
    got, wanted = both(name, z)
    info = np.finfo(dtype)
    for part in ("real", "imag"):
        g, w = getattr(got, part), getattr(wanted, part)
        there = np.isfinite(wanted) & (g != w)
        allowed = 64 * info.eps * abs(wanted) + 4 * info.smallest_subnormal
        assert (abs(g - w) <= allowed)[there].all(), z[there][abs(g - w)[there] > allowed[there]]
        zero = np.isfinite(wanted) & (w == 0) & (g == 0)
        differ = zero & (np.signbit(g) != np.signbit(w))
        # exp of -inf - inf i is a zero of no particular sign.
        assert set(z[differ]) <= {complex(-np.inf, -np.inf)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_and_infinity_at_special_values(name, dtype):
    """What isn't finite in NumPy isn't here, but for limits that NumPy doesn't know."""
    z = special(dtype)
    got, wanted = both(name, z)
    lost = np.isfinite(got) & ~np.isfinite(wanted)
    known = np.zeros(z.shape, bool)
    if name in ("tan", "tanh"):  # NumPy: NaN at infinity beside what is huge
        large = z.imag if name == "tan" else z.real
        known = abs(large) > 20
    elif name == "log1p":  # NumPy: infinite where the absolute value is
        known = np.isfinite(z)
    assert not (lost & ~known).any(), z[lost & ~known]


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs(dtype):
    big = np.finfo(dtype).max
    z = np.array([complex(big, big), complex(0, -big), complex(np.inf, 3), complex(2, -np.inf), 0,
                  complex(np.nan, 1)], dtype)  # fmt: skip
    half = np.sqrt(0.5)
    wanted = np.array([complex(half, half), -1j, 1, -1j, 0, np.nan], dtype)
    np.testing.assert_allclose(both("sign", z)[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients_at_special_values(dtype):
    z = special(dtype)[::7]
    x, y = (v.ravel() for v in np.meshgrid(z, z))
    got, wanted = np.asarray(fg.jit(fnp.divide)(x, y)), np.asarray(fnp.divide(x, y))
    there = np.isfinite(wanted)
    error = abs(got - wanted)[there]
    allowed = 16 * np.finfo(dtype).eps * abs(wanted)[there] + 4 * np.finfo(dtype).smallest_subnormal
    assert (error <= allowed).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))


@pytest.mark.parametrize("power", [-3, -1, 0, 1, 2, 5])
def test_integer_powers(power):
    z = spread(np.complex128)[:500]
    got = np.asarray(fg.jit(lambda z: z**power)(z))
    np.testing.assert_allclose(got, z**power, rtol=1e-13)


def test_logistic():
    z = spread(np.complex128)
    z = z[abs(z.real) < 300]
    np.testing.assert_allclose(fg.jit(fg.lax.logistic)(z), fg.lax.logistic(z), rtol=1e-12)
