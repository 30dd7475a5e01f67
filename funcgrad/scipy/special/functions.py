"""Special functions under SciPy's names, elementwise on real arrays, with derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.ops.arguments import integer
from funcgrad.ops.elementwise import integrals, special
from funcgrad.ops.elementwise.binomial import log_beta
from funcgrad.ops.elementwise.transcendental import logistic
from funcgrad.scipy._operands import operands


def _of(op: Callable, name: str) -> Callable:
    """An op on operands of any real dtypes and shapes that broadcast."""

    def function(*args: Any) -> Any:
        return op(*operands(name, args))

    function.__name__ = function.__qualname__ = name
    # The op's own example speaks of lax; here the same call stands under SciPy's name.
    text = (op.__doc__ or "").split(">>>")[0].strip()
    call = ", ".join(["1.5"] * _ARITY.get(name, 1))
    function.__doc__ = f"""{text}

    Operands are converted to one floating-point dtype and broadcast.

    >>> from funcgrad.scipy import special
    >>> special.{name}({call}).shape
    ()
    """
    return function


_ARITY = {"betainc": 3, "expn": 2, "gammainc": 2, "gammaincc": 2, "polygamma": 2, "xlog1py": 2,
          "xlogy": 2, "zeta": 2}  # fmt: skip

erfinv = _of(special.erf_inv, "erfinv")
expit = _of(logistic, "expit")
logit = _of(integrals.logit, "logit")
gammaln = _of(special.lgamma, "gammaln")
gammasgn = _of(special.gammasgn, "gammasgn")
digamma = psi = _of(special.digamma, "digamma")
gammainc = _of(special.igamma, "gammainc")
gammaincc = _of(special.igammac, "gammaincc")
betainc = _of(special.betainc, "betainc")
polygamma = _of(special.polygamma, "polygamma")
i0e = _of(special.bessel_i0e, "i0e")
i1e = _of(special.bessel_i1e, "i1e")
ndtr = _of(special.ndtr, "ndtr")
ndtri = _of(special.ndtri, "ndtri")
log_ndtr = _of(special.log_ndtr, "log_ndtr")
xlogy = _of(integrals.xlogy, "xlogy")
xlog1py = _of(integrals.xlog1py, "xlog1py")
entr = _of(integrals.entr, "entr")
spence = _of(integrals.spence, "spence")
exp1 = _of(integrals.exp1, "exp1")
expi = _of(integrals.expi, "expi")
expn = _of(integrals.expn, "expn")


def zeta(x: Any, q: Any = 1.0) -> Any:
    """Hurwitz' zeta function Σ 1/(k + q)^x over k ≥ 0; Riemann's for q = 1.

    >>> from funcgrad.scipy import special
    >>> print(special.zeta(2.0))
    1.644934
    """
    return special.zeta(*operands("zeta", (x, q)))


def gamma(x: Any) -> Any:
    """The gamma function; poles (0, -1, -2, …) give inf with the sign of a zero, or NaN.

    >>> from funcgrad.scipy import special
    >>> print(special.gamma(4.0))
    6.0
    """
    (x,) = operands("gamma", (x,))
    pole = fnp.logical_and(x < 0, x == fnp.floor(x))
    value = special.gammasgn(x) * fnp.exp(special.lgamma(x))
    value = fnp.where(x == 0, 1 / x, value)
    return fnp.where(fnp.logical_or(pole, x == -fnp.inf), fnp.nan, value)


def rgamma(x: Any) -> Any:
    """1/Γ(x), which is 0 at the poles of Γ.

    >>> from funcgrad.scipy import special
    >>> print(special.rgamma(4.0))
    0.16666667
    """
    (x,) = operands("rgamma", (x,))
    left = x < 0.5
    right = fnp.exp(-special.lgamma(fnp.where(left, 1.0, x)))
    # 1/Γ(x) = Γ(1 - x) sin πx / π, where the sine is of what x lies above a whole number.
    # Γ overflows further left, where nearly all that floats can hold are its poles.
    pole = fnp.logical_and(x < -170, x == fnp.floor(x))
    finite = fnp.where(fnp.logical_and(left, ~pole), x, 0.25)
    whole = fnp.round(finite)
    sine = fnp.where(whole % 2 == 0, 1.0, -1.0) * fnp.sin(np.pi * (finite - whole)) / np.pi
    # The gamma function alone overflows before the product with a small sine does.
    half = fnp.exp(0.5 * special.lgamma(1 - finite))
    return fnp.where(pole, 0.0, fnp.where(left, half * sine * half, right))


def erfcinv(y: Any) -> Any:
    """The inverse of erfc: the x at which erfc(x) is y, for y from 0 to 2.

    >>> from funcgrad.scipy import special
    >>> print(special.erfcinv(1.0))
    -0.0
    """
    (y,) = operands("erfcinv", (y,))
    return special.ndtri(0.5 * y) * -np.sqrt(0.5)


def factorial(n: Any, exact: bool = False) -> Any:
    """n! = Γ(n + 1), 0 for negative n.

    >>> from funcgrad.scipy import special
    >>> print(special.factorial(3))
    6.0
    """
    if exact:
        raise NotImplementedError("special.factorial: exact=True needs integers of any size")
    (n,) = operands("factorial", (n,))
    return fnp.where(n < 0, 0.0, fnp.exp(special.lgamma(fnp.where(n < 0, 0.0, n) + 1)))


def betaln(a: Any, b: Any) -> Any:
    """log |B(a, b)|, the logarithm of the beta function.

    >>> from funcgrad.scipy import special
    >>> print(special.betaln(1.0, 1.0))
    0.0
    """
    a, b = operands("betaln", (a, b))
    plain = fnp.logical_and(a > 0, b > 0)
    a1, b1 = fnp.where(plain, a, 1.0), fnp.where(plain, b, 1.0)
    a2, b2 = fnp.where(plain, 1.0, a), fnp.where(plain, 1.0, b)
    reflected = special.lgamma(a2) + special.lgamma(b2) - special.lgamma(a2 + b2)
    return fnp.where(plain, log_beta(a1, b1), reflected)


def beta(a: Any, b: Any) -> Any:
    """The beta function Γ(a)Γ(b)/Γ(a + b).

    >>> from funcgrad.scipy import special
    >>> print(special.beta(1.0, 1.0))
    1.0
    """
    a, b = operands("beta", (a, b))
    sign = special.gammasgn(a) * special.gammasgn(b) * special.gammasgn(a + b)
    return sign * fnp.exp(betaln(a, b))


def poch(z: Any, m: Any) -> Any:
    """Pochhammer's symbol Γ(z + m)/Γ(z).

    >>> from funcgrad.scipy import special
    >>> print(special.poch(1.0, 0.0))
    1.0
    """
    z, m = operands("poch", (z, m))
    sign = special.gammasgn(z + m) * special.gammasgn(z)
    # Γ(z + m)/Γ(z) = Γ(m)/B(z, m), where the large parts have cancelled.
    low = fnp.minimum(z, z + m)
    plain = fnp.logical_and(low > 0, m != 0)
    size = fnp.where(plain, fnp.abs(m), 1.0)
    log_ratio = special.lgamma(size) - log_beta(fnp.where(plain, low, 1.0), size)
    z1, m1 = fnp.where(plain, 1.5, z), fnp.where(plain, 0.0, m)
    reflected = special.lgamma(z1 + m1) - special.lgamma(z1)
    value = sign * fnp.exp(fnp.where(plain, fnp.where(m < 0, -log_ratio, log_ratio), reflected))
    return fnp.where(m == 0, fnp.ones_like(value), value)


def multigammaln(a: Any, d: int) -> Any:
    """log of the multivariate gamma function of dimension d, for a > (d - 1)/2.

    >>> from funcgrad.scipy import special
    >>> print(special.multigammaln(1.0, 1))
    0.0
    """
    (a,), d = operands("multigammaln", (a,)), integer("d", d)
    constant = 0.25 * d * (d - 1) * float(np.log(np.pi))
    return constant + sum(special.lgamma(a - 0.5 * i) for i in range(d))


def i0(x: Any) -> Any:
    """The modified Bessel function of order 0.

    >>> from funcgrad.scipy import special
    >>> print(special.i0(0.0))
    1.0
    """
    return fnp.i0(*operands("i0", (x,)))


def i1(x: Any) -> Any:
    """The modified Bessel function of order 1.

    >>> from funcgrad.scipy import special
    >>> print(special.i1(0.0))
    0.0
    """
    (x,) = operands("i1", (x,))
    half = fnp.exp(0.5 * fnp.abs(x))  # e^|x| itself overflows before the function does
    return fnp.where(fnp.isinf(x), x, half * special.bessel_i1e(x) * half)


def rel_entr(p: Any, q: Any) -> Any:
    """p·log(p/q) for p, q > 0; 0 where p = 0 ≤ q; inf elsewhere, NaN for NaN.

    >>> from funcgrad.scipy import special
    >>> print(special.rel_entr(1.0, 1.0))
    0.0
    """
    p, q = operands("rel_entr", (p, q))
    both = fnp.logical_and(p > 0, q > 0)
    zero = fnp.logical_and(p == 0, q >= 0)
    unknown = fnp.logical_or(fnp.isnan(p), fnp.isnan(q))
    beyond = fnp.where(unknown, fnp.nan, fnp.inf)
    value = p * _log_ratio(fnp.where(both, p, 1.0), fnp.where(both, q, 1.0))
    return fnp.where(both, value, fnp.where(zero, 0.0, beyond))


def _log_ratio(p: Any, q: Any) -> Any:
    """log(p/q) of positive numbers, also near 1, and where p/q is out of range."""
    ratio = p / q
    near = fnp.logical_and(ratio > 0.5, ratio < 2.0)
    inside = fnp.logical_and(ratio >= dtypes.finfo(p.dtype).tiny, ratio < fnp.inf)
    far = fnp.where(inside, fnp.log(fnp.where(inside, ratio, 1.0)), fnp.log(p) - fnp.log(q))
    return fnp.where(near, fnp.log1p(fnp.where(near, p - q, 0.0) / q), far)


def kl_div(p: Any, q: Any) -> Any:
    """rel_entr(p, q) - p + q.

    >>> from funcgrad.scipy import special
    >>> print(special.kl_div(1.0, 1.0))
    0.0
    """
    p, q = operands("kl_div", (p, q))
    entropy = rel_entr(p, q)
    return fnp.where(entropy == fnp.inf, entropy, entropy - p + q)
