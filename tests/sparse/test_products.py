"""Products of sparse arrays against NumPy's of dense ones, and their derivatives."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, sparse
from funcgrad.core.ir import sub_jaxprs
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.test_util import check_grads
from tests.sparse.samples import assert_same, awkward, dense, full, matrices

KINDS = ("bcoo", "bcsr", "awkward", "padded")
WAYS = {"eager": lambda f: f, "jit": fg.jit}
TOL = {"bfloat16": 0.1, "float16": 1e-2}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 6), (1, 4), (6, 1), (3, 0), (0, 3), (7, 40)])
def test_products_with_dense_arrays(kind, shape, rng):
    x = dense(rng, shape)
    mat = sparse.BCOO.fromdense(x) if min(shape) < 2 else matrices(x, rng)[kind]
    times = fg.jit(lambda a, b: a @ b) if shape[0] == 7 else lambda a, b: a @ b
    for right in (rng.standard_normal(shape[1]), rng.standard_normal((shape[1], 3))):
        right = right.astype("f")
        assert_same(times(mat, fnp.array(right)), x @ right)
        left = np.ascontiguousarray(rng.standard_normal((shape[0], *right.shape[1:])).T, "f")
        assert_same(times(fnp.array(left), mat), left @ x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "complex64", "complex128", "int32", "uint8"]
)
def test_dtypes(kind, dtype, rng):
    wide = "float32" if dtype == "bfloat16" else dtype
    x, y = dense(rng, dtype=wide), dense(rng, (6, 4), 0.9, wide)
    mat = (sparse.BCSR if kind in ("bcsr", "padded") else sparse.BCOO).fromdense(x)
    mat, right = mat.astype(dtype), fnp.array(y).astype(dtype)
    for f in WAYS.values():
        got = f(lambda a, b: a @ b)(mat, right)
        assert got.dtype == mat.dtype
        assert_same(got.astype(wide), full(mat.astype(wide)) @ np.asarray(right.astype(wide)),
                    TOL.get(dtype, 1e-5))  # fmt: skip


def test_bfloat16_is_summed_in_float32():
    for make in (sparse.BCOO.fromdense, sparse.BCSR.fromdense):
        mat = make(fnp.ones((1, 1000), "bfloat16"))
        assert (mat @ fnp.ones(1000, "bfloat16"))[0] == 1000
        assert (fnp.ones((1, 1), "bfloat16") @ mat).sum() == 1000
    tall = sparse.BCOO.fromdense(fnp.ones((1000, 1), "bfloat16"))
    assert (fnp.ones(1000, "bfloat16") @ tall)[0] == 1000


def test_dtypes_are_promoted_and_integers_wrap():
    mat = sparse.eye(2, dtype="int32")
    assert (mat @ fnp.ones(2)).dtype == np.float32
    assert (mat @ fnp.ones(2, "int8")).dtype == np.int32
    small = sparse.BCSR.fromdense(fnp.full((1, 2), 100, "int8"))
    assert (small @ fnp.ones(2, "int8"))[0] == np.int8(-56)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives(kind, rng):
    x = dense(rng, dtype="float64")
    mat, y = matrices(x, rng)[kind], fnp.array(rng.standard_normal((6, 2)))
    data = fnp.nan_to_num(mat.data)
    places, static = mat.tree_flatten()
    of = lambda data: type(mat).tree_unflatten(static, (data, *places[1:]))
    check_grads(lambda data, y: of(data) @ y, (data, y), order=2)
    check_grads(lambda data, y: y.T @ of(data).transpose(), (data, y), order=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_gradient_is_the_dense_one_on_the_pattern(kind, way, rng):
    x = dense(rng)
    mat, y = matrices(x, rng)[kind], fnp.array(rng.standard_normal((6, 3)), "float32")
    loss = lambda mat, y: fnp.sum(fnp.sin(mat @ y))
    found = WAYS[way](sparse.grad(loss, (0, 1)))(mat, y)
    wanted = fg.grad(loss, (0, 1))(fnp.array(x), y)
    assert_same(found[1], wanted[1])
    once = sparse.grad(loss)(mat, y).sum_duplicates(remove_zeros=False)
    counts = type(mat).tree_unflatten(
        mat.tree_flatten()[1], (fnp.ones_like(mat.data), *mat.tree_flatten()[0][1:])
    )
    assert_same(once, np.asarray(wanted[0]) * full(counts))
    assert type(found[0]) is type(mat)
    assert found[0].indices is mat.indices or way == "jit"


def shapes_within(jaxpr):
    """The shapes of all values in a program and those within."""
    for eqn in jaxpr.eqns:
        yield from (v.aval.shape for v in (*eqn.ins, *eqn.outs))
        for inner in sub_jaxprs(eqn):
            yield from shapes_within(inner)


@pytest.mark.parametrize("make", [sparse.BCOO, sparse.BCSR])
def test_nothing_is_made_dense(make, rng):
    """Of the matrix' shape, or its transpose's; nor of as many elements."""
    m, k = 31, 37
    mat = make.fromdense(dense(rng, (m, k), 0.1))
    y = fnp.array(rng.standard_normal((k, 2)), "float32")

    def loss(mat, y):
        return fnp.sum((mat @ y) ** 2)

    second = lambda mat, y: fnp.sum(sparse.grad(loss)(mat, y).data ** 2)
    for f in (loss, sparse.grad(loss, (0, 1)), sparse.grad(second, (0, 1)),
              lambda mat, y: (mat * 2 + mat).transpose() @ (mat @ y),
              lambda mat, y: mat * fnp.ones(k)):  # fmt: skip
        shapes = list(shapes_within(fg.make_jaxpr(f)(mat, y).jaxpr))
        assert shapes
        assert not [s for s in shapes if int(np.prod(s)) >= m * k]


def test_batches(rng):
    x = dense(rng, (3, 5, 6))
    y = rng.standard_normal((3, 6, 2)).astype("f")
    for mat in (sparse.BCOO.fromdense(x, n_batch=1), sparse.BCSR.fromdense(x, n_batch=1)):
        for f in WAYS.values():
            times = f(lambda a, b: a @ b)
            assert_same(times(mat, fnp.array(y)), x @ y)
            assert_same(times(mat, fnp.array(y[0])), x @ y[0])
            assert_same(times(mat, fnp.array(y[0, :, 0])), x @ y[0, :, 0])
            assert_same(
                times(fnp.array(y.swapaxes(1, 2)[..., :5]), mat), y.swapaxes(1, 2)[..., :5] @ x
            )
            assert_same(f(fg.vmap(lambda a, b: a @ b))(mat, fnp.array(y)), x @ y)
            assert_same(f(fg.vmap(lambda a, b: a @ b, (0, None)))(mat, fnp.array(y[0])), x @ y[0])
        one = mat[0] if isinstance(mat, sparse.BCOO) else sparse.BCSR.fromdense(x[0])
        assert_same(fg.vmap(lambda b: one @ b)(fnp.array(y)), x[0] @ y)
        assert_same(one @ fnp.array(y), x[0] @ y)
    one = sparse.BCOO.fromdense(x[0])
    assert_same(fnp.array(y.swapaxes(1, 2)[..., :5]) @ one, y.swapaxes(1, 2)[..., :5] @ x[0])


def test_gradients_under_vmap(rng):
    x = dense(rng, (3, 5, 6))
    y = fnp.array(rng.standard_normal((3, 6)), "float32")
    loss = lambda mat, y: fnp.sum(fnp.tanh(mat @ y))
    wanted = fg.vmap(fg.grad(loss))(fnp.array(x), y)
    for make in (sparse.BCOO, sparse.BCSR):
        mat = make.fromdense(x, n_batch=1)
        assert_same(fg.vmap(sparse.grad(loss))(mat, y), np.asarray(wanted) * (x != 0))


def test_pattern_shared_by_batches(rng):
    pattern = sparse.BCOO.fromdense(dense(rng))
    data = fnp.array(rng.standard_normal((4, pattern.nse)), "float32")
    mat = sparse.BCOO((data, pattern.indices[None]), shape=(4, 5, 6))
    y = rng.standard_normal(6).astype("f")
    assert_same(mat @ fnp.array(y), full(mat) @ y)
    assert mat.shape == (4, 5, 6)


NUMBERS = [
    (([1], [0]), ([], [])), (([0], [1]), ([], [])), (([0, 1], [1, 0]), ([], [])),
    (([], []), ([], [])),
]  # fmt: skip


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("kind", KINDS)
def test_dot_general(numbers, kind, rng):
    x, y = dense(rng), rng.standard_normal((6, 5)).astype("f")
    mat = matrices(x, rng)[kind]
    product = sparse.bcoo_dot_general
    assert_same(product(mat, fnp.array(y), dimension_numbers=numbers),
                lax.dot_general(fnp.array(x), fnp.array(y), numbers))  # fmt: skip
    (a, b), _ = numbers
    turned = ((b, a), ([], []))
    assert_same(product(fnp.array(y), mat, dimension_numbers=turned),
                lax.dot_general(fnp.array(y), fnp.array(x), turned))  # fmt: skip


@pytest.mark.parametrize(("n_batch", "n_dense"), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)])
def test_dot_general_of_layouts(n_batch, n_dense, rng):
    x, y = dense(rng, (3, 2, 4, 5)), rng.standard_normal((3, 4, 2)).astype("f")
    mat = sparse.BCOO.fromdense(x, n_batch=n_batch, n_dense=n_dense)
    tried = 0
    for axes in itertools.permutations([(0, 0), (1, 2), (2, 1)], 2):
        for batch, contracted in ((axes[:1], axes[1:]), ((), axes), ((), axes[:1])):
            numbers = tuple(tuple([p[i] for p in pairs] for i in (0, 1))
                            for pairs in (contracted, batch))  # fmt: skip
            if any(a >= n_batch for a, _ in batch) or any(
                batch and a < n_batch and a < batch[0][0] for a, _ in contracted
            ):
                continue
            tried += 1
            assert_same(sparse.bcoo_dot_general(mat, fnp.array(y), dimension_numbers=numbers),
                        lax.dot_general(fnp.array(x), fnp.array(y), numbers), 1e-4)  # fmt: skip
    assert tried


@pytest.mark.parametrize("way", WAYS)
def test_sparse_times_sparse(way, rng):
    x, y = dense(rng), dense(rng, (6, 4))
    pairs = list(itertools.product(matrices(x, rng).values(), matrices(y, rng).values()))
    for a, b in pairs if way == "eager" else pairs[2:3]:
        got = WAYS[way](lambda a, b: a @ b)(a, b)
        assert isinstance(got, sparse.BCOO)
        assert_same(got, x @ y)
    assert (sparse.empty((3, 4)) @ sparse.empty((4, 2))).nse == 0
    batched = sparse.BCOO.fromdense(np.stack([x, 2 * x]), n_batch=1)
    other = sparse.BCOO.fromdense(np.stack([y, y]), n_batch=1)
    assert_same(batched @ other, np.stack([x @ y, 2 * x @ y]))


def test_sparse_times_sparse_differentiates(rng):
    a = sparse.BCOO.fromdense(dense(rng, dtype="float64"))
    b = sparse.BCOO.fromdense(dense(rng, (6, 4), dtype="float64"))
    loss = lambda a, b: fnp.sum(fnp.sin((a @ b).todense()))
    for i, whole in enumerate((a, b)):
        want = fg.grad(lambda x, y: fnp.sum(fnp.sin(x @ y)), i)(a.todense(), b.todense())
        assert_same(sparse.grad(loss, i)(a, b), np.asarray(want) * (full(whole) != 0))


def test_sampled(rng):
    a, b = (fnp.array(rng.standard_normal(s)) for s in ((4, 3), (3, 5)))
    indices = fnp.array([[0, 1], [3, 4], [2, 2], [4, 0], [0, 5]])
    numbers = (([1], [0]), ([], []))
    sampled = lambda a, b: sparse.bcoo_dot_general_sampled(a, b, indices, dimension_numbers=numbers)
    want = np.append(np.asarray(a @ b)[[0, 3, 2], [1, 4, 2]], [0, 0])
    assert_same(sampled(a, b), want)
    assert_same(fg.jit(sampled)(a, b), want)
    check_grads(sampled, (a, b), order=2)
    a3, b3 = (fnp.array(rng.standard_normal(s)) for s in ((2, 4, 3), (2, 3, 5)))
    numbers = (([2], [1]), ([0], [0]))
    for at in (fnp.stack([indices, indices]), indices[None]):
        got = sparse.bcoo_dot_general_sampled(a3, b3, at, dimension_numbers=numbers)
        assert_same(got[1, :3], np.asarray(a3 @ b3)[1][[0, 3, 2], [1, 4, 2]])
    at = fnp.concatenate([fnp.array([[1], [0], [1], [1], [1]]), indices], 1)
    got = sparse.bcoo_dot_general_sampled(a3, b3, at, dimension_numbers=numbers)
    assert_same(got[:2], np.asarray(a3 @ b3)[[1, 0], [0, 3], [1, 4]])


def test_sampled_by_rows(rng):
    a, b = rng.standard_normal((5, 3)).astype("f4"), rng.standard_normal((3, 6)).astype("f4")
    mask = rng.random((5, 6)) < 0.4
    mask[2] = False
    m = sparse.BCSR.fromdense(fnp.asarray(mask, "float32"), nse=int(mask.sum()) + 3)
    numbers = (([1], [0]), ([], []))

    def sampled(a, b):
        return sparse.bcsr_dot_general_sampled(a, b, m.indices, m.indptr, dimension_numbers=numbers)

    want = np.append((a @ b)[mask], [0, 0, 0])
    assert_same(sampled(a, b), want)
    assert_same(fg.jit(sampled)(a, b), want)
    check_grads(sampled, (a, b), order=2)
    # The gradient with respect to a product's values is such a product.
    x = rng.standard_normal((6, 3)).astype("f4")
    product = lambda data: sparse.BCSR((data, m.indices, m.indptr), shape=(5, 6)) @ x
    got = fg.grad(lambda data: fnp.sum(product(data) * a))(m.data)
    assert_same(got, sampled(a, x.T))
    batched = sparse.bcsr_dot_general_sampled(
        fnp.stack([a, 2 * a]), fnp.stack([b, b]), fnp.stack([m.indices] * 2),
        fnp.stack([m.indptr] * 2), dimension_numbers=(([2], [1]), ([0], [0])),
    )  # fmt: skip
    assert_same(batched, np.stack([want, 2 * want]))
    for at, words in (((m.indices[None], m.indptr), "need indices"), ((m.indices, m.data), "need")):
        with pytest.raises(ShapeError, match=f"bcsr_dot_general_sampled: {words}"):
            sparse.bcsr_dot_general_sampled(a, b, *at, dimension_numbers=numbers)


def test_bad_operands(rng):
    mat = sparse.eye(3)
    with pytest.raises(ShapeError, match="last axis of a .3, 3. has size 3.*b .4,. has 4"):
        mat @ fnp.ones(4)
    with pytest.raises(ShapeError, match="need arrays of one or more axes"):
        mat @ 2.0
    with pytest.raises(DTypeError, match="need numbers, got bools"):
        mat.astype(bool) @ fnp.ones(3, bool)
    with pytest.raises(ArgumentError, match="need a BCOO"):
        sparse.bcoo_dot_general(fnp.ones(3), fnp.ones(3), dimension_numbers=(([0], [0]), ([], [])))
    with pytest.raises(ShapeError, match="batch axes .* must be batch axes of"):
        sparse.bcoo_dot_general(mat, fnp.ones((3, 3)), dimension_numbers=(([1], [1]), ([0], [0])))
    tall = sparse.BCOO.fromdense(fnp.ones((2, 3)), n_dense=1)
    with pytest.raises(ShapeError, match="must not be dense axes"):
        tall @ fnp.ones(3)
    with pytest.raises(ShapeError, match="contracting axes .* must have the same sizes"):
        sparse.bcsr_dot_general(sparse.eye(3, sparse_format="bcsr"), fnp.ones(4),
                                dimension_numbers=(([1], [0]), ([], [])))  # fmt: skip
    with pytest.raises(DTypeError, match="indices must be integers"):
        sparse.bcoo_dot_general_sampled(fnp.ones(2), fnp.ones(2), fnp.ones((1, 2)),
                                        dimension_numbers=(([], []), ([], [])))  # fmt: skip
    with pytest.raises(ShapeError, match="for a product of shape"):
        sparse.bcoo_dot_general_sampled(fnp.ones(2), fnp.ones(2), fnp.ones((1, 1), int),
                                        dimension_numbers=(([], []), ([], [])))  # fmt: skip
    with pytest.raises(TypeError, match="unsupported operand"):
        mat @ "a"
    with pytest.raises(TypeError, match="unsupported operand"):
        [1.0] @ mat


def test_random_matrices_against_scipy(rng):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    for _ in range(5):
        m, k, n = rng.integers(1, 60, 3)
        a = scipy_sparse.random(m, k, 0.1, "csr", np.float64, rng)
        y = rng.standard_normal((k, n))
        for mat in (sparse.BCSR.from_scipy_sparse(a), sparse.BCOO.from_scipy_sparse(a),
                    awkward(a.toarray(), rng)):  # fmt: skip
            assert_same(fg.jit(lambda a, b: a @ b)(mat, fnp.array(y)), a @ y, 1e-12)
            assert_same(mat.transpose() @ fnp.ones(m), a.T @ np.ones(m), 1e-12)
