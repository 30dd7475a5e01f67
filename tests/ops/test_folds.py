"""Reductions, running results and merged updates where a namespace has no function for them."""

import numpy as np
import pytest

from funcgrad.ops import folds
from tests.ops import elsewhere

away = elsewhere.namespace
AXES = [(0,), (1, 2), (0, 2), (0, 1, 2), ()]


def as_there(fun, *args):
    return fun(away, *[away.asarray(a) if isinstance(a, np.ndarray) else a for a in args]).get()


@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 1, 1), (2, 0, 3), (7, 2, 1)])
@pytest.mark.parametrize("axes", AXES)
def test_reductions(shape, axes, rng):
    x = rng.integers(-9, 9, shape)
    every, none = lambda dtype: ~np.zeros((), dtype), lambda dtype: np.zeros((), dtype)
    for f, start in (("bitwise_and", every), ("bitwise_xor", none)):
        reduced = lambda xp, x, f=f, s=start: folds.reduced(xp, getattr(xp, f), x, axes, s)
        np.testing.assert_array_equal(as_there(reduced, x), reduced(np, x))
    for which, start in (("max", -100), ("min", 100)):
        extreme = lambda xp, x, w=which, s=start: folds.extreme(xp, x, axes, w, s)
        np.testing.assert_array_equal(as_there(extreme, x), extreme(np, x))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 13])
def test_running_results(size, rng):
    x = rng.normal(size=(2, size, 3))
    x[0, size // 2 : size // 2 + 1] = np.nan
    for f in ("maximum", "logaddexp"):
        running = lambda xp, x, f=f: folds.accumulated(xp, getattr(xp, f), x, 1)
        np.testing.assert_allclose(as_there(running, x), running(np, x), rtol=1e-14)


@pytest.mark.parametrize("size", [0, 1, 2, 30, 100])
def test_merged_updates_keep_their_order(size, rng):
    place, values = rng.integers(0, max(size // 3, 1), size), np.arange(size)
    last = lambda xp, p, v: folds.merged(xp, lambda x, y: y, p, v)
    found = dict(zip(*(x.tolist() for x in last(np, place, values)), strict=True))
    assert found == dict(zip(place.tolist(), values.tolist(), strict=True))
    places, sums = folds.merged(np, np.add, place, values)
    assert len(set(places.tolist())) == len(places)
    wanted = np.bincount(place, values, minlength=1)[places] if size else []
    np.testing.assert_array_equal(sums, wanted)


def test_what_is_away():
    assert folds.is_away(away.asarray(np.ones(2)))
    assert not folds.is_away(np.ones(2))
    assert not folds.is_away(np.float32(1))
