"""Donation: the memory of arguments that results may take, and what others hold of it."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.errors import DonatedBufferError

X = np.array([1.0, 2.0, 3.0], np.float32)
backends = pytest.mark.parametrize("backend", ["numpy", "llvm", "plain"])


def same(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), got, want)


@backends
def test_donated_arrays_are_gone(backend):
    f = fg.jit(lambda s, x: (s + x, s * x), donate_argnums=0, backend=backend)
    s = fnp.asarray(X)
    same(f(s, X), (2 * X, X * X))
    assert s.is_deleted()
    with pytest.raises(DonatedBufferError, match=r"argument s was donated to jit\(<lambda>\)"):
        s + 1


@backends
def test_donated_trees_and_names(backend):
    f = fg.jit(lambda p, *, q: tree.map(lambda a: a * 2, (p, q)), donate_argnums=(0,),
               donate_argnames="q", backend=backend)  # fmt: skip
    p, q = {"w": fnp.asarray(X), "b": fnp.ones(3)}, [fnp.asarray(X)]
    same(f(p, q=q), ({"w": 2 * X, "b": np.full(3, 2.0)}, [2 * X]))
    assert all(x.is_deleted() for x in tree.leaves((p, q)))
    with pytest.raises(DonatedBufferError, match=r"argument p\['b'\] was donated"):
        f(p, q=[fnp.ones(3)])


@backends
def test_donation_does_not_touch_what_others_hold(backend):
    f = fg.jit(lambda x: x * 10.0 + 1.0, donate_argnums=0, backend=backend)
    x = fnp.asarray(X) * 1
    view, reshaped, seen = x.reshape(3, 1), x[:], np.asarray(x)
    same(f(x), 10 * X + 1)
    same(view, X[:, None])
    same(reshaped, X)
    same(seen, X)
    y = fnp.asarray(X) * 1
    part = y.reshape(3, 1)[:2]
    same(f(part), 10 * X[:2, None] + 1)
    same(y, X)


@backends
def test_donation_of_the_callers_numpy_array(backend):
    given = X.copy()
    f = fg.jit(lambda x: x * 10.0, donate_argnums=0, backend=backend)
    same(f(given), 10 * X)
    same(given, X)


@backends
def test_donation_of_an_array_given_twice(backend):
    x = fnp.asarray(X) * 1
    f = fg.jit(lambda a, b: (a * 2.0, a + b), donate_argnums=0, backend=backend)
    same(f(x, x), (2 * X, 2 * X))
    y = fnp.asarray(X) * 1
    g = fg.jit(lambda a, b: (b + 1.0, a * 3.0), donate_argnums=(0, 1), backend=backend)
    same(g(y, y), (X + 1, 3 * X))


@backends
def test_donation_of_a_captured_array(backend):
    w = fnp.asarray(X) * 1
    f = fg.jit(lambda x: (x * 2.0, x + w), donate_argnums=0, backend=backend)
    same(f(w), (2 * X, 2 * X))
    with pytest.raises(DonatedBufferError):
        f(fnp.asarray(X))


@backends
def test_donation_passes_an_argument_through(backend):
    x = fnp.asarray(X) * 1
    out = fg.jit(lambda a: a, donate_argnums=0, backend=backend)(x)
    same(out, X)
    assert x.is_deleted()


@backends
def test_donation_in_a_loop(backend):
    f = fg.jit(lambda s: tree.map(lambda v: v + 1.0, s), donate_argnums=0, backend=backend)
    state = {"a": fnp.zeros(1000), "b": fnp.zeros((10, 10))}
    for _ in range(50):
        state = f(state)
    assert float(state["a"][999]) == float(state["b"][9, 9]) == 50.0


@backends
def test_donation_of_a_compiled_stage(backend):
    x = fnp.asarray(X) * 1
    compiled = fg.jit(lambda a: a * 2.0, donate_argnums=0, backend=backend).lower(x).compile()
    same(compiled(x), 2 * X)
    with pytest.raises(DonatedBufferError, match="argument a was donated"):
        compiled(x)


def test_donation_inside_another_transformation_deletes_nothing():
    f = fg.jit(lambda x: fnp.sum(x**2), donate_argnums=0)
    x = fnp.asarray(X)
    same(fg.grad(f)(x), 2 * X)
    same(fg.vmap(f)(x[:, None]), X**2)
    same(x, X)
