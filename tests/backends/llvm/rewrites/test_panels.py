"""Matrices that scans multiply by: which are copied in panels, and the same results."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.rewrites.panels import MOST_BYTES, TURNS, panelled
from funcgrad.backends.program import GemmStep, LoopStep, walk
from tests.backends.checks import check, floats


def scan_of(fun, *args):
    (eqn,) = [e for e in fg.make_jaxpr(fun)(*args).jaxpr.eqns if e.prim.name == "scan"]
    return eqn


def turns_of(multiply, length=TURNS):
    """A scan that carries rows and multiplies them by a matrix in each turn."""

    def f(c, w):
        def turn(c, _):
            y = multiply(c, w)
            return 0.5 * c + fnp.tanh(y.sum()), y

        return list(fg.lax.scan(turn, c, None, length=length))

    return f


MULTIPLY = {
    "rows": lambda c, w: c @ w,
    "transposed": lambda c, w: c @ w.T,
    "turned": lambda c, w: (c @ w).T,
    "twice": lambda c, w: c @ w + c @ w.T,
    "columns": lambda c, w: fnp.tensordot(c.T, w, axes=((0,), (0,))),
}


def inside(program):
    """The products in a program's loops."""
    loops = [s for s in walk(program.steps) if isinstance(s, LoopStep)]
    return [s for x in loops for s in walk(x.body) if isinstance(s, GemmStep)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", MULTIPLY)
def test_any_order(how):
    c, w = floats(9, 160), floats(160, 160) / np.float32(160)
    made = panelled(scan_of(turns_of(MULTIPLY[how]), c, w))
    outside = [e.prim.name for e in made.eqns]
    assert outside == ["reshape", "transpose"] * (2 if how == "twice" else 1) + ["scan"]
    # The matrix itself isn't needed inside any more.
    assert made.eqns[-1].params["n_consts"] == len(outside) // 2
    planned = check(turns_of(MULTIPLY[how]), c, w)
    batches = {(s.n, s.b_strides, tuple(size for size, *_ in s.batch)) for s in inside(planned)}
    assert batches == {(32, (32, 1), (5,))}


@pytest.mark.parametrize(
    "multiply", [lambda c, w: w @ c, lambda c, w: w @ c + w.T @ c, lambda c, w: w @ (w @ c)]
)
def test_small_matrices_of_vectors_are_transposed(multiply):
    c, w = floats(40), floats(40, 40) / np.float32(40)
    made = panelled(scan_of(turns_of(multiply), c, w))
    *before, scan = made.eqns
    assert [e.prim.name for e in before] == ["transpose"]
    sums = [e for e in scan.params["jaxpr"].eqns if e.prim.name == "dot_general"]
    for e in sums[:1]:
        assert [a.aval.ndim for a in e.ins] == [1, 2]
    check(turns_of(multiply), c, w)
    got = fg.jit(fg.grad(lambda w: sum(x.sum() for x in turns_of(multiply)(c, w))))(w)
    wanted = fg.grad(lambda w: sum(x.sum() for x in turns_of(multiply)(c, w)))(fnp.asarray(w))
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("vector_first", [True, False])
def test_matrices_that_multiply_vectors_and_rows(vector_first):
    """Both a transpose and panels of the same matrix."""
    c, x, w = floats(160), floats(16, 160), floats(160, 160) / np.float32(160)

    def multiply(both, w):
        results = {}
        for i in (0, 1) if vector_first else (1, 0):
            results[i] = fnp.tanh(both[1] @ w.T if i else w @ both[0]) + 1
        return results[0], results[1]

    def f(c, x, w):
        return list(fg.lax.fori_loop(0, 20, lambda i, both: multiply(both, w), (c, x)))

    *before, _ = panelled(scan_of(f, c, x, w)).eqns
    assert sorted(e.prim.name for e in before) == ["reshape", "transpose", "transpose"]
    check(f, c, x, w)


def test_large_matrices_of_vectors_stay():
    for c, w in ((floats(40), floats(1000, 40)), (floats(40, 2), floats(40, 40))):
        f = turns_of(lambda c, w: (w @ c)[:40])
        assert panelled(scan_of(f, c, w)) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_several_axes(dtype):
    c, w = floats(3, 4, 96).astype(dtype), (floats(96, 192) / np.float32(96)).astype(dtype)

    def f(c, w):
        def turn(c, x):
            y = fnp.tanh(fnp.einsum("abk,kj->abj", c, w))
            return y[..., :96] + 0.1 * x, y[0] * w[:4].sum()

        return list(fg.lax.scan(turn, c, fnp.arange(TURNS + 1.0, dtype=dtype)))

    made = panelled(scan_of(f, c, w))
    # The body reads the matrix, too.
    assert made.eqns[-1].params["n_consts"] == 2
    check(f, c, w)


def test_gradients_multiply_by_the_transposed_matrix_in_panels():
    def loss(w, c):
        last, _ = fg.lax.scan(lambda c, _: (fnp.tanh(c @ w), None), c, None, length=TURNS)
        return (last**2).sum()

    def both(w, c):
        value, gradients = fg.value_and_grad(loss, argnums=(0, 1))(w, c)
        return [value, *gradients]

    w, c = floats(128, 128) / np.float32(12), floats(16, 128)
    planned = check(both, w, c)
    assert [s.b_strides for s in inside(planned)] == [(32, 1)] * 2


@pytest.mark.parametrize(
    ("rows", "k", "n", "length"),
    [
        (9, 160, 160, TURNS - 1),
        (4, 160, 160, TURNS),
        (300, 160, 160, TURNS),
        (9, 160, 150, TURNS),
        (9, 64, 64, TURNS),
        (9, 8192, 544, TURNS),
    ],
    ids=["few turns", "few rows", "many rows", "odd columns", "small", "large"],
)
def test_others_stay(rows, k, n, length):
    assert k * n * 4 > MOST_BYTES or k < 8192
    scan = scan_of(turns_of(MULTIPLY["rows"], length), floats(rows, k), floats(k, n))
    assert panelled(scan) is None


def test_what_changes_or_has_another_dtype_stays():
    w = floats(160, 160)
    halves = fnp.array(w).astype(fnp.bfloat16)
    assert panelled(scan_of(turns_of(MULTIPLY["rows"]), halves[:9], halves)) is None

    def carried(c, w):
        return fg.lax.scan(lambda w, _: (c @ w, None), w, None, length=TURNS)

    assert panelled(scan_of(carried, w, w)) is None
    left = scan_of(turns_of(lambda c, w: w @ c.T), w[:9], w)
    assert panelled(left) is None


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_compiled(threads):
    c, w = floats(33, 160), floats(160, 160) / np.float32(12)
    before = fg.num_threads()
    fg.set_num_threads(threads)
    try:
        for multiply in MULTIPLY.values():
            f = turns_of(multiply)
            for got, wanted in zip(fg.jit(f)(c, w), f(c, w), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=3e-5)
    finally:
        fg.set_num_threads(before)


def test_loops_in_loops():
    def f(c, w):
        def outer(c, _):
            y, _ = fg.lax.scan(lambda c, _: (fnp.tanh(c @ w), None), c, None, length=TURNS)
            return y, y

        return list(fg.lax.scan(outer, c, None, length=2))

    check(f, floats(8, 160), floats(160, 160) / np.float32(12))
