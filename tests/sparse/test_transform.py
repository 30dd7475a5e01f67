"""Functions of dense arrays on sparse ones."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, sparse, tree
from funcgrad.errors import ControlFlowError, SparseEfficiencyError
from tests.sparse.samples import assert_same, dense, matrices

FUNCTIONS = {
    "products": lambda m, v: (m @ v, v @ m, fnp.dot(m, m), fnp.einsum("ij,j->i", m, v)),
    "arithmetic": lambda m, v: (m * v, m**2 + m / 3, m + fnp.outer(v, v), -m, 2 * m - m),
    "functions": lambda m, v: (fnp.sin(m), nn.relu(m), fnp.minimum(m, 1.0), fnp.expm1(m), abs(m)),
    "moved": lambda m, v: (m.T, m[1:3], m[2], fnp.flip(m, 1), fnp.stack([m, m]), m[:, None]),
    "sums": lambda m, v: (m.sum(), m.mean(), m.sum(0), fnp.concatenate([m, m], 1)),
    "calls": lambda m, v: (fg.jit(lambda m: m @ v)(m), fg.checkpoint(lambda m: m * 2)(m)),
    "scan": lambda m, v: lax.scan(lambda c, _: (m @ c, m * 2 @ c), v, None, length=3),
    "carried": lambda m, v: lax.fori_loop(0, 3, lambda i, c: c * 2.0, m),
    "while": lambda m, v: lax.while_loop(lambda c: c.sum() < 20, lambda c: abs(m) @ c + 1, v),
    "cond": lambda m, v: lax.cond(v.sum() > 3, lambda x: x @ v, lambda x: 2 * (x @ v), m),
    "dense": lambda m, v: fnp.exp(sparse.todense(m)) @ v,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, rng):
    x, v = dense(rng, (5, 5)), fnp.arange(5.0)
    f = FUNCTIONS[name]
    wanted = tree.leaves(f(fnp.array(x), v))
    for kind, m in matrices(x, rng).items():
        ways = (fg.jit, lambda f: f) if kind == "bcsr" else (lambda f: f,)
        for way in ways:
            got = tree.leaves(way(sparse.sparsify(f))(m, v), is_leaf=lambda a: hasattr(a, "nse"))
            for a, b in zip(got, wanted, strict=True):
                assert_same(a, b, 1e-4)


def test_scan_over_batches(rng):
    x = dense(rng, (3, 4, 5))
    f = lambda m: lax.scan(lambda c, row: (c + row.sum(), row * 2), 0.0, m)
    total, rows = sparse.sparsify(f)(sparse.BCOO.fromdense(x, n_batch=1))
    assert_same(total, x.sum(), 1e-4)
    assert_same(rows, 2 * x)
    with pytest.raises(SparseEfficiencyError, match="which must be a batch axis"):
        sparse.sparsify(f)(sparse.BCOO.fromdense(x))


def test_trees_and_keywords(rng):
    x = dense(rng)
    f = sparse.sparsify(lambda params, *, scale: {"out": params["m"] * scale, "b": params["b"]})
    got = f({"m": sparse.BCOO.fromdense(x), "b": 1.0}, scale=2.0)
    assert_same(got["out"], 2 * x)
    assert got["b"] == 1.0


def test_derivatives(rng):
    x = dense(rng, (5, 5))
    v = fnp.arange(5.0)
    f = lambda m: fnp.sum(fnp.tanh(m @ v) * (m * 2).sum())
    want = np.asarray(fg.grad(f)(fnp.array(x))) * (x != 0)
    for make in (sparse.BCOO, sparse.BCSR):
        gradient = sparse.grad(sparse.sparsify(f))
        assert_same(gradient(make.fromdense(x)), want, 1e-4)
        assert_same(fg.jit(gradient)(make.fromdense(x)), want, 1e-4)
    batched = sparse.BCOO.fromdense(np.stack([x, x]), n_batch=1)
    assert_same(fg.vmap(gradient)(batched), np.stack([want, want]), 1e-4)


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (fnp.exp, r"sparsify: exp of .*BCOO\(float32\[2, 2\], nse=2\)\]? would be"),
        (fnp.cumsum, "would be dense, or there is no rule"),
        (lambda m: m + 1, "would be dense; add to .data"),
        (lambda m: fnp.maximum(m, 1.0), "of 0 and the other operand it must be 0, got 1.0"),
        (lambda m: m > 0, "sparsify: gt of .*BCOO"),
        (lambda m: 1 / m, "divide: the result of"),
        (lambda m: fnp.concatenate([m, fnp.ones((2, 2))]), "concatenate of sparse and dense"),
    ],
)
def test_what_would_be_dense_is_refused(f, words):
    for way in (lambda f: f, fg.jit):
        with pytest.raises(SparseEfficiencyError, match=words):
            way(sparse.sparsify(f))(sparse.eye(2))


def test_custom_vjp_is_refused():
    @fg.custom_vjp
    def through(x):
        return x * 2

    through.defvjp(lambda x: (x * 2, None), lambda _, g: (g,))
    assert sparse.sparsify(through)(fnp.ones(2)).tolist() == [2, 2]
    with pytest.raises(SparseEfficiencyError, match="through has a custom_vjp rule"):
        sparse.sparsify(through)(sparse.eye(2))


def test_carries_that_change_their_kind():
    m = sparse.eye(2)
    with pytest.raises((ControlFlowError, ValueError), match=r"carry|structure"):
        sparse.sparsify(lambda m, v: lax.fori_loop(0, 2, lambda i, c: m, v))(m, fnp.ones((2, 2)))
