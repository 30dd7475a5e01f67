"""Spans of time that are recorded while a profile is taken: calls, stages of compiling, and what
users annotate. Where none is taken, each asks `recordings` and does nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from time import perf_counter_ns
from typing import NamedTuple, Protocol

from funcgrad.core.display.compile_report import CompileStage

MOST_SPANS = 1_000_000  # some 200 MB of text, which viewers still open


class Span(NamedTuple):
    """What one thread did from one time to another, in nanoseconds of `perf_counter_ns`.

    A thread is known by its identity, which a later one may have again, and its name; a device's
    streams have numbers below 0.
    """

    name: str
    category: str
    thread: tuple[int, str]
    start: int
    end: int
    labels: dict


class Source(Protocol):
    """What tells of a device's time, when the device has done it."""

    def settle(self) -> None:
        """Keep the spans that were not told yet."""


class Recording:
    """The spans of a profile; `dropped` counts those that were too many. Threads may share it.

    sources: who has spans that it keeps later, by what they tell of
    """

    def __init__(self) -> None:
        self.began = perf_counter_ns()
        self.spans: list[Span] = []
        self.sources: dict[object, Source] = {}
        self.dropped = 0

    def add(self, name: str, category: str, start: int, end: int, labels: dict) -> None:
        """Keep a span of this thread."""
        thread = threading.get_ident(), threading.current_thread().name
        self.keep(Span(name, category, thread, start, end, labels))

    def keep(self, span: Span) -> None:
        """Keep a span, unless there are too many."""
        if len(self.spans) >= MOST_SPANS:
            self.dropped += 1
        else:
            self.spans.append(span)


# The profile that is being taken, if one is.
recordings: list[Recording] = []


def record(name: str, category: str, start: int, /, **labels: object) -> None:
    """Keep a span that began at a time and ends now, in the profile that is being taken."""
    end = perf_counter_ns()
    for recording in tuple(recordings):
        if start >= recording.began:
            recording.add(name, category, start, end, labels)


def record_stages(start: int, stages: Iterable[CompileStage]) -> None:
    """Keep the stages of a compilation that began at a time and is done now."""
    end = perf_counter_ns()
    for stage in stages:
        until = min(start + int(stage.seconds * 1e9), end)
        for recording in tuple(recordings):
            if start >= recording.began:
                recording.add(stage.name, "compile", start, until, {"what": stage.what})
        start = until
