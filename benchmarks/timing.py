"""Times of calls, in bursts."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable

SHORTEST = 1e-4  # seconds: calls that take less are timed several at once
# Seconds of calls after which threads have their cores, whoever ran before.
SETTLING = 0.05


def calls_a_sample(run: Callable[[], object]) -> int:
    """How many calls to time at once, so that reading the clock costs nothing beside them."""
    count = 1
    while True:
        elapsed = _timed(run, count)
        if elapsed >= SHORTEST:
            return count
        count = max(2 * count, int(count * SHORTEST / max(elapsed, 1e-9)))


def burst(run: Callable[[], object], seconds: float, count: int = 1) -> list[float]:
    """Seconds a call, for as long as `seconds`, and at least once.

    The first calls aren't counted: they find the caches, and the cores, as another library left
    them.
    """
    start = time.perf_counter()
    while True:
        _timed(run, count)
        if time.perf_counter() >= start + SETTLING:
            break
    samples = []
    stop = time.perf_counter() + seconds
    collecting = gc.isenabled()
    gc.disable()
    try:
        while True:
            samples.append(_timed(run, count) / count)
            if time.perf_counter() >= stop:
                return samples
    finally:
        if collecting:
            gc.enable()


def _timed(run: Callable[[], object], count: int) -> float:
    times = itertools.repeat(None, count)
    start = time.perf_counter()
    for _ in times:
        run()
    return time.perf_counter() - start
