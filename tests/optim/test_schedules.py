"""Schedules at their corners, with numbers and traced counts."""

import math

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import optim


def cosine(t, peak=1.0, alpha=0.0, exponent=1.0):
    return peak * ((1 - alpha) * (0.5 * (1 + math.cos(math.pi * t))) ** exponent + alpha)


# name: (schedule, {step: value})
CASES = {
    "constant": (optim.constant_schedule(0.3), {0: 0.3, 99: 0.3}),
    "linear": (optim.linear_schedule(1.0, 0.0, 4), {0: 1.0, 1: 0.75, 4: 0.0, 9: 0.0}),
    "linear_begin": (optim.linear_schedule(1.0, 3.0, 4, 10), {0: 1.0, 10: 1.0, 12: 2.0, 20: 3.0}),
    "linear_none": (optim.linear_schedule(1.0, 3.0, 0), {0: 1.0, 5: 1.0}),
    "cosine": (optim.cosine_decay_schedule(2.0, 8), {0: 2.0, 2: cosine(0.25, 2), 4: 1.0, 8: 0}),
    "cosine_alpha": (
        optim.cosine_decay_schedule(2.0, 8, 0.1, 2.0),
        {0: 2.0, 2: cosine(0.25, 2, 0.1, 2), 8: 0.2, 30: 0.2},
    ),
    "warmup": (
        optim.warmup_cosine_decay_schedule(0.0, 1.0, 4, 12, 0.1),
        {0: 0.0, 2: 0.5, 4: 1.0, 8: 0.55, 12: 0.1, 100: 0.1},
    ),
    "warmup_none": (optim.warmup_cosine_decay_schedule(0.0, 1.0, 0, 8), {0: 1.0, 4: 0.5, 8: 0.0}),
    "exponential": (optim.exponential_decay(1.0, 10, 0.5), {0: 1.0, 5: 0.5**0.5, 20: 0.25}),
    "staircase": (
        optim.exponential_decay(1.0, 10, 0.5, 5, staircase=True),
        {0: 1.0, 14: 1.0, 15: 0.5, 25: 0.25},
    ),
    "exponential_end": (optim.exponential_decay(1.0, 1, 0.5, end_value=0.2), {2: 0.25, 9: 0.2}),
    "growth_end": (optim.exponential_decay(1.0, 1, 2.0, end_value=3.0), {1: 2.0, 9: 3.0}),
    "piecewise": (
        optim.piecewise_constant_schedule(1.0, {10: 0.1, 5: 0.5}),
        {4: 1.0, 5: 0.5, 9: 0.5, 10: 0.05},
    ),
    "piecewise_none": (optim.piecewise_constant_schedule(1.0), {0: 1.0, 7: 1.0}),
    "join": (
        optim.join_schedules([optim.constant_schedule(5.0), lambda n: 1.0 * n], [3]),
        {2: 5.0, 3: 0.0, 5: 2.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    schedule, values = CASES[name]
    compiled = fg.jit(schedule)
    for step, wanted in values.items():
        assert float(schedule(step)) == pytest.approx(wanted, abs=1e-6)
        assert float(compiled(fnp.array(step))) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_an_optimizer_follows(name):
    """With the count of the state: step 0 first."""
    schedule, _ = CASES[name]
    step = optim.scale_by_learning_rate(schedule)
    state = step.init(None)
    for n in range(3):
        update, state = step.update(fnp.array(1.0, "float64"), state)
        assert update.dtype == np.float64
        assert float(update) == pytest.approx(-float(schedule(n)), abs=1e-7)


def test_bad_arguments():
    with pytest.raises(ValueError, match="decay_steps must be positive, got 0"):
        optim.cosine_decay_schedule(1.0, 0)
    with pytest.raises(ValueError, match="2 schedules need 1 boundaries, got 2"):
        optim.join_schedules([lambda n: 1.0] * 2, [1, 2])
