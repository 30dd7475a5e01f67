"""bfloat16 by pairs: the same bits as element by element."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.emitter import emit
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import pool
from tests.backends.checks import program

BF16 = ml_dtypes.bfloat16
FUNCTIONS = {
    "a*b+a": lambda a, b: [a * b + a],
    "two results": lambda a, b: [a + b, fnp.exp(a)],
    "with a scalar": lambda a, b: [a * b[3] - b],
    "shifted": lambda a, b: [a[1:] - b[:-1], a[2:] + b[:-2]],
    "places": lambda a, b: [a * fnp.arange(a.shape[0]).astype(BF16)],
    "selected": lambda a, b: [fnp.where(a > b, a, -b)],
    "two axes": lambda a, b: [a[: a.size // 8 * 8].reshape(-1, 8) * fnp.ones((1, 8), BF16)],
}


def drawn(rng, n):
    """Every kind of number: all bits are random, so that NaN, infinities, subnormals occur."""
    return rng.integers(0, 1 << 16, n).astype(np.uint16).view(BF16)


def text_of(fun, *arrays):
    texts = []
    for kernel in program(fun, *arrays)[2].kernels():
        emitted = emit(kernel, "f", {}, Target.host())
        texts.append(emitted.text)
    return "".join(texts)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [1 << 20, (1 << 20) - 2, (1 << 20) + 1])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pairs(name, threads, n, rng):
    pool.set_num_threads(threads)
    fun, (a, b) = FUNCTIONS[name], (drawn(rng, n) for _ in range(2))
    with np.errstate(all="ignore"):
        wanted = fun(fnp.asarray(a), fnp.asarray(b))
    for got, want in zip(fg.jit(fun)(a, b), wanted, strict=True):
        got, want = (np.asarray(x).astype(np.float32) for x in (got, want))
        np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))
        if name == "two results":  # exp is not NumPy's
            np.testing.assert_allclose(got, want, rtol=2**-7)
        else:
            np.testing.assert_array_equal(got, want)


def test_donated_operands_are_written_over(rng):
    a, b = (drawn(rng, 1 << 20) for _ in range(2))
    with np.errstate(all="ignore"):
        want = np.asarray(fnp.asarray(a) * fnp.asarray(b)).astype(np.float32)
    got = fg.jit(lambda a, b: a * b, donate_argnums=0)(fnp.array(a), b)
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want)


def test_words_are_read_where_all_is_bfloat16_and_even(rng):
    a, b = (drawn(rng, 1 << 20) for _ in range(2))
    assert "load i32" in text_of(FUNCTIONS["a*b+a"], a, b)
    assert "load i32" in text_of(FUNCTIONS["two axes"], a, b)
    assert "load i32" not in text_of(FUNCTIONS["a*b+a"], a[1:], b[1:])
    assert "load i32" not in text_of(lambda a: [a.astype(np.float32)], a)
