"""Large decompositions and triangular solves as generated code, against numpy and the host's."""

import ctypes

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.llvm.host_steps import host_steps
from funcgrad.backends.llvm.matrix import ql
from funcgrad.backends.llvm.matrix.eigen import emit_eigh
from funcgrad.backends.llvm.matrix.functions import install
from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import pool
from tests.backends.checks import program

TOLERANCE = {"float32": 2e-4, "float64": 1e-11}
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


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


@pytest.mark.sampled(3)
@dtypes
@pytest.mark.parametrize(("n", "threads"), [(33, 1), (64, 1), (100, 3), (257, 1), (257, 2)])
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


@pytest.mark.sampled(4)
@dtypes
@pytest.mark.parametrize(
    "shape",
    [
        (33, 33),
        (64, 64),
        (40, 16),
        (100, 100),
        (257, 90),
        (40, 130),
        (2, 65, 70),
        (300, 300),
        (100, 280),
        (2, 140, 140),
    ],
)
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


@pytest.mark.sampled(2)
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
def test_results_do_not_depend_on_threads(dtype, rng):
    a = rng.standard_normal((270, 270)).astype(dtype)
    positive, low = a @ a.T / 270 + np.eye(270, dtype=dtype), np.tril(a) / 50 + np.eye(270)

    def all_of(positive, low, a):
        solved = lax.linalg.triangular_solve(low, a, left_side=True, lower=True)
        turned = lax.linalg.triangular_solve(low, a, lower=True)
        symmetric = lax.linalg.cholesky(positive, symmetrize_input=False)
        return [*lax.linalg.lu(a), symmetric, solved, turned]

    found = []
    for threads in (1, 2, 3):
        pool.set_num_threads(threads)
        found.append(run(all_of, positive, low.astype(dtype), a))
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(x, y)
    near(found[0][3], np.linalg.cholesky(positive), dtype)
    near((np.tril(a) / 50 + np.eye(270)).astype(dtype) @ found[0][4], a, dtype)


@dtypes
def test_pivots_are_the_first_of_equals(dtype, rng):
    """Beside NaN, of which the first counts, and where whole columns are alike."""
    a = np.sign(rng.standard_normal((90, 90))).astype(dtype)
    a[:, 3] = a[:, 2]
    b = rng.standard_normal((67, 67)).astype(dtype)
    b[[50, 66], 0] = np.nan
    for x in (a, b, np.zeros((41, 41), dtype)):
        got = run(lambda x: lax.linalg.lu(x)[1:], x)
        wanted = [np.asarray(v) for v in lax.linalg.lu(fg.numpy.asarray(x))[1:]]
        assert got[0][0] == wanted[0][0]
        assert (got[0] >= np.arange(len(x))).all()
        assert (got[0] < len(x)).all()
        np.testing.assert_array_equal(np.sort(got[1]), np.arange(len(x)))
    np.testing.assert_array_equal(got[0], np.arange(41))


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


@pytest.mark.sampled(4)
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


def factors(a, full):
    """Q and R of a compiled function, checked by what they are."""
    q, r = run(lambda x: lax.linalg.qr(x, full_matrices=full), a)
    m, n, dtype = *a.shape[-2:], a.dtype
    columns = m if full else min(m, n)
    assert (q.shape, r.shape) == ((*a.shape[:-2], m, columns), (*a.shape[:-2], columns, n))
    assert q.dtype == r.dtype == dtype
    limit = np.finfo(dtype).eps * max(m, n)
    q, r, a = (x.astype(np.longdouble) for x in (q, r, a))
    assert np.abs(q.swapaxes(-1, -2) @ q - np.eye(columns)).max() <= limit
    # Each column is right for its own size.
    size = np.abs(a).max(-2, keepdims=True)
    size[size == 0] = 1
    assert (np.abs(q @ (r / size) - a / size) <= limit * m**0.5).all()
    assert not np.tril(r, -1).any()
    return q.astype(dtype), r.astype(dtype)


@pytest.mark.sampled(2)
@dtypes
@pytest.mark.parametrize(
    "shape",
    [(33, 1), (1, 40), (40, 15), (33, 33), (50, 16), (64, 64), (65, 17), (17, 65), (32, 100),
     (130, 97), (97, 130), (49, 112), (3, 70, 70), (2, 2, 90, 40), (700, 33)],
)  # fmt: skip
@pytest.mark.parametrize("full", [False, True])
def test_large_qr(shape, full, dtype, rng):
    pool.set_num_threads(1 + shape[-1] % 3)
    a = rng.standard_normal(shape).astype(dtype)
    q, r = factors(a, full)
    wanted = np.linalg.qr(a.astype(np.float64), "complete" if full else "reduced")
    near(r, wanted[1].astype(dtype), dtype)
    few = min(shape[-2:]) // 2 or 1  # those after depend on R's last rows, which may be small
    near(q[..., :few], wanted[0].astype(dtype)[..., :few], dtype)


@dtypes
def test_large_qr_of_special_matrices(dtype, rng):
    a = rng.standard_normal((90, 70)).astype(dtype)
    grades = 10.0 ** -(np.arange(90) * 0.4)
    info = np.finfo(dtype)
    gone = a.copy()
    gone[:, [0, 20, 69]] = 0
    twice = a.copy()
    twice[:, 35:] = a[:, :35]
    small = a.copy()
    small[1:, 0] *= 1e-30
    for x in (
        gone,
        twice,
        small,
        np.zeros_like(a),
        np.ones_like(a),
        -np.eye(90, 70),
        np.triu(a),
        a * grades[:, None],
        a * grades[:70],
        np.outer(np.ones(90), a[0]),
        np.clip(a, -8, 8) / 8 * (info.max / 1024),
        a * dtypes_scale(dtype),
        a / dtypes_scale(dtype),
    ):
        x = x.astype(dtype)
        for matrix in (x, np.ascontiguousarray(x.T)):
            factors(matrix, False)
    # A column that is done already keeps its sign, as LAPACK has it; any other takes the opposite.
    for x in (-np.eye(90, 70), np.triu(a), small):
        got, wanted = (np.diag(np.asarray(r)) for r in (factors(x.astype(dtype), False)[1],
                                                        np.linalg.qr(x, "r")))  # fmt: skip
        np.testing.assert_array_equal(np.sign(got), np.sign(wanted))


@dtypes
def test_large_qr_of_what_is_not_finite(dtype, rng):
    a = rng.standard_normal((80, 60)).astype(dtype)
    whole = factors(a, False)[1]
    for bad in (np.nan, np.inf):
        a[50, 40] = bad
        q, r = run(lambda x: lax.linalg.qr(x, full_matrices=False), a)
        assert np.isnan(q).any()
        assert np.isnan(r[40:, 40:][np.triu_indices(20)]).all()
        near(r[:, :32], whole[:, :32], dtype)  # the columns before its block know nothing of it


@dtypes
def test_large_qr_does_not_depend_on_threads(dtype, rng):
    for shape in ((300, 200), (3000, 40), (60, 500)):
        a, found = rng.standard_normal(shape).astype(dtype), []
        for threads in (1, 2, 3):
            pool.set_num_threads(threads)
            found.append(run(lambda a: lax.linalg.qr(a), a))
        for other in found[1:]:
            for x, y in zip(found[0], other, strict=True):
                np.testing.assert_array_equal(x, y)


def test_gradient_through_qr(rng):
    for shape in ((70, 40), (40, 40), (40, 70)):
        a, w = (rng.standard_normal(shape) for _ in range(2))

        def f(a, w=w):
            q, r = lax.linalg.qr(a, full_matrices=False)
            return fg.numpy.sum(r * r * w[: r.shape[0]]) + fg.numpy.sum(fg.numpy.sin(q))

        near(np.asarray(fg.jit(fg.grad(f))(a)), np.asarray(fg.grad(f)(a)), "float64")


# ---- symmetric eigenvalues


def symmetric(rng, n, dtype, lead=()):
    a = rng.standard_normal((*lead, n, n))
    return (a + a.swapaxes(-1, -2)).astype(dtype)


def decomposed(a, lower=True):
    """Check the eigenvectors and eigenvalues of what is finite, alone and with vectors."""
    eigh, eigvalsh = (
        lambda a: lax.linalg.eigh(a, lower=lower, symmetrize_input=False),
        lambda a: [lax.linalg.eigh(a, lower=lower, symmetrize_input=False)[1]],
    )
    v, w = run(eigh, a)
    (alone,) = run(eigvalsh, a)
    assert v.dtype == w.dtype == alone.dtype == a.dtype
    n, eps = a.shape[-1], np.finfo(a.dtype).eps
    a, v, w = (x.astype(np.longdouble) for x in (a, v, w))
    part = np.tril(a) if lower else np.triu(a)
    full = part + part.swapaxes(-1, -2) - part * np.eye(n)
    size = np.abs(full).max((-1, -2), keepdims=True)
    size[size == 0] = 1
    limit = 4 * eps * max(n, 4)
    assert np.abs(v.swapaxes(-1, -2) @ v - np.eye(n)).max() <= limit
    # Errors are of the size of the norm, the largest eigenvalue: up to n times that of an element.
    norm = np.maximum(np.abs(w).max(-1, initial=0)[..., None, None] / size, 1)
    near = eps * max(n, 4) * norm
    assert (np.abs((full / size) @ v - v * (w[..., None, :] / size)) <= near).all()
    assert (np.diff(w) >= 0).all()
    wanted = np.linalg.eigvalsh((full / size).astype(np.float64)) * size[..., 0]
    assert (np.abs(w - wanted) <= (near * size)[..., 0]).all()
    assert (np.abs(alone - wanted) <= (near * size)[..., 0]).all()
    return w


@pytest.mark.sampled(8)
@dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 16, 17, 33, 64, 97, 150])
def test_eigh(n, dtype, rng):
    a = symmetric(rng, n, dtype)
    for lower, part, other in ((True, np.tril(a), np.triu), (False, np.triu(a), np.tril)):
        pool.set_num_threads(1 + (n + lower) % 3)
        wanted = decomposed(part, lower)
        # The other triangle is not read.
        nothing = other(np.full_like(a, np.nan), 1 if lower else -1)
        (got,) = run(
            lambda a, lower=lower: [lax.linalg.eigh(a, lower=lower, symmetrize_input=False)[1]],
            part + nothing,
        )
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * np.abs(a).max())


@dtypes
def test_eigh_of_batches(dtype, rng):
    for n in (2, 8, 19):
        decomposed(symmetric(rng, n, dtype, (3, 5)))


@dtypes
def test_eigh_does_not_depend_on_threads(dtype, rng):
    a, found = symmetric(rng, 260, dtype), []
    for threads in (1, 2, 3):
        pool.set_num_threads(threads)
        found.append(run(lambda a: lax.linalg.eigh(a, symmetrize_input=False), a))
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


def with_values(rng, values):
    q = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    a = (q * values) @ q.T
    return (a + a.T) / 2


@dtypes
def test_eigh_of_special_matrices(dtype, rng):
    n = 60
    grades = 10.0 ** -(np.arange(n) * 0.4)
    a = symmetric(rng, n, np.float64)
    wilkinson = np.diag(np.abs(np.arange(-10.0, 11))) + np.eye(21, k=1) + np.eye(21, k=-1)
    for x in (
        np.zeros((n, n)),
        np.eye(n),
        np.ones((n, n)),
        np.diag(np.arange(n)[::-1]),
        wilkinson,
        a * grades[:, None] * grades,
        a * grades[::-1, None] * grades[::-1],
        with_values(rng, np.repeat([1.0, 2, 3], 20)),
        with_values(rng, np.tile([-1.0, 1], 30)),
        with_values(rng, 1 + 1e-9 * np.arange(n)),
        with_values(rng, 10.0 ** -np.arange(n)),
        np.kron(np.eye(20), np.ones((3, 3))),
    ):
        decomposed(x.astype(dtype))
    info = np.finfo(dtype)
    for scale in (info.max / 1024, info.tiny, info.tiny * 2**10, dtypes_scale(dtype)):
        x = (np.clip(a, -8, 8) * float(scale)).astype(dtype)
        decomposed(x)
    # Numbers so small that they have few digits: what they stand for is exact all the same.
    least = np.diag([3, 1, 2]).astype(dtype) * info.smallest_subnormal
    w = run(lambda a: [lax.linalg.eigh(a)[1]], least * 2)[0]
    np.testing.assert_array_equal(w, np.array([1, 2, 3], dtype) * info.smallest_subnormal * 2)


@dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_eigh_of_what_is_not_finite(bad, dtype, rng):
    for n in (1, 6, 120):
        a = symmetric(rng, n, dtype, (3,))
        a[1, -1, 0] = bad
        v, w = run(lambda a: lax.linalg.eigh(a, symmetrize_input=False), a)
        assert np.isnan(v[1]).all()
        assert np.isnan(w[1]).all()
        assert np.isfinite(v[[0, 2]]).all()
        assert np.isfinite(w[[0, 2]]).all()


def test_large_eigh_is_the_hosts(rng):
    x = np.eye(600)
    planned = program(lambda a: lax.linalg.eigh(a), x)[2]
    assert [s.prim.name for s in host_steps(planned.steps)] == ["eigh"]


@dtypes
def test_eigh_that_does_not_converge(dtype, rng, monkeypatch):
    """After a limit of sweeps the results are NaN."""
    monkeypatch.setattr(ql, "_SWEEPS", 0)
    module = ir.Module("eigh")
    emit_eigh(Matrices(module, dtype, engine().target), "fg_unlucky_eigh")
    library = engine().compile(module)
    a, v, w = symmetric(rng, 5, dtype), np.empty((5, 5), dtype), np.empty(5, dtype)
    call = [1, 5, 1, *(x.ctypes.data for x in (a, v, w))]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("fg_unlucky_eigh"))
    function((ctypes.c_int64 * len(call))(*call))
    assert np.isnan(v).all()
    assert np.isnan(w).all()


def test_gradient_through_eigh(rng):
    a = symmetric(rng, 12, np.float64)
    f = lambda a: fg.numpy.sum(fg.numpy.linalg.eigh(a)[1] ** 4)
    near(np.asarray(fg.jit(fg.grad(f))(a)), np.asarray(fg.grad(f)(a)), "float64")


# ---- dtypes and targets


def test_other_dtypes_and_nothing_are_the_hosts(rng):
    a = (np.eye(40) * 3 + rng.standard_normal((40, 40)) / 40).astype(np.complex64)
    assert fg.jit(lax.linalg.cholesky)(np.empty((0, 40, 40), np.float32)).shape == (0, 40, 40)
    for shape in ((0, 0), (0, 5, 5), (2, 0, 0)):
        v, w = fg.jit(lax.linalg.eigh)(np.empty(shape, np.float32))
        assert (v.shape, w.shape) == (shape, shape[:-1])
    hermitian = (a + a.conj().T).astype(np.complex64)
    w = fg.jit(lax.linalg.eigh)(hermitian)[1]
    np.testing.assert_allclose(np.asarray(w), np.linalg.eigvalsh(hermitian), atol=1e-4)


@pytest.mark.sampled(2)
@dtypes
@pytest.mark.parametrize("what", ["lu", "cholesky", "qr_blocks", "solve", "eigh"])
def test_any_processor(what, dtype, rng):
    """The same code for a processor with nothing but the oldest registers."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        install(what, dtype, target=engine(Target.host().generic()))
    )
    n = 70
    a = triangle(rng, n, True, dtype)
    a = a @ a.T if what == "cholesky" else a
    values = np.empty(n, dtype)
    out, other = np.empty_like(a), np.empty_like(a)
    pivots, order = np.empty(n, np.int32), np.empty(n, np.int32)
    words, arrays = {
        "lu": ([1, n, n], [a, out, pivots, order]),
        "cholesky": ([1, n], [a, out]),
        "solve": ([1, n, n, 1, 0, 0, 0], [a, a, out]),
        "qr_blocks": ([1, n, n, n], [a, out, other]),
        "eigh": ([1, n, 1], [a + a.T, out, values]),
    }[what]
    call = [*words, *(x.ctypes.data for x in arrays)]
    function((ctypes.c_int64 * len(call))(*call))
    if what == "lu":
        low, up = np.tril(out, -1) + np.eye(n), np.triu(out)
        near((low @ up).astype(dtype), a[order], dtype)
    elif what == "qr_blocks":
        near(out @ other, a, dtype)
        near(out.T @ out, np.eye(n, dtype=dtype), dtype)
    elif what == "eigh":
        near((out * values) @ out.T, a + a.T, dtype)
    else:
        near(out, np.linalg.cholesky(a) if what == "cholesky" else np.eye(n), dtype)
