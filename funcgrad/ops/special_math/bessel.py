"""The modified Bessel functions of the first kind of orders 0 and 1, plain and scaled by e⁻|x|.

Near zero I₀(x) and I₁(x)/x are polynomials in x² with positive terms; far out √x e⁻ˣ Iₙ(x) is
a polynomial in 1/x. The coefficients are our own
near-minimax fits, weighted least squares on Chebyshev points in 80 digits; each table's comment
gives its relative error.
"""

from __future__ import annotations

from typing import Any

from funcgrad.ops.special_math.base import in_float64, is_single, polynomial

# fmt: off
# I₀(x) in x², x ≤ 12: 1e-18
I0 = (
    8.129090707129345e-43, 1.744084481856987e-40, 6.329749156464917e-37, 5.210499603154964e-34,
    4.940466121019751e-31, 3.838230076894704e-28, 2.598222851004659e-25, 1.496305962472565e-22,
    7.242272989028428e-20, 2.8969028371663063e-17, 9.385967147449e-15, 2.4028075462957763e-12,
    4.709502797535585e-10, 6.781684027731976e-08, 6.781684027780632e-06, 0.00043402777777776745,
    0.015625000000000017, 0.25, 1.0,
)
# I₁(x)/x in x², x ≤ 12: 9e-18
I1 = (
    2.9633761481019375e-41, 5.553508214208198e-39, 2.042759528787848e-35,
    1.5584666022636906e-32, 1.3841696812674943e-29, 9.978354978919665e-27,
    6.2358269308711214e-24, 3.2918673168734135e-21, 1.4484548553157265e-18,
    5.214425029282314e-16, 1.5017547450345463e-13, 3.363930564702004e-11, 5.651403357029164e-09,
    6.781684027736323e-07, 5.4253472222240596e-05, 0.0026041666666666258, 0.06250000000000004,
    0.5,
)
# √x e⁻ˣ I₀(x) in 1/x - 1/24, x ≥ 12: 7e-17
I0_FAR = (
    -45343372.73408022, -3446522.0219205557, 162562.91278795895, 25530.4491206727,
    1414.8180573070106, 118.5984083607947, 17.011236739048755, 2.976937387975068,
    0.658132618793839, 0.18862069705938472, 0.07204862516477664, 0.03867550202362831,
    0.03224725939365455, 0.05237203613079862, 0.4010710650668474,
)
# √x e⁻ˣ I₁(x) in 1/x - 1/24, x ≥ 12: 8e-17
I1_FAR = (
    47806806.48297221, 3577122.534061326, -177410.10397289603, -27078.562705298933,
    -1502.231164566099, -128.67185380476354, -18.75947977186675, -3.3448080865027876,
    -0.7582956465608337, -0.22497207674987058, -0.09047017015721678, -0.05291759974479211,
    -0.052558590846749874, -0.1537308864835681, 0.39262449420411655,
)
# I₀(x) in x², x ≤ 8: 9e-9
I0_SINGLE = (
    5.717524090509459e-17, 5.811811839864432e-15, 2.634603455015788e-12, 4.6232797078658476e-10,
    6.800576729032824e-08, 6.779298503991914e-06, 0.00043404398158688166, 0.015624948456421458,
    0.2500000573790351, 0.999999990676558,
)
# I₁(x)/x in x², x ≤ 8: 2e-9
I1_SINGLE = (
    2.7503468953928567e-18, 3.5047993103146388e-16, 1.6177975232999335e-13,
    3.3182966601797866e-11, 5.6621018600224875e-09, 6.780216714497435e-07,
    5.4254575960521334e-05, 0.002604162679655454, 0.06250000521259512, 0.4999999989684697,
)
# √x e⁻ˣ I₀(x) in 1/x, x ≥ 8: 1e-9
I0_FAR_SINGLE = (
    1.827563871857965, -0.3055993230494825, 0.08512395330909711, 0.02725078951517488,
    0.028094833191482833, 0.04986741859226799, 0.39894228089532013,
)
# √x e⁻ˣ I₁(x) in 1/x, x ≥ 8: 1e-9
I1_FAR_SINGLE = (
    -2.076064107980634, 0.3376275561679149, -0.10340769584663655, -0.0386586804058154,
    -0.046801862967992366, -0.14960293055956556, 0.3989422798235956,
)
# fmt: on


def _scaled(xp: Any, a: Any, near: tuple, far: tuple, near_single: tuple, far_single: tuple) -> Any:
    """(e⁻ᵃ p(a²), r(1/a)/√a, and whether the first one counts) for a ≥ 0."""
    single = is_single(a)
    split = 8.0 if single else 12.0
    b = xp.minimum(a, split)
    first = xp.exp(-b) * polynomial(near_single if single else near, b * b)
    c = xp.maximum(a, split)
    second = polynomial(far_single, 1.0 / c) if single else polynomial(far, 1.0 / c - 1 / 24)
    return first, second / xp.sqrt(c), a < split


def bessel_i0e(xp: Any, x: Any) -> Any:
    """e⁻|x| I₀(x), in (0, 1].

    >>> bessel_i0e(np, np.array([0.0, 1.0, -1e4]))
    array([1.        , 0.46575961, 0.00398947])
    """
    near, far, is_near = _scaled(xp, xp.abs(x), I0, I0_FAR, I0_SINGLE, I0_FAR_SINGLE)
    return xp.where(is_near, near, far)


def bessel_i1e(xp: Any, x: Any) -> Any:
    """e⁻|x| I₁(x), an odd function.

    >>> bessel_i1e(np, np.array([0.0, 1.0, -1e4]))
    array([ 0.        ,  0.20791042, -0.00398927])
    """
    near, far, is_near = _scaled(xp, xp.abs(x), I1, I1_FAR, I1_SINGLE, I1_FAR_SINGLE)
    return xp.where(is_near, x * near, xp.copysign(far, x))


@in_float64
def i0(xp: Any, x: Any) -> Any:
    """I₀(x).

    >>> i0(np, np.array([0.0, 1.0, np.inf]))
    array([1.        , 1.26606588,        inf])
    """
    return _unscaled(xp, x, bessel_i0e(xp, x))


@in_float64
def i1(xp: Any, x: Any) -> Any:
    """I₁(x), an odd function.

    >>> i1(np, np.array([0.0, 1.0, -np.inf]))
    array([0.       , 0.5651591,      -inf])
    """
    return _unscaled(xp, x, bessel_i1e(xp, x))


def _unscaled(xp: Any, x: Any, y: Any) -> Any:
    """y e^|x|, in two steps that overflow no earlier than the result."""
    half = xp.exp(0.5 * xp.abs(x))
    return xp.where(xp.isinf(x), xp.copysign(half, y), y * half * half)
