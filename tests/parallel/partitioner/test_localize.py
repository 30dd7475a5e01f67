"""Ops that see blocks: shapes, counts, lookups in every mode."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import interpret
from funcgrad.core.sharding import AbstractMesh, NamedSharding, P
from funcgrad.ops.sharding import sharding_constraint_p
from tests.parallel.partitioned import checked, counts, partitioned, run

MESH = AbstractMesh((2, 2), ("x", "y"))
rng = np.random.default_rng(0)


def compare(fun, args, *specs, mesh=MESH):
    program, jaxpr, args = partitioned(lambda *xs: [fun(*xs)], args, mesh, specs)
    checked(program)
    want = interpret(jaxpr, np, *map(np.asarray, args))
    for g, w in zip(run(program, args), want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6)
    return program


def cut(x, *entries):
    return sharding_constraint_p.bind(x, sharding=NamedSharding(MESH, P(*entries)))


# ---- shapes and counts


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64", "uint64", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_counts_begin_at_the_block(dtype, axis):
    program = compare(lambda: cut(lax.broadcasted_iota(dtype, (8, 4), axis), "x", "y"), [])
    assert counts(program) == {}
    assert program.jaxpr.outs[0].aval.shape == (4, 2)


@pytest.mark.parametrize("spec", [P("x"), P(("y", "x")), P(None, "y"), P("x", "y")])
@pytest.mark.parametrize("new", [(32,), (4, 8), (16, 2), (2, 4, 4), (1, 8, 4)])
def test_reshapes(spec, new):
    program = compare(lambda x: lax.reshape(x, new), [rng.random((8, 4))], spec)
    if spec == P("x"):
        assert counts(program) == {}


def test_heads_split_off_a_cut_axis():
    fun = lambda x: fnp.sum(x.reshape(3, 4, 6), 2).reshape(12)
    program = compare(fun, [rng.random((3, 24))], P(None, ("x", "y")))
    assert counts(program) in ({}, {"all_gather": 1}, {"all_gather": 2})


@pytest.mark.parametrize("spec", [P("x"), P(None, "y"), P("y", "x")])
def test_slices_of_other_axes(spec):
    x = rng.random((8, 6)).astype("float32")
    compare(lambda x: lax.slice(x, (0, 1), (8, 5), (1, 2)), [x], spec)
    compare(lambda x: lax.dynamic_slice(x, (0, 2), (8, 3)), [x], spec)
    compare(lambda x: lax.pad(x, 0.0, ((0, 0, 0), (1, 2, 1))), [x], spec)
    compare(lambda x: lax.dynamic_update_slice(x, x[:, :2], (0, 3)), [x], spec)


def test_random_bits_do_not_depend_on_the_sharding():
    key = fg.random.key(3)
    fun = lambda k: cut(fg.random.normal(k, (8, 4)), "x", "y")
    data = np.asarray(fg.random.key_data(key)) if hasattr(fg.random, "key_data") else key
    program, jaxpr, args = partitioned(lambda k: [fun(k)], [data], MESH, [None])
    (got,) = run(program, args)
    np.testing.assert_array_equal(got, interpret(jaxpr, np, *map(np.asarray, args))[0])
    assert counts(program) == {}
