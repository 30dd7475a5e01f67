"""Products round a ring, against collective and product one after the other."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ShapeError, ShardingError
from funcgrad.parallel import (
    AbstractMesh,
    NamedSharding,
    P,
    all_gather_matmul,
    make_mesh,
    matmul_reduce_scatter,
    shard_map,
)
from tests.parallel.shard_map_helpers import close

GATHER = (P(None, "tp"), P(None, "tp")), P(None, None, "tp")
SCATTER = (P(None, None, "tp"), P("tp")), P(None, "tp")


def plain_gather(x, w, axis):
    return lax.all_gather(x, axis, axis=1, tiled=True) @ w


def plain_scatter(x, w, axis):
    return lax.psum_scatter(x @ w, axis, scatter_dimension=1, tiled=True)


PAIRS = [(all_gather_matmul, plain_gather, GATHER), (matmul_reduce_scatter, plain_scatter, SCATTER)]


def mapped(f, specs, mesh=None):
    ins, outs = specs
    mesh = mesh or make_mesh(4, "tp")
    return shard_map(partial(f, axis="tp"), mesh=mesh, in_specs=ins, out_specs=outs)


@pytest.mark.parametrize(("ring", "plain", "specs"), PAIRS)
def test_like_the_collective(ring, plain, specs, rng):
    x, w = (rng.normal(size=s).astype("float32") for s in ((2, 8, 12), (12, 16)))
    f, g = mapped(ring, specs), mapped(plain, specs)
    close(f(x, w), g(x, w))
    slope = lambda f: fg.grad(lambda *xs: fnp.sum(fnp.sin(f(*xs))), (0, 1))(x, w)
    close(slope(f), slope(g))


@pytest.mark.parametrize(("ring", "plain", "specs"), PAIRS)
def test_permutes_are_all_that_is_sent(ring, plain, specs):
    mesh = AbstractMesh(8, "tp")
    x, w = (
        fg.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))
        for shape, spec in zip([(2, 64, 32), (32, 16)], specs[0], strict=True)
    )
    f, g = mapped(ring, specs, mesh), mapped(plain, specs, mesh)
    ours, theirs = (fg.jit(h).lower(x, w).device_analysis() for h in (f, g))
    assert ours.counts == {"permute": 7}
    assert ours.bytes_sent == theirs.bytes_sent


def test_narrow_sums_are_in_float32(rng):
    x, w = (fnp.asarray(rng.normal(size=s)).astype("bfloat16") for s in ((2, 8, 12), (12, 16)))
    got = mapped(matmul_reduce_scatter, SCATTER)(x, w)
    assert got.dtype == "bfloat16"
    wanted = x.astype("float32") @ w.astype("float32")
    np.testing.assert_allclose(np.asarray(got.astype("float32")), wanted, rtol=0.01, atol=0.03)


def test_bad_input(rng):
    x, w = np.ones((2, 8, 12), "float32"), np.ones((12, 16), "float32")
    with pytest.raises(ShapeError, match=r"all_gather_matmul: need x \(…, T, K\) and w \(K, N\)"):
        all_gather_matmul(x, w.T, "tp")
    with pytest.raises(ShardingError, match="axis='tp' must name a mesh axis of the shard_map"):
        matmul_reduce_scatter(x, w, "tp")
    with pytest.raises(ShapeError, match="the 4 devices along 'tp' must divide the rows of x"):
        mapped(matmul_reduce_scatter, SCATTER)(x[:, :6], w)
