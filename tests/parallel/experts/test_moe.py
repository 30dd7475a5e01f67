"""Mixtures of experts against all experts on all tokens: values, gradients, drops, exchanges."""

import math
from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.errors import ArgumentError, DTypeError, ShapeError, ShardingError
from funcgrad.parallel import (
    AbstractMesh,
    NamedSharding,
    P,
    expert_mlp,
    make_mesh,
    moe,
    moe_bias_update,
    shard_map,
)
from tests.parallel.shard_map_helpers import close

TOKENS, WIDTH, HIDDEN, EXPERTS = 24, 6, 10, 8
MESH = make_mesh(4, "ep")


def values(rng, gate=False):
    """Tokens, a router, experts."""
    normal = lambda *shape: rng.normal(size=shape).astype("float32")
    experts = {"up": normal(EXPERTS, WIDTH, HIDDEN), "down": normal(EXPERTS, HIDDEN, WIDTH)}
    if gate:
        experts["gate"] = normal(EXPERTS, WIDTH, HIDDEN)
    return normal(TOKENS, WIDTH), normal(WIDTH, EXPERTS), experts


def dense(x, router, experts, *, top_k, score="softmax", bias=None, normalize=False, kept=None):
    """All experts on all tokens, summed by gates; kept: which choices (T, k) count."""
    logits = x @ router
    scores = nn.softmax(logits) if score == "softmax" else nn.sigmoid(logits)
    chosen = np.argsort(-np.asarray(scores + (0 if bias is None else bias)), axis=1, kind="stable")
    chosen = chosen[:, :top_k]
    gates = fnp.take_along_axis(scores, chosen, axis=1)
    if normalize:
        gates = gates / fnp.sum(gates, axis=1, keepdims=True)
    gates = gates if kept is None else gates * kept
    hidden = fnp.einsum("td,edf->tef", x, experts["up"])
    if "gate" in experts:
        hidden = nn.silu(fnp.einsum("td,edf->tef", x, experts["gate"])) * hidden
    else:
        hidden = nn.silu(hidden)
    every = fnp.einsum("tef,efd->ted", hidden, experts["down"])
    picked = fnp.take_along_axis(every, chosen[:, :, None], axis=1)
    return fnp.einsum("tk,tkd->td", gates, picked), chosen


def spread(mesh=MESH, **options):
    """The layer of whole arrays, tokens and experts cut over "ep"."""
    specs = (P("ep"), P(), P("ep"))
    part = partial(moe, axis="ep", **options)
    return shard_map(part, mesh=mesh, in_specs=specs, out_specs=(P("ep"), P()))


def gradients(f, *xs):
    value = lambda *xs: fnp.sum(fnp.sin(f(*xs)[0]))
    return fg.grad(value, (0, 1, 2))(*xs)


OPTIONS = [
    {"top_k": 1},
    {"top_k": 2, "normalize": True},
    {"top_k": 3, "score": "sigmoid", "bias": np.linspace(0.5, -0.5, EXPERTS).astype("float32")},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("build", [lambda **o: partial(moe, axis=None, **o), spread])
def test_dropless_is_the_dense_sum(build, options, rng):
    xs = values(rng, gate=options["top_k"] == 2)
    f, oracle = build(**options), lambda *xs: dense(*xs, **options)
    (y, stats), (wanted, chosen) = f(*xs), oracle(*xs)
    close(y, wanted, 1e-4)
    np.testing.assert_array_equal(stats.load, np.bincount(chosen.reshape(-1), minlength=EXPERTS))
    assert int(stats.dropped) == 0
    close(gradients(f, *xs), gradients(oracle_of(chosen, options), *xs), 1e-3)


def oracle_of(chosen, options):
    """The dense sum as a function that can be traced: choices are fixed."""

    def f(x, router, experts):
        scores = x @ router
        scores = nn.sigmoid(scores) if options.get("score") == "sigmoid" else nn.softmax(scores)
        gates = fnp.take_along_axis(scores, chosen, axis=1)
        if options.get("normalize"):
            gates = gates / fnp.sum(gates, axis=1, keepdims=True)
        total = 0
        for e in range(EXPERTS):
            rows = x @ experts["up"][e]
            hidden = nn.silu(x @ experts["gate"][e]) * rows if "gate" in experts else nn.silu(rows)
            weight = fnp.sum(fnp.where(chosen == e, gates, 0), axis=1)
            total = total + weight[:, None] * (hidden @ experts["down"][e])
        return (total,)

    return f


@pytest.mark.parametrize("factor", [0.3, 1.0, 1.25])
@pytest.mark.parametrize("devices", [None, 4])
def test_drops_are_counted_exactly(devices, factor, rng):
    x, router, experts = values(rng)
    router[:, 0] *= 3  # a skewed one
    options = {"top_k": 2, "capacity_factor": factor}
    f = spread(**options) if devices else partial(moe, axis=None, **options)
    y, stats = f(x, router, experts)
    n = devices or 1
    size = math.ceil(factor * TOKENS // n * 2 / EXPERTS)
    _, chosen = dense(x, router, experts, top_k=2)
    kept = np.zeros(chosen.shape, bool)
    for own in np.split(np.arange(TOKENS), n):
        counts = np.zeros(EXPERTS, int)
        for t in own:
            for j, e in enumerate(chosen[t]):
                kept[t, j] = counts[e] < size
                counts[e] += 1
    assert int(stats.dropped) == np.sum(~kept) > 0
    assert int(np.sum(stats.load)) == 2 * TOKENS
    close(y, dense(x, router, experts, top_k=2, kept=kept)[0], 1e-4)


def test_what_has_room_for_all_drops_nothing(rng):
    xs = values(rng)
    y, stats = spread(top_k=2, capacity_factor=float(EXPERTS))(*xs)
    close(y, dense(*xs, top_k=2)[0], 1e-4)
    assert int(stats.dropped) == 0


def test_losses_are_those_of_all_tokens(rng):
    xs = values(rng)
    one, many = (f(*xs)[1] for f in (partial(moe, axis=None, top_k=2), spread(top_k=2)))
    close(many, one)
    logits = xs[0] @ xs[1]
    close(one.z_loss, np.mean(np.log(np.sum(np.exp(logits), 1)) ** 2))
    share = np.mean(nn.softmax(logits), 0)
    close(one.balance_loss, EXPERTS * np.sum(one.load / np.sum(one.load) * share))
    of = lambda f: fg.grad(lambda r: sum(f(xs[0], r, xs[2])[1][2:]))(xs[1])
    close(of(spread(top_k=2)), of(partial(moe, axis=None, top_k=2)))


def test_bias_balances_a_skewed_router(rng):
    x, (_, router, experts) = rng.normal(size=(400, WIDTH)).astype("float32"), values(rng)
    x[:, 0] = 1
    router[0] += np.linspace(2, -2, EXPERTS, dtype="float32")
    layer = fg.jit(lambda bias: moe(x, router, experts, axis=None, top_k=2, bias=bias)[1].load)
    bias = fnp.zeros(EXPERTS)
    first = layer(bias)
    for _ in range(200):
        bias = moe_bias_update(bias, layer(bias), rate=5e-3)
    last = layer(bias)
    assert np.max(first) > 2 * np.mean(first)
    assert np.max(last) < 1.1 * np.mean(last)
    close(fnp.mean(bias), 0.0, 1e-6)


def test_with_tensor_parallel_experts(rng):
    """Hidden features cut over a second axis, summed by the experts' own function."""
    xs = values(rng)
    mesh = make_mesh((2, 2), ("ep", "tp"))
    summed = lambda *given: lax.psum(expert_mlp(*given), "tp")
    cuts = {"up": P("ep", None, "tp"), "down": P("ep", "tp")}
    f = shard_map(partial(moe, axis="ep", top_k=2, apply=summed), mesh=mesh,
                  in_specs=(P("ep"), P(), cuts), out_specs=(P("ep"), P()))  # fmt: skip
    _, chosen = dense(*xs, top_k=2)
    close(f(*xs)[0], dense(*xs, top_k=2)[0], 1e-4)
    close(gradients(f, *xs), gradients(oracle_of(chosen, {}), *xs), 1e-3)


def test_with_gathered_weights(rng):
    """FSDP: weights cut over a second axis, gathered where they are used."""
    xs = values(rng)
    mesh = make_mesh((2, 2), ("ep", "fsdp"))

    def part(x, router, experts):
        gather = lambda w: lax.all_gather(w, "fsdp", axis=2, tiled=True)
        return moe(x, router, fg.tree.map(gather, experts), axis="ep", top_k=2)[0]

    cut = P("ep", None, "fsdp")
    f = shard_map(part, mesh=mesh, in_specs=(P(("ep", "fsdp")), P(), cut),
                  out_specs=P(("ep", "fsdp")))  # fmt: skip
    close(f(*xs), dense(*xs, top_k=2)[0], 1e-4)


def test_exchanges():
    mesh = AbstractMesh(8, "ep")
    x = fg.ShapeDtypeStruct((1024, 16), "float32", sharding=NamedSharding(mesh, P("ep")))
    router = fg.ShapeDtypeStruct((16, 8), "float32", sharding=NamedSharding(mesh, P()))
    cut = NamedSharding(mesh, P("ep"))
    experts = {"up": fg.ShapeDtypeStruct((8, 16, 32), "float32", sharding=cut),
               "down": fg.ShapeDtypeStruct((8, 32, 16), "float32", sharding=cut)}  # fmt: skip
    counts = {}
    for factor in (None, 1.25):
        f = spread(mesh, top_k=2, capacity_factor=factor)
        lowered = fg.jit(lambda *xs, f=f: f(*xs)[0]).lower(x, router, experts)
        counts[factor] = lowered.device_analysis().counts
    assert counts == {None: {"all_to_all": 3}, 1.25: {"all_to_all": 2}}


def test_low_precision_and_more_axes(rng):
    x, router, experts = values(rng)
    low = fg.tree.map(lambda v: fnp.asarray(v).astype("bfloat16"), (x, experts))
    y, _ = moe(low[0].reshape(2, 12, WIDTH), router, low[1], axis=None, top_k=2)
    assert (y.shape, str(y.dtype)) == ((2, 12, WIDTH), "bfloat16")
    assert np.all(np.isfinite(np.asarray(y.astype("float32"))))


def test_bad_input(rng):
    x, router, experts = values(rng)
    f = partial(moe, x, router, experts, axis=None)
    with pytest.raises(ArgumentError, match="top_k must be of 1 … 8, the number of experts, got 9"):
        f(top_k=9)
    with pytest.raises(ArgumentError, match="capacity_factor must be positive.*got 0"):
        f(top_k=2, capacity_factor=0)
    with pytest.raises(ArgumentError, match="score must be 'softmax' or 'sigmoid', got 'relu'"):
        f(top_k=2, score="relu")
    with pytest.raises(ShapeError, match=r"bias must be of shape \(8,\), got \(3,\)"):
        f(top_k=2, bias=np.zeros(3))
    with pytest.raises(ShardingError, match="axis='ep' must name a mesh axis of the shard_map"):
        moe(x, router, experts, top_k=2)
    with pytest.raises(ShapeError, match=r"need x \(…, D\) and router \(D, E\)"):
        moe(x, router.T, experts, axis=None, top_k=2)
    with pytest.raises(DTypeError, match="x must be of floats, got int32"):
        moe(x.astype("int32"), router, experts, axis=None, top_k=2)
    few = {k: v[:6] for k, v in experts.items()}
    with pytest.raises(ShapeError, match=r"E/n = 8/1 experts.*leaves of \[6\] experts"):
        moe(x, router, few, axis=None, top_k=2)
    with pytest.raises(ShapeError, match=r"must be of one shape \(E,\)"):
        moe_bias_update(np.zeros(3), np.zeros(4))
