"""Observers: the ranges that they find in numbers whose best ones are known."""

import numpy as np
import pytest

from funcgrad.quantization import EMA, Entropy, Histogram, MinMax, Percentile

RNG = np.random.default_rng(0)
NORMAL = [RNG.standard_normal(20_000).astype(np.float32) for _ in range(3)]
OUTLIER = [*NORMAL, np.float32([200.0])]


def error(seen, low, high):
    """The mean squared error of 256 codes over a range."""
    x = np.concatenate(seen).astype(np.float64)
    step = (max(high, 0) - min(low, 0)) / 255
    codes = np.clip(np.round((x - low) / step), 0, 255)
    return float(((low + codes * step - x) ** 2).mean())


def test_ends():
    assert MinMax().range([np.float32([1, -2]), np.float32([5, 0])]) == (-2, 5)
    assert EMA(0.5).range([np.float32([-2, 2]), np.float32([-4, 6])]) == (-3, 4)
    low, high = Percentile(50).range([np.arange(101, dtype=np.float32)])
    assert (low, high) == (25, 75)
    assert Percentile(100).range(OUTLIER) == MinMax().range(OUTLIER)


@pytest.mark.parametrize("observer", [Percentile(99.9), Entropy()], ids=["percentile", "entropy"])
def test_outliers_are_cut_off(observer):
    low, high = observer.range(OUTLIER)
    assert 2.5 < high < 50
    assert low < -2.5


def test_histogram_has_no_more_error_than_the_ends():
    for seen in (NORMAL, OUTLIER, [np.abs(x) for x in NORMAL]):
        assert error(seen, *Histogram().range(seen)) <= 1.01 * error(seen, *MinMax().range(seen))


@pytest.mark.parametrize("observer", [MinMax(), EMA(), Histogram(), Percentile(), Entropy()])
def test_numbers_that_are_all_the_same(observer):
    for value in (0.0, 3.0):
        low, high = observer.range([np.full(10, value, np.float32)])
        assert np.isfinite([low, high]).all()
        assert low <= value + 1e-5
        assert high >= value - 1e-3
