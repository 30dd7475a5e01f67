"""Convolutions with quantized kernels: integers against an oracle of int64, ranges, training."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad import quantization as q
from funcgrad.errors import ArgumentError

RNG = np.random.default_rng(5)
LAST, FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


def normal(*shape, scale=1.0):
    return fnp.asarray(RNG.standard_normal(shape) * scale, "float32")


def conv(x, w, **options):
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": LAST} | options
    return lax.conv_general_dilated(x, w, **options)


def names(closed):
    return [e.prim.name for e in closed.jaxpr.eqns]


CASES = [
    {},
    {"window_strides": (2, 1), "padding": ((2, 0), (1, 3))},
    {"rhs_dilation": (2, 1)},
    {"lhs_dilation": (2, 3), "padding": ((0, 1), (-1, 2))},
    {"feature_group_count": 3},
    {"dimension_numbers": FIRST, "padding": "VALID"},
    {"dimension_numbers": ("CNHW", "IOHW", "HWCN")},
]


def exact(x, w, options):
    """The convolution in float64, which holds all of these sums."""
    return np.asarray(conv(x.astype("float64"), w.astype("float64"), **options))


def operands(options, low, high, n=6):
    spec = options.get("dimension_numbers", LAST)
    groups = options.get("feature_group_count", 1)
    x = RNG.integers(low[0], high[0], (2, n, 9, 8), endpoint=True)
    w = RNG.integers(low[1], high[1], (6, n // groups, 3, 2), endpoint=True)
    place = lambda a, letters, to: a.transpose([letters.index(c) for c in to])
    return place(x, "NCHW", spec[0]), place(w, "OIHW", spec[1])


@pytest.mark.parametrize("zero", [-128, 0, 77])
@pytest.mark.parametrize("options", CASES)
def test_static_integers_are_exact(options, zero):
    spec = options.get("dimension_numbers", LAST)
    for low, high in ((-128, 127), (127, 127), (-128, -128)):
        x, w = operands(options, (low, max(low, -127)), (high, max(high, -127)))
        ones = tuple(n if c == "O" else 1 for c, n in zip(spec[1], w.shape, strict=True))
        scalar = (1, 1, 1, 1)
        array = q.IntArray(
            fnp.asarray(w, "int8"), fnp.ones(ones), x_scale=fnp.ones(scalar),
            x_zero=fnp.full(scalar, float(zero)), activations="static",
        )  # fmt: skip
        run = fg.quantization.convert.with_weights(lambda p, x: conv(x, p, **options))
        values = fnp.asarray(x - zero, "float32")
        want = exact(x - zero, w, options).astype(np.float32)
        np.testing.assert_array_equal(run(array, values), want)
        if options in CASES[:2]:
            np.testing.assert_array_equal(fg.jit(run)(array, values), want)


@pytest.mark.parametrize("options", CASES)
def test_dynamic_scales_are_of_images(options):
    x, w = operands(options, (-127, -127), (127, 127))
    f = lambda p, x: conv(x, p["w"], **options)
    x = fnp.asarray(x, "float32")
    qf, qparams, _ = fg.quantize(f, {"w": fnp.asarray(w, "float32")}, q.Int8Dynamic(), [(x,)])
    assert "int32" in str(fg.make_jaxpr(qf)(qparams, x))
    assert q.sqnr(f({"w": fnp.asarray(w, "float32")}, x), qf(qparams, x)) > 40
    spec = options.get("dimension_numbers", LAST)
    size, out = (
        np.reshape(np.float32([1, 128]), [2 if c == "N" else 1 for c in letters])
        for letters in (spec[0], spec[2])
    )
    np.testing.assert_array_equal(qf(qparams, x * size), qf(qparams, x) * out)


def test_sums_that_int32_does_not_hold_are_floats():
    f = lambda p, x: x @ p
    for n, whole in ((q.arrays.MOST_SUMMED, True), (q.arrays.MOST_SUMMED + 1, False)):
        w, x = fnp.full((n, 1), 127.0), fnp.full((1, n), 255.0)
        config = q.Int8Static()
        qf, qparams, _ = fg.quantize(f, w, config, [(x,)])
        assert ("int32" in str(fg.make_jaxpr(qf)(qparams, x))) == whole
        np.testing.assert_allclose(qf(qparams, x), [[n * 127.0 * 255.0]], rtol=1e-4)


PARAMS = {"a": normal(3, 3, 4, 8, scale=1 / 6), "b": normal(3, 3, 8, 8, scale=1 / 8)}
PARAMS["o"] = normal(8, 5)


def model(p, x):
    h = nn.relu(conv(x, p["a"]))
    h = nn.relu(h + conv(h, p["b"], window_strides=(1, 1)))
    return h.mean((1, 2)) @ p["o"]


@pytest.mark.parametrize("config", [q.Int8Dynamic(), q.Int8Static(), q.WeightOnly(8)])
def test_a_network(config):
    x = normal(4, 9, 9, 4)
    qf, qparams, report = fg.quantize(model, PARAMS, config, [(x,)])
    assert set(report.quantized) == {"a", "b", "o"}
    want = model(PARAMS, x)
    assert q.sqnr(want, qf(qparams, x)) > 40
    np.testing.assert_allclose(fg.jit(qf)(qparams, x), qf(qparams, x), rtol=1e-5, atol=1e-5)
    prepared = q.prepare(model, PARAMS, config, [(x,)])
    np.testing.assert_array_equal(fg.qat(model, config)(prepared, x), qf(qparams, x))
    grads = fg.grad(lambda p: fnp.sum(fg.qat(model, config)(p, x) ** 2))(prepared)
    plain = fg.grad(lambda p: fnp.sum(model(p, x) ** 2))(PARAMS)
    assert q.sqnr(plain["a"], grads["a"].w) > 20


def test_results_are_scaled_in_one_pass_with_what_follows():
    """What comes after a product's sums is one kernel with the activation, and the next codes."""
    x = normal(4, 9, 9, 4)
    f = lambda p, x: conv(nn.relu(x[..., :1] + conv(x, p["a"])), p["b"])
    qf, qparams, _ = fg.quantize(f, {k: PARAMS[k] for k in "ab"}, q.Int8Static(), [(x,)])
    text = fg.jit(qf).lower(qparams, x).as_text("loops").split("\nkernel ")[0]
    products = [line for line in text.splitlines() if " gemm int8 to int32" in line]
    assert len(products) == 2
    between = text[text.index(products[0]) : text.index(products[1])].splitlines()[1:]
    assert len([line for line in between if "patches" not in line and "pad" not in line]) <= 3


def test_a_number_that_is_none_stays_in_its_image():
    x = np.array(normal(2, 5, 5, 4))
    x[1, 2, 2, 0] = np.nan
    f = lambda p, x: conv(x, p["a"])
    params = {"a": PARAMS["a"]}
    qf, qparams, _ = fg.quantize(f, params, q.Int8Static(), [(normal(2, 5, 5, 4),)])
    found = np.asarray(qf(qparams, x))
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[0]).all()


def test_what_algorithms_and_several_images_get():
    x = normal(2, 9, 9, 4)
    config = q.Int8Static(algorithm=q.SmoothQuant())
    qf, qparams, _ = fg.quantize(model, PARAMS, config, [(x,)])
    assert qparams["a"].divide is None
    assert qparams["o"].divide is not None
    assert q.sqnr(model(PARAMS, x), qf(qparams, x)) > 40
    f = lambda p, x: conv(x, p["w"], batch_group_count=2)
    params = {"w": normal(3, 3, 4, 8)}
    qf, qparams, _ = fg.quantize(f, params, q.Int8Dynamic(), [(x,)])
    assert "int32" not in str(fg.make_jaxpr(qf)(qparams, x))
    assert q.sqnr(f(params, x), qf(qparams, x)) > 38
    unseen = {**PARAMS, "c": normal(3, 3, 8, 8)}
    with pytest.raises(ArgumentError, match="calibration never saw the parameter c"):
        fg.quantize(model, unseen, {"c": q.Int8Static()}, [(x,)])
