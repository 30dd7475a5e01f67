"""Pieces of all turns are each pair of a query and a key that it sees, once."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.context import named_axis
from funcgrad.parallel.attention.pieces import Ring
from funcgrad.parallel.attention.rotation import around

LENGTH = 6
RINGS = [
    Ring("i"), Ring("i", after=0), Ring("i", after=0, zigzag=True), Ring("i", 4, 0),
    Ring("i", 7, 2), Ring("i", 0, 13), Ring("i", 40, 15), Ring("i", None, 3), Ring("i", 0, 0),
]  # fmt: skip


def pairs(ring, window):
    """Which queries of a part see which keys of one."""
    size = LENGTH // ring.parts
    apart = fnp.arange(size)[None, :] - fnp.arange(size)[:, None]
    seen = fnp.ones((size, size), bool)
    if window.before is not None:
        seen = seen & (apart >= -window.before)
    return seen if window.after is None else seen & (apart <= window.after)


def met(ring, n, _):
    """How often a device's queries meet each device's keys, in all turns."""

    def step(turn, total, key_of):
        for piece in ring.pieces(turn, LENGTH):
            found = pairs(ring, piece.window) & piece.there
            size = found.shape[0]
            for i, wanted in piece.queries.each():
                for j, meant in piece.keys.each():
                    same = piece.queries == piece.keys and i != j
                    where = False if same else fnp.logical_and(wanted, meant)
                    more = (found & where).astype("int32")
                    start = key_of * LENGTH + j * size
                    old = lax.dynamic_slice(total, (i * size, start), (size, size))
                    total = lax.dynamic_update_slice(total, old + more, (i * size, start))
        return total, ()

    start = fnp.zeros((LENGTH, n * LENGTH), "int32")
    return around("i", ring.turns(LENGTH), step, start, lax.axis_index("i"), ring.alike)[0]


def places(ring, n):
    """The place in the sequence of what each device has."""
    whole = np.arange(n * LENGTH)
    if not ring.zigzag:
        return whole
    parts = np.split(whole, 2 * n)
    return np.concatenate([p for i in range(n) for p in (parts[i], parts[2 * n - 1 - i])])


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_each_pair_once(ring, n):
    got = fg.vmap(lambda i: met(ring, n, i), axis_name="i")(fnp.arange(n))
    at = places(ring, n)
    apart = at[None, :] - at[:, None]
    wanted = np.ones(apart.shape, int)
    if ring.before is not None:
        wanted = wanted * (apart >= -ring.before)
    if ring.after is not None:
        wanted = wanted * (apart <= ring.after)
    np.testing.assert_array_equal(np.asarray(got).reshape(wanted.shape), wanted)


def test_turns_are_those_that_see():
    with named_axis("i", 8):
        assert Ring("i", 4, 0).turns(6) == [1]
        assert Ring("i", 7, 2).turns(6) == [1, 2, 7]
        assert Ring("i", 0, 0).turns(6) == []
        assert Ring("i", after=0).turns(6) == [1, 2, 3, 4, 5, 6, 7]
