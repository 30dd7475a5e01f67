"""What follows a product, done by its call: which kernels are tails, and what they compute."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.backends.program import GemmStep, KernelStep, walk
from tests.backends.cuda.simulated import numbers, planned
from tests.backends.cuda.stand_in import on_fake

W, B = numbers(32, 48), numbers(48)
TAILS = {
    "bias": (lambda x, w, b: x @ w + b, "+"),
    "relu": (lambda x, w, b: nn.relu(x @ w), "relu"),
    "bias relu": (lambda x, w, b: fnp.maximum(b + x @ w, 0), "+ relu"),
    "gelu": (lambda x, w, b: nn.gelu(x @ w, approximate=True), "gelu"),
    "bias gelu": (lambda x, w, b: nn.gelu(x @ w + b, approximate=True), "+ gelu"),
    "batch": (lambda x, w, b: x.reshape(2, 8, 32) @ w + b, "+"),
}
NONE = {
    "erf": lambda x, w, b: nn.gelu(x @ w, approximate=False),
    "others read the sums": lambda x, w, b: (nn.relu(x @ w), x @ w),
    "a column": lambda x, w, b: x @ w + x[:, :1],
    "rounded between": lambda x, w, b: (x @ w).astype("bfloat16").astype("float32") + b,
    "a scale": lambda x, w, b: (x @ w) * b[0],
    "leaky": lambda x, w, b: nn.leaky_relu(x @ w),
    "complex": lambda x, w, b: fnp.abs((x + 1j * x) @ w + b),
}


def steps_of(program):
    return list(walk(program.program.steps))


def checked(program, f, args, tolerance):
    wide = [np.asarray(x).astype("float64") for x in args]
    got, want = program([np.asarray(x) for x in args])[0].astype("float64"), f(*wide)
    np.testing.assert_allclose(got, np.asarray(want), rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TAILS)
def test_tails(name, dtype, fake, gpu):
    f, words = TAILS[name]
    args = [fnp.asarray(x).astype(dtype) for x in (numbers(16, 32), W, B)]
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    for program in (planned(f, *args), on_fake(f, fake, gpu, *args)):
        (step,) = steps_of(program)
        assert isinstance(step, GemmStep)
        assert (step.tail.bias is not None) == ("+" in words)
        assert step.tail.activation == words.removeprefix("+").strip()
        assert step.out == np.asarray(args[0]).dtype
        checked(program, f, args, tolerance)


@pytest.mark.parametrize("name", ["bias gelu", "bias relu"])
def test_kernels_of_products_have_them(name):
    f, _ = TAILS[name]
    args = [fnp.asarray(x).astype("bfloat16") for x in (numbers(5, 32), W, B)]
    program = planned(f, *args, is_call=lambda s: False)
    (step,) = steps_of(program)
    assert isinstance(step, KernelStep)
    checked(program, f, args, 2e-2)


@pytest.mark.parametrize("rows", [2, 7])
def test_biases_run_along_the_axis_of_stride_one(rows):
    """Also of results that are written transposed."""
    x, b = numbers(rows, 32), numbers(rows)
    for f, bias in ((lambda x, w, b: x @ w + b, B), (lambda x, w, b: (x @ w).T + b, b)):
        for is_call in (lambda s: True, lambda s: False):
            program = planned(f, x, W, bias, is_call=is_call)
            checked(program, f, (x, W, bias), 1e-5)
    assert ", then + input2" in planned(f, x, W, bias).as_text("loops")


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_tail(name):
    f = NONE[name]
    program = planned(f, numbers(16, 32), W, B)
    assert all(s.tail is None for s in steps_of(program) if isinstance(s, GemmStep))
    for got, want in zip(program([numbers(16, 32), W, B]), fg.tree.leaves(f(numbers(16, 32), W, B)),
                         strict=True):  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_nan_stays(fake, gpu):
    x = numbers(16, 32)
    x[3, 4] = np.nan
    f = TAILS["bias relu"][0]
    for program in (planned(f, x, W, B), on_fake(f, fake, gpu, x, W, B)):
        assert np.isnan(program([x, W, B])[0][3]).all()
