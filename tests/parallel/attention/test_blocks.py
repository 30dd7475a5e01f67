"""Blocks of keys: put together they are attention to all; cotangents of parts are parts."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.parallel.attention.blocks import (
    Operands,
    Results,
    Running,
    Window,
    block,
    block_cotangents,
)


def values(rng):
    return [rng.normal(size=s) for s in ((2, 5, 4, 3), (2, 12, 2, 3), (2, 12, 2, 3))]


def by_blocks(q, k, v, cuts=(3, 7)):
    """Attention to all keys, block by block."""
    state = Running.none(q)
    for x, y in zip(fnp.split(k, cuts, 1), fnp.split(v, cuts, 1), strict=True):
        state = state.with_block(*block(0.5, Window(), Operands(q, x, y)))
    return state.result(q.dtype)


def test_blocks_are_put_together(rng):
    q, k, v = map(fnp.asarray, values(rng))
    out, stats = by_blocks(q, k, v)
    np.testing.assert_allclose(out, nn.dot_product_attention(q, k, v, scale=0.5), rtol=1e-10)
    whole = block(0.5, Window(), Operands(q, k, v))[1]
    np.testing.assert_allclose(fnp.sum(stats, 2), fnp.sum(whole, 2), rtol=1e-10)


def test_a_block_that_is_not_there_changes_nothing(rng):
    q, k, v = map(fnp.asarray, values(rng))
    found = block(0.5, Window(), Operands(q, k, v))
    state = Running.none(q).with_block(*found, False)
    assert not np.any(state.mixed)
    out, stats = state.result(q.dtype)
    assert not np.any(out)
    assert np.all(stats[:, :, 0] == np.inf)
    again = state.with_block(*found).with_block(*found, False)
    np.testing.assert_allclose(again.result(q.dtype)[0], found[0], rtol=1e-10)


def test_cotangents_of_parts_add_up(rng):
    q, k, v = map(fnp.asarray, values(rng))
    ct = rng.normal(size=q.shape)
    y = Results(*by_blocks(q, k, v), ct)
    parts = [block_cotangents(0.5, Window(), Operands(q, k[:, i], v[:, i]), y)
             for i in (slice(0, 4), slice(4, 12))]  # fmt: skip
    _, back = fg.vjp(lambda *xs: nn.dot_product_attention(*xs, scale=0.5), q, k, v)
    dq, dk, dv = back(ct)
    np.testing.assert_allclose(parts[0][0] + parts[1][0], dq, rtol=1e-8, atol=1e-12)
    for i, wanted in ((1, dk), (2, dv)):
        got = np.concatenate([p[i] for p in parts], 1)
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-12)


def test_derivatives_of_blocks_are_those_of_the_whole(rng):
    xs, ts = (tuple(map(fnp.asarray, values(rng))) for _ in range(2))
    dense = lambda *xs: nn.dot_product_attention(*xs, scale=0.5)
    got, wanted = (fg.jvp(f, xs, ts)[1] for f in (lambda *xs: by_blocks(*xs)[0], dense))
    np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-12)
