"""funcgrad.scipy.special against SciPy: values, dtypes, shapes, derivatives, special points."""

import numpy as np
import pytest
from scipy import special as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import special

INF, NAN = np.inf, np.nan
REAL = np.array([-7.3, -2.5, -1.0, -0.3, 0.0, 1e-8, 0.2, 0.5, 1.0, 1.5, 3.7, 12.0])
POSITIVE = np.array([1e-6, 0.1, 0.5, 1.0, 1.5, 2.0, 4.2, 20.0, 50.0])
UNIT = np.array([1e-9, 0.01, 0.3, 0.5, 0.77, 0.999, 1 - 1e-9])
CORNERS = np.array([-INF, -1.0, 0.0, 1.0, INF, NAN])
UNIT_CORNERS = np.array([-0.1, 0.0, 1.0, 1.1, NAN])

# name: (points to differentiate at, further points)
UNARY = {
    "digamma": (POSITIVE, [-0.5, -2.3]),
    "psi": (POSITIVE, []),
    "entr": (POSITIVE, CORNERS),
    "erf": (REAL, CORNERS),
    "erfc": (REAL, CORNERS),
    "erfinv": (2 * UNIT[1:-1] - 1, [-1.0, 1.0, 1.5, NAN]),
    "exp1": (POSITIVE, [0.0, INF]),
    "expi": (POSITIVE, [-3.0, -0.5]),
    "erfcinv": (2 * UNIT[1:-1], [0.0, 2.0, -1.0, NAN]),
    "expit": (REAL, CORNERS),
    "factorial": (POSITIVE[:7], [0.0, 5.0]),
    "gamma": (POSITIVE[:7], [-0.5, -1.5, -2.0, 0.0, -0.0, INF, NAN]),
    "gammaln": (POSITIVE, [-0.5, -1.5, -2.0, 0.0, INF, NAN]),
    "gammasgn": (POSITIVE, [-0.5, -1.5]),
    "i0": (REAL, []),
    "i0e": (REAL[REAL != 1e-8], [1e-8]),
    "i1": (REAL, []),
    "i1e": (REAL, []),
    "k0": (POSITIVE, [0.0, -1.0, NAN]),
    "k0e": (POSITIVE, [0.0, -1.0, NAN]),
    "k1": (POSITIVE[1:], [1e-6, 0.0, -1.0, NAN]),
    "k1e": (POSITIVE[1:], [1e-6, 0.0, -1.0, NAN]),
    "j0": (REAL, [-0.0, NAN]),
    "j1": (REAL, [-0.0, NAN]),
    "y0": (POSITIVE, [0.0, -1.0, NAN]),
    "y1": (POSITIVE[1:], [1e-6, 0.0, -1.0, NAN]),
    "log_ndtr": (REAL, [-30.0, 30.0, -INF, INF, NAN]),
    "logit": (UNIT[1:-1], [*UNIT_CORNERS, 1e-9]),
    "ndtr": (REAL, CORNERS),
    "ndtri": (UNIT[1:-1], UNIT_CORNERS),
    "rgamma": (REAL[REAL != 1e-8], [1e-8, -20.5, 30.0]),
    "spence": (POSITIVE, [0.0, -1.0]),
}
# name: (first points, second points, which operands differentiate)
BINARY = {
    "beta": (POSITIVE[1:-2], POSITIVE[1:-2], (0, 1)),
    "betaln": (POSITIVE[1:-2], POSITIVE[1:-2], (0, 1)),
    "gammainc": (POSITIVE[1:-1], POSITIVE[:-1], (0, 1)),
    "gammaincc": (POSITIVE[1:-1], POSITIVE[:-1], (0, 1)),
    "iv": (np.array([-2.3, -0.5, 0.0, 0.7, 3.0, 12.5]), POSITIVE[2:], (1,)),
    "ive": (np.array([-1.7, -0.5, -3.0, 0.7, 45.0]), POSITIVE[2:], (1,)),
    "jv": (np.array([-3.0, -1.3, 0.0, 0.5, 2.0, 11.2]), POSITIVE[2:], (1,)),
    "yv": (np.array([-3.0, -1.3, 0.0, 0.5, 2.0, 11.2]), POSITIVE[2:], (1,)),
    "kv": (np.array([-2.3, 0.0, 0.5, 3.0, 12.5]), POSITIVE[2:], (1,)),
    "kve": (np.array([-2.3, 0.0, 0.5, 3.0, 45.0]), POSITIVE[2:], (1,)),
    "kl_div": (POSITIVE, POSITIVE, (0, 1)),
    "poch": (POSITIVE[1:-2], np.array([0.3, 1.0, 2.0]), (0, 1)),
    "rel_entr": (POSITIVE, POSITIVE, (0, 1)),
    "xlog1py": (POSITIVE, POSITIVE, (0, 1)),
    "xlogy": (POSITIVE, POSITIVE, (0, 1)),
    "zeta": (np.array([1.5, 2.0, 3.3]), POSITIVE[1:], (1,)),
}


def slope(f, x, h=1e-5):
    """The derivative by central differences of fourth order."""
    h = h * np.maximum(np.abs(x), 1e-3)
    return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_unary(name, jit):
    ours, theirs = getattr(special, name), getattr(sp, name)
    ours = fg.jit(ours) if jit else ours
    points = np.concatenate([UNARY[name][0], UNARY[name][1]])
    got = ours(fnp.array(points))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, theirs(points), rtol=2e-12, atol=1e-14)
    narrow = points.astype(np.float32)
    got = ours(fnp.array(narrow))
    assert got.dtype == np.float32
    # What the nearest float32 numbers give, an ulp of the argument being part of the deal.
    wanted = theirs(narrow.astype(float))
    near = np.abs(theirs(np.nextafter(narrow, np.float32(INF)).astype(float)) - wanted)
    room = 3e-6 * np.abs(wanted) + 2 * np.nan_to_num(near, nan=0.0, posinf=0.0) + 1e-37
    close = np.abs(np.asarray(got, float) - wanted) <= room
    same = (np.asarray(got, float) == wanted) | (np.isnan(got) & np.isnan(wanted))
    assert (close | same).all(), (narrow[~(close | same)], np.asarray(got), wanted)


@pytest.mark.parametrize("name", UNARY)
def test_unary_derivatives(name):
    ours = getattr(special, name)
    x = UNARY[name][0]
    first = fg.vmap(fg.grad(ours))
    np.testing.assert_allclose(first(fnp.array(x)), slope(ours, x), rtol=2e-6, atol=1e-7)
    inner = x[np.abs(x) > 1e-4]
    second = fg.vmap(fg.grad(fg.grad(ours)))(fnp.array(inner))
    np.testing.assert_allclose(second, slope(first, inner), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_binary(name, jit):
    a, b, _ = BINARY[name]
    a, b = a[:, None], b[None, :]
    ours = getattr(special, name)
    ours = fg.jit(ours) if jit else ours
    got, wanted = ours(a, b), getattr(sp, name)(a, b)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("name", "which"), [(name, i) for name in BINARY for i in BINARY[name][2]])
def test_binary_derivatives(name, which):
    ours = getattr(special, name)
    a, b = (x.ravel() for x in np.meshgrid(BINARY[name][0], BINARY[name][1]))
    first = fg.vmap(fg.grad(ours, which))

    def at(x):
        return ours(x, b) if which == 0 else ours(a, x)

    got = first(fnp.array(a), fnp.array(b))
    np.testing.assert_allclose(got, slope(at, (a, b)[which]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("xlogy", [0.0, 0.0, 1.0, 0.0], [0.0, NAN, 0.0, -1.0]),
        ("xlog1py", [0.0, 0.0, 1.0], [-1.0, NAN, -1.0]),
        ("rel_entr", [0.0, 1.0, 0.0, -1.0, 1.0], [0.0, 0.0, 2.0, 1.0, NAN]),
        ("kl_div", [0.0, 1.0, 0.0, -1.0], [0.0, 0.0, 2.0, 1.0]),
        ("gammainc", [1.0, 1.0, 0.5], [0.0, INF, 0.0]),
        ("gammaincc", [1.0, 1.0, 0.5], [0.0, INF, 0.0]),
        ("beta", [1.0, 2.0, -0.5], [1.0, 3.0, 2.0]),
        ("poch", [1.0, 3.0, 0.5], [0.0, 2.0, -0.25]),
    ],
)
def test_corners(name, a, b):
    got = getattr(special, name)(np.array(a), np.array(b))
    np.testing.assert_allclose(got, getattr(sp, name)(a, b), rtol=1e-12)


def edges(dtype):
    """Zeros, denormals, powers over all of a dtype's range, neighbours of 1, and no numbers."""
    info = np.finfo(dtype)
    positive = [info.smallest_subnormal, info.tiny, np.sqrt(info.tiny), info.eps**2, info.eps,
                1e-3, 0.3, 0.5, 1 - info.epsneg, 1, 1 + info.eps, 1.5, 2, 2.5, 3, 20, 21.5, 100.1,
                170.5, 712, 1e4, 1 / info.eps, np.sqrt(info.max), info.max, INF]  # fmt: skip
    positive = np.array(positive, dtype)
    return np.concatenate([positive, -positive, np.array([0.0, -0.0, NAN], dtype)])


# Where SciPy is wrong, or a limit is meant that it doesn't give. There, test_special_math asks
# mpmath.
BEYOND_SCIPY = {
    "betainc": lambda a, b, x: (np.minimum(a, b) < 1e-290) | ((x < 1e-300) & (x > 0)),
    "digamma": lambda x: np.abs(x + 1) < 1e-9,
    "psi": lambda x: np.abs(x + 1) < 1e-9,
    "gammaln": lambda x: (np.abs(x - 1) < 1e-9) | (np.abs(x) < 1e-300) | (x == -INF),
    "gammainc": lambda a, x: a < 1e-300,
    "zeta": lambda s, q: (q <= 0) | (s < 1 + 1e-9),
    "expi": lambda x: (x > 709) & (x < 717),
    "kl_div": lambda p, q: ~((p / q > 1e-300) & (p / q < 1e300)) | (np.abs(p / q - 1) < 0.5),
    "erfcinv": lambda y: (y > 0) & (y < 2e-45),
    **dict.fromkeys(("j0", "j1", "y0", "y1"), lambda x: np.abs(x) > 1e6),
    **dict.fromkeys(("k0", "k0e"), lambda x: x < 1e-307),
    "i0": lambda x: np.abs(x) > 709, "i1": lambda x: np.abs(x) > 709, "spence": np.isinf,
}  # fmt: skip
PAIRS = ("gammainc", "gammaincc", "xlogy", "xlog1py", "rel_entr", "kl_div", "zeta")
EVERYWHERE = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(PAIRS, 2), "betainc": 3}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_everywhere(name, jit, dtype):
    """At all pairs and triples of edges a function ends, and is SciPy's."""
    points = edges(dtype)[:: 2 if EVERYWHERE[name] == 3 else 1]
    args = [g.ravel() for g in np.meshgrid(*[points] * EVERYWHERE[name])]
    wide = [a.astype(np.float64) for a in args]
    with np.errstate(all="ignore"):
        theirs = getattr(sp, name)(*wide)
        unknown = np.any(np.isnan(wide), axis=0)
        known = ~unknown & ~np.isnan(theirs) & ~BEYOND_SCIPY.get(name, lambda *_: np.False_)(*wide)
        theirs = theirs.astype(dtype)
    ours = getattr(special, name)
    got = np.asarray((fg.jit(ours) if jit else ours)(*args))
    rtol, tiny = (4e-6 if dtype == np.float32 else 2e-12), np.finfo(dtype).tiny
    np.testing.assert_allclose(got[known], theirs[known], rtol=rtol, atol=tiny)
    assert np.isnan(got[unknown]).all()


def test_derivatives_at_corners():
    """Where the value is finite, so is what flows through a branch not taken."""
    assert float(fg.grad(special.xlogy)(0.0, 2.0)) == pytest.approx(np.log(2))
    assert float(fg.grad(special.rel_entr, 1)(0.0, 1.0)) == 0.0
    assert np.isfinite(float(fg.grad(special.rel_entr, 0)(0.0, 1.0)))
    assert float(fg.grad(special.log_ndtr)(-40.0)) == pytest.approx(40.025, abs=1e-2)
    assert float(fg.grad(special.factorial)(-1.0)) == 0.0


@pytest.mark.parametrize("function", [special.i0, fnp.i0, special.i1])
def test_bessel_functions_overflow_where_their_values_do(function):
    """At 90, e^x is beyond float32, and I₀ is not; so at 712 and float64."""
    theirs = sp.i1 if function is special.i1 else sp.i0
    x = np.array([-90.0, 88.0, 90.0, 91.0], np.float32)
    np.testing.assert_allclose(function(x), theirs(x.astype(float)), rtol=2e-6)
    wide = function(np.array([709.0, 712.0]))
    np.testing.assert_allclose(wide[1] / wide[0], np.exp(3) * np.sqrt(709 / 712), rtol=1e-5)
    np.testing.assert_array_equal(np.abs(function(np.array([-INF, INF], np.float32))), INF)


def test_further_functions():
    a, b = np.array([0.5, 2.0, 7.0]), np.array([1.5, 3.0, 0.2])
    x = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    got = special.betainc(a[:, None], b[:, None], x)
    np.testing.assert_allclose(got, sp.betainc(a[:, None], b[:, None], x), rtol=1e-11)
    for n in range(4):
        np.testing.assert_allclose(
            special.polygamma(n, POSITIVE), sp.polygamma(n, POSITIVE), rtol=1e-11
        )
        np.testing.assert_allclose(special.expn(n, POSITIVE), sp.expn(n, POSITIVE), rtol=1e-10)
    np.testing.assert_allclose(special.multigammaln(4.5, 3), sp.multigammaln(4.5, 3), rtol=1e-6)
    np.testing.assert_allclose(
        fg.vmap(fg.grad(lambda t: special.multigammaln(t, 2)))(fnp.array([2.0, 3.0], "float64")),
        [sum(sp.psi(t - i / 2) for i in range(2)) for t in (2.0, 3.0)],
    )
    np.testing.assert_allclose(special.zeta(3.0), sp.zeta(3.0), rtol=1e-6)


@pytest.mark.parametrize("name", ["erf", "gammaln", "ndtr", "expit", "entr", "gamma"])
def test_integers_and_numbers(name):
    ours, theirs = getattr(special, name), getattr(sp, name)
    assert ours(2).dtype == np.float32
    assert ours(np.array([1, 2], "int8")).dtype == np.float32
    np.testing.assert_allclose(ours(np.array([1, 2])), theirs([1, 2]), rtol=1e-6)
    with fg.default_dtype("float64"):
        assert ours(2).dtype == np.float64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["erf", "gammaln", "ndtr", "expit", "xlogy", "i0e"])
def test_narrow_floats(name, dtype):
    x = fnp.array([0.25, 1.0, 2.5]).astype(dtype)
    args = (x, x) if name in BINARY else (x,)
    got = getattr(special, name)(*args)
    assert got.dtype == x.dtype
    wanted = getattr(sp, name)(*(np.asarray(a, float) for a in args))
    np.testing.assert_allclose(np.asarray(got, float), wanted, rtol=1e-2, atol=1e-3)


def test_promotion():
    x = fnp.array([1.0], "float64")
    assert special.xlogy(x, 2).dtype == np.float64
    assert special.xlogy(fnp.array([1.0]), x).dtype == np.float64
    assert special.betainc(fnp.array([1.0], "float16"), 1, 0.5).dtype == np.float16


def test_a_python_float_keeps_its_precision_beside_float64():
    x = np.array([0.3, 1.7])
    got = special.betainc(0.3, x, 0.7), special.zeta(x + 1, 0.3), special.xlogy(0.3, x)
    want = sp.betainc(0.3, x, 0.7), sp.zeta(x + 1, 0.3), sp.xlogy(0.3, x)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_exact_factorial_is_refused():
    with pytest.raises(NotImplementedError, match="exact=True"):
        special.factorial(3, exact=True)
