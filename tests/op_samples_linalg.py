"""Rows of matrix decompositions and triangular systems: results are checked by what they solve."""

import itertools

import numpy as np

from funcgrad import dtypes
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.linalg import condensed as c
from funcgrad.ops.linalg import decompositions as d
from funcgrad.ops.linalg import triangular as la
from funcgrad.ops.linalg.matrices import adjoint, matmul
from tests.op_samples_base import I32, MATRIX, SIGNED, Arg, Domain, Row, case

FEW = "eager jit"


def dagger(x):
    return np.swapaxes(np.conj(x), -1, -2)


def near(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-4 if x.dtype.itemsize < 16 else 1e-4)


def positive(rng, shape, dtype):
    x = SIGNED(rng, shape, dtype)
    return (x @ dagger(x) + 2 * np.eye(shape[-1])).astype(dtype)


def hermitian(rng, shape, dtype):
    x = SIGNED(rng, shape, dtype)
    return x + dagger(x)


def well(rng, shape, dtype):
    """Triangles of well-conditioned matrices; both triangles are filled."""
    return SIGNED(rng, shape, dtype) + (5 * np.eye(*shape[-2:])).astype(dtype)


def spread(rng, shape, dtype):
    """Matrices whose singular values and eigenvalues are well apart."""
    x = SIGNED(rng, shape, dtype)
    n = min(shape[-2:])
    far = np.zeros(shape[-2:])
    far[range(n), range(n)] = 4.0 * np.arange(1, n + 1)
    return (0.3 * x + far).astype(dtype)


def matrices(*shapes, draw=SIGNED, tests=None, **params):
    """Cases of one matrix each; the first is differentiated."""
    return tuple(
        case(s, draw=draw, tests=tests or (None if i == 0 else "eager jit vmap dims"), **params)
        for i, s in enumerate(shapes)
    )


def solves(ins, outs, left_side, lower, transpose_a, conjugate_a, unit_diagonal):
    a, b = ins
    a = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        a = a - a * np.eye(a.shape[-1]) + np.eye(a.shape[-1])
    a = np.conj(a) if conjugate_a else a
    a = np.swapaxes(a, -1, -2) if transpose_a else a
    near(a @ outs[0] if left_side else outs[0] @ a, b)


def is_cholesky(ins, outs):
    near(outs[0] @ dagger(outs[0]), ins[0])
    assert not np.triu(outs[0], 1).any()


def is_lu(ins, outs):
    lu, pivots, order = outs
    m, n = lu.shape[-2:]
    k = min(m, n)
    low = np.tril(lu[..., :k], -1) + np.eye(m, k)
    up = np.triu(lu[..., :k, :])
    near(low @ up, np.take_along_axis(ins[0], order[..., None].astype(int), -2))
    assert pivots.shape == (*lu.shape[:-2], k)


def unitary(x):
    near(dagger(x) @ x, np.broadcast_to(np.eye(x.shape[-1]), (*x.shape[:-2], *x.shape[-1:] * 2)))


def is_qr(ins, outs, full_matrices):
    q, r = outs
    near(q @ r, ins[0])
    unitary(q)
    assert not np.tril(r, -1).any()


def is_svd(ins, outs, full_matrices, compute_uv):
    wanted = np.linalg.svd(ins[0], compute_uv=False)
    near(outs[0], wanted)
    if compute_uv:
        s, u, vh = outs
        k = s.shape[-1]
        near((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], ins[0])
        unitary(u)
        unitary(dagger(vh))


def is_eigh(ins, outs, lower, compute_vectors):
    a = ins[0]
    if not compute_vectors:
        near(outs[0], np.linalg.eigvalsh(a))
        return
    v, w = outs
    near(a @ v, v * w[..., None, :])
    unitary(v)
    assert (np.diff(w, axis=-1) >= 0).all()


def without_signs(x, **params):
    *vectors, w = d.eigh_p.bind(x, **params)
    if not vectors:
        return [w]
    (v,) = vectors
    weights = np.broadcast_to(np.arange(1.0, v.shape[-1] + 1), v.shape).astype(v.dtype)
    return [matmul(mul(v, weights), adjoint(v)), w]


def is_eig(ins, outs, compute_left_eigenvectors, compute_right_eigenvectors):
    w, *vectors = outs
    near(np.sum(w, -1), np.trace(ins[0], axis1=-2, axis2=-1).astype(w.dtype))
    if compute_right_eigenvectors:
        near(ins[0] @ vectors[-1], vectors[-1] * w[..., None, :])
    if compute_left_eigenvectors:
        left = vectors[0]
        near(dagger(left) @ ins[0], w[..., :, None] * dagger(left))


def reflected(packed, taus):
    """The product of the reflections below the subdiagonal."""
    n = packed.shape[-1]
    q = np.broadcast_to(np.eye(n, dtype=packed.dtype), packed.shape)
    for i in range(taus.shape[-1]):
        v = np.where(np.arange(n) > i + 1, packed[..., :, i], 0)
        v[..., i + 1] = 1
        q = q - (q @ v[..., None] * taus[..., i, None, None]) @ np.conj(v)[..., None, :]
    return q


def is_hessenberg(ins, outs):
    q = reflected(*outs)
    near(q @ np.triu(outs[0], -1) @ dagger(q), ins[0])


def is_tridiagonal(ins, outs, lower):
    packed, line, beside, taus = outs
    q, n = reflected(packed, taus), line.shape[-1]
    form = np.zeros(packed.shape, packed.dtype)
    at = np.arange(n)
    form[..., at, at] = line
    form[..., at[1:], at[:-1]] = form[..., at[:-1], at[1:]] = beside
    near(q @ form @ dagger(q), ins[0])


def is_schur(ins, outs, compute_schur_vectors):
    near(np.trace(outs[0], axis1=-2, axis2=-1), np.trace(ins[0], axis1=-2, axis2=-1))
    if compute_schur_vectors:
        t, z = outs
        near(z @ t @ dagger(z), ins[0])
        unitary(z)


def is_order(ins, outs):
    a = np.take_along_axis(ins[0], outs[0][..., None, :].astype(int), -1)
    line = np.abs(np.diagonal(np.linalg.qr(a).R, axis1=-2, axis2=-1))
    assert (np.diff(line, axis=-1) < 1e-5).all()


def swaps(pivots, permutation_size):
    order = np.empty((*pivots.shape[:-1], permutation_size), int)
    for at in np.ndindex(*pivots.shape[:-1]):
        rows = list(range(permutation_size))
        for j, p in enumerate(pivots[at]):
            rows[j], rows[p] = rows[p], rows[j]
        order[at] = rows
    return order


def systems(conjugate):
    found, params = [], {}
    ways = itertools.product(*[(True, False)] * 4)
    for i, (left, low, transposed, unit) in enumerate(ways):
        params = {"left_side": left, "lower": low, "transpose_a": transposed,
                  "conjugate_a": conjugate, "unit_diagonal": unit}  # fmt: skip
        lead = (2,) * (i % 3 == 0)
        shape = (3, 2) if left else (2, 3)
        # Only some of the ways are told apart by each test.
        tests = None if i % 5 == conjugate else "eager jit vmap dims"
        found.append(case(Arg((*lead, 3, 3), well), (*lead, *shape), tests=tests, **params))
    found.append(case(Arg((0, 0), well), (2, 0), tests=FEW, **params))
    found.append(case(Arg((40, 40), well), (2, 40), tests="eager", **params))
    return tuple(found)


def row(prim, check, cases, result=None, accepted=MATRIX, **rest):
    return Row(prim=prim, check=check, dtypes=accepted, cases=cases, result=result,
               jit_ulps=2048, jit_atol=2048, gradient_tol=1e-4, **rest)  # fmt: skip


def with_pivots(dtype, params):
    return [dtype, I32, I32]


def real_first(dtype, params):
    return [dtypes.real_part(dtype)] + [dtype] * (2 * params["compute_uv"])


def complex_all(dtype, params):
    n = 1 + params["compute_left_eigenvectors"] + params["compute_right_eigenvectors"]
    return [dtypes.to_complex(dtype)] * n


THIN = {"full_matrices": False, "compute_uv": True}
VALUES = {"no_derivative": {}, "order": 0}
VECTORS = {"lower": True, "compute_vectors": True}
LINALG = [
    row(la.triangular_solve_p, solves, systems(False)),
    row(la.triangular_solve_p, solves, systems(True), accepted=dtypes.COMPLEX,
        name="triangular_solve conjugated"),
    row(la.cholesky_p, is_cholesky, matrices((3, 3), (2, 4, 4), (0, 0), (35, 35), draw=positive)),
    row(la.lu_p, is_lu, matrices((3, 3), (2, 3, 4), (4, 2), (40, 40)), with_pivots),
    Row(prim=la.lu_pivots_to_permutation_p, oracle=swaps, dtypes=(I32,), exact=True,
        no_derivative={}, order=0, cases=(
            case((3,), draw=Domain(2, 4), permutation_size=5),
            case((2, 2), draw=Domain(1, 2), permutation_size=3))),
    row(d.qr_p, is_qr, (
        *matrices((3, 3), (4, 2), (2, 2, 3), full_matrices=False),
        case((4, 2), full_matrices=True, tests="eager jit vmap dims"))),
    row(d.svd_p, is_svd, (
        *matrices((3, 3), (4, 2), (2, 2, 3), draw=spread, tests="eager jit vmap dims", **THIN),
        case((3, 4), draw=spread, full_matrices=False, compute_uv=False),
        case((4, 3), draw=spread, full_matrices=True, compute_uv=True, tests=FEW)), real_first,
        order=1),
    row(d.eigh_p, is_eigh, (
        *matrices((3, 3), (2, 4, 4), draw=hermitian, tests="eager vmap dims", **VECTORS),
        *matrices((3, 3), draw=hermitian, lower=False, compute_vectors=True,
                  tests="eager vmap dims"),
        case((3, 3), draw=hermitian, lower=True, compute_vectors=False,
             tests="eager vmap dims")),
        lambda dtype, p: [dtype] * p["compute_vectors"] + [dtypes.real_part(dtype)]),
    # Compiled, vectors may have other signs.
    row(d.eigh_p, None, (
        *matrices((3, 3), (2, 4, 4), (40, 40), draw=hermitian, tests="jit vmap", **VECTORS),
        *(case((3, 3), draw=hermitian, tests="jit vmap", lower=False, compute_vectors=v)
          for v in (True, False))),
        call=without_signs, name="eigh but for signs"),
    row(d.eig_p, is_eig, (
        case((3, 3), draw=spread, compute_left_eigenvectors=False,
             compute_right_eigenvectors=False),
        case((2, 3, 3), draw=spread, compute_left_eigenvectors=True,
             compute_right_eigenvectors=True, tests="eager jit dims")), complex_all),
    row(c.hessenberg_p, is_hessenberg, matrices((3, 3), (2, 4, 4), (1, 1)), **VALUES),
    row(c.tridiagonal_p, is_tridiagonal, matrices((3, 3), (2, 4, 4), draw=hermitian, lower=True),
        lambda dtype, p: [dtype, *[dtypes.real_part(dtype)] * 2, dtype], **VALUES),
    row(c.schur_p, is_schur, (*matrices((3, 3), (2, 4, 4), compute_schur_vectors=True),
                              case((3, 3), compute_schur_vectors=False)), **VALUES),
    row(c.column_order_p, is_order, matrices((3, 4), (2, 4, 3)), lambda dtype, p: [I32], **VALUES),
]  # fmt: skip
