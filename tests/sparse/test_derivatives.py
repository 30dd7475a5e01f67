"""Derivatives with respect to what is stored."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import sparse
from funcgrad.errors import ArgumentError
from tests.sparse.samples import assert_same, dense, full


@pytest.fixture(params=[sparse.BCOO, sparse.BCSR])
def make(request):
    """Each of the two formats."""
    return request.param


def test_arguments(make, rng):
    x = dense(rng)
    m, v = make.fromdense(x), fnp.arange(6.0)
    f = lambda params, v, scale=1.0: scale * fnp.sum(params["m"] @ v + params["b"])
    params = {"m": m, "b": 2.0}
    got = sparse.grad(f)(params, v, scale=2.0)
    assert_same(got["m"], 2 * np.where(x != 0, v, 0))
    assert got["b"] == 10.0
    both = sparse.grad(f, argnums=(0, -1))(params, v)
    assert_same(both[1], x.sum(0))
    value, (only,) = sparse.value_and_grad(f, argnums=(1,))(params, v)
    assert_same(only, x.sum(0))
    assert_same(value, f(params, v))
    aux = lambda m: (fnp.sum(m @ v), "aux")
    assert sparse.grad(aux, has_aux=True)(m)[1] == "aux"
    assert sparse.value_and_grad(aux, has_aux=True)(m)[0][1] == "aux"
    with pytest.raises(ArgumentError, match="argnums=2, but there are 2 positional"):
        sparse.grad(f, argnums=2)(params, v)


def test_jacobians(make, rng):
    x = dense(rng)
    m, v = make.fromdense(x), fnp.arange(6.0)
    f = lambda m: fnp.sin(m @ v)
    want = np.asarray(fg.jacrev(f)(fnp.array(x))) * (x != 0)
    for jacobian in (sparse.jacfwd, sparse.jacrev, sparse.jacobian):
        got = jacobian(f)(m)
        assert got.shape == (5, 5, 6)
        assert_same(got, want, 1e-4)
    got = sparse.jacrev(lambda m, v: {"a": m @ v, "b": (m @ v).sum()}, (0, 1))(m, v)
    assert_same(got["a"][1], x)
    assert_same(got["b"][0], np.where(x != 0, v, 0))
    aux = sparse.jacfwd(lambda m: (f(m), 3), has_aux=True)(m)
    assert aux[1] == 3


def test_second_order(make, rng):
    x = dense(rng, dtype="float64")
    m, v = make.fromdense(x), fnp.arange(6.0)
    loss = lambda m: fnp.sum(fnp.sin(m @ v))
    curvature = sparse.grad(lambda m: fnp.sum(sparse.grad(loss)(m).data ** 2))(m)
    masked = lambda x: fnp.sum((fg.grad(loss)(x) * (full(m) != 0)) ** 2)
    assert_same(curvature, np.asarray(fg.grad(masked)(fnp.array(x))) * (x != 0))


def test_complex(make, rng):
    x = dense(rng, dtype="complex128")
    v = fnp.array(rng.standard_normal(6) + 1j * rng.standard_normal(6))
    loss = lambda m, v: fnp.sum(fnp.abs(m @ v) ** 2)
    got = sparse.grad(loss, (0, 1))(make.fromdense(x), v)
    want = fg.grad(loss, (0, 1))(fnp.array(x), v)
    assert_same(got[0], np.asarray(want[0]) * (x != 0))
    assert_same(got[1], want[1])
