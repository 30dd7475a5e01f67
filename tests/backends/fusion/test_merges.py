"""Sums over rows and the kernels that make the rows: where they join, and what they give."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.loops.ir import Loop
from funcgrad.backends.program import KernelStep
from funcgrad.core.record import replace
from tests.backends.checks import check, floats, integers, kernels, limited


@pytest.fixture
def small(monkeypatch):
    """Sums of few terms are merged, too."""
    limited(monkeypatch, row_sums=replace(CPU.limits.row_sums, least=0))


def merged(planned):
    """The numbers of sums of rows that kernels write beside the rows."""
    found = [0]
    for s in planned.steps:
        if isinstance(s, KernelStep):
            sizes = [b.size for b in s.kernel.params if b.role != "in"]
            loops = any(isinstance(t, Loop) and not t.parallel for t in s.kernel.body)
            found.append(sum(n < max(sizes) for n in sizes if n % 16 == 0) if loops else 0)
    return max(found)


def bias(x, ct):
    made = fnp.tanh(x) * ct
    return [made, fnp.sum(made, 0)]


def two(x, ct):
    made = fnp.tanh(x) * ct
    return [fnp.sum(x * ct, 0), made, fnp.sum(ct, 0)]


def norm(x, ct):
    mean = fnp.mean(x, -1, keepdims=True)
    unit = (x - mean) / fnp.sqrt(fnp.mean((x - mean) ** 2, -1, keepdims=True) + 1e-5)
    back = ct - fnp.mean(ct, -1, keepdims=True) - unit * fnp.mean(ct * unit, -1, keepdims=True)
    return [back, fnp.sum(ct * unit, 0), fnp.sum(ct, 0)]


def of_blocks(x, ct):
    made = fnp.tanh(x) * ct
    return [made, fnp.sum(made.reshape(8, 9, -1), 1)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("fun", "sums"), [(bias, 1), (two, 2), (norm, 2), (of_blocks, 1)])
@pytest.mark.parametrize("width", [128, 144])
def test_merged(small, fun, sums, dtype, width):
    planned = check(fun, floats(72, width, dtype=dtype), floats(72, width, seed=1, dtype=dtype))
    assert merged(planned) == sums
    assert kernels(planned) == (1 if fun is of_blocks else 2)


def test_several_axes_of_rows(small):
    def fun(x, ct):
        made = x * ct
        return [made, fnp.sum(made, (0, 1)), fnp.sum(x, (0, 1))]

    planned = check(fun, floats(2, 36, 128), floats(2, 36, 128, seed=1))
    assert merged(planned) == 2


@pytest.mark.parametrize(
    ("fun", "arrays"),
    [
        (bias, (floats(61, 128), floats(61, 128))),  # a prime number of rows has no blocks
        (bias, (floats(72, 100), floats(72, 100))),
        (bias, (floats(72, 64), floats(72, 64))),
        (bias, (floats(16, 128), floats(16, 128))),
        (bias, (floats(0, 128), floats(0, 128))),
        (bias, (floats(72, 128, dtype="float16"), floats(72, 128, dtype="float16"))),
        (lambda x: [x * 2, fnp.sum(x, 0)], (integers(72, 128),)),
        (lambda x: [fnp.exp(x), fnp.max(x, 0)], (floats(72, 128),)),
        (lambda x: [x.T * 2, fnp.sum(x, 0)], (floats(72, 128),)),
        # What a sum is needed for can't make it on its way.
        (lambda x: [x - fnp.sum(x, 0)], (floats(72, 128),)),
    ],
)
def test_not_merged(small, fun, arrays):
    assert not merged(check(fun, *arrays))


def test_batch_norm_has_its_sums_apart(small):
    def fun(x, ct):
        mean = fnp.mean(x, 0)
        unit = (x - mean) / fnp.sqrt(fnp.mean((x - mean) ** 2, 0) + 1e-5)
        total = fnp.sum(ct, 0)
        back = ct - total / 72 - unit * fnp.mean(ct * unit, 0)
        return [unit, back, total, fnp.sum(back * x, 0)]

    check(fun, floats(72, 128), floats(72, 128, seed=1))


def test_a_sum_that_is_a_piece(small):
    def fun(x, ct):
        made = x * ct
        return [made, fnp.concatenate([fnp.sum(made, 0), fnp.sum(x, 0), fnp.ones(3)])]

    check(fun, floats(72, 128), floats(72, 128, seed=1))


# ---- rows


def cross_entropy(x, labels):
    def loss(x):
        return -fnp.mean(fnp.take_along_axis(fg.nn.log_softmax(x), labels[:, None], -1))

    value, gradient = fg.value_and_grad(loss)(x)
    return [value, gradient]


@pytest.mark.parametrize("rows", [9, 2100])
def test_a_loss_of_rows_is_one_pass(rows):
    labels = integers(rows, low=-40, high=40)
    planned = check(cross_entropy, floats(rows, 40), labels)
    assert kernels(planned) <= 3
    reads = [
        s for s in planned.steps
        if isinstance(s, KernelStep) and any(b.size == rows * 40 for b in s.kernel.params)
    ]  # fmt: skip
    assert len(reads) == 1


def test_results_whose_memory_is_read_later_stay_apart():
    def fun(x):
        y = fnp.exp(fnp.reshape(x @ x.T, (-1, 160)))  # in memory, which `last` can have
        top = fnp.max(y, -1)
        both = fnp.sum(y[:, :80] * y[:, 80:], -1) + top
        last = y - top[:, None] * fnp.sum(both)
        return [last, both]

    check(fun, floats(160, 8))


def test_a_value_that_two_read_is_not_picked():
    def fun(x, at):
        total = fnp.sum(fnp.exp(x), -1)
        picked = fnp.take_along_axis(x, at[:, None], -1)[:, 0] * total
        return [x / total[:, None], fnp.sum(picked), fnp.max(picked), picked]

    check(fun, floats(300, 50), integers(300, low=0, high=50))


def test_few_terms_stay_apart():
    assert not merged(check(bias, floats(72, 128), floats(72, 128)))


# ---- compiled


@pytest.mark.parametrize("fun", [bias, two, norm])
@pytest.mark.parametrize("shape", [(512, 256), (136, 528), (4096, 1024), (250, 400)])
def test_compiled(fun, shape):
    x, ct = floats(*shape), floats(*shape, seed=1)
    x[3, 5], ct[7, 9], x[100, 11] = np.nan, np.inf, -np.inf
    wanted = fun(*(fnp.array(a, "float32") for a in (x, ct)))
    before = pool.num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            pool.set_num_threads(threads)
            found.append([np.asarray(y) for y in fg.jit(fun)(x[:, :], ct)])
    finally:
        pool.set_num_threads(before)
    for got, want in zip(found[0], wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-4 * len(x) ** 0.5)
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(a, b)


def test_donated_and_strided():
    x, ct = floats(512, 512)[:, ::2], floats(512, 256, seed=1)
    wanted = norm(fnp.array(x), fnp.array(ct))
    got = fg.jit(norm, donate_argnums=(0, 1))(fnp.array(x), fnp.array(ct))
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(fg.jit(norm)(x, ct)[1], wanted[1], rtol=1e-5, atol=1e-4)
