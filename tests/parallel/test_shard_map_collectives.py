"""Every collective inside of shard_map, forward and backward."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.parallel import P
from tests.parallel.shard_map_helpers import (
    GRID,
    LINE,
    X,
    check_like_plain,
    close,
    mapped,
    sums,
)  # fmt: skip

# ---- every collective, forward and backward

BLOCKS = X.reshape(4, 2, 4)
PERM = [(0, 2), (2, 1), (1, 0)]
COLLECTIVES = {
    "psum": (lambda x: lax.psum(x, "i"), P(), lambda b: fnp.sum(b, 0)),
    "pmean": (lambda x: lax.pmean(x, "i"), P(), lambda b: fnp.mean(b, 0)),
    "all_gather": (lambda x: lax.all_gather(x, "i")[None], P("i"), lambda b: fnp.stack([b] * 4)),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
        P(None, "i"), lambda b: fnp.sum(b, 0),
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True),
        P(None, "i"), lambda b: b.reshape(8, 4),
    ),
    "ppermute": (
        lambda x: lax.ppermute(x, "i", PERM), P("i"),
        lambda b: fnp.concatenate([b[1], b[2], b[0], 0 * b[3]]),
    ),
    "pbroadcast": (lambda x: lax.pbroadcast(x, "i", 2), P(), lambda b: b[2]),
    "pvary": (lambda x: lax.pvary(x, "i"), P("i"), lambda b: b.reshape(8, 4)),
    "axis_index": (
        lambda x: x * (1 + lax.axis_index("i")), P("i"),
        lambda b: (b * np.arange(1, 5, dtype="float32")[:, None, None]).reshape(8, 4),
    ),
    "psum of what is equal": (
        lambda x: lax.psum(lax.psum(x, "i"), "i"), P(), lambda b: 4 * fnp.sum(b, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("check", [True, False], ids=["", "unchecked"])
def test_collectives(name, check):
    f, out, plain = COLLECTIVES[name]
    g = mapped(f, LINE, P("i"), out, check_vma=check)
    check_like_plain(g, lambda x: plain(fnp.reshape(x, (4, 2, 4))), X)
    t = np.cos(X)
    want = fg.jvp(lambda x: plain(fnp.reshape(x, (4, 2, 4))), (X,), (t,))
    close(fg.jvp(g, (X,), (t,)), want)
    weighted = lambda f: lambda x: fnp.sum(fnp.sin(f(x)) ** 2)
    close(
        fg.grad(weighted(g))(X),
        fg.grad(weighted(lambda x: plain(fnp.reshape(x, (4, 2, 4)))))(X),
    )
    batch = np.stack([X, -X])
    close(fg.vmap(g)(batch), np.stack([g(X), g(-X)]))


def test_extrema_are_equal_everywhere():
    f = mapped(lambda x: (lax.pmax(x, "i"), lax.pmin(x, "i")), LINE, P("i"), P())
    close(f(X), (BLOCKS.max(0), BLOCKS.min(0)))
    # Without devices that differ there is nothing to compare.
    g = mapped(lambda x: lax.pmax(x, "i"), LINE, P(), P())
    assert sums(g, X) == []
    close(g(X), X)


def test_what_is_equal_is_summed_without_exchange():
    f = mapped(lambda x: (lax.psum(x, "i"), lax.psum(1, "i"), lax.psum(2.5, "i")), LINE, P(), P())
    assert sums(f, X) == []
    close(f(X), (4 * X, 4, 10.0))
    close(fg.grad(lambda x: fnp.sum(f(x)[0]))(X), np.full_like(X, 4))


def test_several_axes_at_once():
    blocks = X.reshape(2, 2, 2, 4)
    f = lambda *s: mapped(s[0], GRID, P(("i", "j")), s[1])(X)
    close(f(lambda x: lax.psum(x, ("i", "j")), P()), blocks.sum((0, 1)))
    close(f(lambda x: lax.psum(x, "j"), P("i")), blocks.sum(1).reshape(4, 4))
    gather = lambda tiled: (
        lambda x: lax.pmean(lax.all_gather(x, ("i", "j"), tiled=tiled), ("i", "j"))
    )
    close(f(gather(False), P()), X.reshape(4, 2, 4))
    close(f(gather(True), P()), X)
    scatter = lambda x: lax.psum_scatter(x, ("i", "j"), scatter_dimension=1, tiled=True)
    close(f(scatter, P(None, ("i", "j"))), blocks.sum((0, 1)))
    last = lambda x: lax.psum_scatter(x, ("i", "j"), scatter_dimension=1)[None]
    close(f(last, P(("i", "j"))).T, blocks.sum((0, 1)))
    close(f(lambda x: lax.pbroadcast(x, ("i", "j"), 1), P()), blocks[0, 1])


@pytest.mark.parametrize("names", [("i", "j"), ("j", "i")])
def test_exchanges_over_several_axes(names):
    """As over the one axis that they are in a row."""
    cut = P(names)

    def like_one(f, out, line_out):
        g = mapped(lambda x: f(x, names), GRID, cut, out)
        check_like_plain(g, mapped(lambda x: f(x, "i"), LINE, P("i"), line_out), X)
        batch = np.stack([X, -X])
        close(fg.vmap(g)(batch), np.stack([g(X), g(-X)]))

    like_one(lambda x, a: lax.all_to_all(x, a, 1, 0, tiled=True), P(None, names), P(None, "i"))
    like_one(lambda x, a: lax.ppermute(x, a, PERM), cut, P("i"))
    like_one(lambda x, a: lax.pshuffle(x, a, [3, 0, 2, 1]), cut, P("i"))
