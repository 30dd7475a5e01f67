"""How accurate a special function is: drawn arguments, a reference in many digits, the worst."""

from dataclasses import dataclass

import mpmath
import numpy as np
from mpmath import mpf

from funcgrad.ops.special_math import functions

F32, F64 = np.float32, np.float64
INF, NAN = np.inf, np.nan
TINY = {F32: 1e-37, F64: 1e-300}


def run(name, *args, dtype=F64):
    """The function on values of one dtype."""
    return getattr(functions, name)(np, *(np.asarray(a, dtype) for a in args))


def ulps(got, want, scale):
    """The error in ulp of the true value, or of `scale` where that is larger."""
    rounded = got.dtype.type(float(want))
    if float(got) == float(rounded) or (np.isnan(got) and mpmath.isnan(want)):
        return 0.0
    if not np.isfinite(got):
        return INF
    unit = np.spacing(max(abs(rounded), got.dtype.type(scale)))
    return float(abs(mpf(float(got)) - want) / mpf(float(unit)))


def around(*centres, width=1.0, n=60):
    return lambda rng, dtype: np.concatenate([c + width * rng.uniform(-1, 1, n) for c in centres])


def uniform(low, high, n=150):
    return lambda rng, dtype: rng.uniform(low, high, n)


def magnitudes(low, high, n=100, sign=1.0):
    """Log-uniform between powers of ten, narrower in float32 where its range is."""

    def draw(rng, dtype):
        edge = 37.5 if dtype == F32 else 307.0
        return sign * 10.0 ** rng.uniform(max(low, -edge), min(high, edge), n)

    return draw


def one_minus(rng, dtype):
    return 1 - 10.0 ** rng.uniform(-7 if dtype == F32 else -15.9, -0.1, 100)


def gamma_pairs(low, high, spread, n=40):
    """(a, x): a log-uniform, x within some standard deviations of a gamma variable."""

    def draw_a(rng, dtype):
        return 10.0 ** np.linspace(low, high, n)

    def draw_x(rng, dtype):
        a = draw_a(rng, dtype)
        return np.maximum(a + np.sqrt(a) * rng.uniform(-spread, spread, n), a / 20)

    return draw_a, draw_x


def beta_triples(low, high, n=15):
    """(a, b, x): a and b log-uniform, x within some standard deviations of a beta variable."""

    def draw(which):
        def of(rng, dtype):
            rng = np.random.default_rng(n)
            a, b = (10.0 ** rng.uniform(low, high, n).astype(dtype) for _ in range(2))
            mean = a / (a + b)
            x = mean + 3 * np.sqrt(mean * b) / (a + b) * rng.uniform(-1, 1, n)
            return (a, b, np.clip(x, mean / 9, (mean + 9) / 10))[which]

        return of

    return tuple(map(draw, range(3)))


def above_one(rng, dtype):
    return 1 + 10.0 ** rng.uniform(-3, 1.7, 100)


@dataclass(frozen=True)
class Row:
    """A function, its reference, where its arguments are drawn, and the errors allowed in ulp."""

    name: str
    reference: object
    draws: tuple  # of a draw, or of a tuple of draws, one an argument
    float32: float
    float64: float
    scale: object = None  # of the arguments: errors are measured in ulp of at least this

    def samples(self, dtype):
        rng = np.random.default_rng(7)
        parts = []
        for draw in self.draws:
            draws = draw if isinstance(draw, tuple) else (draw,)
            parts.append([d(rng, dtype).astype(dtype) for d in draws])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


def check_accuracy(row, dtype):
    args = row.samples(dtype)
    got = run(row.name, *args, dtype=dtype)
    assert got.dtype == dtype
    worst = (0.0,)
    for value, *xs in zip(got, *args, strict=True):
        exact = [mpf(float(x)) for x in xs]
        want = row.reference(*exact)
        scale = max(row.scale(*exact) if row.scale else 0.0, TINY[dtype])
        worst = max(worst, (ulps(value, want, scale), *map(float, xs), float(value)))
    assert worst[0] <= (row.float32 if dtype == F32 else row.float64), worst
