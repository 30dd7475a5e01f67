"""What tests of attention of cut sequences run on ranks."""

from functools import partial

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.parallel import (
    NamedSharding,
    P,
    all_gather_matmul,
    device_put,
    hybrid_attention,
    make_mesh,
    moe,
    reshard,
    ring_attention,
    sequence_attention,
    shard_map,
    tensor_products,
    ulysses_attention,
    with_sharding_constraint,
    zigzag,
)


def whole(x, mesh):
    """An array's values, on all ranks."""
    return np.asarray(reshard(x, NamedSharding(mesh, P())))


def rings():
    """Values and gradients on all ranks against those of the whole; what differs is returned."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(1, 32, n, 8)).astype("float32") for n in (4, 2, 2)]
    mesh, cut, wrong = make_mesh(4, "cp"), P(None, "cp"), []

    def compare(what, order, **options):
        ring = shard_map(lambda *xs: ring_attention(*xs, axis="cp", **options), mesh=mesh,
                         in_specs=(cut,) * 3, out_specs=cut)  # fmt: skip
        plain = {k: v for k, v in options.items() if k != "zigzag"}
        dense = lambda *xs: nn.dot_product_attention(*xs, **plain)
        both = lambda f: fg.jit(fg.value_and_grad(lambda *xs: fnp.sum(fnp.sin(f(*xs))), (0, 1, 2)))
        value, got = both(ring)(*(order(x) for x in xs))
        wanted, want = both(dense)(*xs)
        pairs = [(value, wanted), *((g, order(w)) for g, w in zip(got, want, strict=True))]
        for i, (g, w) in enumerate(pairs):
            if not np.allclose(whole(g, mesh), w, rtol=1e-4, atol=1e-5):
                wrong.append((what, i))

    compare("window", lambda x: x, is_causal=True, local_window_size=6)
    compare("zigzag", lambda x: zigzag(x, 4), is_causal=True, zigzag=True)
    return wrong


def exchanges():
    """Heads for places, experts, and products round a ring, against one device; what differs is
    returned."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype("float32")
    mesh, wrong = make_mesh(4, "i"), []

    def compare(what, got, want):
        if not np.allclose(whole(got, mesh), want, rtol=1e-4, atol=1e-5):
            wrong.append(what)

    q, cut = normal(1, 16, 4, 8), P(None, "i")
    heads = shard_map(lambda q: ulysses_attention(q, q, q, axis="i", is_causal=True), mesh=mesh,
                      in_specs=cut, out_specs=cut)  # fmt: skip
    compare("heads", heads(q), nn.dot_product_attention(q, q, q, is_causal=True))
    grid, cut = make_mesh((2, 2), ("ring", "heads")), P(None, ("ring", "heads"))
    part = partial(hybrid_attention, ring_axis="ring", head_axis="heads", is_causal=True)
    hybrid = shard_map(lambda q: part(q, q, q), mesh=grid, in_specs=cut, out_specs=cut)
    value = lambda f: fg.jit(fg.grad(lambda q: fnp.sum(fnp.sin(f(q)))))
    dense = lambda q: nn.dot_product_attention(q, q, q, is_causal=True)
    got = reshard(value(hybrid)(q), NamedSharding(grid, P()))
    if not np.allclose(got, value(dense)(q), rtol=1e-4, atol=1e-5):
        wrong.append("hybrid")
    x, router = normal(16, 6), normal(6, 8)
    experts = {"up": normal(8, 6, 5), "down": normal(8, 5, 6)}
    specs = (P("i"), P(), P("i"))
    layer = shard_map(lambda *xs: moe(*xs, axis="i", top_k=2), mesh=mesh, in_specs=specs,
                      out_specs=(P("i"), P()))  # fmt: skip
    loss = lambda f: fg.jit(fg.grad(lambda *xs: fnp.sum(fnp.sin(f(*xs)[0])), (0, 1, 2)))
    one = lambda *xs: moe(*xs, axis=None, top_k=2)
    compare("moe", layer(x, router, experts)[0], one(x, router, experts)[0])
    both = (loss(f)(x, router, experts) for f in (layer, one))
    for i, pair in enumerate(zip(*map(fg.tree.leaves, both), strict=True)):
        compare(f"moe's gradient {i}", *pair)
    w = normal(6, 8)
    product = shard_map(lambda x, w: all_gather_matmul(x, w, "i"), mesh=mesh,
                        in_specs=(P("i"), P(None, "i")), out_specs=P(None, "i"))  # fmt: skip
    compare("product", product(x, w), x @ w)
    rows = NamedSharding(mesh, P("i"))
    with tensor_products("ring"):
        ring = fg.jit(lambda x, w, v: with_sharding_constraint(fnp.sin(x @ w) @ v, rows))
        xs = [device_put(x, rows), device_put(w, NamedSharding(mesh, P(None, "i")))]
        xs.append(device_put(w.T, rows))
        assert set(ring.lower(*xs).device_analysis().counts) == {"permute"}
        compare("products by jit", ring(*xs), np.sin(x @ w) @ w.T)
    return wrong


def annotated():
    """Attention of arrays that are cut along the sequence, as `jit` does it, each way."""
    rng, wrong = np.random.default_rng(0), []
    xs = [rng.normal(size=(1, 192, n, 8)).astype("float32") for n in (4, 4, 4)]
    cut = NamedSharding(make_mesh(4, "cp"), P(None, "cp"))
    value = lambda *xs: fnp.sum(fnp.sin(nn.dot_product_attention(*xs, is_causal=True)))
    both = lambda *xs: fg.value_and_grad(value, (0, 1, 2))(*xs)
    wanted = fg.tree.leaves(fg.jit(both)(*xs))
    for way in ("ring", "zigzag", "heads", "gather"):
        with sequence_attention(way):
            got = fg.tree.leaves(fg.jit(both)(*(device_put(x, cut) for x in xs)))
        for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
            if not np.allclose(whole(g, cut.mesh), w, rtol=1e-4, atol=1e-4):
                wrong.append((way, i))
    return wrong
