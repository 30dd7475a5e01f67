"""The Bessel functions of whole and real orders against mpmath."""

import mpmath
import numpy as np
import pytest

from tests.ops.special_math.accuracy import F32, F64, Row, check_accuracy, magnitudes, uniform


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"), mpmath.workdps(40):
        yield


def wave(x):
    """How high the waves of J and Y are: near their zeros errors are ulp of this."""
    return mpmath.sqrt(2 / (mpmath.pi * x)) if x > 0.5 else 0


def wave_of_order(n, x):
    return wave(x) if x > abs(n) else 0


def orders(most, n=60):
    return lambda rng, _: rng.integers(-most, most + 1, n).astype(float)


UNARY = {
    "bessel_j0": mpmath.j0, "bessel_j1": mpmath.j1,
    "bessel_y0": lambda x: mpmath.bessely(0, x), "bessel_y1": lambda x: mpmath.bessely(1, x),
}  # fmt: skip
ROWS = [
    *(
        Row(name, reference, (uniform(0, 25), uniform(20, 100), magnitudes(-300, 3)), 1, 40, wave)
        for name, reference in UNARY.items()
    ),
    *(
        Row(name, reference,
            ((orders(30), uniform(0, 100, 60)), (orders(90), magnitudes(0, 3, 60)),
             (uniform(-20, 60, 60), uniform(0, 60, 60)),
             (uniform(-3, 3, 60), magnitudes(-3, 1, 60))),
            2, 1000, wave_of_order)
        for name, reference in [("bessel_jn", mpmath.besselj), ("bessel_yn", mpmath.bessely)]
    ),
    Row("bessel_jn", mpmath.besselj, ((orders(9), magnitudes(-20, 0, 60)),), 1, 100),
    Row("bessel_kve", lambda v, x: mpmath.besselk(v, x) * mpmath.exp(x),
        ((uniform(-60, 90, 60), uniform(0, 50, 60)), (uniform(-9, 9, 60), magnitudes(-3, 6, 60))),
        1, 1000),
    Row("bessel_ive", lambda v, x: mpmath.besseli(v, x) * mpmath.exp(-x),
        ((uniform(-1, 90, 100), uniform(0, 50, 100)), (uniform(-1, 9, 100), magnitudes(-3, 6))),
        1, 1000),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_accuracy(row, dtype):
    check_accuracy(row, dtype)
