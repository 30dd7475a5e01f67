"""Initializers: their variance, range, dtype and shape."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn, random

KEY = random.key(0)
init = nn.initializers
SHAPE = (80, 120)

# name: (initializer, variance for SHAPE, largest size of an element)
CASES = {
    "normal": (init.normal(0.3), 0.09, np.inf),
    "uniform": (init.uniform(0.6), 0.36 / 12, 0.6),
    "truncated_normal": (init.truncated_normal(0.5), 0.25 * 0.87962566**2, 1.0),
    "glorot_normal": (init.glorot_normal(), 1 / 100, 2 / 0.8796 * 0.1),
    "glorot_uniform": (init.glorot_uniform(), 1 / 100, 3**0.5 / 10),
    "xavier_normal": (init.xavier_normal(), 1 / 100, np.inf),
    "xavier_uniform": (init.xavier_uniform(), 1 / 100, np.inf),
    "he_normal": (init.he_normal(), 2 / 80, np.inf),
    "he_uniform": (init.he_uniform(), 2 / 80, (6 / 80) ** 0.5),
    "kaiming_normal": (init.kaiming_normal(), 2 / 80, np.inf),
    "kaiming_uniform": (init.kaiming_uniform(), 2 / 80, np.inf),
    "lecun_normal": (init.lecun_normal(), 1 / 80, np.inf),
    "lecun_uniform": (init.lecun_uniform(), 1 / 80, np.inf),
    "fan_out": (init.variance_scaling(3.0, "fan_out", "normal"), 3 / 120, np.inf),
    "fan_geo_avg": (init.variance_scaling(1.0, "fan_geo_avg", "uniform"), 9600**-0.5, np.inf),
    "axes": (init.he_normal(in_axis=1, out_axis=0), 2 / 120, np.inf),
    "orthogonal": (init.orthogonal(2.0), 4 / 120, np.inf),
}


@pytest.mark.parametrize("name", CASES)
def test_variance(name):
    draw, variance, largest = CASES[name]
    x = np.asarray(draw(KEY, SHAPE))
    assert x.shape == SHAPE
    assert x.dtype == np.float32
    assert x.var() == pytest.approx(variance, rel=0.05)
    assert np.abs(x).max() <= largest * (1 + 1e-5)
    if name != "uniform":
        assert abs(x.mean()) < 4 * np.sqrt(variance / x.size)


@pytest.mark.parametrize("name", CASES)
def test_dtypes(name):
    draw = CASES[name][0]
    assert draw(KEY, (4, 3), "float64").dtype == np.float64
    if name != "orthogonal":
        assert draw(KEY, (4, 3), "bfloat16").dtype.name == "bfloat16"
    with fg.default_dtype("float64"):
        assert draw(KEY, (4, 3)).dtype == np.float64
    compiled = fg.jit(lambda k: draw(k, (4, 3)))(KEY)
    np.testing.assert_allclose(compiled, draw(KEY, (4, 3)), rtol=1e-4, atol=1e-5)


def test_fans_count_the_receptive_field():
    x = init.lecun_normal()(KEY, (5, 5, 8, 64))
    assert np.var(x) == pytest.approx(1 / 200, rel=0.05)
    batched = init.lecun_normal(batch_axis=(0,))(KEY, (10, 40, 40))
    assert np.var(batched) == pytest.approx(1 / 40, rel=0.05)
    several = init.lecun_normal(in_axis=(0, 1))(KEY, (6, 10, 100))
    assert np.var(several) == pytest.approx(1 / 60, rel=0.05)


def test_constants():
    assert init.zeros(KEY, (2,)).tolist() == [0, 0]
    assert init.ones(KEY, (2,), "int8").dtype == np.int8
    assert init.constant(3)(KEY, (2,)).dtype == np.float32
    assert init.constant([1.0, 2.0])(KEY, (3, 2)).tolist() == [[1, 2]] * 3


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5, 5), -1),
        ((3, 2, 4), -1),
        ((4, 9), -1),
        ((4, 6), 0),
        ((0, 0), -1),
        ((0, 3), -1),
        ((3, 0), -1),
        ((2, 0, 3), 1),
        ((0, 3), 0),
    ],
)
def test_orthogonal(shape, axis):
    q = np.asarray(init.orthogonal(1.0, axis)(KEY, shape, "float64"))
    assert q.shape == shape
    m = np.moveaxis(q, axis, -1)
    m = m.reshape(int(np.prod(m.shape[:-1])), shape[axis])
    m = m if m.shape[0] >= m.shape[1] else m.T
    np.testing.assert_allclose(m.T @ m, np.eye(m.shape[1]), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: init.he_normal()(KEY, (3,)), r"at least two axes, or in_axis=, got \(3,\)"),
        (lambda: init.orthogonal()(KEY, (3,)), "at least two axes"),
        (lambda: init.variance_scaling(1.0, "fan", "normal")(KEY, (2, 2)), "mode .*'fan'"),
        (lambda: init.variance_scaling(1.0, "fan_in", "cauchy")(KEY, (2, 2)), "'cauchy'"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_scale_may_be_an_array():
    x = init.normal(fnp.array([0.0, 1.0]))(KEY, (3, 2))
    assert (np.asarray(x)[:, 0] == 0).all()


def test_vectors_scale_by_the_axes_that_are_given():
    make = init.variance_scaling(1.0, "fan_in", "normal", in_axis=-1, out_axis=())
    drawn = np.asarray(make(KEY, (4000,)))
    assert drawn.std() * np.sqrt(4000) == pytest.approx(1, rel=0.05)
    assert make(KEY, (3, 4)).shape == (3, 4)


@pytest.mark.parametrize("shape", [(3, 2, 2), (4, 3, 2, 5), (1, 2, 3, 3, 4)])
def test_delta_orthogonal(shape):
    kernel = np.asarray(init.delta_orthogonal(2.0)(KEY, shape, "float64"))
    middle = tuple((n - 1) // 2 for n in shape[:-2])
    m = kernel[middle]
    np.testing.assert_allclose(m @ m.T, 4 * np.eye(shape[-2]), atol=1e-12)
    assert np.count_nonzero(kernel) == np.count_nonzero(m)
    for bad in ((2, 2), (3, 3, 2)):
        with pytest.raises(ValueError, match="delta_orthogonal: need a shape"):
            init.delta_orthogonal()(KEY, bad)


@pytest.mark.parametrize("make", [init.he_uniform, init.he_normal], ids=["disk", "cut"])
def test_complex_weights(make):
    x = np.asarray(make(dtype="complex64")(KEY, (200, 200)))
    assert x.dtype == np.complex64
    assert x.var() * 100 == pytest.approx(1, rel=0.05)
    assert abs(x.mean()) < 0.01
    most = {init.he_uniform: np.sqrt(2) * 0.1, init.he_normal: 2 * 0.1 / 0.9531}[make]
    assert 0.95 * most < np.abs(x).max() < 1.0001 * most
