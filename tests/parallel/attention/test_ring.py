"""Ring attention against attention of the whole: values, derivatives, exchanges, memory."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.errors import ArgumentError, DTypeError, ShapeError, ShardingError
from funcgrad.parallel import (
    AbstractMesh,
    NamedSharding,
    P,
    make_mesh,
    ring_attention,
    shard_map,
    unzigzag,
    zigzag,
)
from tests.parallel.shard_map_helpers import close

CUT = P(None, "cp")
CASES = {
    "all": {},
    "causal": {"is_causal": True},
    "window behind": {"is_causal": True, "local_window_size": 5},
    "window both": {"local_window_size": (9, 3)},
    "window ahead": {"local_window_size": (0, 11), "scale": 0.7},
}


def ring(devices=4, mesh=None, **options):
    """Attention of whole arrays, cut over a ring."""
    mesh = mesh or make_mesh(devices, "cp")

    def whole(q, k, v, bias=None, mask=None):
        rows = [None if x is None else P(None, None, "cp" if x.shape[2] > 1 else None)
                for x in (bias, mask)]  # fmt: skip
        given = [x for x in (bias, mask) if x is not None]
        names = [n for n, x in (("bias", bias), ("mask", mask)) if x is not None]

        def part(q, k, v, *pairs):
            pairs = dict(zip(names, pairs, strict=True))
            return ring_attention(q, k, v, axis="cp", **pairs, **options)

        specs = (CUT, CUT, CUT, *(r for r in rows if r is not None))
        return shard_map(part, mesh=mesh, in_specs=specs, out_specs=CUT)(q, k, v, *given)

    return whole


def zigzagged(devices=4, **options):
    """The same by a zigzag order, of arrays in their own order."""
    attend = ring(devices, zigzag=True, **options)

    def whole(q, k, v, bias=None, mask=None):
        q, k, v = (zigzag(x, devices) for x in (q, k, v))
        pairs = []
        for x in (bias, mask):
            for axis in (2, 3) if x is not None else ():
                x = x if x.shape[axis] == 1 else zigzag(x, devices, axis)
            pairs.append(x)
        return unzigzag(attend(q, k, v, *pairs), devices)

    return whole


def values(rng, length=32, heads=4, key_heads=2, dtype="float32"):
    """Queries, keys and values of grouped heads."""
    shapes = [(2, length, n, 8) for n in (heads, key_heads, key_heads)]
    return [rng.normal(size=s).astype(dtype) for s in shapes]


def gradients(attend, *xs):
    """Of all arguments, of a function that has second derivatives, too."""
    value = lambda *xs: fnp.sum(fnp.sin(attend(*xs)))
    return fg.grad(value, tuple(range(len(xs))))(*xs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_like_the_whole(case, rng):
    xs, dense = values(rng), partial(nn.dot_product_attention, **CASES[case])
    attend = ring(**CASES[case])
    close(attend(*xs), dense(*xs))
    close(fg.jit(partial(gradients, attend))(*xs), gradients(dense, *xs))


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 4])
def test_zigzag_is_the_whole_in_another_order(devices, rng):
    xs, dense = values(rng), partial(nn.dot_product_attention, is_causal=True)
    attend = zigzagged(devices, is_causal=True)
    close(attend(*xs), dense(*xs))
    close(fg.jit(partial(gradients, attend))(*xs), gradients(dense, *xs))


def test_many_turns_are_a_loop(rng):
    xs, dense = values(rng, length=30), partial(nn.dot_product_attention, is_causal=True)
    attend = ring(5, is_causal=True)
    close(attend(*xs), dense(*xs))
    close(gradients(attend, *xs), gradients(dense, *xs))
    close(zigzagged(5, is_causal=True)(*xs), dense(*xs))


def test_large_blocks_run_as_the_op(rng):
    """Beyond what the formula is used for."""
    xs = values(rng, length=256)
    dense = partial(nn.dot_product_attention, is_causal=True)
    attend = zigzagged(2, is_causal=True)
    close(attend(*xs), dense(*xs))
    close(gradients(attend, *xs), gradients(dense, *xs), 5e-5)


PAIRS = [(ring, (2, 4, 32, 32)), (ring, (1, 4, 1, 32)), (zigzagged, (1, 1, 32, 32)),
         (zigzagged, (2, 1, 32, 1))]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("build", "shape"), PAIRS)
def test_bias_and_mask(build, shape, rng):
    xs, bias = values(rng), rng.normal(size=shape).astype("float32")
    mask = rng.random((2, 1, 32, 32)) > 0.4
    mask[:, :, 3] = False  # sees nothing: the mean of all values
    dense = lambda q, k, v, b: nn.dot_product_attention(q, k, v, b, mask, is_causal=True)
    attend = lambda q, k, v, b: build(2, is_causal=True)(q, k, v, b, mask)
    close(attend(*xs, bias), dense(*xs, bias))
    close(gradients(attend, *xs, bias), gradients(dense, *xs, bias), 5e-5)


SECOND = [(ring, {}), (ring, {"is_causal": True, "local_window_size": 6}),
          pytest.param(zigzagged, {"is_causal": True}, marks=pytest.mark.slow)]  # fmt: skip


@pytest.mark.parametrize(("build", "options"), SECOND)
def test_second_order_and_forward_mode(build, options, rng):
    xs = values(rng, length=8, heads=2, key_heads=1, dtype="float64")
    ts = values(rng, length=8, heads=2, key_heads=1, dtype="float64")
    dense, attend = partial(nn.dot_product_attention, **options), build(2, **options)
    close(fg.jvp(attend, xs, ts), fg.jvp(dense, xs, ts), 1e-10)
    slope = lambda f: lambda *xs: fg.jvp(partial(gradients, f), xs, tuple(ts))[1]
    close(slope(attend)(*xs), slope(dense)(*xs), 1e-10)


def test_gradient_of_gradient(rng):
    xs = values(rng, length=8, heads=2, key_heads=1, dtype="float64")
    dense = nn.dot_product_attention
    total = lambda f: lambda *xs: sum(fnp.sum(fnp.cos(g)) for g in gradients(f, *xs))
    of = lambda f: fg.grad(total(f), (0, 1, 2))(*xs)
    close(of(ring(2)), of(dense), 1e-10)


def test_low_precision_is_summed_in_float32(rng):
    xs = [fnp.asarray(x).astype("bfloat16") for x in values(rng)]
    wide = nn.dot_product_attention(*(x.astype("float32") for x in xs), is_causal=True)
    got = ring(4, is_causal=True)(*xs)
    assert got.dtype == "bfloat16"
    np.testing.assert_allclose(np.asarray(got.astype("float32")), wide, rtol=0.02, atol=0.01)
    grads = fg.eval_shape(partial(gradients, ring(4, is_causal=True)), *xs)
    assert {str(g.dtype) for g in grads} == {"bfloat16"}


def test_under_vmap(rng):
    xs = [np.stack([x, 2 * x]) for x in values(rng)]
    dense = partial(nn.dot_product_attention, is_causal=True)
    attend = ring(2, is_causal=True)
    close(fg.vmap(partial(gradients, attend))(*xs), fg.vmap(partial(gradients, dense))(*xs))


def test_without_a_batch_axis(rng):
    q, k, v = (x[0] for x in values(rng))
    cut = P("cp")
    attend = shard_map(partial(ring_attention, axis="cp"), mesh=make_mesh(4, "cp"),
                       in_specs=(cut,) * 3, out_specs=cut)  # fmt: skip
    close(attend(q, k, v), nn.dot_product_attention(q, k, v))


def test_two_mesh_axes_are_one_ring(rng):
    xs, cut = values(rng), P(None, ("a", "b"))
    mesh, part = make_mesh((2, 2), ("a", "b")), partial(ring_attention, axis=("a", "b"))
    attend = shard_map(partial(part, is_causal=True), mesh=mesh, in_specs=(cut,) * 3, out_specs=cut)
    close(attend(*xs), nn.dot_product_attention(*xs, is_causal=True))


# ---- on paper


def on_paper(devices, own=256, backward=False, **options):
    """What a device does with `own` places of the sequence."""
    mesh = AbstractMesh(devices, "cp")
    sharding = NamedSharding(mesh, CUT)
    x = fg.ShapeDtypeStruct((1, devices * own, 4, 16), "float32", sharding=sharding)
    fun = ring(mesh=mesh, **options)
    if backward:
        fun = fg.grad(lambda *xs: fnp.sum(ring(mesh=mesh, **options)(*xs)), (0, 1, 2))
    return fg.jit(fun).lower(x, x, x).device_analysis()


@pytest.mark.parametrize("devices", [2, 4, 64])
@pytest.mark.parametrize("zigzag", [False, True])
def test_keys_are_sent_to_each_device_once(devices, zigzag):
    options = {"is_causal": True, "zigzag": zigzag}
    assert on_paper(devices, **options).counts == {"permute": devices - 1}
    # Keys and values twice, and their cotangents home.
    counts = on_paper(devices, backward=True, **options).counts
    assert counts == {"permute": 3 * (devices - 1)}


def test_a_window_sends_keys_as_far_as_it_reaches():
    options = {"is_causal": True, "local_window_size": 300}
    assert on_paper(64, **options).counts == {"permute": 2}
    assert on_paper(64, local_window_size=(300, 100)).counts == {"permute": 3}
    assert on_paper(64, backward=True, **options).counts == {"permute": 6}


@pytest.mark.parametrize("backward", [False, True])
def test_memory_is_that_of_a_devices_own_part(backward):
    few, many = (on_paper(n, backward=backward, is_causal=True) for n in (8, 64))
    assert many.temporary_bytes == few.temporary_bytes
    # Masks of zeros and ones, one a device, are all that grows with their number.
    assert many.argument_bytes - few.argument_bytes < 1000
    # … and grows with it, not with its square.
    large = on_paper(8, own=1024, backward=backward, is_causal=True)
    assert large.temporary_bytes < 6 * few.temporary_bytes


def test_zigzag_halves_the_work():
    plain, balanced = (on_paper(8, is_causal=True, zigzag=z) for z in (False, True))
    assert 0.45 < balanced.flops / plain.flops < 0.55


# ---- on ranks


@pytest.mark.mpi
@pytest.mark.parametrize("job", ["rings", "exchanges", "annotated"])
def test_on_ranks(job, ranks):
    assert ranks(4).run(f"tests.parallel.attention.jobs:{job}") == [[]] * 4


# ---- bad input


def refused(match, error, xs, axis="cp", **options):
    cut = P(None, "cp")
    fun = shard_map(lambda *xs: ring_attention(*xs, axis=axis, **options),
                    mesh=make_mesh(4, "cp"), in_specs=(cut,) * 3, out_specs=cut)  # fmt: skip
    with pytest.raises(error, match=match):
        fun(*xs)


def test_bad_input(rng):
    q, k, v = values(rng)
    axis = "ring_attention: axis='data' must name a mesh axis of the shard_map around it; axes here"
    refused(axis, ShardingError, (q, k, v), axis="data")
    with pytest.raises(ShardingError, match=r"axis='cp' must name a mesh axis.*axes here: none"):
        ring_attention(q, k, v, axis="cp")
    refused("the key heads divide the query heads", ShapeError, (q[:, :, :3], k, v))
    refused("the same places of one sequence", ShapeError, (q, k[:, :16], v[:, :16]))
    refused(r"need three arrays of \(B, T, N, H\)", ShapeError, (q[..., 0], k, v))
    refused("softmax needs real numbers", DTypeError, (q + 0j, k, v))
    refused("local_window_size must be a number of keys", ArgumentError, (q, k, v),
            local_window_size=-1)  # fmt: skip
    refused("zigzag has no local_window_size", ArgumentError, (q, k, v), zigzag=True,
            local_window_size=3)  # fmt: skip
    odd = [x[:, :12] for x in (q, k, v)]
    refused(r"must be divisible by 2·4.*got 3 places a device", ShapeError, odd, zigzag=True,
            is_causal=True)  # fmt: skip
    refused("mask must be of bools, got float32", DTypeError, (q, k, v),
            mask=np.ones((8, 32), "float32"))  # fmt: skip
    refused(r"bias must be broadcastable to \(B, N, T, S\) = \(2, 4, 8, 32\)", ShapeError,
            (q, k, v), bias=np.ones((8, 8), "float32"))  # fmt: skip
