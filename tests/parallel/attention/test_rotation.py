"""Arrays that go round: every device sees those that it should, and sums come home."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.parallel.attention.rotation import around, shift


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("by", [-1, 1, 3])
def test_shift(n, by):
    got = fg.vmap(lambda x: shift(x, "i", by), axis_name="i")(fnp.arange(n))
    np.testing.assert_array_equal(got, np.roll(np.arange(n), by))


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("turns", [[], [1], [1, 2], [2, 5], [1, 2, 3, 4, 5, 6]])
def test_around(turns, alike, rng):
    """Sums are of what each device added, told apart by its own factor."""
    n = 7
    own, factors = rng.normal(size=n), rng.normal(size=n)

    def run(x, factor):
        step = lambda turn, seen, x: (seen + (turn + 1) * x, factor * x)
        return around("i", turns, step, 0.0, x, alike and len(turns) == n - 1)

    seen, sums = fg.vmap(run, axis_name="i")(own, factors)
    all_turns = [0, *turns]
    for i in range(n):
        wanted = sum((t + 1) * own[(i - t) % n] for t in all_turns)
        np.testing.assert_allclose(seen[i], wanted, rtol=1e-5)
        wanted = sum(factors[(i + t) % n] * own[i] for t in all_turns)
        np.testing.assert_allclose(sums[i], wanted, rtol=1e-5)
