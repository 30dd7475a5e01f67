"""Products in float8: numbers bit by bit, results near exact ones, both passes' formats."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.core.ir import sub_jaxprs
from funcgrad.transforms.precision.float8 import quantized

E4M3, E5M2 = (np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
TOP = {E4M3: 448.0, E5M2: 57344.0}
by_scaling = pytest.mark.parametrize("scaling", ["tensor", "row"])


def rounded(x, dtype, scaling):
    """What float8 makes of the rows of a matrix, in float64; by ml_dtypes."""
    largest = np.abs(x).max(-1 if scaling == "row" else None, keepdims=True)
    scale = np.where(largest == 0, 1, largest / np.float32(TOP[dtype])).astype(np.float32)
    held = np.clip(x / scale, -TOP[dtype], TOP[dtype]).astype(dtype)
    return held.astype(np.float64) * scale


def draw(rng, *shape):
    return (rng.normal(size=shape) * np.exp(rng.normal(size=(shape[0], 1)))).astype(np.float32)


@by_scaling
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_quantization(scaling, dtype, rng):
    x = draw(rng, 6, 40)
    x[1] = 0
    values, scales = quantized(fnp.array(x), dtype, -1 if scaling == "row" else None)
    assert values.dtype == dtype
    got = np.asarray(values).astype(np.float64) * np.asarray(scales)
    assert np.array_equal(got, rounded(x, dtype, scaling))
    assert np.abs(np.asarray(values).astype(np.float32)).max() == TOP[dtype]


@by_scaling
def test_values_and_gradients(scaling, rng):
    x, w, ct = draw(rng, 8, 32), draw(rng, 32, 6), draw(rng, 8, 6)
    f = lambda x, w: nn.fp8_dot(x, w, scaling=scaling)
    row = lambda v, dtype=E4M3: rounded(v, dtype, scaling)
    out = row(x) @ row(w.T).T
    dx = row(ct, E5M2) @ row(w).T
    dw = row(x.T) @ row(ct.T, E5M2).T
    for run in (f, fg.jit(f)):
        got, pull = fg.vjp(run, x, w)
        for a, b in zip((got, *pull(fnp.array(ct))), (out, dx, dw), strict=True):
            assert a.dtype == np.float32
            assert np.allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@by_scaling
def test_it_is_near_the_exact_product(scaling, rng):
    x, w = draw(rng, 16, 256), draw(rng, 256, 16)
    loss = lambda dot: lambda x, w: fnp.mean(dot(x, w) ** 2)
    exact = fg.grad(loss(fnp.matmul), (0, 1))(x, w)
    found = fg.grad(loss(lambda x, w: nn.fp8_dot(x, w, scaling=scaling)), (0, 1))(x, w)
    for got, wanted in zip(found, exact, strict=True):
        noise = np.sum(np.square(got - wanted)) / np.sum(np.square(wanted))
        assert -10 * np.log10(noise) > 20


def test_any_axes(rng):
    x, y = draw(rng, 2, 24).reshape(2, 3, 4, 2), draw(rng, 3, 24).reshape(3, 4, 6)
    numbers = (((2,), (1,)), ((1,), (0,)))
    got = nn.fp8_dot(x, y, numbers, scaling="row")
    wanted = np.einsum("abcd,bce->bade", x, y)
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() < 0.1 * np.abs(wanted).max()
    inner = fg.vmap(lambda a, b: nn.fp8_dot(a, b, scaling="row"))(x[0], y[:, :2])
    assert inner.shape == (3, 4, 6)


def test_row_scales_hold_rows_of_other_sizes(rng):
    """A row of 2¹⁷ times the others' size makes zeros of these with one scale for all."""
    x = np.ones((2, 8), np.float32)
    x[0] *= 2.0**20
    w = np.ones((8, 1), np.float32)
    np.testing.assert_allclose(np.ravel(nn.fp8_dot(x, w)), [2.0**23, 0], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(nn.fp8_dot(x, w, scaling="row")), [2.0**23, 8], rtol=1e-6)


@by_scaling
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinities_are_not_made_finite(scaling, bad):
    x = np.ones((2, 4), np.float32)
    x[0, 1] = bad
    out = np.asarray(nn.fp8_dot(x, np.ones((4, 3), np.float32), scaling=scaling))
    assert np.isnan(out[0]).all()
    assert np.isnan(out[1]).all() == (scaling == "tensor")


def test_formats_in_the_program(rng):
    x, w = draw(rng, 4, 8), draw(rng, 8, 2)

    def casts(jaxpr):
        for e in jaxpr.eqns:
            if e.prim.name == "convert_element_type":
                yield e.outs[0].aval.dtype
            for inner in sub_jaxprs(e):
                yield from casts(inner)

    forward = list(casts(fg.make_jaxpr(nn.fp8_dot)(x, w).jaxpr))
    both = list(casts(fg.make_jaxpr(fg.grad(lambda w: fnp.sum(nn.fp8_dot(x, w))))(w).jaxpr))
    assert E4M3 in forward
    assert E5M2 not in forward
    assert E5M2 in both


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0))])
def test_nothing(shapes):
    x, w = (fnp.ones(s) for s in shapes)
    out, grads = fg.value_and_grad(lambda x, w: fnp.sum(nn.fp8_dot(x, w)), (0, 1))(x, w)
    assert float(out) == 0
    assert [g.shape for g in grads] == list(shapes)


def test_narrow_operands(rng):
    x, w = (fnp.array(draw(rng, 8, 8)).astype("bfloat16") for _ in range(2))
    assert nn.fp8_dot(x, w).dtype == x.dtype
    assert nn.fp8_dot(x, w, preferred_element_type="float32").dtype == np.float32
    assert fg.grad(lambda w: fnp.sum(nn.fp8_dot(x, w).astype("float32")))(w).dtype == w.dtype


def test_training_an_mlp(rng):
    """Float8 finds a line nearly as well as float32."""
    x = fnp.array(draw(rng, 64, 16))
    y = x @ fnp.array(draw(rng, 16, 4))

    def final(dot):
        def step(i, w):
            return w - 0.02 * fg.grad(lambda w: fnp.mean((dot(x, w) - y) ** 2))(w)

        w = fg.jit(lambda w: fg.lax.fori_loop(0, 200, step, w))(fnp.zeros((16, 4)))
        return float(fnp.mean((x @ w - y) ** 2) / fnp.mean(y**2))

    assert final(lambda x, w: nn.fp8_dot(x, w, scaling="row")) < final(fnp.matmul) + 0.01


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: nn.fp8_dot(x, x, scaling="block"), 'scaling must be "tensor" or "row", got'),
        (lambda x: nn.fp8_dot(x.astype(int), x), "operands must be of float32, bfloat16, float16"),
        (lambda x: nn.fp8_dot(x.astype("float64"), x), "got lhs f64"),
        (lambda x: nn.fp8_dot(x, fnp.ones((3, 2))), "must have the same sizes"),
    ],
)
def test_wrong_arguments(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(fnp.ones((2, 2)))
