"""Formats against torchao's, where that is installed: the same codes of the same numbers, but for
its `x · (1/s)` where ours divides, and its scale of symmetric int8, amax / 127.5.
"""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import quantization as q
from funcgrad.quantization import formats

torch = pytest.importorskip("torch")
ao = pytest.importorskip("torchao.quantization")

RNG = np.random.default_rng(0)
OUT, IN = 48, 256
W = RNG.standard_normal((OUT, IN), np.float32)  # torch's layers have results first
X = RNG.standard_normal((32, IN), np.float32)


def linear(config):
    """torch's layer of W, quantized by torchao."""
    layer = torch.nn.Linear(IN, OUT, bias=False)
    layer.weight.data = torch.from_numpy(W.copy())
    ao.quantize_(layer, config)
    return layer


def numbers(x):
    """A tensor as NumPy's array, whatever its dtype."""
    return x.detach().to(torch.float32).numpy()


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (2, 64), (8, 128)])
def test_integers_with_zero_points(bits, group):
    ours = q.quantize_int(W, bits, group, (-1,), symmetric=False)
    low, high = formats.limits(bits, False)
    scale, zero = ao.choose_qparams_affine(
        torch.from_numpy(W), ao.MappingType.ASYMMETRIC, (1, group), torch.uint8, low, high
    )
    np.testing.assert_allclose(ours.scale.ravel(), scale.numpy().ravel(), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(ours.zero).ravel(), zero.numpy().ravel())
    theirs = ao.quantize_affine(
        torch.from_numpy(W), (1, group), scale, zero, torch.uint8, low, high
    )
    found = np.asarray(ours.values(), np.int32)
    different = np.abs(found - theirs.numpy().astype(np.int32))
    assert different.max() <= 1
    assert different.mean() < 1e-4  # what lies half way between two
    dense = ao.dequantize_affine(theirs, (1, group), scale, zero, torch.uint8, low, high).numpy()
    same = different == 0
    np.testing.assert_allclose(np.asarray(ours.dense())[same], dense[same], rtol=1e-5, atol=1e-6)


def test_int8_weights():
    """Its scale is smaller by 127 / 127.5; with its scale the codes are ours."""
    theirs = linear(ao.Int8WeightOnlyConfig()).weight
    scale, codes = numbers(theirs.scale).reshape(OUT, 1), theirs.qdata.numpy()
    ours = q.quantize_int(W, 8, 0, (-1,))
    np.testing.assert_allclose(np.asarray(ours.scale) * (127 / 127.5), scale, rtol=1e-6)
    with_theirs = q.quantize_int(W, 8, 0, (-1,), scale=fnp.asarray(scale))
    different = np.asarray(with_theirs.codes, np.int32) - codes
    assert np.abs(different).max() <= 1
    # Our codes end at ±127: what its −128 and rounding leave is a code for each row, and ties.
    assert np.mean(different != 0) < 1 / IN


@pytest.mark.parametrize("name", ["dynamic", "weights"])
def test_its_layers_give_what_ours_give(name):
    config = {"dynamic": ao.Int8DynamicActivationInt8WeightConfig(),
              "weights": ao.Int8WeightOnlyConfig()}[name]  # fmt: skip
    own = {"dynamic": q.Int8Dynamic(), "weights": q.WeightOnly(8)}[name]
    want = numbers(linear(config)(torch.from_numpy(X)))
    qf, params, _ = fg.quantize(lambda p, x: x @ p["w"].T, {"w": W}, own, [(X,)])
    assert params["w"].scale.shape == (OUT, 1)
    got = qf(params, X)
    assert q.sqnr(want, got) > 38
    exact = X @ W.T
    assert abs(q.sqnr(exact, want) - q.sqnr(exact, got)) < 1


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("per", ["row", "tensor"])
def test_float8(dtype, per):
    theirs = ao.Float8Tensor.from_hp(
        torch.from_numpy(W), getattr(torch, dtype), ao.PerRow() if per == "row" else ao.PerTensor()
    )
    ours = q.quantize_float8(W, dtype, per, (-1,))
    np.testing.assert_allclose(
        np.asarray(ours.scale).ravel(), numbers(theirs.scale).ravel(), rtol=1e-6
    )
    different = np.asarray(formats.from_float8(ours.codes)) != numbers(theirs.qdata)
    assert different.mean() < 1e-3


def test_mxfp4_to_the_bit():
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    for scale in (1.0, 1e-3, 37.0):
        theirs = mx.MXTensor.to_mx(torch.from_numpy(scale * W), torch.float4_e2m1fn_x2, 32)
        ours = q.quantize_mxfp4(np.float32(scale) * W, (-1,))
        np.testing.assert_array_equal(ours.codes, theirs.qdata.view(torch.uint8).numpy())
        np.testing.assert_array_equal(ours.scale, theirs.scale.view(torch.uint8).numpy())
        np.testing.assert_array_equal(ours.dense(), numbers(theirs.dequantize(torch.float32)))


def test_nf4():
    """Codes are the same; it holds scales as linear int8, we in bitsandbytes' dynamic map."""
    theirs = ao.to_nf4(torch.from_numpy(W), 64, 64)
    ours = q.quantize_nf4(W, 64, axes=(-1,))
    found = np.asarray(formats.unpack(ours.codes, 4, -1)).ravel()
    pairs = theirs.quantized_data.numpy().ravel()
    codes = np.stack([pairs >> 4, pairs & 15], 1).ravel()  # the first one is above
    assert np.mean(found != codes) < 1e-3
    assert q.sqnr(numbers(theirs.get_original_weight()), ours.dense()) > 35
