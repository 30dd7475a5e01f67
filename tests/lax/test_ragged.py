"""Ragged products over any axes: against a sum over dense groups; derivatives, vmap, bad input."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, lax
from funcgrad.parallel import NamedSharding, P

NUMBERS = lax.RaggedDotDimensionNumbers
ROWS = NUMBERS((((1,), (1,)), ((), ())), (0,), (0,))
SUMS = NUMBERS((((0,), (0,)), ((), ())), (0,), ())

# name: shapes of lhs and rhs, sizes, numbers, and the sum with lhs masked for each group g
CASES = {
    "rows": ((7, 3), (3, 3, 4), [2, 0, 4], ROWS, "gmk,gkn->mn"),
    "rows_turned": (
        (3, 7), (4, 3, 5), [2, 1, 4, 0], NUMBERS((((0,), (1,)), ((), ())), (1,), (0,)),
        "gkm,gkn->mn",
    ),
    "groups_last": (
        (7, 3), (4, 3, 2), [2, 4], NUMBERS((((1,), (1,)), ((), ())), (0,), (2,)), "gmk,nkg->mn"
    ),
    "rows_batch": (
        (2, 7, 3), (2, 3, 3, 4), [2, 1, 4], NUMBERS((((2,), (2,)), ((0,), (0,))), (1,), (1,)),
        "gbmk,bgkn->bmn",
    ),
    "rows_batch_sizes": (
        (2, 7, 3), (2, 3, 3, 4), [[2, 1, 4], [0, 7, 0]],
        NUMBERS((((2,), (2,)), ((0,), (0,))), (1,), (1,)), "gbmk,bgkn->bmn",
    ),
    "rows_before": (
        (2, 5, 3), (2, 3, 4), [[2, 3], [4, 0]], NUMBERS((((2,), (1,)), ((), ())), (1,), (0,)),
        "gxmk,gkn->xmn",
    ),
    "rows_batch_before": (
        (2, 2, 7, 3), (3, 2, 3, 4), [2, 1, 4], NUMBERS((((3,), (2,)), ((0,), (1,))), (2,), (0,)),
        "gbxmk,gbkn->bxmn",
    ),
    "rows_after": (
        (7, 2, 3), (3, 3, 4), [2, 1, 3], NUMBERS((((2,), (1,)), ((), ())), (0,), (0,)),
        "gmak,gkn->man",
    ),
    "sums": ((7, 3), (7, 4), [2, 0, 4], SUMS, "gkm,kn->gmn"),
    "sums_batch": (
        (2, 7, 3), (7, 2, 4), [[2, 1, 3], [0, 7, 0]],
        NUMBERS((((1,), (0,)), ((0,), (1,))), (1,), ()), "gbkm,kbn->gbmn",
    ),
    "sums_two": (
        (3, 7, 2), (7, 3, 4), [2, 1, 3], NUMBERS((((0, 1), (1, 0)), ((), ())), (1,), ()),
        "gxkm,kxn->gmn",
    ),
    "sums_two_sizes": (
        (3, 7, 2), (7, 3, 4), [[2, 1], [0, 7], [1, 1]],
        NUMBERS((((0, 1), (1, 0)), ((), ())), (1,), ()), "gxkm,kxn->gmn",
    ),
    "sums_after": (
        (3, 7, 2), (7, 3, 4), [2, 1, 3], NUMBERS((((1, 0), (0, 1)), ((), ())), (1,), ()),
        "gakm,kan->gmn",
    ),
    "batch": (
        (4, 3, 2), (4, 2, 5), [1, 3], NUMBERS((((2,), (1,)), ((0,), (0,))), (0,), ()),
        "gbmk,bkn->bmn",
    ),
}  # fmt: skip


def masked(x, sizes, numbers):
    """x for each group, with zeros where it isn't the group's."""
    (lc, _), (lb, _) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    free = [i for i in range(x.ndim) if i not in (*lc, *lb)]
    own = next(axes for axes in (free, lc, lb) if ragged in axes)
    before = [*own[: [*own].index(ragged)]]
    lead = [*(() if own is lb else lb), *before]
    sizes = np.broadcast_to(sizes, (*(x.shape[i] for i in lead), np.shape(sizes)[-1]))
    out = np.zeros((sizes.shape[-1], *x.shape))
    for at in np.ndindex(*sizes.shape[:-1]):
        start = 0
        for g, n in enumerate(sizes[at]):
            place = [slice(None)] * x.ndim
            for axis, i in zip(lead, at, strict=True):
                place[axis] = slice(i, i + 1)
            place[ragged] = slice(start, start + n)
            out[(g, *place)] = x[tuple(place)]
            start += n
    return out


def operands(name, rng):
    lhs, rhs, sizes, numbers, _ = CASES[name]
    return rng.normal(size=lhs), rng.normal(size=rhs), np.array(sizes), numbers


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", CASES)
def test_values(name, jit, rng):
    x, y, sizes, numbers = operands(name, rng)
    f = lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, numbers)
    got = (fg.jit(f) if jit else f)(x, y, sizes)
    wanted = np.einsum(CASES[name][4], masked(x, sizes, numbers), y)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_derivatives(name, rng):
    """Those of the product with lhs masked for each group, to second order."""
    x, y, sizes, numbers = operands(name, rng)
    mask = masked(np.ones(x.shape), sizes, numbers)

    def ragged(x, y):
        return fnp.sum(fnp.sin(lax.ragged_dot_general(x, y, sizes, numbers)))

    def dense(x, y):
        return fnp.sum(fnp.sin(fnp.einsum(CASES[name][4], mask * x, y)))

    for order in (
        lambda f: fg.grad(f, (0, 1)),
        lambda f: fg.grad(
            lambda x, y: sum(fnp.sum(g**2) for g in fg.grad(f, (0, 1))(x, y)), (0, 1)
        ),
        lambda f: fg.jit(fg.jacfwd(fg.grad(f, 0), 1)),
    ):
        for got, wanted in zip(order(ragged)(x, y), order(dense)(x, y), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mapped", ["lhs", "rhs", "sizes", "all"])
def test_vmap(name, mapped, rng):
    x, y, sizes, numbers = operands(name, rng)
    stacked = {"lhs": (1, None, None), "rhs": (None, 2, None), "sizes": (None, None, 0)}
    axes = stacked.get(mapped, (1, 2, 0))
    args = [
        v if d is None else np.stack([v, v[::-1] if v.ndim == 1 else v + v.max()], d)
        for v, d in zip((x, y, sizes), axes, strict=True)
    ]
    f = lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, numbers)
    got = fg.vmap(f, axes)(*args)
    for i in range(2):
        each = [v if d is None else np.take(v, i, d) for v, d in zip(args, axes, strict=True)]
        np.testing.assert_allclose(got[i], f(*each), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fg.jit(fg.vmap(f, axes))(*args), got, rtol=1e-10, atol=1e-12)


def test_rows_behind_the_last_group_are_none(rng):
    x = np.full((4, 2), np.nan, np.float32)
    x[:3] = 1
    w = fnp.ones((2, 2, 2))
    for f in (lax.ragged_dot, fg.jit(lax.ragged_dot)):
        got = f(x, w, fnp.array([1, 2]))
        assert np.array_equal(got, [[2, 2]] * 3 + [[0, 0]])
    sums = lambda x, y: lax.ragged_dot_general(x, y, fnp.array([1, 2]), SUMS)
    assert np.array_equal(fg.jit(sums)(x, x), [np.full((2, 2), 1.0), np.full((2, 2), 2.0)])


def test_work_grows_with_rows_not_with_groups():
    """No product of the compiled program has the rows of all groups."""
    x, w, sizes = fnp.ones((512, 8)), fnp.ones((64, 8, 8)), fnp.full(64, 8, "int32")
    text = fg.jit(lax.ragged_dot).lower(x, w, sizes).as_text("loops")
    assert "gemm float32 8x8x8" in text
    assert "512x8x8" not in text


@pytest.mark.parametrize("preferred", [None, "float32"])
def test_dtypes(preferred, rng):
    x, w = (fnp.asarray(rng.normal(size=s), "bfloat16") for s in ((5, 3), (2, 3, 4)))
    got = lax.ragged_dot(x, w, fnp.array([2, 3]), preferred_element_type=preferred)
    assert got.dtype == (preferred or "bfloat16")
    for kind in ("uint8", "int64"):
        again = lax.ragged_dot(x, w, fnp.array([2, 3], kind), preferred_element_type=preferred)
        assert np.array_equal(again, got)
    huge = lax.ragged_dot(x, w, fnp.array([2, 2**40], "int64"), preferred_element_type=preferred)
    assert np.array_equal(huge, got)
    grads = fg.grad(lambda w: fnp.sum(lax.ragged_dot(x, w, fnp.array([2, 3])) ** 2))(w)
    assert grads.dtype == w.dtype


def test_matrices_cut_over_devices(rng):
    """Columns, and what is summed, may lie on several devices."""
    mesh = fg.make_mesh(2, "d")
    x, w = rng.normal(size=(6, 4)), rng.normal(size=(3, 4, 8))
    sizes = fnp.array([1, 3, 2])
    wanted = lax.ragged_dot(x, w, sizes)
    for spec in (P(None, None, "d"), P(None, "d", None)):
        cut = fg.device_put(w, NamedSharding(mesh, spec))
        np.testing.assert_allclose(fg.jit(lax.ragged_dot)(x, cut, sizes), wanted, rtol=1e-12)


X, W, N = np.ones((4, 3), np.float32), np.ones((2, 3, 5), np.float32), np.array([1, 3])
BAD = {
    "ranks": (lambda: lax.ragged_dot(X, X, N), errors.ShapeError, r"ragged_dot: need lhs \(m, k\)"),
    "inner": (
        lambda: lax.ragged_dot(X, np.ones((2, 4, 5), np.float32), N),
        errors.ShapeError, r"contracting axes \(1,\) of lhs f32\[4,3\] and \(1,\) of rhs",
    ),
    "groups": (
        lambda: lax.ragged_dot(X, W, np.array([1, 2, 3])),
        errors.ShapeError, r"to be 3, got 2: group_sizes .*\[3\] are those of rhs f32\[2,3,5\]",
    ),
    "floats": (
        lambda: lax.ragged_dot(X, W, N * 1.0), errors.DTypeError, "must be integers, got f64",
    ),
    "dtypes": (
        lambda: lax.ragged_dot(X, W.astype("float64"), N),
        errors.DTypeError, "operands must have one dtype, got lhs f32",
    ),
    "offset": (
        lambda: lax.ragged_dot(X, W, N, group_offset=np.array([1])),
        NotImplementedError, "slice rhs and group_sizes instead",
    ),
    "two": (
        lambda: lax.ragged_dot_general(X, W, N, NUMBERS((((1,), (1,)), ((), ())), (0, 1), (0,))),
        errors.ShapeError, r"expects exactly one lhs ragged dimension, got \(0, 1\)",
    ),
    "none": (
        lambda: lax.ragged_dot_general(X, W, N, NUMBERS((((1,), (1,)), ((), ())), (0,), ())),
        errors.ShapeError, r"exactly one rhs group dimension when .* rhs f32\[2,3,5\], got \(\)",
    ),
    "both": (
        lambda: lax.ragged_dot_general(X, W, N, NUMBERS((((1,), (1,)), ((), ())), (0,), (1,))),
        errors.ShapeError, r"to be distinct from contracting and batch dimensions: .* got \(1,\)",
    ),
    "sizes": (
        lambda: lax.ragged_dot_general(X, W, N.reshape(1, 2), ROWS),
        errors.ShapeError, r"expected group_sizes to have shape \(2,\), got \(1, 2\); or \(2,\)",
    ),
    "scalar": (
        lambda: lax.ragged_dot_general(X, W, np.int32(3), ROWS),
        errors.ShapeError, "expected rank of group_sizes to be >=1",
    ),
    "contracted": (
        lambda: lax.ragged_dot_general(X, X, N, NUMBERS((((0,), (0,)), ((), ())), (0,), (1,))),
        errors.ShapeError, "zero group dimensions in the rhs when lhs ragged dimension is contr",
    ),
    "axis": (
        lambda: lax.ragged_dot_general(X, W, N, NUMBERS((((1,), (1,)), ((), ())), (5,), (0,))),
        errors.ShapeError, "ragged_dot_general",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, error, words = BAD[name]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("sizes", [[700, 0, 129, 1], [1150, 129, 20, 1]], ids=["some", "all"])
def test_wide_blocks_and_what_is_left(sizes, rng):
    """Long groups run in blocks of many rows, their rests in short ones, which end with the last
    row at the latest."""
    total, group = sum(sizes), np.repeat(np.arange(4), sizes)
    x, w = rng.normal(size=(1300, 3)), rng.normal(size=(4, 3, 2))
    x[total:] = np.nan  # of no group

    def found(x, w):
        out, pull = fg.vjp(lambda x, w: lax.ragged_dot(x, w, np.array(sizes, np.int32)), x, w)
        return out, *pull(fnp.cos(out))

    got = fg.jit(found)(x, w)
    out = np.zeros((1300, 2))
    out[:total] = np.einsum("ik,ikn->in", x[:total], w[group])
    ct = np.cos(out)
    dw = np.zeros_like(w)
    np.add.at(dw, group, x[:total, :, None] * ct[:total, None])
    dx = np.zeros_like(x)
    dx[:total] = np.einsum("in,ikn->ik", ct[:total], w[group])
    for g, want in zip(got, (out, dx, dw), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-9, atol=1e-12)
