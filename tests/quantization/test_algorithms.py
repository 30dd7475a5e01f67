"""Algorithms: the error of products against plain rounding, on inputs with outliers."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad import quantization as q
from funcgrad.errors import ArgumentError

RNG = np.random.default_rng(0)
SIZES = np.exp(RNG.standard_normal(64)).astype(np.float32)
MIX = RNG.standard_normal((64, 64)).astype(np.float32) / 8 + np.eye(64, dtype=np.float32)
W = fnp.asarray(RNG.standard_normal((64, 32)), "float32")
X = fnp.asarray((RNG.standard_normal((500, 64)) @ MIX) * SIZES, "float32")


def noise(config, f=lambda p, x: x @ p["w"], params=None, x=X):
    """Signal to noise of the product of a quantized weight."""
    params = params or {"w": W}
    qf, qparams, _ = fg.quantize(f, params, config, [(x,)])
    return q.sqnr(f(params, x), qf(qparams, x)), qparams


@pytest.mark.parametrize("algorithm", [q.GPTQ(), q.AWQ()], ids=["gptq", "awq"])
@pytest.mark.parametrize(("bits", "group"), [(4, 0), (4, 16), (8, 0)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_products_have_less_noise(algorithm, bits, group, symmetric):
    plain, _ = noise(q.WeightOnly(bits, group, symmetric))
    better, _ = noise(q.WeightOnly(bits, group, symmetric, algorithm=algorithm))
    assert better > plain + (0.5 if bits < 8 else -0.5)


def test_codes_of_gptq_are_those_of_its_scales():
    """Packing again what it chose, with its scales, changes nothing."""
    _, qparams = noise(q.WeightOnly(4, 16, algorithm=q.GPTQ()))
    array = qparams["w"]
    again = q.quantize_int(array.dense(), 4, 16, (-2,), False, scale=array.scale, zero=array.zero)
    np.testing.assert_array_equal(again.codes, array.codes)


def test_gptq_of_inputs_that_are_alike_in_no_direction_is_rounding():
    eye = fnp.asarray(np.eye(64, dtype=np.float32))
    plain = q.quantize_int(W, 4, 0)
    found = q.GPTQ()(W, np.eye(64, dtype=np.float32), (-2,), q.WeightOnly(4))
    np.testing.assert_array_equal(found.codes, plain.codes)
    assert eye.shape == (64, 64)


def test_outliers_go_to_the_weight():
    x = X.at[:, 3].multiply(100)
    for config in (q.Int8Dynamic, q.Int8Static):
        plain, _ = noise(config(), x=x)
        smooth, qparams = noise(config(algorithm=q.SmoothQuant()), x=x)
        assert smooth > plain + 0.3
        assert qparams["w"].divide.shape == (64, 1)
    f = lambda p, x: x @ p["w"].T
    smooth, qparams = noise(q.Int8Dynamic(algorithm=q.SmoothQuant()), f, {"w": W.T}, x)
    assert qparams["w"].divide.shape == (1, 64)
    assert smooth > 25


def test_hqq_has_less_error_in_its_norm():
    w = fnp.asarray(RNG.standard_t(3, (64, 32)), "float32")
    plain = q.quantize_int(w, 2, 16)
    found = q.HQQ()(w, None, (-2,), q.WeightOnly(2, 16))
    size = lambda a: float(fnp.mean(fnp.abs(w - a.dense()) ** 0.7))
    assert found.zero.dtype == "float32"
    assert size(found) < size(plain)


@pytest.mark.parametrize("algorithm", [q.GPTQ(), q.AWQ(), q.HQQ()], ids=["gptq", "awq", "hqq"])
def test_layers_of_a_stack_have_inputs_of_their_own(algorithm):
    params = {"w": fnp.asarray(RNG.standard_normal((3, 64, 64)) / 8, "float32")}
    f = lambda p, x: lax.scan(lambda h, w: (fnp.tanh(h @ w), None), x, p["w"])[0]
    _, qparams = noise(q.WeightOnly(4, 16, algorithm=algorithm), f, params)
    array = qparams["w"]
    assert (array.shape, array.scale.shape) == ((3, 64, 64), (3, 4, 64))


def test_several_axes_that_are_summed():
    params = {"w": fnp.asarray(RNG.standard_normal((4, 16, 32)), "float32")}
    f = lambda p, x: fnp.einsum("bhk,hkd->bd", x.reshape(-1, 4, 16), p["w"])
    for group in (0, 8):
        plain, _ = noise(q.WeightOnly(4, group), f, params)
        better, qparams = noise(q.WeightOnly(4, group, algorithm=q.GPTQ()), f, params)
        assert better > plain
        assert qparams["w"].scale.shape == ((1, 1, 32) if group == 0 else (4, 2, 32))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (q.NF4(algorithm=q.GPTQ(), rules="w"), "GPTQ chooses integers of WeightOnly.*got NF4"),
        (q.NF4(algorithm=q.AWQ(), rules="w"), "AWQ chooses integers"),
        (q.WeightOnly(4, algorithm=q.SmoothQuant(), rules="w"), "SmoothQuant is for Int8Dynamic"),
    ],
)
def test_what_algorithms_are_for(config, words):
    with pytest.raises(ArgumentError, match=words):
        noise(config)


def test_algorithms_need_calibration():
    with pytest.raises(ArgumentError, match="quantize: GPTQ needs calibration"):
        fg.quantize(lambda p, x: x @ p, W, q.WeightOnly(4, algorithm=q.GPTQ()))


def test_caches():
    """Keys with channels of different sizes, and values with tokens of such."""
    keys = fnp.asarray(RNG.standard_normal((2, 64, 4, 32)) * SIZES[:32], "float32")
    by_channel = q.sqnr(keys, q.quantize_keys(keys, 4).dense())
    assert by_channel > 20
    assert by_channel > q.sqnr(keys, q.quantize_values(keys, 4).dense()) + 1
    values = fnp.asarray(RNG.standard_normal((2, 64, 4, 32)) * SIZES[:, None, None], "float32")
    by_token = q.sqnr(values, q.quantize_values(values, 4).dense())
    assert by_token > 20
    assert by_token > q.sqnr(values, q.quantize_keys(values, 4).dense()) + 1
    both = fg.jit(lambda k: q.quantize_keys(k, 2).dense())(keys)
    np.testing.assert_array_equal(both, q.quantize_keys(keys, 2).dense())
