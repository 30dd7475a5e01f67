"""Logarithms of the beta function and of binomial terms against mpmath in many digits."""

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from tests.ops.special_math.accuracy import (
    F32,
    F64,
    Row,
    beta_triples,
    check_accuracy,
    gamma_pairs,
    magnitudes,
)


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"), mpmath.workdps(40):
        yield


def log_poisson_reference(a, x):
    with mpmath.workdps(400):
        return a * mpmath.log(x) - x - mpmath.loggamma(a + 1)


def log_poisson_conditioning(a, x):
    """How the value moves with a and x, relatively, and the terms it ends in."""
    return 1 + abs(x - a) + a * abs(mpmath.log(x / a)) / 4


def log_beta_reference(a, b):
    with mpmath.workdps(400):
        return mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)


def log_binomial_reference(a, b, x):
    with mpmath.workdps(60):
        powers = a * mpmath.log(x) + (b * mpmath.log1p(-x) if x < 1 else -mpmath.inf)
        return powers - log_beta_reference(a + 1, b + 1) - mpmath.log(a + b + 1)


def log_binomial_conditioning(a, b, x):
    """How the value moves with x and with 1 - x."""
    return 1 + abs(a - (a + b) * x) / max(1 - x, mpf(1e-30))


ROWS = [
    Row("log_poisson", log_poisson_reference, (gamma_pairs(-6, 1.3, 3), gamma_pairs(0, 9, 8),
        (magnitudes(-300, 2), magnitudes(-300, 3))), 1, 8, log_poisson_conditioning),
    Row("log_beta", log_beta_reference, ((magnitudes(-300, 2), magnitudes(-300, 2)),
        (magnitudes(0, 12), magnitudes(0, 12)), (magnitudes(-2, 1), magnitudes(3, 300))), 1, 8,
        lambda a, b: 1),
    Row("log_binomial", log_binomial_reference, (beta_triples(-3, 3), beta_triples(-3, 10),
        beta_triples(4, 12)), 1, 20, log_binomial_conditioning),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_accuracy(row, dtype):
    check_accuracy(row, dtype)
