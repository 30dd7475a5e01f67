"""The error function and its relatives, and the normal distribution's.

Two approximations carry them all: `erf(x)/x` as a rational function of x² near zero, and
`erfcx(x) = exp(x²) erfc(x)` on all of [0, ∞) as a rational function of 2/(2 + x) (after Shepherd
and Laframboise, Math. Comp. 36, 1981). The inverses are `x f(-log(1 - x²))` with one smooth f
(after Giles, GPU Computing Gems 2011). The coefficients are our own near-minimax fits, weighted
least squares on Chebyshev points in 60 digits; each table's comment gives its relative error.
"""

from __future__ import annotations

from typing import Any

from funcgrad.ops.special_math.base import (
    FOR_FLOAT32,
    FOR_FLOAT64,
    choose_ratio,
    is_single,
    polynomial,
    ratio,
    to_accuracy,
)

SQRT_HALF = 0.7071067811865476
SQRT_2 = 1.4142135623730951

# fmt: off
# erf(x)/x in z = x², z ≤ 1: 8e-17
ERF = (
    (-3.0865424947543267e-06, 0.00011881030319538828, -0.00016208207948565344,
     0.038180308504319374, 0.08822407899700373, 1.1283791670955126),
    (0.00023405053833894796, 0.006183797967211273, 0.07100971329046661, 0.4115198876137318, 1.0),
)
# the same: 4e-8
ERF_SINGLE = (
    -0.0005631345030483968, 0.0049175319102614376, -0.026711293981214867, 0.11280179480477708,
    -0.37612326105399824, 1.128379122476882,
)
# (1 - erf(x))^(-1/8), 1 ≤ x ≤ 4: 1.2e-8 of erf
ERFC_ROOT_SINGLE = (
    0.0005434284437033799, -0.003999446702613274, 0.017737773861733745, -0.03299725001099555,
    0.07368441285254863, 0.04946391931336499, 0.15918748571262495, 0.9964917709699195,
)
# erfcx(x)/u in u = 2/(2 + x), x ≥ 0: 1.3e-17
ERFCX = (
    (0.1567581972893601, 0.514458770882794, 1.0914757785894698, 1.5521409177858465,
     2.3121877910487982, 1.7215824614327933, 2.536388297544994, 0.7402217971151699,
     1.394618833336943, 0.08393988103691553, 0.28209479177387814),
    (0.035317477547864275, -0.030395240391436932, 0.771141943394494, -0.5096451041493769,
     3.9753604660015447, -1.883288595068771, 7.11616372944458, -2.157582202328148,
     4.771235912609348, -0.7024408692231352, 1.0),
)
# the same: 1.5e-8
ERFCX_SINGLE = (
    (0.10000605876007587, 0.1673972582531341, 0.20360883451649556, 0.3393643896202877,
     0.05422298190306121, 0.28209478751927397),
    (0.15254734128407416, -0.33398896188247745, 1.1359238163802063, -0.8077878681082705, 1.0),
)
# f(w) = erf_inv(x)/x at w = -log(1 - x²), w ≤ 8: 4e-17
INVERSE_CENTRE = (
    (3.9172745066376407e-10, 2.7147064825924812e-08, 8.485479686875141e-07,
     1.5946251356908082e-05, 0.00020703678895025567, 0.001995126065073102, 0.01467484877427114,
     0.0802379563202331, 0.31082188926245724, 0.8862269254527579),
    (1.1558197115807712e-11, 4.6291039243359014e-09, 1.3346221213729722e-07,
     4.9025659575891355e-06, 4.6269488480749204e-05, 0.000918474867137211, 0.0038384209607483567,
     0.054226145063033096, 0.08892555672187083, 1.0),
)
# f in √w - 2.75, 8 ≤ w ≤ 37.4: 4e-17
INVERSE_TAIL = (
    (0.00012559734950710137, 0.004064468896298945, 0.026532169101617566, 0.10430902820740663,
     0.32911335464415703, 0.8338730902013703, 1.7445620476834733, 2.9386280166732575,
     4.003153260505387, 3.818029223018695, 2.5832938084581123),
    (-1.0419548177860852e-08, 0.00012603950585417467, 0.0037105419757685557, 0.0167034831173471,
     0.06106154662131901, 0.1686085745401536, 0.3986478400606286, 0.7040592959389598,
     1.1217463698566938, 1.0927690545786213, 1.0),
)
# f in √w - 6, 37.2 ≤ w ≤ 750: 4e-18
INVERSE_FAR = (
    (1.5937510593033392e-08, 2.4134208068182033e-06, 0.00012885903588328231,
     0.0033536129864269438, 0.04840755301072011, 0.4080844452108826, 2.001758467883622,
     5.2998271962367145, 5.859913143946245),
    (1.8962014369113055e-16, 1.593741983304655e-08, 2.3178320034980586e-06,
     0.00011499680576087405, 0.0026683229543103537, 0.03257033609988218, 0.21554388487215598,
     0.7321306594056671, 1.0),
)
# f(w), w ≤ 5: 3e-9
INVERSE_CENTRE_SINGLE = (
    (0.0003858459258311748, 0.006269304141461023, 0.05538802540058826, 0.3090326048138332,
     0.8862269281078949),
    (4.3338426841756396e-05, 0.0015848458316672178, 0.026713724990315164, 0.08690668886277872,
     1.0),
)
# f in √w - 2.25, 5 ≤ w ≤ 16.8: 1.5e-8
INVERSE_TAIL_SINGLE = (
    (0.5978688506961152, 2.312679991686756, 3.510267425894675, 3.349177520098182,
     2.0931408092080077),
    (0.0012295620271481963, 0.5803428776588228, 1.1226535984636268, 1.1425880230849474, 1.0),
)
# f in √w - 2.25, 5 ≤ w ≤ 106: 4e-9
INVERSE_FAR_SINGLE = (
    (0.05373582047651115, 0.5314657742448177, 1.6140557841854888, 2.7990563273112685,
     4.1198591774018185, 4.8341528996321275, 3.7395147028912357, 2.0931408223777583),
    (0.05371736218161568, 0.4119415153300055, 0.7638243765714154, 1.1871873185521862,
     1.6698600231761986, 1.3290709610615157, 1.0),
)
# fmt: on


def erfcx(xp: Any, x: Any, eps: float = FOR_FLOAT64) -> Any:
    """exp(x²) erfc(x) for finite x ≥ 0.

    >>> erfcx(np, np.array([0.0, 1e6]))
    array([1.00000000e+00, 5.64189584e-07])
    """
    u = 2.0 / (x + 2.0)
    return u * ratio(ERFCX_SINGLE if eps == FOR_FLOAT32 else ERFCX, u)


def _exp_minus_square(xp: Any, x: Any, scale: float, eps: float) -> Any:
    """exp(-scale x²) for 0 ≤ x < 40 and scale a power of two, to the last bits of a tiny result.

    x is cut into h + l where h² is exact; x² = h² + l (x + h).
    """
    if eps == FOR_FLOAT32:  # x² is exact
        return xp.exp(x * x * -scale)
    h = xp.rint(x * 1048576.0) * (1.0 / 1048576.0)
    t = (x - h) * (x + h) * -scale
    return xp.exp(h * h * -scale) * polynomial((1 / 6, 0.5, 1.0, 1.0), t)


def erf(xp: Any, x: Any) -> Any:
    """The error function, 2/√π ∫₀ˣ exp(-t²) dt, in [-1, 1], for all x.

    >>> erf(np, np.array([-np.inf, 0.0, 0.5]))
    array([-1.        ,  0.        ,  0.52049988])
    """
    a = xp.abs(x)
    small = a < 1.0
    z = x * x
    if is_single(x):
        near = x * polynomial(ERF_SINGLE, z)
        root = polynomial(ERFC_ROOT_SINGLE, xp.minimum(a, 4.0))
        square = root * root
        fourth = square * square
        far = 1.0 - 1.0 / (fourth * fourth)
    else:
        near = x * ratio(ERF, z)
        b = xp.minimum(a, 6.0)
        far = 1.0 - erfcx(xp, b) * xp.exp(-b * b)
    return xp.where(small, near, xp.copysign(far, x))


@to_accuracy
def erfc(xp: Any, x: Any, eps: float) -> Any:
    """The complementary error function 1 - erf(x), without cancellation for large x.

    >>> erfc(np, np.array([-np.inf, 0.0, 10.0]))
    array([2.00000000e+00, 1.00000000e+00, 2.08848758e-45])
    """
    a = xp.abs(x)
    small = a < 0.5
    near = 1.0 - x * ratio(ERF, xp.where(small, x * x, 0.0))
    b = xp.minimum(a, 28.0)
    tail = erfcx(xp, b, eps) * _exp_minus_square(xp, b, 1.0, eps)
    return xp.where(small, near, xp.where(x < 0.0, 2.0 - tail, tail))


def erf_inv(xp: Any, x: Any) -> Any:
    """The inverse of erf on [-1, 1]; ±∞ at ±1 and NaN outside.

    >>> erf_inv(np, np.array([0.0, 0.5, 1.0, 2.0]))
    array([0.        , 0.47693628,        inf,        nan])
    """
    if is_single(x):
        split, shift, top = 5.0, 2.25, 17.0
        tables: tuple = (INVERSE_CENTRE_SINGLE, INVERSE_TAIL_SINGLE)
    else:
        split, shift, top = 8.0, 2.75, 37.4
        tables = (INVERSE_CENTRE, INVERSE_TAIL)
    w = -xp.log((1.0 - x) * (1.0 + x))
    r = xp.sqrt(xp.minimum(xp.maximum(w, split), top)) - shift
    f = choose_ratio(xp, w < split, tables[0], xp.minimum(w, split), tables[1], r)
    return xp.where(xp.isinf(w), xp.copysign(w, x), x * f)


@to_accuracy
def ndtri(xp: Any, p: Any, eps: float) -> Any:
    """The inverse of the normal distribution function: √2 erf_inv(2p - 1), exact in both tails.

    >>> ndtri(np, np.array([0.0, 1e-300, 0.5, 0.975]))
    array([        -inf, -37.0470963 ,   0.        ,   1.95996398])
    """
    x = 2.0 * p - 1.0
    w = -xp.log(4.0 * p * (1.0 - p))
    if eps == FOR_FLOAT32:
        r = xp.sqrt(xp.minimum(xp.maximum(w, 5.0), 106.0)) - 2.25
        f = choose_ratio(
            xp, w < 5.0, INVERSE_CENTRE_SINGLE, xp.minimum(w, 5.0), INVERSE_FAR_SINGLE, r
        )
    else:
        r = xp.sqrt(xp.minimum(xp.maximum(w, 8.0), 750.0))
        tail = xp.minimum(r, 6.11) - 2.75
        f = choose_ratio(xp, w < 8.0, INVERSE_CENTRE, xp.minimum(w, 8.0), INVERSE_TAIL, tail)
        f = xp.where(r < 6.11, f, ratio(INVERSE_FAR, xp.maximum(r, 6.11) - 6.0))
    return xp.where(xp.isinf(w), xp.copysign(w, x), x * f * SQRT_2)


@to_accuracy
def ndtr(xp: Any, x: Any, eps: float) -> Any:
    """The normal distribution function (1 + erf(x/√2))/2, exact in its lower tail.

    >>> ndtr(np, np.array([-30.0, 0.0, 1.0]))
    array([4.90671393e-198, 5.00000000e-001, 8.41344746e-001])
    """
    a = xp.abs(x)
    small = a < 0.5
    t = xp.where(small, x * SQRT_HALF, 0.0)
    near = 0.5 + 0.5 * t * ratio(ERF, t * t)
    tail = _normal_tail(xp, a, eps)
    return xp.where(small, near, xp.where(x < 0.0, tail, 1.0 - tail))


def _normal_tail(xp: Any, x: Any, eps: float) -> Any:
    """1 - ndtr(x) for x ≥ 0."""
    b = xp.minimum(x, 39.0)
    return 0.5 * erfcx(xp, b * SQRT_HALF, eps) * _exp_minus_square(xp, b, 0.5, eps)


@to_accuracy
def log_ndtr(xp: Any, x: Any, eps: float) -> Any:
    """The logarithm of the normal distribution function, without underflow or cancellation.

    >>> log_ndtr(np, np.array([-1e10, 0.0, 20.0]))
    array([-5.00000000e+19, -6.93147181e-01, -2.75362412e-89])
    """
    a = xp.abs(x)
    lower = xp.log(0.5 * erfcx(xp, xp.minimum(a, 1e300) * SQRT_HALF, eps)) - 0.5 * (x * x)
    upper = xp.log1p(-_normal_tail(xp, xp.where(x < 0.0, 0.0, a), eps))
    return xp.where(x < 0.0, lower, upper)
