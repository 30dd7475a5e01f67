"""A thread that ends a job in which ranks wait for each other without end.

It reads the flight recorder. When this rank's exchange lasts longer than a limit
(FUNCGRAD_COLLECTIVE_TIMEOUT, in seconds, 600 by default, 0 for none), it says what each rank of the
node does, and aborts. A rank that ends while another one waits for it ends the job likewise.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from funcgrad.parallel.communicators.flight_recorder import Records
from funcgrad.parallel.meshes import launched

VARIABLE = "FUNCGRAD_COLLECTIVE_TIMEOUT"
DEFAULT = 600.0
# How long a rank that ends lets another one wait for it before it ends the job.
GRACE = 1.0


def limit() -> float:
    """The seconds that an exchange may last; 0 means without end.

    >>> limit() >= 0
    True
    """
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else DEFAULT
    except ValueError:
        seconds = -1
    if not seconds >= 0:
        raise ValueError(f"{VARIABLE} must be a number of seconds, 0 for no limit; got {text!r}")
    return seconds


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """In a `with`: what all ranks do together before there are records. A rank that waits there for
    longer than the limit ends the job."""
    seconds, done = limit(), threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            job = launched() or (0, 1)
            say(
                f"rank {job[0]} stuck > {seconds:.1f} s: it starts, and waits for all {job[1]} "
                "ranks to do so, which happens as they import funcgrad.parallel; one has ended "
                "before, or is late"
            )
            os._exit(1)

    if seconds:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def start(world: Any) -> None:
    """Watch this rank; `world` has `records` and `abort`."""
    seconds = limit()
    if seconds:
        watch = threading.Thread(target=_watch, args=(world, seconds), daemon=True)
        watch.name = "funcgrad-watchdog"
        watch.start()
    atexit.register(_leave, world, os.getpid())


def _watch(world: Any, seconds: float) -> None:
    records: Records = world.records
    while True:
        time.sleep(min(1.0, seconds / 4))
        late = stuck(records, seconds)
        if records.rank not in late:
            continue
        if records.rank == late[0]:
            say(f"rank {late[0]} stuck > {seconds:.1f} s: {report(records)}")
            world.abort()
        # The first one speaks for all.
        time.sleep(2)
        world.abort()


def stuck(records: Records, seconds: float) -> list[int]:
    """The ranks of this node whose exchange lasts longer than the limit."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    found = []
    for rank in records.members:
        state = records.state(rank)
        if state.inside and state.last and now - state.last.since > seconds:
            found.append(rank)
    return found


def report(records: Records) -> str:
    """What each rank of this node does."""
    return "; ".join(records.text(r) for r in records.members)


def say(text: str) -> None:
    """Print an error at once."""
    print(f"funcgrad: {text}", file=sys.stderr, flush=True)


def _leave(world: Any, process: int) -> None:
    """At a rank's end: the others may be waiting for it."""
    if os.getpid() != process:  # a forked child's end, which is nobody's affair
        return
    records: Records = world.records
    records.end()
    waiting_since: dict[int, float] = {}
    while True:
        states = {r: records.state(r) for r in records.members}
        if all(s.ended for s in states.values()):
            return
        for rank, s in states.items():
            mine = s.inside and s.last and records.needs_this(s.last, rank)
            if not mine:
                waiting_since.pop(rank, None)
            elif time.monotonic() - waiting_since.setdefault(rank, time.monotonic()) > GRACE:
                say(f"rank {records.rank} has ended while others wait for it: {report(records)}")
                world.abort()
        time.sleep(0.01)
