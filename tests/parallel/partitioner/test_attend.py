"""Attention of activations that are cut along the sequence, as `jit` chooses it: the whole's values
and gradients, what is sent, memory, and the switch."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.ir import interpret
from funcgrad.errors import ArgumentError
from funcgrad.parallel import (
    AbstractMesh,
    NamedSharding,
    P,
    sequence_attention,
)
from funcgrad.transforms.attention.attention import KEPT
from tests.parallel.partitioned import checked, counts, partitioned, run

MESH = AbstractMesh((8,), ("cp",))
LENGTH = KEPT + 32
CUT = ((), ("cp",))
WAYS = ["ring", "heads", "gather"]


def operands(rng, heads=8, key_heads=8, lengths=(LENGTH, LENGTH)):
    """Queries, keys, values."""
    shapes = [(2, lengths[k], n, 4) for k, n in ((0, heads), (1, key_heads), (1, key_heads))]
    return [rng.normal(size=s) for s in shapes]


def both(*xs, **options):
    """The value of a function of attention, and its gradients."""
    value = lambda *xs: fnp.sum(fnp.sin(nn.dot_product_attention(*xs[:3], *xs[3:], **options)))
    found, grads = fg.value_and_grad(value, tuple(range(len(xs))))(*xs)
    return [found, *grads]


def same(fun, args, cuts, mesh=MESH):
    """A function's per-device program, after its results were found to be those of the whole."""
    program, jaxpr, values = partitioned(fun, args, mesh, cuts)
    checked(program)
    wanted = interpret(jaxpr, np, *(np.asarray(v) for v in values))
    for g, w in zip(run(program, values), wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-11)
    return program


CASES = {
    "all": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "local_window_size": 30},
    "both sides": {"local_window_size": (9, 41)},
    "lengths": {"query_seq_lengths": [LENGTH, 77], "key_value_seq_lengths": [3, 150]},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_each_way_gives_the_whole(way, case, rng):
    with sequence_attention(way):
        program = same(lambda *xs: both(*xs, **CASES[case]), operands(rng), [CUT] * 3)
    found = counts(program)
    kinds = {"ring": "ppermute", "heads": "all_to_all", "gather": "psum_scatter"}
    assert {k for k in kinds.values() if k in found} == {kinds[way]}


@pytest.mark.parametrize("case", ["causal", "window", "lengths"])
def test_zigzag_gives_the_whole(case, rng):
    """Halves of blocks are exchanged before and after where all queries see what is before them;
    elsewhere it is the ring."""
    fun = lambda *xs: both(*xs, **CASES[case])
    with sequence_attention("zigzag"):
        found = counts(same(fun, operands(rng, 8, 2), [CUT] * 3))
    with sequence_attention("ring"):
        ring = counts(same(fun, operands(rng, 8, 2), [CUT] * 3))
    # Of query, key, value, result and statistics; back, of six operands and three cotangents.
    more = 2 * (3 + 2 + 6 + 3) if case == "causal" else 0
    assert found["ppermute"] == ring["ppermute"] + more


def test_zigzag_over_two_axes(rng):
    mesh = AbstractMesh((2, 4), ("a", "b"))
    with sequence_attention("zigzag"):
        same(lambda *xs: both(*xs, is_causal=True), operands(rng), [((), ("a", "b"))] * 3, mesh)


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_grouped_heads_by_bytes(key_heads, way, rng):
    with sequence_attention(way):
        same(both, operands(rng, 8, key_heads), [CUT] * 3)


@pytest.mark.parametrize("shape", [(2, 8, LENGTH, LENGTH), (1, 1, LENGTH, 1), (1, 8, 1, LENGTH)],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("way", ["ring", "gather"])
def test_bias_and_mask(way, shape, rng):
    """Also one that all rows share: devices have parts of the sum of its cotangents."""
    bias, mask = rng.normal(size=shape), rng.random((2, 1, LENGTH, LENGTH)) > 0.7

    def fun(*xs):
        value = lambda *xs: fnp.sum(fnp.sin(nn.dot_product_attention(*xs, mask, is_causal=True)))
        return list(fg.grad(value, (0, 1, 2, 3))(*xs))

    with sequence_attention(way):
        same(fun, [*operands(rng, 8, 4), bias], [*[CUT] * 3, None])


def test_queries_and_keys_of_different_sequences(rng):
    with sequence_attention("ring"):
        program = same(both, operands(rng, lengths=(48, LENGTH)), [CUT] * 3)
        assert "ppermute" in counts(program)
        fun = lambda *xs: both(*xs, is_causal=True)
        same(fun, operands(rng, lengths=(48, LENGTH)), [CUT] * 3)


def test_keys_that_are_whole_are_not_sent(rng):
    fun = lambda *xs: [nn.dot_product_attention(*xs)]
    program = same(fun, operands(rng), [CUT, None, None])
    assert not counts(program)


def test_sequences_over_two_axes_beside_heads_and_texts(rng):
    mesh = AbstractMesh((2, 2, 2), ("dp", "cp", "tp"))
    cut = [(("dp",), ("cp",), ("tp",))] * 3
    with sequence_attention("ring"):
        program = same(lambda *xs: both(*xs, is_causal=True), operands(rng, 4, 2), cut, mesh)
    assert "ppermute" in counts(program)
    mesh = AbstractMesh((2, 4), ("a", "b"))
    with sequence_attention("ring"):
        program = same(lambda *xs: both(*xs, is_causal=True), operands(rng), [((), ("a", "b"))] * 3,
                       mesh)  # fmt: skip
    assert "ppermute" in counts(program)


def lowered(devices, way="ring", heads=4, key_heads=4, grad=False):
    """On paper: each device has 64 places."""
    cut = NamedSharding(AbstractMesh(devices, "cp"), P(None, "cp"))
    shapes = [(1, 64 * devices, n, 8) for n in (heads, key_heads, key_heads)]
    types = [fg.ShapeDtypeStruct(s, "float32", sharding=cut) for s in shapes]
    value = lambda *xs: fnp.sum(nn.dot_product_attention(*xs, is_causal=True) ** 2)
    fun = fg.grad(value, (0, 1, 2)) if grad else nn.dot_product_attention
    with sequence_attention(way):
        return fg.jit(fun).lower(*types).device_analysis()


def test_exchanges_and_memory_up_to_64_devices():
    few, many = lowered(8), lowered(64)
    assert few.counts == {"permute": 7}
    assert many.counts == {"permute": 63}
    assert few.temporary_bytes == many.temporary_bytes
    back = [lowered(n, grad=True) for n in (8, 64)]
    # Keys go round in either pass, and their cotangents behind them.
    assert [a.counts["permute"] for a in back] == [3 * 7, 3 * 63]
    assert back[0].temporary_bytes == back[1].temporary_bytes


@pytest.mark.parametrize("devices", [4096, 16384])
def test_bytes_of_a_ring_on_paper(devices):
    found = lowered(devices)
    own = 64 * 4 * 8 * 4  # bytes of a device's keys
    assert found.collectives == {("permute", ("cp",)): (devices - 1, 2 * (devices - 1) * own)}


def test_bytes_decide():
    # Of three parts 7/8 leave a device, or 14 parts go round.
    assert set(lowered(8, "auto", 8, 8).counts) == {"all_to_all"}
    # No heads for all devices; few key heads make a short way round.
    assert set(lowered(8, "auto", 4, 4).counts) == {"permute"}
    assert set(lowered(2, "auto", 16, 4).counts) == {"permute"}
    assert set(lowered(8, "gather").counts) == {"all_gather"}
    # Where a way is impossible, another one is taken.
    assert set(lowered(8, "heads", 4, 4).counts) == {"permute"}


def test_heads_over_one_axis_and_a_ring_over_another(rng):
    """As `hybrid_attention`: where there are fewer heads than devices, by bytes."""
    mesh = AbstractMesh((4, 2), ("far", "near"))
    cut = [((), ("far", "near"))] * 3
    fun = lambda *xs: both(*xs, is_causal=True)
    found = counts(same(fun, operands(rng, 2, 2), cut, mesh))
    assert {"ppermute", "all_to_all"} <= set(found)
    sharding = NamedSharding(mesh, P(None, ("far", "near")))
    x = fg.ShapeDtypeStruct((1, 64 * 8, 2, 8), "float32", sharding=sharding)
    on_paper = fg.jit(nn.dot_product_attention).lower(x, x, x).device_analysis()
    assert set(on_paper.collectives) == {("permute", ("far",)), ("all_to_all", ("near",))}
    assert on_paper.counts["permute"] == 3
    # Heads for all devices are exchanged at once.
    x = fg.ShapeDtypeStruct((1, 64 * 8, 8, 8), "float32", sharding=sharding)
    on_paper = fg.jit(nn.dot_product_attention).lower(x, x, x).device_analysis()
    assert set(on_paper.collectives) == {("all_to_all", ("far", "near"))}


def test_layers_in_a_loop(rng):
    """In a loop's body, and in the body of its gradient."""
    ws, x = rng.normal(size=(2, 3, 16, 16)) / 4, rng.normal(size=(1, LENGTH, 16))

    def layer(x, w):
        q, k, v = (fnp.matmul(x, m).reshape(1, LENGTH, 2, 8) for m in w)
        return x + nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape), None

    value = lambda ws, x: fnp.sum(fnp.sin(lax.scan(layer, x, ws)[0]))
    program = same(lambda *xs: [fg.grad(value)(*xs)], [ws, x], [None, CUT])
    assert "ppermute" in counts(program)


def test_other_ways_are_refused():
    words = r"sequence_attention: way must be one of 'auto', 'ring', .*, got 'rings'"
    with pytest.raises(ArgumentError, match=words), sequence_attention("rings"):
        pass
