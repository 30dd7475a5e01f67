"""Passes over per-device programs keep their meaning, and put collectives where they belong."""

import math
from itertools import pairwise

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.sharding import AbstractMesh, NamedSharding, P
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.collective.reductions import psum_p, psum_scatter_p
from funcgrad.ops.shape import reshape
from funcgrad.parallel import shard_map
from funcgrad.parallel.programs.passes import in_buckets, scheduled, sums_early
from funcgrad.parallel.programs.program import SpmdProgram
from tests.parallel.models import (
    LAYERS,
    accumulated,
    block_args,
    block_step,
    mlp_args,
    mlp_step,
    normal,
)
from tests.parallel.partitioned import checked, counts, partitioned, run

MESH = AbstractMesh((4,), ("data",))
CUT, WHOLE = P("data"), P()


def names(jaxpr):
    return [e.prim.name for e in jaxpr.eqns]


def with_jaxpr(program, jaxpr):
    return checked(SpmdProgram(jaxpr, program.mesh, program.in_cuts, program.out_cuts))


def same(program, other, args):
    for g, w in zip(run(other, args), run(program, args), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def device(fun, *shapes):
    """A per-device program of whole inputs."""
    with context.scoped(axes=MESH.shape):
        jaxpr, _ = stage(fun, [ShapedArray(s, "float32") for s in shapes])
    cuts = lambda avals: tuple(((),) * a.ndim for a in avals)
    return SpmdProgram(jaxpr, MESH, cuts(jaxpr.in_avals), cuts(jaxpr.out_avals))


TWICE = [
    lambda x: (lax.all_gather(x, "data"), lax.all_gather(fnp.sin(x), "data"),
               lax.all_gather(x, "data")),
    lambda x: lax.all_gather(x, "data", tiled=True) * lax.all_gather(x, "data", tiled=True)[0],
    lambda x: fg.jit(lambda v: lax.all_gather(v, "data"))(x) + lax.all_gather(x, "data"),
]  # fmt: skip


@pytest.mark.parametrize(("f", "once"), list(zip(TWICE, (2, 1, 1), strict=True)))
def test_gathers_in_a_shard_map_are_done_once(f, once):
    plain = fg.vmap(f, axis_name="data")
    mapped = shard_map(
        lambda x: fg.tree.map(lambda v: v[None], f(x[0])), mesh=MESH, in_specs=CUT, out_specs=CUT
    )
    x = normal(4, 4)
    for g, w in ((mapped, plain), *((total(h) for h in (mapped, plain)),)):
        program, _, args = partitioned(lambda v, g=g: fg.tree.leaves(g(v)), [x], MESH, [CUT])
        found = counts(checked(program))
        for got, want in zip(run(program, args), fg.tree.leaves(w(x)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        if g is mapped:
            assert found == {"all_gather": once}
        else:
            # What gathers it once scatters its cotangents once, too.
            assert found.get("psum_scatter", 0) <= once


def total(f):
    return fg.grad(lambda x: sum(fnp.sum(fnp.sin(v)) for v in fg.tree.leaves(f(x))))


def test_what_a_checkpoint_gathers_again_stays():
    """The gathered array isn't kept from the pass forwards to the one backwards."""

    def device(x, w):
        layer = fg.checkpoint(lambda v, w: fnp.tanh(v @ lax.all_gather(w, "data", tiled=True)))
        return layer(layer(x, w), w)

    f = shard_map(device, mesh=MESH, in_specs=(CUT, CUT), out_specs=CUT)
    loss = lambda x, w: fnp.sum(f(x, w) ** 2)
    program, *_ = partitioned(
        lambda x, w: [fg.grad(loss, 1)(x, w)], [normal(4, 4)] * 2, MESH, [CUT] * 2
    )
    # One forwards for both layers, and one for each backwards.
    assert 2 <= counts(checked(program))["all_gather"] <= 3


def ddp(layers=LAYERS, width=16):
    args = mlp_args(width=width, layers=layers)
    program, _, args = partitioned(
        mlp_step(layers=layers), args, MESH, [WHOLE] * 2 * layers + [CUT] * 2
    )
    return program, args


def zero(stage_):
    """ZeRO of a stage: what is cut of parameters and optimizer state."""
    cut = NamedSharding(MESH, CUT, regather=True)
    params = [cut] * LAYERS if stage_ == 3 else [WHOLE] * LAYERS
    program, _, args = partitioned(
        mlp_step(), mlp_args(), MESH, [*params, *[CUT] * LAYERS, CUT, CUT]
    )
    return program, args


# ---- sums as early as can be


@pytest.mark.parametrize("stage_", [0, 1, 3])
def test_sums_come_right_after_what_they_sum(stage_):
    program, args = zero(stage_) if stage_ else ddp()
    early = with_jaxpr(program, sums_early(program.jaxpr))
    assert sorted(names(early.jaxpr)) == sorted(names(program.jaxpr))
    same(program, early, args)
    kind = "psum_scatter" if stage_ else "psum"
    found = names(early.jaxpr)
    at = [i for i, n in enumerate(found) if n == kind]
    # Each but the last gradient is summed before the next layer's product.
    products = [i for i, n in enumerate(found) if n == "dot_general"]
    assert all(any(i < p < j for p in products) for i, j in pairwise(at))


def test_sums_in_loops_come_early():
    ws = mlp_args()[:LAYERS]
    xs, ys = normal(4, 32, 16, seed=1), normal(4, 32, 16, seed=2)
    fun = lambda *flat: accumulated(list(flat[:LAYERS]), *flat[LAYERS:])
    program, _, args = partitioned(fun, [*ws, xs, ys], MESH, [CUT] * 3 + [P(None, "data")] * 2)
    same(program, with_jaxpr(program, sums_early(program.jaxpr)), args)


# ---- buckets


@pytest.mark.parametrize(("limit", "expected"), [(10**9, 1), (3 * 1024, 2), (2 * 1024, 3), (64, 5)])
def test_gradients_are_summed_in_buckets(limit, expected):
    """Five gradients of 1024 bytes."""
    program, args = ddp(layers=5)
    jaxpr = sums_early(program.jaxpr)
    bucketed = with_jaxpr(program, in_buckets(jaxpr, MESH.shape, limit))
    assert counts(bucketed) == {"psum": expected}
    assert expected <= max(1, math.ceil(5 * 1024 / limit)) or limit < 1024
    same(program, bucketed, args)


def test_scattered_sums_share_buckets():
    program, args = zero(1)
    bucketed = scheduled(program, bucket_bytes=10**6)
    assert counts(bucketed)["psum_scatter"] == 1
    same(program, checked(bucketed), args)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scattered_along_any_axis(axis):
    def fun(x, y):
        parts = [psum_scatter_p.bind(v, axis_name=("data",), axis=a, tiled=True)
                 for v, a in ((x, axis), (y, 0))]  # fmt: skip
        return [reshape(p, (-1,) if p.ndim == 0 else (p.size,)) for p in parts]

    program = device(fun, (4, 8, 12), (8,))
    program = SpmdProgram(program.jaxpr, MESH, program.in_cuts, ((("data",),),) * 2)
    bucketed = with_jaxpr(program, in_buckets(program.jaxpr, MESH.shape))
    assert counts(bucketed) == {"psum_scatter": 1}
    same(program, bucketed, [normal(4, 8, 12), normal(8, seed=1)])


def test_nothing_moves_past_a_use():
    def fun(x, y):
        a = psum_p.bind(x, axis_name=("data",))
        b = psum_p.bind(a * y, axis_name=("data",))
        c = psum_p.bind(y, axis_name=("data",))
        return [b + c]

    program = device(fun, (4,), (4,))
    bucketed = with_jaxpr(program, in_buckets(program.jaxpr, MESH.shape))
    assert counts(bucketed) == {"psum": 2}
    same(program, bucketed, [normal(4), normal(4, seed=1)])


def test_dtypes_and_axes_have_buckets_of_their_own():
    mesh = AbstractMesh((2, 2), ("x", "y"))

    def fun(a, b, c):
        over = lambda v, *axes: psum_p.bind(v, axis_name=axes)
        return [over(a, "x"), over(b, "x"), over(b, "y"), over(c, "x"), over(a, "x", "y")]

    with context.scoped(axes=mesh.shape):
        args = [np.ones(3, "float32"), np.ones((2, 2), "float32"), np.ones(3, "int32")]
        jaxpr, _ = stage(fun, [aval_of(x) for x in args])
    cuts = lambda avals: tuple(((),) * a.ndim for a in avals)
    program = SpmdProgram(jaxpr, mesh, cuts(jaxpr.in_avals), cuts(jaxpr.out_avals))
    bucketed = with_jaxpr(program, in_buckets(jaxpr, mesh.shape))
    assert counts(bucketed) == {"psum": 4}
    same(program, bucketed, args)


def test_scalars_and_empty_arrays():
    fun = lambda x, y, z: [psum_p.bind(v, axis_name=("data",)) for v in (x, y, z)]
    program = device(fun, (), (0, 3), (2,))
    bucketed = with_jaxpr(program, in_buckets(program.jaxpr, MESH.shape))
    assert counts(bucketed) == {"psum": 1}
    same(program, bucketed, [np.float32(2), np.zeros((0, 3), "float32"), normal(2)])


# ---- all together


@pytest.mark.parametrize("overlap", [False, True])
def test_schedules_of_a_block(overlap):
    cut = NamedSharding(MESH, CUT, regather=True)
    args = block_args(4, 16, 16)
    for specs in ([cut] * 8, [WHOLE] * 8, [CUT] * 8):
        program, _, args = partitioned(block_step(), args, MESH, [*specs, CUT, CUT])
        same(program, checked(scheduled(program, overlap=overlap)), args)


def test_no_buckets():
    program, _ = ddp()
    assert counts(scheduled(program, bucket_bytes=0, scatter_bytes=0)) == counts(program)
