"""Time on a GPU, for a profile: events around each step of a program, told as spans of the device.

Events are timed by the device. They become times of the host by one that both saw, when the profile
began to watch the device: to some microseconds at first, to a quarter of a millisecond after an
hour, as the driver tells float32 milliseconds; and clocks may drift apart. How long a step took is
told by its own two events, and stays as fine as these are.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

from funcgrad.backends.cuda.devices.device import Driver, Event
from funcgrad.core.telemetry.spans import Recording, Span, recordings

MOST = 1 << 13  # events that are kept until somebody waits for them


class Mark(NamedTuple):
    """An event before or after a step. beside: whether that isn't in the stream of kernels"""

    step: str
    event: Event
    beside: bool


class Times:
    """The steps that a device runs while a profile is taken. Threads may share it."""

    def __init__(self, driver: Driver, recording: Recording):
        self.driver = driver
        self.recording = recording
        self._first = Event(driver, timed=True)
        driver.synchronize()
        self._first.record(driver.stream)
        self._first.wait()
        self._began = perf_counter_ns()
        self._kept: list[tuple[str, Mark, Mark]] = []
        self._lock = threading.Lock()

    def add(self, program: str, marks: Sequence[Mark]) -> None:
        """Keep a program's marks, two of each step: they may not have been reached yet."""
        pairs = zip(marks[::2], marks[1::2], strict=True)
        with self._lock:
            self._kept += [(program, *pair) for pair in pairs]
            full = 2 * len(self._kept) > MOST
        if full:
            self.settle()

    def settle(self) -> None:
        """Wait for the device, and give the profile what it did."""
        with self._lock:  # before it waits: what others add meanwhile may not have been reached
            kept, self._kept = self._kept, []
        self.driver.enter()
        self.driver.synchronize()
        for program, begin, end in kept:
            start = self._began + round(1e6 * begin.event.since(self._first))
            stop = start + round(1e6 * end.event.since(begin.event))
            name = f"cuda:{self.driver.number}" + ", beside" * begin.beside
            thread = -1 - 2 * self.driver.number - begin.beside, name  # which no thread's is
            self.recording.keep(Span(begin.step, "cuda", thread, start, stop, {"program": program}))


def times_of(driver: Driver) -> Times | None:
    """What notes the times of a device; None while no profile is taken."""
    for recording in tuple(recordings):
        found = recording.sources.get(driver)
        if found is None:  # of threads that come at once, the first one's is all's
            found = recording.sources.setdefault(driver, Times(driver, recording))
        assert isinstance(found, Times)
        return found
    return None
