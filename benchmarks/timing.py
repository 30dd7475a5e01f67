"""Timing several ways of doing one thing, interleaved, so that a machine's moods hit all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

BURST = 1.0  # seconds


def interleaved(cases: dict[str, Callable[[], object]], seconds: float = 5.0) -> dict[str, float]:
    """The median seconds of each case: all in turn, a burst of calls each, for `seconds` in all.

    The first call of a burst isn't counted: it finds the caches, and the cores, as another library
    left them (whose threads may still be spinning).
    """
    for run in cases.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in cases}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 5:
        for name, run in cases.items():
            run()
            stop = time.perf_counter() + BURST
            while time.perf_counter() < stop:
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def report(title: str, medians: dict[str, float], ours: str = "funcgrad") -> None:
    """Print medians and how many times ours each is."""
    print(title)
    for name, median in sorted(medians.items(), key=lambda item: item[1]):
        print(f"  {name:28} {median * 1e6:10.1f} µs   {median / medians[ours]:6.2f} × {ours}")
