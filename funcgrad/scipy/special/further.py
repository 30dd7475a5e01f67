"""Further special functions under SciPy's names: of complex arguments, as integrals, as series.

Each is computed in double precision and given in the arguments' own. The complex error function is
the trapezoidal rule with the poles' residues (Al Azah and Chandler-Wilde, SIAM J. Numer. Anal. 59,
2021); sine and cosine integrals are power series and Legendre's continued fraction; Owen's T is an
integral by Gauss and Legendre's rule, cut where the integrand has vanished.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.core.context import current
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.ops.arguments import integer
from funcgrad.ops.elementwise import special
from funcgrad.ops.elementwise.binomial import log_beta
from funcgrad.ops.elementwise.integrals import xlogy
from funcgrad.ops.special_math import erf as error_functions
from funcgrad.scipy._operands import float_arrays, real_operands
from funcgrad.transforms.control.while_loop import fori_loop
from funcgrad.transforms.derivatives.custom import custom_jvp

PI, SQRT_PI, SQRT_2PI = math.pi, math.sqrt(math.pi), math.sqrt(2 * math.pi)


def _wide(function: Callable) -> Callable:
    """The function of real arguments, computed in float64, in the arguments' own dtype."""

    signature, name = inspect.signature(function), function.__name__

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            named = signature.bind(*args, **kwargs).arguments
        except TypeError as e:
            raise TypeError(f"special.{name}: {e}") from None
        given = list(real_operands(f"special.{name}", named).values())
        dtype = given[0].dtype
        out = function(*(a.astype(np.float64) for a in given))
        if isinstance(out, tuple):
            return tuple(o.astype(dtype) for o in out)
        return out.astype(dtype)

    return wrapped


def _far(z: Any, odd: bool) -> Any:
    """1 + 1/2z² + 3/4z⁴ + …, or of which it is the derivative's, 1 + 3/2z² + 15/4z⁴ + …"""
    u, k = 0.5 / (z * z), 1 if odd else -1
    return 1 + (k + 2) * u * (1 + (k + 4) * u * (1 + (k + 6) * u * (1 + (k + 8) * u)))


# ---- the complex error function

TERMS = 11
STEP = math.sqrt(PI / (TERMS + 1))
FAR = 60.0


def _upper(z: Any) -> Any:
    """w(z) for real and imaginary parts from 0 on, and |z| < FAR."""
    x, y = fnp.real(z), fnp.imag(z)
    turn = x / STEP - fnp.floor(x / STEP)
    at_middles = fnp.logical_or(y >= x, fnp.logical_or(turn < 0.25, turn > 0.75))
    square = z * z
    middles = sum(
        math.exp(-(((k + 0.5) * STEP) ** 2)) / (square - ((k + 0.5) * STEP) ** 2)
        for k in range(TERMS + 1)
    )
    # The rule that has its nodes at multiples of the step is taken far from these alone.
    apart = fnp.where(at_middles, 0.25 + 0j, z)
    wholes = 0.5 / (apart * apart) + sum(
        math.exp(-((k * STEP) ** 2)) / (apart * apart - (k * STEP) ** 2)
        for k in range(1, TERMS + 1)
    )
    sign = fnp.where(at_middles, 1.0, -1.0)
    near = y < fnp.maximum(x, PI / STEP)
    residue = 2 * fnp.exp(-square) / (1 + sign * fnp.exp(-2j * PI * z / STEP))
    value = (2j * STEP / PI) * z * fnp.where(at_middles, middles, wholes)
    return value + fnp.where(near, fnp.where(near, residue, 0), 0)


def _faddeeva(z: Any) -> Any:
    x, y = fnp.real(z), fnp.imag(z)
    corner = lax.complex(fnp.abs(x), fnp.abs(y))
    far = fnp.hypot(x, y) > FAR
    apart = fnp.where(far, corner, FAR + 0j)
    value = fnp.where(
        far, 1j / (SQRT_PI * apart) * _far(apart, False), _upper(fnp.where(far, 1 + 1j, corner))
    )
    # w(-z̄) is the conjugate, and w(-z) = 2 exp(-z²) - w(z).
    value = fnp.where(x * fnp.where(y < 0, -1.0, 1.0) < 0, fnp.conj(value), value)
    below = fnp.where(y < 0, z, 0)
    return fnp.where(y < 0, 2 * fnp.exp(-below * below) - value, value)


@custom_jvp
def _wofz(z: Any) -> Any:
    return _faddeeva(z)


def _wofz_slope(t: Any, w: Any, z: Any) -> Any:
    far = fnp.logical_and(fnp.abs(z) > FAR, fnp.imag(z) >= 0)
    apart = fnp.where(far, z, FAR)
    asymptotic = -1j / (SQRT_PI * apart * apart) * _far(apart, True)
    return t * fnp.where(far, asymptotic, 2j / SQRT_PI - 2 * z * w)


_wofz.defjvps(_wofz_slope)


def wofz(z: Any) -> Any:
    """The Faddeeva function exp(-z²) erfc(-iz) of complex z.

    >>> from funcgrad.scipy import special
    >>> print(special.wofz(0.0))
    (1+0j)
    """
    z = _complex_array("wofz", "z", z)
    return _wofz(z.astype(np.complex128)).astype(z.dtype)


def _complex_array(name: str, argument: str, z: Any) -> Any:
    try:
        z = fnp.asarray(z)
    except (ArgumentError, OverflowError) as e:
        raise ArgumentError(f"special.{name}: {argument}: {e}") from None
    if not dtypes.is_complex(z.dtype):
        (z,) = float_arrays([z])
        z = lax.complex(
            *(fnp.asarray(p, np.float64 if z.dtype == np.float64 else np.float32)
              for p in (z, fnp.zeros_like(z)))
        )  # fmt: skip
    return z


@custom_jvp
def _erfcx(x: Any) -> Any:
    value = error_functions.erfcx(fnp, fnp.abs(x))
    left = fnp.where(x < 0, x, 0.0)
    return fnp.where(x < 0, 2 * fnp.exp(left * left) - value, value)


def _erfcx_slope(t: Any, y: Any, x: Any) -> Any:
    far = x > FAR
    apart = fnp.where(far, x, FAR)
    u = 1j * apart
    asymptotic = -fnp.real(_far(u, True)) / (SQRT_PI * apart * apart)
    return t * fnp.where(far, asymptotic, 2 * x * y - 2 / SQRT_PI)


_erfcx.defjvps(_erfcx_slope)


@_wide
def erfcx(x: Any) -> Any:
    """exp(x²) erfc(x), which doesn't underflow.

    >>> from funcgrad.scipy import special
    >>> print(special.erfcx(0.0))
    1.0
    """
    return _erfcx(x)


@custom_jvp
def _dawsn(x: Any) -> Any:
    size = fnp.abs(x)
    far = size > FAR
    near = fnp.where(far, 1.0, size)
    value = 0.5 * SQRT_PI * fnp.imag(_upper(lax.complex(near, fnp.zeros_like(near))))
    apart = fnp.where(far, size, FAR)
    return fnp.copysign(fnp.where(far, 0.5 / apart * _far(apart, False), value), x)


def _dawsn_slope(t: Any, y: Any, x: Any) -> Any:
    far = fnp.abs(x) > FAR
    apart = fnp.where(far, x, FAR)
    return t * fnp.where(far, -0.5 / (apart * apart) * _far(apart, True), 1 - 2 * x * y)


_dawsn.defjvps(_dawsn_slope)


@_wide
def dawsn(x: Any) -> Any:
    """Dawson's integral exp(-x²) ∫₀ˣ exp(t²) dt.

    >>> from funcgrad.scipy import special
    >>> print(special.dawsn(1.0))
    0.5380795
    """
    return _dawsn(x)


# ---- oscillating integrals


def _power_series(x: Any, first: Any, ratio: Callable, terms: int) -> Any:
    total = term = first
    for k in range(1, terms):
        term = term * ratio(k)
        total = total + term
    return total


@custom_jvp
def _fresnel(x: Any) -> Any:
    size = fnp.minimum(fnp.abs(x), 1e150)
    near = size < 1.5
    s = fnp.where(near, size, 0.0)
    q = -(((PI / 2) * s * s) ** 2)
    cosine = _power_series(
        s, s, lambda k: q / ((2 * k) * (2 * k - 1)) * ((4 * k - 3) / (4 * k + 1)), 16
    )
    sine = _power_series(
        s, PI / 6 * s**3, lambda k: q / ((2 * k + 1) * (2 * k)) * ((4 * k - 1) / (4 * k + 3)), 16
    )
    apart = fnp.where(near, 1.5, size)
    w = _faddeeva(lax.complex(apart, apart) * (0.5 * SQRT_PI))
    turn = (PI / 2) * fnp.fmod(apart * apart, 4.0)
    rest = (0.5 + 0.5j) * (1 - fnp.exp(lax.complex(fnp.zeros_like(turn), turn)) * w)
    sine = fnp.where(near, sine, fnp.imag(rest))
    cosine = fnp.where(near, cosine, fnp.real(rest))
    return fnp.copysign(sine, x), fnp.copysign(cosine, x)


@_fresnel.defjvp
def _fresnel_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (t,) = primals, tangents
    turn = (PI / 2) * x * x
    return _fresnel(x), (t * fnp.sin(turn), t * fnp.cos(turn))


@_wide
def fresnel(x: Any) -> Any:
    """Fresnel's integrals of sin(πt²/2) and of cos(πt²/2) from 0 to x.

    >>> from funcgrad.scipy import special
    >>> print(special.fresnel(1.0)[0])
    0.438259...
    """
    return _fresnel(x)


@custom_jvp
def _sici(x: Any) -> Any:
    size = fnp.abs(x)
    near = size < 6
    s = fnp.where(near, size, 1.0)
    q = -s * s
    sine = _power_series(
        s, s, lambda k: q * (2 * k - 1) / ((2 * k + 1) * (2 * k + 1) * (2 * k)), 22
    )
    cosine = _power_series(
        s, 0.25 * q, lambda k: q * (2 * k) / ((2 * k + 2) * (2 * k + 2) * (2 * k + 1)), 22
    )
    cosine = cosine + fnp.log(s) + float(np.euler_gamma)
    # E₁(ix) = -Ci(x) + i (Si(x) - π/2), by its continued fraction from the end.
    apart = fnp.clip(size, 6.0, 1e300)
    z = lax.complex(fnp.zeros_like(apart), apart)
    fraction = z + 81
    for k in range(40, 0, -1):
        fraction = z + (2 * k - 1) - k * k / fraction
    e1 = fnp.exp(-z) / fraction
    sine = fnp.where(near, sine, PI / 2 + fnp.imag(e1))
    cosine = fnp.where(near, cosine, -fnp.real(e1))
    return fnp.copysign(sine, x), cosine


@_sici.defjvp
def _sici_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (t,) = primals, tangents
    return _sici(x), (t * fnp.sinc(x / PI), t * fnp.cos(x) / x)


@_wide
def sici(x: Any) -> Any:
    """The sine integral and the cosine integral of |x|, -inf at 0.

    >>> from funcgrad.scipy import special
    >>> print(special.sici(1.0)[0])
    0.946083...
    """
    sine, cosine = _sici(fnp.where(x == 0, 1.0, x))
    cosine = fnp.where(fnp.isinf(x), fnp.where(x > 0, 0.0, fnp.nan), cosine)
    return fnp.where(x == 0, x, sine), fnp.where(x == 0, -fnp.inf, cosine)


NODES = tuple(zip(*np.polynomial.legendre.leggauss(40), strict=True))


@custom_jvp
def _owens_t(h: Any, a: Any) -> Any:
    size, slope = fnp.abs(h), fnp.abs(a)
    turned = slope > 1
    s = fnp.where(turned, size * slope, size)
    b = fnp.where(turned, 1 / fnp.where(turned, slope, 1.0), slope)
    end = fnp.minimum(b, 9 / fnp.maximum(s, 1e-3))
    total = fnp.zeros_like(end)
    for node, weight in NODES:
        x = end * float(0.5 * (node + 1))
        square = 1 + x * x
        total = total + float(weight) * fnp.exp(-0.5 * s * s * square) / square
    value = total * end / (4 * PI)
    p, q = special.ndtr(-size), special.ndtr(-size * slope)
    value = fnp.where(turned, 0.5 * (p + q) - p * q - value, value)
    return value * fnp.sign(a)


_owens_t.defjvps(
    lambda t, y, h, a: (
        -t * fnp.exp(-0.5 * h * h) * special.erf(a * h * math.sqrt(0.5)) / (2 * SQRT_2PI)
    ),
    lambda t, y, h, a: t * fnp.exp(-0.5 * h * h * (1 + a * a)) / (2 * PI * (1 + a * a)),
)


@_wide
def owens_t(h: Any, a: Any) -> Any:
    """Owen's T: the probability of X > h and 0 < Y < aX, of normal variables.

    >>> from funcgrad.scipy import special
    >>> print(special.owens_t(0.0, 1.0))
    0.125
    """
    h, a = fnp.broadcast_arrays(h, a)
    return _owens_t(h, a)


# ---- powers and counts


def _scaled_power(log_x: Any, exponent: Any) -> Any:
    """(x^λ - 1)/λ from log x, smooth at λ = 0."""
    # log 0 has a meaning at λ = 0, where 0 · ∞ has none.
    endless = fnp.logical_and(exponent == 0, fnp.isinf(log_x))
    z = exponent * fnp.where(endless, 0.0, log_x)
    near = fnp.abs(z) < 0.25
    small = fnp.where(near, z, 0.0)
    series = fnp.zeros_like(z)
    for k in range(14, 0, -1):
        series = 1 / math.factorial(k) + small * series
    finite = fnp.where(fnp.logical_or(near, endless), log_x, 0.0)
    apart = fnp.where(near, 1.0, exponent)
    return fnp.where(near, finite * series, fnp.expm1(z) / apart)


@_wide
def boxcox(x: Any, lmbda: Any) -> Any:
    """Box and Cox' (x^λ - 1)/λ, which is log x for λ = 0.

    >>> from funcgrad.scipy import special
    >>> print(special.boxcox(2.0, 1.0))
    1.0
    """
    x, lmbda = fnp.broadcast_arrays(x, lmbda)
    return _scaled_power(fnp.log(x), lmbda)


@_wide
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """`boxcox` of 1 + x, exact for small x.

    >>> from funcgrad.scipy import special
    >>> print(special.boxcox1p(1.0, 1.0))
    1.0
    """
    x, lmbda = fnp.broadcast_arrays(x, lmbda)
    return _scaled_power(fnp.log1p(x), lmbda)


def comb(N: Any, k: Any, *, repetition: bool = False) -> Any:
    """The number of ways to choose k of N; with repetition, of N + k - 1.

    >>> from funcgrad.scipy import special
    >>> print(special.comb(4, 2))
    6.0
    """
    given = real_operands("special.comb", {"N": N, "k": k})
    n, k = (a.astype(np.float64) for a in given.values())
    whole = n + k - 1 if repetition else n
    inside = (k >= 0) & (k <= whole) & (n >= 0)
    n1, k1 = fnp.where(inside, whole, 2.0), fnp.where(inside, k, 1.0)
    value = fnp.exp(-log_beta(n1 - k1 + 1, k1 + 1) - fnp.log1p(n1))
    nothing = 1.0 * (k == 0) * (n == 0) if repetition else 0.0
    return fnp.where(inside, value, nothing).astype(given["N"].dtype)


MOST_EXACT, INF = 258, math.inf


def bernoulli(n: int) -> Any:
    """Bernoulli's numbers B₀ … Bₙ, with B₁ = -½.

    >>> from funcgrad.scipy import special
    >>> print(special.bernoulli(2))
    [ 1.         -0.5         0.16666667]
    """
    n = integer("special.bernoulli: n", n)
    if n < 0:
        raise ArgumentError(f"special.bernoulli: n must be 0 or more, got {n}")
    exact = [Fraction(1), Fraction(-1, 2)]
    for m in range(2, min(n, MOST_EXACT) + 1):
        total = sum(math.comb(m + 1, k) * exact[k] for k in (0, 1, *range(2, m, 2)))
        exact.append(Fraction(0) if m % 2 else Fraction(-total, m + 1))
    values = [float(b) for b in exact[: n + 1]]
    # Those that float64 doesn't hold.
    values += [0.0 if m % 2 else (INF if m % 4 == 2 else -INF) for m in range(len(values), n + 1)]
    return fnp.asarray(np.array(values), current().float_dtype)


# ---- the gamma function's logarithm

# B₂ⱼ/(2j (2j - 1)), j = 1, 2, …: Stirling's series.
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def _loggamma_right(z: Any) -> Any:
    """log Γ(z) for a real part from ½ on."""
    shifted = fnp.real(z) < 9
    w = fnp.where(shifted, z + 9, z)
    u = 1 / (w * w)
    series = fnp.zeros_like(w)
    for c in reversed(STIRLING):
        series = series * u + c
    value = (w - 0.5) * fnp.log(w) - w + 0.5 * math.log(2 * PI) + series / w
    logs = sum(fnp.log(fnp.where(shifted, z, 1) + k) for k in range(9))
    return fnp.where(shifted, value - logs, value)


def loggamma(x: Any) -> Any:
    """log Γ, continued analytically for complex numbers; NaN for negative real ones.

    >>> from funcgrad.scipy import special
    >>> print(special.loggamma(4.0))
    1.7917595
    """
    if not dtypes.is_complex(fnp.asarray(x).dtype):
        (x,) = real_operands("special.loggamma", {"x": x}).values()
        return fnp.where(x < 0, fnp.nan, special.lgamma(fnp.where(x < 0, 1.0, x)))
    given = _complex_array("loggamma", "x", x)
    z = given.astype(np.complex128)
    left = fnp.real(z) < 0.5
    below = fnp.imag(z) < 0
    right = _loggamma_right(fnp.where(left, 1 - z, z))
    # In the upper half plane log sin πz = log1p(-e^(2πiz)) - iπz + iπ/2 - log 2.
    upper = fnp.where(left, fnp.where(below, fnp.conj(z), z), 1j)
    log_sine = fnp.log1p(-fnp.exp(2j * PI * upper)) + (0.5j - 1j * upper) * PI - math.log(2)
    log_sine = fnp.where(below, fnp.conj(log_sine), log_sine)
    return fnp.where(left, math.log(PI) - log_sine - right, right).astype(given.dtype)


# ---- spherical harmonics


def sph_harm_y(
    n: Any, m: Any, theta: Any, phi: Any, diff_n: int | None = None, n_max: int | None = None
) -> Any:
    """Spherical harmonics of degree n and order m at the polar angle theta and the azimuth phi.

    n_max: the largest n, which `jit` needs.

    >>> from funcgrad.scipy import special
    >>> print(special.sph_harm_y(0, 0, 0.3, 0.1).real)
    0.2820948
    """
    if diff_n is not None:
        raise NotImplementedError("special.sph_harm_y: diff_n; differentiate with grad")
    given = real_operands("special.sph_harm_y", {"theta": theta, "phi": phi})
    dtype = given["theta"].dtype
    orders = [fnp.asarray(a) for a in (n, m)]
    for name, a in zip("nm", orders, strict=True):
        if not dtypes.is_integer(a.dtype):
            raise DTypeError(f"special.sph_harm_y: {name} must be integers, got {a.dtype}")
    top = integer(
        "special.sph_harm_y: n_max", np.max(orders[0], initial=0) if n_max is None else n_max
    )
    try:
        degree, order, theta, phi = fnp.broadcast_arrays(*orders, *given.values())
    except ValueError as e:
        raise ShapeError(f"special.sph_harm_y: {e}") from None
    degree, order, theta, phi = (a.astype(np.float64) for a in (degree, order, theta, phi))
    k = fnp.abs(order)
    x, y = fnp.cos(theta), fnp.sin(theta)
    sign = fnp.where(k % 2 == 0, 1.0, -1.0)
    norm = fnp.log((2 * k + 1) / (4 * PI)) + special.lgamma(2 * k + 1) - 2 * special.lgamma(k + 1)
    # The sine's power is that of a product, whose sign is the sine's.
    power = fnp.exp(0.5 * norm - k * math.log(2) + xlogy(k, fnp.abs(y)))
    first = sign * power * fnp.where(k % 2 == 0, 1.0, fnp.sign(y))

    def step(i: Any, state: tuple) -> tuple:
        before, now = state
        j = k + i + 1
        rise = fnp.sqrt((4 * j * j - 1) / (j * j - k * k))
        back = fnp.sqrt(((j - 1) ** 2 - k * k) / (4 * (j - 1) ** 2 - 1))
        back = fnp.where(j - 1 > k, back, 0.0)
        new = rise * (x * now - back * before)
        going = j <= degree
        return fnp.where(going, now, before), fnp.where(going, new, now)

    legendre = fori_loop(0, top, step, (fnp.zeros_like(first), first))[1]
    legendre = fnp.where(fnp.logical_and(k <= degree, degree >= 0), legendre, 0.0)
    legendre = fnp.where(order < 0, sign * legendre, legendre)
    value = lax.complex(legendre * fnp.cos(order * phi), legendre * fnp.sin(order * phi))
    return value.astype(np.complex128 if dtype == np.float64 else np.complex64)
