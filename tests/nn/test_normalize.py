"""The softmax family against SciPy, with masks, infinities and derivatives; one-hot codes."""

import numpy as np
import pytest
from scipy import special

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, nn

INF = np.inf
X = np.array([[0.3, -1.2, 2.0, 0.1], [5.0, 5.0, -700.0, 3.0], [800.0, 0.0, -800.0, 799.0]])
MASK = np.array([[True, False, True, True], [False, True, False, False], [False] * 4])
AXES = [0, 1, -1, (0, 1)]


def masked(x):
    return np.where(MASK, x, -INF)


def slopes(f, x, h=1e-5):
    """The Jacobian of f at x by central differences."""
    steps = h * np.eye(x.size).reshape(-1, *x.shape)
    columns = [(np.asarray(f(x + s)) - np.asarray(f(x - s))) / (2 * h) for s in steps]
    return np.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_values(name, axis, jit):
    ours = lambda x: getattr(nn, name)(x, axis=axis)
    got = (fg.jit(ours) if jit else ours)(X)
    np.testing.assert_allclose(got, getattr(special, name)(X, axis=axis), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"]
)
def test_derivatives(name, axis, rng):
    f = lambda x: getattr(nn, name)(x, axis=axis)
    x = rng.normal(size=(2, 3))
    weights = rng.normal(size=f(x).shape)
    np.testing.assert_allclose(fg.jacrev(f)(fnp.array(x)), slopes(f, x), atol=1e-8)
    np.testing.assert_allclose(fg.jacfwd(f)(fnp.array(x)), slopes(f, x), atol=1e-8)
    gradient = fg.grad(lambda x: fnp.sum(f(x) * weights))
    np.testing.assert_allclose(fg.jacfwd(gradient)(fnp.array(x)), slopes(gradient, x), atol=1e-7)


def test_masks():
    with np.errstate(invalid="ignore"):
        wanted = special.softmax(masked(X)[:2], axis=-1)
    got = nn.softmax(X, where=MASK)
    np.testing.assert_allclose(got[:2], wanted, rtol=1e-12)
    assert (np.asarray(got[2]) == 0).all()
    logs = nn.log_softmax(X, where=MASK)
    np.testing.assert_allclose(np.exp(np.asarray(logs)), got, rtol=1e-12)
    assert (np.asarray(logs)[~MASK] == -INF).all()
    sums = nn.logsumexp(X, axis=-1, where=MASK)
    np.testing.assert_allclose(sums, special.logsumexp(masked(X), axis=-1))
    means = nn.logmeanexp(X, axis=-1, where=MASK)
    np.testing.assert_allclose(means[:2], np.asarray(sums[:2]) - np.log([3, 1]), rtol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_masked_derivatives(name):
    """Finite everywhere, 0 outside of the mask, those of the elements alone inside."""
    weights = np.arange(1.0, 5.0)

    def total(x, where=None):
        y = getattr(nn, name)(x, axis=-1, where=where)
        kept = True if name == "logsumexp" or where is None else where
        return fnp.sum(fnp.where(kept, y * (weights[: x.shape[-1]] if y.ndim else 1.0), 0.0))

    gradient = np.asarray(
        fg.grad(lambda x: sum(total(x[i], MASK[i]) for i in range(2)))(fnp.array(X))
    )
    assert np.isfinite(gradient).all()
    assert (gradient[:2][~MASK[:2]] == 0).all()
    empty = fg.grad(lambda x: fnp.sum(fnp.where(MASK, nn.softmax(x, where=MASK), 0.0)))
    assert np.isfinite(empty(fnp.array(X))).all()


def test_masked_constants_have_no_derivative():
    """Cotangents of the -inf outside of a mask don't reach the elements inside."""
    _, pull = fg.vjp(lambda x: nn.log_softmax(x, where=MASK), fnp.array(X))
    outside = pull(fnp.array(np.where(MASK, 0.0, 1.0)))[0]
    assert (np.asarray(outside) == 0).all()


def test_infinities():
    x = np.array([[-INF, 0.0, -INF], [-INF, -INF, -INF], [INF, 0.0, 1.0]])
    assert nn.softmax(x[0]).tolist() == [0, 1, 0]
    assert nn.log_softmax(x[0]).tolist() == [-INF, 0, -INF]
    assert nn.logsumexp(x, axis=-1).tolist() == [0, -INF, INF]
    assert np.isnan(nn.softmax(x[1])).all()
    assert fg.grad(nn.logsumexp)(fnp.array(x[0])).tolist() == [0, 1, 0]
    assert float(nn.logsumexp(np.zeros((0,)))) == -INF


def test_weighted_sums():
    x, b = X[:2], np.array([1.0, -2.0, 0.0, 0.5])
    with np.errstate(invalid="ignore"):
        wanted = special.logsumexp(x, axis=-1, b=b)
    np.testing.assert_allclose(nn.logsumexp(x, axis=-1, b=b), wanted, rtol=1e-12)
    size, sign = nn.logsumexp(x, axis=-1, b=b, return_sign=True)
    np.testing.assert_allclose((size, sign), special.logsumexp(x, -1, b, return_sign=True))
    kept, _ = nn.logsumexp(x, axis=-1, b=b, return_sign=True, keepdims=True)
    assert kept.shape == (2, 1)
    # A weight of 0 wins against infinity.
    assert float(nn.logsumexp(np.array([0.0, INF]), b=np.array([1.0, 0.0]))) == 0.0
    slope = fg.grad(lambda b: nn.logsumexp(fnp.array([1.0, 2.0]), b=b))(fnp.array([1.0, 0.5]))
    np.testing.assert_allclose(slope, np.exp([1, 2]) / (np.e + 0.5 * np.e**2), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"]
)
def test_narrow_floats(name, dtype, rng):
    x = fnp.array(rng.normal(size=(3, 4))).astype(dtype)
    got = getattr(nn, name)(x, axis=-1)
    assert got.dtype == x.dtype
    wanted = getattr(nn, name)(np.asarray(x, float), axis=-1)
    room = {"float16": 3e-3, "bfloat16": 3e-2, "float32": 1e-6}[dtype]
    np.testing.assert_allclose(np.asarray(got, float), wanted, rtol=room, atol=room)
    assert getattr(nn, name)(np.arange(6).reshape(2, 3)).dtype == np.float32


def test_standardize(rng):
    x = rng.normal(size=(5, 8)) * 3 + 2
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.standardize(x), wanted, rtol=1e-12)
    np.testing.assert_allclose(
        nn.standardize(x, mean=0.5, variance=2, epsilon=0.25), (x - 0.5) / 1.5, rtol=1e-12
    )
    where = rng.random((5, 8)) > 0.3
    rows = [nn.standardize(row[keep]) for row, keep in zip(x, where, strict=True)]
    got = np.asarray(nn.standardize(x, where=where))
    np.testing.assert_allclose(got[where], np.concatenate(rows), rtol=1e-12)
    constant = fg.grad(lambda v: nn.standardize(v)[0])(fnp.ones(4))
    assert np.isfinite(constant).all()


def test_standardize_of_large_half_floats():
    """Whose squares are beyond float16."""
    x = fnp.array([-1000.0, 1000.0], "float16")
    assert nn.standardize(x).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
def test_one_hot(axis):
    x = np.array([[0, 2, 5], [-1, 1, 2]])
    wanted = np.moveaxis((x[..., None] == np.arange(3)).astype(float), -1, axis)
    got = nn.one_hot(x, 3, axis=axis)
    assert got.dtype == np.float32
    assert np.array_equal(got, wanted)
    assert np.array_equal(fg.jit(lambda v: nn.one_hot(v, 3, axis=axis))(x), wanted)


def test_one_hot_dtypes():
    assert nn.one_hot(np.array([200], "uint8"), 300, dtype="int8")[0, 200] == 1
    assert nn.one_hot(2, 3, dtype=bool).tolist() == [False, False, True]
    assert float(fnp.sum(nn.one_hot(np.array([-1], "int8"), 300))) == 0
    x = fnp.array([1.0, 0.5, 256.0], "bfloat16")
    assert nn.one_hot(x, 300).sum(axis=1).tolist() == [1, 0, 1]
    with pytest.raises(errors.DTypeError, match="x must hold real numbers, got complex64"):
        nn.one_hot(fnp.ones(2, "complex64"), 3)


@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"]
)
def test_an_axis_that_is_not_there_names_the_function(name):
    function = getattr(nn, name)
    with pytest.raises(errors.ShapeError, match=rf"nn\.{name}: axis 2 is out of range"):
        function(fnp.ones((2, 3)), axis=2)
    with pytest.raises(errors.ShapeError, match=rf"nn\.{name}: axes \(0, 0\) are not distinct"):
        fg.jit(lambda x: function(x, axis=(0, 0)))(fnp.ones((2, 3)))
    with pytest.raises(TypeError, match=rf"nn\.{name}: axis must be an integer, got 'a'"):
        function(fnp.ones((2, 3)), axis="a")


def test_standardize_either_way(rng):
    x = rng.standard_normal((3, 5))
    stable, fast = (nn.standardize(x, algorithm=a) for a in ("stable", "fast"))
    np.testing.assert_allclose(stable, fast, rtol=1e-9)
    assert np.isfinite(np.asarray(nn.standardize(np.full(3, 1e4, "f"), algorithm="fast"))).all()
    with pytest.raises(ValueError, match="algorithm must be 'stable' or 'fast'"):
        nn.standardize(x, algorithm="slow")
