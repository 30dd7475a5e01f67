"""Floating-point functions of lax, compiled by jit, against true values over their whole domains.

Samples are bit patterns, so that every binade, both signs, denormals, infinities and NaN are among
them. True values are computed in float64 (or by mpmath for float64), of the very float32 arguments.
Errors are in units of the last place of the true value; near the zeros of a special function, where
no such bound can hold, they are absolute.
"""

import functools

import mpmath
import numpy as np
import pytest
import scipy.special as sp

import funcgrad as fg
from funcgrad import lax

F32, F64 = np.float32, np.float64
STRIDE = 9973  # bit patterns between samples; a prime
SPECIAL = np.array(
    [0, 1e-45, 3e-45, 1e-40, 1.1754942e-38, 1.1754944e-38, 1e-30, 1e-8, 1e-4, 0.1, 0.25, 0.5,
     0.99999994, 1, 1.0000001, 1.5, 2, 2.5, 3, 4, 7, 10, 34, 88, 88.7, 89, 100, 104, 127, 128, 150,
     2**23, 2**24, 2**31, 1e20, 1e30, 3.4028235e38, np.inf], F32)  # fmt: skip
SPECIAL = np.concatenate([SPECIAL, -SPECIAL, np.array([np.nan], F32)])


def bit_patterns(stride=STRIDE):
    patterns = np.arange(0, 1 << 32, stride, dtype=np.uint64).astype(np.uint32).view(F32)
    return np.concatenate([patterns, SPECIAL])


def error(got, true):
    """The distance from the true value in units of its last place; 0 for equal specials."""
    with np.errstate(all="ignore"):
        rounded = true.astype(got.dtype)
        info = np.finfo(got.dtype)
        size = np.minimum(np.abs(true), F64(info.max) if got.dtype == F32 else info.max)
        exponent = np.frexp(np.maximum(size, info.tiny).astype(F64))[1] - 1
        unit = np.ldexp(1.0, np.maximum(exponent, info.minexp) - info.nmant)
        wide = np.where(np.isinf(got), np.copysign(2.0 * F64(info.max) if got.dtype == F32
                                                   else np.inf, got), got).astype(F64)  # fmt: skip
        off = np.abs(wide - true) / unit
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        # What overflows may become infinite a little before or after.
        edge = np.isinf(got) != np.isinf(rounded)
        near = edge & (np.abs(rounded) > info.max * 0.999999) & (np.abs(got) > info.max * 0.999999)
        off = np.where(same | near, 0, off)
        return np.where(np.isnan(off), np.inf, off)


def check(got, true, ulps, absolute=0.0, args=()):
    off = error(got, true)
    with np.errstate(all="ignore"):
        close = np.abs(got.astype(F64) - true) <= absolute
    off = np.where(close, 0, off)
    worst = int(np.argmax(off))
    at = [x.ravel()[worst] for x in args]
    assert off.ravel()[worst] <= ulps, (
        f"{off.ravel()[worst]:.1f} ulp at {at!r}: {got.ravel()[worst]!r}, "
        f"true {true.ravel()[worst]!r}; {int((off > ulps).sum())} of {off.size} are off"
    )


def signs_of_zeros(got, true):
    zero = (got == 0) & (true == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(true[zero]))


def logistic(x):
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


# ---- one operand

EXACT = {
    "floor": np.floor, "ceil": np.ceil, "neg": np.negative, "abs": np.abs,
    "round": lambda x: np.where(np.abs(x) < 2**23,
                                np.copysign(np.floor(np.abs(x) + 0.5), x), x),
    "square": np.square, "sign": lambda x: np.where(x == 0, x, np.sign(x)),
}  # fmt: skip
ELEMENTARY = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt, "logistic": logistic, "reciprocal": lambda x: 1 / x,
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_exact_functions(name):
    x = bit_patterns()
    true = EXACT[name](x.astype(F64))
    got = np.asarray(fg.jit(getattr(lax, name))(x))
    check(got, true, 0.5, args=[x])
    signs_of_zeros(got, true)


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions(name):
    x = bit_patterns()
    with np.errstate(all="ignore"):
        true = ELEMENTARY[name](x.astype(F64))
    got = np.asarray(fg.jit(getattr(lax, name))(x))
    check(got, true, 4, args=[x])
    signs_of_zeros(got, true)


@pytest.mark.slow
@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_densely(name):
    compiled = fg.jit(getattr(lax, name))
    for start in range(0, 1 << 32, 1 << 27):
        x = np.arange(start, start + (1 << 27), 37, dtype=np.uint64).astype(np.uint32).view(F32)
        with np.errstate(all="ignore"):
            true = ELEMENTARY[name](x.astype(F64))
        check(np.asarray(compiled(x)), true, 4, args=[x])


def lgamma(x):
    return np.where(np.isinf(x), np.inf, sp.gammaln(x))


# name: (true value, absolute error allowed, arguments)
UNIT = {
    "erf": (sp.erf, 0), "erfc": (sp.erfc, 0),
    "erf_inv": (lambda x: np.copysign(sp.erfinv(x), x), 0),
    "lgamma": (lgamma, 1e-6), "digamma": (sp.digamma, 1e-6),
    "bessel_i0e": (sp.i0e, 0), "bessel_i1e": (sp.i1e, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", UNIT)
def test_special_functions(name):
    reference, absolute = UNIT[name]
    x = bit_patterns()
    with np.errstate(all="ignore"):
        true = reference(x.astype(F64))
    got = np.asarray(fg.jit(getattr(lax, name))(x))
    check(got, true, 8, absolute, [x])


@pytest.mark.parametrize("erf", [lax.erf, fg.jit(lax.erf)], ids=["eager", "jit"])
@pytest.mark.parametrize("sign", [1, -1])
def test_erf_densely(erf, sign):
    """From where it is the line 2x/√π to where it is 1, to 4 ulp."""
    first, last = np.array([1e-3, 5], F32).view(np.uint32)
    x = sign * np.arange(first, last, 61, dtype=np.uint32).view(F32)
    check(np.asarray(erf(x)), sp.erf(x.astype(F64)), 4, args=[x])


# ---- several operands


def grid(*columns):
    """All combinations."""
    return [g.ravel() for g in np.meshgrid(*columns, indexing="ij")]


def coarse():
    return np.concatenate([bit_patterns(6_330_013), SPECIAL])


def near_one():
    rng = np.random.default_rng(0)
    return np.concatenate([np.exp(rng.uniform(-3, 3, 500)), [0.5, 1, 2, 3, 10]]).astype(F32)


BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "rem": np.fmod,
    "max": np.maximum, "min": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_arithmetic(name):
    x, y = grid(coarse(), coarse())
    with np.errstate(all="ignore"):
        # Correctly rounded in float32 itself.
        true = BINARY[name](x, y)
    got = np.asarray(fg.jit(getattr(lax, name))(x, y))
    np.testing.assert_array_equal(got, true)
    if name not in ("max", "min"):
        signs_of_zeros(got, true)


@pytest.mark.parametrize("name", ["nextafter"])
def test_neighbours(name):
    x, y = grid(coarse(), coarse())
    got = np.asarray(fg.jit(lax.nextafter)(x, y))
    np.testing.assert_array_equal(got, np.nextafter(x, y))


@pytest.mark.parametrize("name", ["pow", "atan2"])
@pytest.mark.parametrize("columns", [coarse, near_one])
def test_elementary_functions_of_two(name, columns):
    x, y = grid(columns(), np.concatenate([columns(), -columns()]))
    with np.errstate(all="ignore"):
        wide = x.astype(F64), y.astype(F64)
        true = (np.power if name == "pow" else np.arctan2)(*wide)
    got = np.asarray(fg.jit(getattr(lax, name))(x, y))
    check(got, true, 4, args=[x, y])
    signs_of_zeros(got, true)


@pytest.mark.parametrize("n", [-5, -2, -1, 0, 1, 2, 3, 4, 7])
def test_integer_powers(n):
    x = bit_patterns()
    with np.errstate(all="ignore"):
        true = x.astype(F64) ** n if n >= 0 else 1 / x.astype(F64) ** -n
    got = np.asarray(fg.jit(lambda x: lax.integer_pow(x, n))(x))
    # A power that overflows, or is denormal, on the way to its reciprocal has lost it.
    chosen = (np.abs(true) > 1e-37) & (np.abs(true) < 8e37) | (n >= 0)
    check(got[chosen], true[chosen], max(4, abs(n)), args=[x[chosen]])


def sizes(low, high, count=60, seed=0):
    rng = np.random.default_rng(seed)
    return np.exp(rng.uniform(np.log(low), np.log(high), count)).astype(F32)


SEVERAL = {
    "igamma": (sp.gammainc, [sizes(1e-3, 1e3), sizes(1e-3, 1e3, seed=1)]),
    "igammac": (sp.gammaincc, [sizes(1e-3, 1e3), sizes(1e-3, 1e3, seed=1)]),
    "betainc": (sp.betainc, [sizes(1e-2, 1e2, 20), sizes(1e-2, 1e2, 20, 1),
                             np.linspace(0.001, 0.999, 30, dtype=F32)]),
    "zeta": (sp.zeta, [F32(1) + sizes(1e-2, 30), sizes(1e-2, 1e3, seed=1)]),
    "polygamma": (sp.polygamma, [np.arange(0, 8, dtype=F32), sizes(1e-2, 1e3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_special_functions_of_several(name):
    reference, columns = SEVERAL[name]
    args = grid(*columns)
    with np.errstate(all="ignore"):
        true = reference(*(x.astype(F64) for x in args))
    got = np.asarray(fg.jit(getattr(lax, name))(*args))
    check(got, true, 8, 1e-37, args)


def derivative_in_a(a, x):
    with mpmath.workdps(40):
        f = lambda a: mpmath.gammainc(a, 0, mpmath.mpf(float(x)), regularized=True)
        return float(mpmath.diff(f, mpmath.mpf(float(a)), h=mpmath.mpf("1e-12")))


@functools.cache
def gamma_derivatives():
    a, x = grid(sizes(0.05, 50, 14), sizes(0.05, 50, 14, 1))
    true = np.array([derivative_in_a(p, q) for p, q in zip(a, x, strict=True)])
    return a, x, true


@pytest.mark.parametrize("name", ["igamma_grad_a", "random_gamma_grad"])
def test_derivatives_of_the_incomplete_gamma_function(name):
    a, x, true = gamma_derivatives()
    if name == "random_gamma_grad":
        wide = x.astype(F64)
        log_density = (a.astype(F64) - 1) * np.log(wide) - wide - sp.gammaln(a.astype(F64))
        true = -true / np.exp(log_density)
    got = np.asarray(fg.jit(getattr(lax, name))(a, x))
    scale = np.abs(true) > 1e-30
    check(got[scale], true[scale], 64, 1e-37, [a[scale], x[scale]])


# ---- float64

MP = {
    "exp": mpmath.exp, "exp2": lambda x: mpmath.mpf(2) ** x, "expm1": mpmath.expm1,
    "log": mpmath.log, "log1p": mpmath.log1p, "sin": mpmath.sin, "cos": mpmath.cos,
    "tan": mpmath.tan, "atan": mpmath.atan, "sinh": mpmath.sinh, "cosh": mpmath.cosh,
    "tanh": mpmath.tanh, "asinh": mpmath.asinh, "sqrt": mpmath.sqrt,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), "erf": mpmath.erf,
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
}  # fmt: skip
POSITIVE = ("log", "log1p", "sqrt")


@pytest.mark.parametrize("name", MP)
def test_float64(name):
    rng = np.random.default_rng(1)
    x = np.concatenate([np.exp(rng.uniform(-40, 6, 200)), rng.uniform(0, 20, 100)])
    x = x if name in POSITIVE else np.where(np.arange(300) % 2, x, -x)
    got = np.asarray(fg.jit(getattr(lax, name))(x))
    with mpmath.workdps(40):
        exact = [MP[name](mpmath.mpf(float(v))) for v in x]
        for g, e, v in zip(got, exact, x, strict=True):
            size = abs(e)
            if size > 1.7e308 or size < 1e-300:
                continue
            unit = float(np.spacing(abs(float(e))))
            off = abs((mpmath.mpf(float(g)) - e) / unit)
            assert off <= 4, f"{float(off):.1f} ulp at {v!r}: {g!r}"
