"""Products of blocks with scales: quantization bit by bit, results near exact ones, derivatives."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, lax, nn
from funcgrad.nn import scaled

MODES = {"mxfp8": (32, None), "nvfp4": (16, np.ones(1, np.float32))}
# Of largest results: 3 and 1 bits of mantissa, over sums.
NEAR = {"mxfp8": 0.08, "nvfp4": 0.2}


def configs(mode):
    return [nn.get_scaled_dot_general_config(mode)] * 3


def rounded(x, mode):
    """The numbers that a format has for x, block by block, in float32; by ml_dtypes."""
    block = MODES[mode][0]
    *lead, n = x.shape
    blocks = np.pad(x, [(0, 0)] * len(lead) + [(0, -n % block)]).reshape(*lead, -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    if mode == "mxfp8":
        kind = ml_dtypes.float8_e4m3fn
        with np.errstate(divide="ignore"):
            scale = np.where(largest > 0, 2.0 ** np.ceil(np.log2(largest / 448)), 1)
    else:
        kind = ml_dtypes.float4_e2m1fn
        scale = (largest / 6).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    top = float(ml_dtypes.finfo(kind).max)
    held = np.clip(blocks / np.where(scale == 0, 1, scale), -top, top).astype(kind)
    out = held.astype(np.float32) * scale
    return out.reshape(*lead, -1)[..., :n].astype(np.float32)


@pytest.mark.parametrize("n", [64, 50])
@pytest.mark.parametrize("mode", MODES)
def test_quantization(mode, n, rng):
    x = (rng.normal(size=(2, 5, n)) * np.exp(rng.normal(size=(2, 5, n)))).astype(np.float32)
    x[0, 0] = 0
    block, whole = MODES[mode]
    narrow, scales = scaled._quantized(fnp.asarray(x), mode, block, whole)
    assert narrow.dtype == np.dtype(ml_dtypes.float8_e4m3fn)
    held = np.repeat(np.asarray(scales, np.float32), block, -1) * np.asarray(narrow, np.float32)
    assert np.array_equal(held[..., :n], rounded(x, mode))


def test_numbers_of_four_bits_round_to_even():
    x = fnp.arange(-26, 27) / 4
    wanted = np.asarray(np.clip(x, -6, 6)).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    got = scaled._to_e2m1(fnp.clip(x, -6, 6))
    assert np.array_equal(got, wanted)


NUMBERS = {
    "matrices": ((4, 64), (64, 3), (((1,), (0,)), ((), ()))),
    "batches": ((2, 4, 64), (2, 3, 64), (((2,), (2,)), ((0,), (0,)))),
    "several": ((4, 2, 5, 8), (5, 3, 2, 8), (((1, 3), (2, 3)), ((2,), (0,)))),
    "short": ((3, 5), (5, 2), (((1,), (0,)), ((), ()))),
    "vectors": ((40,), (40,), (((0,), (0,)), ((), ()))),
    "nothing": ((3, 0), (0, 2), (((1,), (0,)), ((), ()))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NUMBERS)
def test_products(name, mode, rng):
    left, right, numbers = NUMBERS[name]
    x, y = (rng.normal(size=s).astype(np.float32) for s in (left, right))
    f = lambda x, y: nn.scaled_dot_general(x, y, numbers, configs=configs(mode))
    exact = lax.dot_general(x, y, numbers)
    got = f(x, y)
    assert got.shape == exact.shape
    largest = max(1.0, float(np.max(np.abs(exact), initial=0)))
    np.testing.assert_allclose(got, exact, atol=NEAR[mode] * largest)
    np.testing.assert_allclose(fg.jit(f)(x, y), got, rtol=1e-6, atol=1e-6)
    if name == "matrices":
        wanted = rounded(x, mode) @ rounded(y.T, mode).T
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["matrices", "several", "short"])
def test_derivatives(name, mode, rng):
    left, right, numbers = NUMBERS[name]
    x, y = (rng.normal(size=s).astype(np.float32) for s in (left, right))
    loss = lambda f: lambda x, y: fnp.sum(fnp.sin(f(x, y)))
    f = lambda x, y: nn.scaled_dot_general(x, y, numbers, configs=configs(mode))
    # Of the exact product, at the quantized result.
    ct = fnp.cos(f(x, y))
    _, pull = fg.vjp(lambda x, y: lax.dot_general(x, y, numbers), x, y)
    for g in (fg.grad(loss(f), (0, 1)), fg.jit(fg.grad(loss(f), (0, 1)))):
        for got, wanted in zip(g(x, y), pull(ct), strict=True):
            np.testing.assert_allclose(got, wanted, atol=NEAR[mode] * float(fnp.max(abs(wanted))))


def test_numbers_too_large_have_no_derivative():
    x = fnp.asarray([[1e5] + [1.0] * 15])
    f = lambda x: fnp.sum(nn.scaled_dot_general(x, fnp.ones((16, 1)), (((1,), (0,)), ((), ())),
                                                configs=configs("nvfp4")))  # fmt: skip
    assert np.array_equal(fg.grad(f)(x), [[0.0] + [1.0] * 15])
    large = nn.get_scaled_dot_general_config("nvfp4", fnp.full(1, 64.0, "float32"))
    f = lambda x: nn.scaled_dot_general(x, fnp.ones((16, 1)), (((1,), (0,)), ((), ())),
                                        configs=[large, *configs("nvfp4")[:2]])  # fmt: skip
    assert np.array_equal(fg.grad(lambda x: fnp.sum(f(x)))(x), np.ones((1, 16)))
    np.testing.assert_allclose(f(x), [[1e5]], rtol=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_vmap_and_dtypes(dtype, rng):
    x, y = (
        fnp.asarray(rng.normal(size=(3, 4, 32)), dtype),
        fnp.asarray(rng.normal(size=(32, 2)), dtype),
    )
    f = lambda x, y: nn.scaled_dot_general(
        x, y, (((1,), (0,)), ((), ())), preferred_element_type=dtype, configs=configs("mxfp8")
    )
    got = fg.vmap(f, (0, None))(x, y)
    assert got.dtype == dtype
    assert np.array_equal(got, fnp.stack([f(v, y) for v in x]))
    assert fg.grad(lambda x: fnp.sum(f(x, y)).astype("float32"))(x[0]).dtype == dtype


def test_without_configs_it_is_the_plain_product(rng):
    x, y = (rng.normal(size=(3, 3)).astype(np.float32) for _ in range(2))
    numbers = (((1,), (0,)), ((), ()))
    assert np.array_equal(nn.scaled_dot_general(x, y, numbers), lax.dot_general(x, y, numbers))


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_scaled_matmul(out, rng):
    a, b = (fnp.asarray(rng.normal(size=s), "float8_e4m3fn") for s in ((2, 3, 8), (2, 5, 8)))
    sa, sb = (fnp.asarray(rng.uniform(size=s), "bfloat16") for s in ((2, 3, 2), (2, 5, 2)))
    wide = lambda x, s: np.asarray(x, np.float64) * np.repeat(np.asarray(s, np.float64), 4, -1)
    wanted = np.einsum("bmk,bnk->bmn", wide(a, sa), wide(b, sb))
    got = nn.scaled_matmul(a, b, sa, sb, preferred_element_type=out)
    assert got.dtype == out
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=1e-2, atol=1e-2)
    grads = fg.grad(lambda s: fnp.sum(nn.scaled_matmul(a, b, s, sb)))(sa)
    assert grads.shape == sa.shape


X = np.ones((2, 4, 8), np.float32)
S = np.ones((2, 4, 2), np.float32)
NAMED = (((1,), (0,)), ((), ()))
BAD = {
    "axes": (lambda: nn.scaled_matmul(X[0], X, S, S), errors.ShapeError, "four arrays of three"),
    "blocks": (lambda: nn.scaled_matmul(X, X, S, S[:, :, :1]), errors.ShapeError, r"rhs_scales \(B, N, K/block\), got shapes"),  # noqa: E501
    "contracted": (lambda: nn.scaled_matmul(X, X[..., :4], S, S), errors.ShapeError, "got shapes"),
    "mode": (lambda: nn.get_scaled_dot_general_config("fp8"), ValueError, "mode must be .* got 'fp8'"),  # noqa: E501
    "scale": (lambda: nn.get_scaled_dot_general_config("mxfp8", 1.0), ValueError, "mxfp8 has no global_scale"),  # noqa: E501
    "scales": (lambda: nn.get_scaled_dot_general_config("nvfp4", np.ones(2)), ValueError, r"one float32, got f64\[2\]"),  # noqa: E501
    "configs": (lambda: nn.scaled_dot_general(X[0], X[0].T, NAMED, configs=configs("mxfp8")[:2]), ValueError, "configs must be three"),  # noqa: E501
    "result": (lambda: nn.scaled_dot_general(X[0], X[0].T, NAMED, np.float64, configs("mxfp8")), errors.DTypeError, "must be one of float32, bfloat16, float16, got float64"),  # noqa: E501
    "sizes": (lambda: nn.scaled_dot_general(X[0], X[0], NAMED, configs=configs("mxfp8")), errors.ShapeError, "must have the same sizes"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, error, words = BAD[name]
    with pytest.raises(error, match=words):
        call()
