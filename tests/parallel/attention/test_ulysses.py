"""Attention by exchange of places for heads, and with a ring beside it, against the whole."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.errors import ArgumentError, ShapeError, ShardingError
from funcgrad.parallel import (
    AbstractMesh,
    NamedSharding,
    P,
    hybrid_attention,
    make_mesh,
    shard_map,
    ulysses_attention,
    unzigzag,
    zigzag,
)
from tests.parallel.shard_map_helpers import close

LINE, GRID = make_mesh(4, "cp"), make_mesh((2, 2), ("ring", "heads"))
CUTS = {"cp": LINE, ("ring", "heads"): GRID}


def values(rng, heads=4, key_heads=4):
    shapes = [(2, 16, n, 8) for n in (heads, key_heads, key_heads)]
    return [rng.normal(size=s).astype("float32") for s in shapes]


def over(axes, attend, mesh=None):
    """A function of whole arrays by one of parts; bias and mask by their rows."""

    def whole(*xs):
        specs = [P(None, axes)] * 3
        specs += [P(None, None, axes if x.shape[2] > 1 else None) for x in xs[3:]]
        out = P(None, axes)
        on = mesh or CUTS[axes]
        return shard_map(attend, mesh=on, in_specs=tuple(specs), out_specs=out)(*xs)

    return whole


def ulysses(**options):
    return over("cp", partial(ulysses_attention, axis="cp", **options))


def hybrid(**options):
    axes = {"ring_axis": "ring", "head_axis": "heads"}
    return over(("ring", "heads"), partial(hybrid_attention, **axes, **options))


def gradients(attend, *xs):
    value = lambda *xs: fnp.sum(fnp.sin(attend(*xs)))
    return fg.grad(value, tuple(range(len(xs))))(*xs)


OPTIONS = [{}, {"is_causal": True}, {"is_causal": True, "local_window_size": 5, "scale": 0.6}]


@pytest.mark.parametrize("build", [ulysses, hybrid])
@pytest.mark.parametrize("options", OPTIONS)
def test_like_the_whole(build, options, rng):
    xs, dense = values(rng), partial(nn.dot_product_attention, **options)
    close(build(**options)(*xs), dense(*xs))
    close(gradients(build(**options), *xs), gradients(dense, *xs))


@pytest.mark.parametrize("key_heads", [1, 2])
def test_fewer_key_heads_than_devices_are_repeated(key_heads, rng):
    xs = values(rng, 8, key_heads)
    close(gradients(ulysses(), *xs), gradients(nn.dot_product_attention, *xs))


@pytest.mark.parametrize("build", [ulysses, hybrid])
@pytest.mark.parametrize("shape", [(2, 4, 16, 16), (1, 1, 16, 16), (1, 4, 1, 16), (1, 1, 1, 1)])
def test_bias(build, shape, rng):
    xs = [*values(rng), rng.normal(size=shape).astype("float32")]
    close(gradients(build(), *xs), gradients(nn.dot_product_attention, *xs))


def test_hybrid_in_zigzag_order(rng):
    xs, dense = values(rng), partial(nn.dot_product_attention, is_causal=True)
    attend = hybrid(is_causal=True, zigzag=True)
    whole = lambda *xs: unzigzag(attend(*(zigzag(x, 2) for x in xs)), 2)
    close(whole(*xs), dense(*xs))
    close(gradients(whole, *xs), gradients(dense, *xs))


@pytest.mark.parametrize("build", [ulysses, pytest.param(hybrid, marks=pytest.mark.long)])
def test_second_order(build, rng):
    xs = values(rng)
    slope = lambda f: fg.jvp(partial(gradients, f), tuple(xs), tuple(xs))[1]
    close(slope(build(is_causal=True)), slope(partial(nn.dot_product_attention, is_causal=True)))


def test_two_exchanges():
    mesh = AbstractMesh(16, "cp")
    x = fg.ShapeDtypeStruct((1, 1024, 16, 8), "float32",
                            sharding=NamedSharding(mesh, P(None, "cp")))  # fmt: skip
    attend = over("cp", partial(ulysses_attention, axis="cp", is_causal=True), mesh)
    assert fg.jit(attend).lower(x, x, x).device_analysis().counts == {"all_to_all": 2}
    both = lambda *xs: gradients(attend, *xs)
    assert fg.jit(both).lower(x, x, x).device_analysis().counts == {"all_to_all": 4}


def test_bad_input(rng):
    xs = values(rng, 6, 3)
    with pytest.raises(ShapeError, match="the 4 devices along 'cp' must divide the query heads.*6"):
        ulysses()(*xs)
    with pytest.raises(ShapeError, match="or be a multiple of them; got 12 query heads and 3 key"):
        ulysses()(*values(rng, 12, 3))
    with pytest.raises(ShardingError, match="head_axis='tp' must name a mesh axis"):
        over("cp", partial(hybrid_attention, ring_axis="cp", head_axis="tp"))(*values(rng))
    with pytest.raises(ArgumentError, match="hybrid_attention: zigzag has no local_window_size"):
        hybrid(zigzag=True, local_window_size=3)(*values(rng))
    part = partial(ulysses_attention, axis="cp", mask=np.ones((3, 3), bool))
    with pytest.raises(ShapeError, match="mask must be broadcastable"):
        over("cp", part)(*values(rng))
