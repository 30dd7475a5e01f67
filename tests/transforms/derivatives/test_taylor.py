"""jet: derivatives along a curve, against nested forward mode."""

import math

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.experimental.jet import jet

rng = np.random.default_rng(0)
X = rng.normal(size=(2, 3))
TERMS = [rng.normal(size=(2, 3)) for _ in range(3)]


def nested(f, primals, series):
    """The derivatives of f along the curve by as many forward modes, one in another."""

    def along(t):
        curves = zip(primals, series, strict=True)
        return f(*(x + sum(t**k * c / math.factorial(k) for k, c in enumerate(s, 1))
                   for x, s in curves))  # fmt: skip

    found = []
    for _ in series[0]:
        along = fg.jacfwd(along)
        found.append(along(np.float64(0)))
    return found


def check(f, *primals, terms=TERMS):
    series = [[c * (i + 1) for c in terms] for i in range(len(primals))]
    y, found = jet(f, primals, series)
    np.testing.assert_allclose(y, f(*primals), rtol=1e-12)
    for got, want in zip(found, nested(f, primals, series), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)


def looped(x):
    weights = np.linspace(0.5, 1.0, 3)
    carry, rows = lax.scan(lambda c, w: (c * 0.5 + fnp.sin(w * c), c * c), x, weights)
    return carry + rows.sum(0)


def counted(x):
    step = lambda c: (c[0] + 1, fnp.sin(c[1]) * x)
    return lax.while_loop(lambda c: c[0] < 3, step, (0, x))[1]


@pytest.mark.parametrize(
    "f",
    [
        fnp.tanh,
        lambda x: fnp.sin(x) / (2 + fnp.cos(x)),
        lambda x: 3 / (1 + x * x),
        lambda x: (x * x + 1) ** 1.3,
        lambda x: x**5 - x,
        lambda x: fnp.tanh(x @ x.T) @ x,
        lambda x: fnp.sort(x, 1)[:, 1:],
        lambda x: fnp.fft.fft(x).imag,
        fg.jit(lambda x: fnp.exp(-x * x)),
        fg.checkpoint(fg.nn.softmax),
        looped,
        counted,
        lambda x: lax.cond(fnp.sum(x) > 100, fnp.sin, lambda x: x * x * x, x),
        lambda x: fnp.where(x > 0, x * x, 1.0),
        fg.nn.relu,  # with a rule of its own
    ],
)
def test_against_nested_jvp(f):
    check(f, X)


def test_several_arguments_and_orders():
    check(lambda x, y: x * fnp.exp(y) / (3 + y * y), X, X[::-1].copy())
    check(fnp.arctan2, X, X + 2)
    check(fnp.tanh, X, terms=TERMS[:1])
    y, found = jet(fnp.tanh, (X,), ([],))
    np.testing.assert_allclose(y, np.tanh(X))
    assert found == []


def test_trees_constants_and_integers():
    y, found = jet(lambda x, n: {"a": x * n, "n": n + 1, "c": fnp.ones(2)}, (X, np.int32(3)),
                   ([TERMS[0], TERMS[1]], [0, 0]))  # fmt: skip
    np.testing.assert_allclose(found["a"][1], 3 * TERMS[1])
    assert [int(z) for z in found["n"]] == [0, 0]
    assert y["n"] == 4
    assert not np.any(found["c"])


def test_powers_without_factorials():
    y, (a, b, c) = jet(fnp.exp, (0.0,), ([1.0, 0.0, 0.0],), factorial_scaled=False)
    np.testing.assert_allclose([y, a, b, c], [1, 1, 1 / 2, 1 / 6], rtol=1e-6)


def test_composes():
    third = lambda x: jet(fnp.sin, (x,), ([1.0, 0.0, 0.0],))[1][2]
    np.testing.assert_allclose(third(0.3), -np.cos(0.3), rtol=1e-6)
    np.testing.assert_allclose(fg.jit(fg.grad(third))(0.3), np.sin(0.3), rtol=1e-6)
    xs = np.linspace(0, 1, 4)
    np.testing.assert_allclose(fg.vmap(third)(xs), -np.cos(xs), rtol=1e-6)


def test_cost_grows_slowly():
    # Nested forward modes would have 2¹² products.
    program = fg.make_jaxpr(lambda x: jet(fnp.exp, (x,), ([1.0] + [0.0] * 11,)))(0.1)
    assert len(program.eqns) < 2000


@pytest.mark.parametrize(
    ("primals", "series", "error", "words"),
    [
        ((1.0,), (), ValueError, "1 primals have 0 series"),
        ((1.0, 2.0), ([1.0], [1.0, 2.0]), ValueError, "inconsistent lengths for different arg"),
        (([1.0],), ([1.0],), TypeError, "primal value at position 0 is not an array"),
        ((1.0,), (["a"],), TypeError, "term 0 for argument 0 is not an array, got 'a'"),
        ((X,), ([1.0],), ShapeError, r"term 0 for argument 0 must be f64\[2,3\], got f32"),
        ((1.0,), ([1j],), DTypeError, "term 0 for argument 0 must be f32"),
    ],
)
def test_errors(primals, series, error, words):
    with pytest.raises(error, match=f"^jet.*{words}"):
        jet(lambda *xs: xs[0], primals, series)
