"""The flight recorder: what each rank of a node exchanged last, in memory that all of them see.

Native exchanges write it (`native.Exchange.enter`), at the cost of a clock; Python writes down the
few other things that ranks wait for.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from funcgrad.parallel.communicators.native import (
    BARRIER,
    EVENT,
    EVENT_WORDS,
    HEAD_WORDS,
    RECORD,
    RECORD_BYTES,
    RING,
    WAITS,
    what_text,
    what_word,
)

# The number of what is no communicator of the records: all ranks.
ALL = 1 << 30


class Event(NamedTuple):
    """Something a rank waited for: its communicator's number, how many there were on it, what."""

    number: int
    sequence: int
    what: str
    since: float


class State(NamedTuple):
    """What a rank does now: whether it is inside its last event, and whether it has ended."""

    inside: bool
    ended: bool
    last: Event | None


@contextmanager
def written(own: int, number: int, what: str) -> Iterator[None]:
    """Write into the record at an address that its rank waits for something of `WAITS`."""

    def words(offset: int, count: int) -> Any:
        return (ctypes.c_int64 * count).from_address(own + 8 * offset)

    head = words(0, len(RECORD))
    place = HEAD_WORDS + head[0] % RING * EVENT_WORDS
    kind = what_word(BARRIER + WAITS.index(what), 0, 0)
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    words(place, len(EVENT))[:] = [number, 0, kind, 0, now]
    head[1], head[0] = 1, head[0] + 1
    try:
        yield
    finally:
        head[1] = 0


class Records:
    """The records of the ranks of a node.

    memory: a `SharedMemory` that holds them, or None where a rank sees its own alone
    members: the ranks, in the order of their records; own: the address of this rank's
    groups: for each communicator by its number, its name and the group of each rank of the job
    begun: for each communicator, what tells how many exchanges this rank has begun on it
    """

    def __init__(self, memory: Any, members: Sequence[int], place: int):
        self.memory = memory or ctypes.create_string_buffer(RECORD_BYTES)
        self.base = memory.address if memory else ctypes.addressof(self.memory)
        self.members = list(members)
        self.own = self.base + RECORD_BYTES * place
        self.rank = self.members[place]
        self.groups: list[tuple[str, list[int]]] = []
        self.begun: list[Callable[[], int]] = []

    def add(self, label: str, groups: Sequence[int], begun: Callable[[], int]) -> None:
        """A communicator that this rank has made, the next one by its number."""
        self.begun.append(begun)
        self.groups.append((label, list(groups)))

    def words(self, at: int, offset: int, count: int) -> Any:
        """Words of the record at an address, to be read or written, from the one at `offset` on."""
        return (ctypes.c_int64 * count).from_address(at + 8 * offset)

    def state(self, rank: int) -> State:
        """What a rank of this node does."""
        at = self.base + RECORD_BYTES * self.members.index(rank)
        total, inside, ended = self.words(at, 0, len(RECORD))
        return State(bool(inside), bool(ended), self.event(at, total) if total else None)

    def event(self, at: int, total: int) -> Event:
        """The last of the `total` events that the record at an address has had."""
        place = HEAD_WORDS + (total - 1) % RING * EVENT_WORDS
        number, sequence, what, count, since = self.words(at, place, len(EVENT))
        return Event(number, sequence, what_text(what, count), since / 1e9)

    def history(self, rank: int) -> list[Event]:
        """A rank's latest events, the last one last."""
        at = self.base + RECORD_BYTES * self.members.index(rank)
        total = self.words(at, 0, 1)[0]
        return [self.event(at, i + 1) for i in range(max(0, total - RING), total)]

    def waiting(self, number: int, what: str) -> AbstractContextManager[None]:
        """Write down that this rank waits for something that isn't an exchange."""
        return written(self.own, number, what)

    def end(self) -> None:
        """Write down that this rank has ended."""
        self.words(self.own, RECORD.index("ended"), 1)[0] = 1

    def needs_this(self, event: Event, rank: int) -> bool:
        """Whether an event of a rank waits for this one, which is in none."""
        if event.number >= len(self.groups):
            return True
        _, group = self.groups[event.number]
        # Who has done its part needn't be waited for: the other one just has not noticed yet.
        return group[rank] == group[self.rank] and event.sequence > self.begun[event.number]()

    def text(self, rank: int) -> str:
        """What a rank does, as people read it."""
        state = self.state(rank)
        if state.last is None:
            return f"rank {rank} {'has ended' if state.ended else 'has exchanged nothing yet'}"
        e = state.last
        label = self.groups[e.number][0] if e.number < len(self.groups) else ""
        number = f"#{e.sequence} " if e.sequence else ""
        what = f"{number}{e.what}" + (f" over ({label})" if label else "")
        where = "in" if state.inside else "has ended, last in" if state.ended else "last in"
        return f"rank {rank} {where} {what}"
