"""Large decompositions and triangular solves as generated code, against numpy and the host's."""

import ctypes

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.llvm import pool
from funcgrad.backends.llvm.engine import Target, engine
from funcgrad.backends.llvm.host import host_steps
from funcgrad.backends.llvm.matrix import install
from tests.backends.checks import program

TOLERANCE = {"float32": 2e-4, "float64": 1e-11}
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


@pytest.fixture(autouse=True)
def restore_threads():
    before = pool.num_threads()
    yield
    pool.set_num_threads(before)


def run(fun, *arrays):
    """The results of a compiled function of which nothing runs in Python."""
    assert not host_steps(program(fun, *arrays)[2].steps)
    return [np.asarray(x) for x in fg.jit(fun)(*arrays)]


def near(got, wanted, dtype):
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * scale)


def triangle(rng, n, lower, dtype, lead=()):
    a = rng.standard_normal((*lead, n, n)) / n + 2 * np.eye(n)
    return (np.tril(a) if lower else np.triu(a)).astype(dtype)


@dtypes
@pytest.mark.parametrize(("n", "threads"), [(33, 1), (100, 3), (257, 1), (257, 2)])
def test_cholesky(n, threads, dtype, rng):
    pool.set_num_threads(threads)
    a = rng.standard_normal((3, n, n))
    a = (a @ a.swapaxes(1, 2) / n + np.eye(n)).astype(dtype)
    a[1, n - 2, n - 2] = -1
    low = a + np.triu(np.full((n, n), np.nan), 1).astype(dtype)  # only the lower triangle is read
    (got,) = run(lambda x: [lax.linalg.cholesky(x, symmetrize_input=False)], low)
    for i in (0, 2):
        near(got[i], np.linalg.cholesky(a[i].astype(np.float64)), dtype)
    assert np.isnan(got[1][np.tril_indices(n)]).all()
    assert not got[:, *np.triu_indices(n, 1)].any()


@dtypes
@pytest.mark.parametrize("shape", [(33, 33), (100, 100), (257, 90), (40, 130), (2, 65, 70)])
def test_lu(shape, dtype, rng):
    pool.set_num_threads(1 + shape[-1] % 3)
    a = rng.standard_normal(shape).astype(dtype)
    factors, pivots, order = run(lax.linalg.lu, a)
    wanted = [np.asarray(x) for x in lax.linalg.lu(fg.numpy.asarray(a))]
    np.testing.assert_array_equal(pivots, wanted[1])
    np.testing.assert_array_equal(order, wanted[2])
    near(factors, wanted[0], dtype)


@dtypes
def test_lu_of_what_has_no_inverse(dtype, rng):
    a = rng.standard_normal((64, 64)).astype(dtype)
    a[:, 20] = 0
    a[40] = np.nan
    for x in (a * 0, np.where(np.isnan(a), 0, a), a):
        got = run(lax.linalg.lu, x)
        wanted = [np.asarray(v) for v in lax.linalg.lu(fg.numpy.asarray(x))]
        assert (np.isnan(got[0]) == np.isnan(wanted[0])).all()
        if not np.isnan(x).any():
            near(got[0][:, :20], wanted[0][:, :20], dtype)
            np.testing.assert_array_equal(np.sort(got[2]), np.arange(64))


@dtypes
@pytest.mark.parametrize(("n", "columns"), [(33, 1), (70, 5), (257, 70)])
def test_triangular_solve(n, columns, dtype, rng):
    for case in range(16):
        pool.set_num_threads(1 + case % 3)
        lower, unit, turned, left = (bool(case >> i & 1) for i in range(4))
        a = triangle(rng, n, lower, dtype)
        b = rng.standard_normal((n, columns) if left else (columns, n)).astype(dtype)
        other = np.full((n, n), np.nan, dtype)
        other = np.triu(other, 1) if lower else np.tril(other, -1)  # is not read
        (got,) = run(
            lambda a, b, left=left, lower=lower, turned=turned, unit=unit: [
                lax.linalg.triangular_solve(
                    a, b, left_side=left, lower=lower, transpose_a=turned, unit_diagonal=unit
                )
            ],
            a + other,
            b,
        )
        op = a.astype(np.float64)
        if unit:
            np.fill_diagonal(op, 1)
        op = op.T if turned else op
        near(got, np.linalg.solve(op, b) if left else np.linalg.solve(op.T, b.T).T, dtype)


@dtypes
def test_batches_and_gradients(dtype, rng):
    a, b = triangle(rng, 40, True, dtype, (3,)), rng.standard_normal((3, 40, 7)).astype(dtype)
    solve = fg.numpy.linalg.solve
    (got,) = run(lambda a, b: [lax.linalg.triangular_solve(a, b, left_side=True, lower=True)], a, b)
    near(got, np.linalg.solve(a, b), dtype)
    full = (a + a.swapaxes(1, 2)).astype(dtype)
    near(run(lambda a, b: [solve(a, b)], full, b)[0], np.linalg.solve(full, b), dtype)
    inverse = fg.jit(fg.grad(lambda a: fg.numpy.linalg.slogdet(a)[1]))(full[0])
    near(np.asarray(inverse), np.linalg.inv(full[0]).T, dtype)


@dtypes
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 5), (2, 32, 32), (40, 90), (96, 17)])
@pytest.mark.parametrize("full", [False, True])
def test_qr(shape, full, dtype, rng):
    """The very factors of LAPACK, signs included."""
    a = rng.standard_normal((3, *shape)).astype(dtype)
    a[1] = 0
    a[2, ..., 0] = 0
    a[2, ..., 0, -1] = 1e-30
    for x in (a, a * dtypes_scale(dtype), a / dtypes_scale(dtype)):
        got = run(lambda x: lax.linalg.qr(x, full_matrices=full), x)
        for g, w in zip(got, np.linalg.qr(x, "complete" if full else "reduced"), strict=True):
            near(g, w, dtype)


def dtypes_scale(dtype):
    """A factor whose square is no number of a dtype."""
    return np.array(1e25 if dtype == "float32" else 1e200, dtype)


def test_large_qr_is_the_hosts(rng):
    a = rng.standard_normal((200, 120)).astype(np.float32)
    planned = program(lambda a: lax.linalg.qr(a), a)[2]
    assert [s.prim.name for s in host_steps(planned.steps)] == ["qr"]


def test_other_dtypes_and_nothing_are_the_hosts(rng):
    a = (np.eye(40) * 3 + rng.standard_normal((40, 40)) / 40).astype(np.complex64)
    got = fg.jit(lambda a: lax.linalg.lu(a)[0])(a)
    np.testing.assert_allclose(np.asarray(got), np.asarray(lax.linalg.lu(fg.numpy.asarray(a))[0]))
    assert fg.jit(lax.linalg.cholesky)(np.empty((0, 40, 40), np.float32)).shape == (0, 40, 40)


@dtypes
@pytest.mark.parametrize("what", ["lu", "cholesky", "solve"])
def test_any_processor(what, dtype, rng):
    """The same code for a processor with nothing but the oldest registers."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        install(what, dtype, engine(Target.host().generic()))
    )
    n = 70
    a = triangle(rng, n, True, dtype)
    a = a @ a.T if what == "cholesky" else a
    out, pivots, order = np.empty_like(a), np.empty(n, np.int32), np.empty(n, np.int32)
    words, arrays = {
        "lu": ([1, n, n], [a, out, pivots, order]),
        "cholesky": ([1, n], [a, out]),
        "solve": ([1, n, n, 1, 0, 0, 0], [a, a, out]),
    }[what]
    call = [*words, *(x.ctypes.data for x in arrays)]
    function((ctypes.c_int64 * len(call))(*call))
    if what == "lu":
        low, up = np.tril(out, -1) + np.eye(n), np.triu(out)
        near((low @ up).astype(dtype), a[order], dtype)
    else:
        near(out, np.linalg.cholesky(a) if what == "cholesky" else np.eye(n), dtype)
