"""jacfwd, jacrev, hessian: whole Jacobians of functions of trees."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.errors import DifferentiationError

X = np.array([0.5, -1.0, 2.0], np.float32)
both = pytest.mark.parametrize("jac", [fg.jacfwd, fg.jacrev], ids=["fwd", "rev"])


def close(got, want, **options):
    tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **{"rtol": 1e-5, "atol": 1e-6} | options),
        got,
        want,
    )


@both
def test_matrix_and_tensor(jac):
    a = np.arange(6, dtype="float32").reshape(2, 3)
    close(jac(lambda x: a @ x)(X), a)
    out = jac(lambda m: m * 2.0)(a)
    assert out.shape == (2, 3, 2, 3)
    close(out.reshape(6, 6), 2 * np.eye(6))


@both
def test_trees_of_results_hold_trees_of_arguments(jac):
    def f(p):
        return {"u": p["w"] * p["s"], "v": [p["s"] ** 2]}

    out = jac(f)({"w": X, "s": 3.0})
    close(out["u"], {"w": 3 * np.eye(3), "s": X})
    close(out["v"][0], {"w": np.zeros(3), "s": 6.0})


@both
def test_argnums_and_aux(jac):
    f = lambda x, y: (x * y, {"n": fnp.sum(x)})
    out, aux = jac(f, argnums=(0, 1), has_aux=True)(X, 2 * X)
    assert type(out) is tuple
    close(out, (np.diag(2 * X), np.diag(X)))
    close(aux["n"] + 0.0, X.sum())
    close(jac(lambda x, y: x * y, argnums=-1)(X, X), np.diag(X))
    close(jac(lambda x, k=1.0: x * k)(X, k=4.0), 4 * np.eye(3))
    with pytest.raises(TypeError, match=r"argnums=2, but there are 1 arguments"):
        jac(fnp.sin, argnums=2)(X)


@both
def test_results_that_do_not_vary(jac):
    out = jac(lambda x: (x, fnp.ones(2), 1.0))(X)
    close(out, (np.eye(3), np.zeros((2, 3)), np.zeros(3)))
    close(jac(lambda x, y: (x * 2.0,), argnums=(0, 1))(X, X)[0], (2 * np.eye(3), np.zeros((3, 3))))


@both
def test_scalars_and_empty_arrays(jac):
    assert jac(lambda x: x**2)(3.0).shape == ()
    assert jac(lambda x: x * 2.0)(fnp.ones((0,))).shape == (0, 0)
    assert jac(lambda x: fnp.sum(x))(fnp.ones((0, 2))).shape == (0, 2)


@both
def test_under_jit_and_vmap(jac):
    f = lambda x: fnp.sin(x) * fnp.sum(x)
    want = np.diag(np.cos(X) * X.sum()) + np.sin(X)[:, None]
    close(fg.jit(jac(f))(X), want)
    close(fg.vmap(jac(f))(np.stack([X, X]))[1], want)
    close(jac(fg.jit(fg.vmap(fnp.sin)))(X), np.diag(np.cos(X)))


@pytest.mark.parametrize(
    "h",
    [
        fg.hessian,
        lambda f: fg.jacfwd(fg.jacfwd(f)),
        lambda f: fg.jacrev(fg.jacrev(f)),
        lambda f: fg.jacrev(fg.jacfwd(f)),
        lambda f: fg.jacfwd(fg.grad(f)),
        lambda f: fg.jit(fg.hessian(f)),
    ],
    ids=["hessian", "fwd fwd", "rev rev", "rev fwd", "fwd grad", "jit"],
)
def test_hessian(h):
    f = lambda x: fnp.sum(x**3) + x[0] * x[1] * x[2]
    want = np.diag(6 * X) + np.array([[0, X[2], X[1]], [X[2], 0, X[0]], [X[1], X[0], 0]])
    close(h(f)(X), want)


def test_hessian_of_trees():
    f = lambda p: p["a"] ** 2 * fnp.sum(p["b"])
    h = fg.hessian(f)({"a": 2.0, "b": X})
    close(h["a"]["a"], 2 * X.sum())
    close(h["a"]["b"], np.full(3, 4.0))
    close(h["b"]["b"], np.zeros((3, 3)))
    h, aux = fg.hessian(lambda x: (x**3, "aux"), has_aux=True)(2.0)
    assert (float(h), aux) == (12.0, "aux")
    close(fg.hessian(lambda x, y: x * y, argnums=(0, 1))(1.0, 2.0), ((0.0, 1.0), (1.0, 0.0)))


def test_complex():
    z = np.array([1 + 1j, 2.0], np.complex64)
    close(fg.jacfwd(lambda v: v**2, holomorphic=True)(z), np.diag(2 * z))
    close(fg.jacrev(lambda v: v**2, holomorphic=True)(z), np.diag(2 * z))
    with pytest.raises(DifferentiationError, match="jacfwd of .*argument v is c64.*holomorphic"):
        fg.jacfwd(lambda v: v**2)(z)
    with pytest.raises(DifferentiationError, match="jacrev of .*must give real"):
        fg.jacrev(lambda x: x * 1j)(X)


@both
def test_integers_are_refused(jac):
    with pytest.raises(DifferentiationError, match=r"argument n is i32\[\].*convert it to float"):
        jac(lambda x, n: x * n, argnums=1)(X, 3)
