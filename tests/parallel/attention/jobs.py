"""What tests of attention of cut sequences run on ranks."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.parallel import (
    NamedSharding,
    P,
    make_mesh,
    reshard,
    ring_attention,
    shard_map,
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

    same = lambda x: x
    compare("all", same)
    compare("causal", same, is_causal=True)
    compare("window", same, is_causal=True, local_window_size=6)
    compare("zigzag", lambda x: zigzag(x, 4), is_causal=True, zigzag=True)
    return wrong
