"""Scatters as loops: windows that are columns, and those that overlap, in any number of threads."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from tests.backends.checks import as_eager

HOW = [(how, dtype) for how in ("add", "set", "multiply", "max") for dtype in ("float32", "int16")]


@pytest.mark.parametrize(("how", "dtype"), [*HOW, ("set", "bool"), ("max", "bool")])
def test_columns(how, dtype, rng):
    """Each line takes its elements of all windows, in the order of these."""
    for shape, n in (((60, 9), 40), ((3, 5, 7), 30), ((1, 8), 20), ((9, 1), 5), ((400, 64), 50)):
        x = rng.integers(0, 5, shape).astype(dtype)
        y = rng.integers(0, 5, (*shape[:-1], n)).astype(dtype)
        i = rng.integers(-shape[-1] - 2, shape[-1] + 2, n)
        as_eager(lambda x, i, y: getattr(x.at[..., i], how)(y, mode="drop"), x, i, y)


@pytest.mark.parametrize("how", ["add", "set", "multiply", "min"])
def test_columns_that_do_not_meet(how, rng):
    """Each element is a task's of its own; what lies outside, at any distance, is left out."""
    for shape, n in (((60, 33), 20), ((400, 64), 64), ((3, 5, 7), 7)):
        x = rng.integers(1, 5, shape).astype("float32")
        y = rng.integers(1, 5, (*shape[:-1], n)).astype("float32")
        i = rng.permutation(shape[-1])[:n]
        i[n // 2] = 3 * shape[-1] if n % 2 else -2 * shape[-1] - 1
        f = lambda x, i, y: getattr(x.at[..., i], how)(y, mode="drop", unique_indices=True)
        as_eager(f, x, i, y)


def test_columns_of_batches_and_of_no_elements(rng):
    x, y = rng.standard_normal((6, 30, 8), "f"), rng.standard_normal((6, 30, 20), "f")
    i = rng.integers(0, 8, (6, 20))
    as_eager(fg.vmap(lambda x, i, y: x.at[:, i].add(y)), x, i, y)
    as_eager(lambda x, i, y: x.at[:, i].add(y), x[0, :0], i[0], y[0, :0])
    as_eager(lambda x, i, y: x.at[:, i].add(y), x[0], i[0, :0], y[0, :, :0])


@pytest.mark.parametrize("how", ["scatter", "scatter_add", "scatter_max"])
def test_windows_that_overlap(how, rng):
    """Where they start differs along the axis itself, so that parts of it aren't independent."""
    numbers = lax.ScatterDimensionNumbers((1,), (), (0,))
    x, y = rng.standard_normal(5000, "f"), rng.standard_normal((200, 4096), "f")
    i = rng.integers(0, 1000, (200, 1))
    f = getattr(lax, how)
    as_eager(lambda x, i, y: f(x, i, y, numbers), x, i, y)
    both = lax.ScatterDimensionNumbers((1, 2), (2,), (2, 0))
    x, y = rng.standard_normal((90, 4, 8), "f"), rng.standard_normal((50, 60, 4), "f")
    i = np.stack([rng.integers(0, 8, 50), rng.integers(0, 30, 50)], 1)
    as_eager(lambda x, i, y: f(x, i, y, both), x, i, y)
