"""A schedule as tables of integers, by which all ranks run one program.

A tick is the time of one action. In a tick each rank does its action, and then messages go by: an
action's result to the rank that needs it, on one route for each distance between ranks. By mail a
message is got as late as can be: right before it is needed, if those that follow it are needed
later. Where values wait, they have slots, given out here as registers are; what isn't needed goes
to a slot that nobody reads, the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from funcgrad.parallel.pipelines.schedules import Action, Schedule
from funcgrad.parallel.pipelines.simulate import Costs, run

IDLE, FORWARD, BACKWARD, INPUTS, WEIGHTS = range(5)
_CODES = {"F": FORWARD, "B": BACKWARD, "I": INPUTS, "W": WEIGHTS}


class Row(NamedTuple):
    """What a rank does in a tick, or the columns of all of that.

    kind: of the action. stage: of the pipeline; chunk: which of the rank's. microbatch: which one.
    first, last: whether the stage is the pipeline's first or last. read: the slot of the message
    that it needs. save: where F puts its residuals; saved: where others find them. keep, kept: the
    same of what I leaves for W. arrive: for each of the routes the slot of the message that comes
    by it. mail: for each of them whom the rank sends to, and from whom it gets a message, or -1.
    """

    kind: np.ndarray
    stage: np.ndarray
    chunk: np.ndarray
    microbatch: np.ndarray
    first: np.ndarray
    last: np.ndarray
    read: np.ndarray
    save: np.ndarray
    saved: np.ndarray
    keep: np.ndarray
    kept: np.ndarray
    arrive: np.ndarray
    mail: np.ndarray


class Ticks(NamedTuple):
    """The tables, of shape (ticks, ranks), `arrive` and `mail` with more axes; how many slots there
    are for messages, residuals, and what I keeps; for each route its pairs of ranks, and, if it is
    one of mail, how many messages are on their way at a time (else 0)."""

    table: Row
    messages: int
    saved: int
    kept: int
    routes: tuple[tuple[tuple[int, int], ...], ...]
    flying: tuple[int, ...]


class _Slots:
    """Slots of a rank, each used again after its value's last use."""

    def __init__(self) -> None:
        self.until: list[int] = []

    def take(self, start: int, end: int) -> int:
        """A slot that is free from the end of the tick `start` to that of `end`."""
        for slot, until in enumerate(self.until):
            if until <= start:
                self.until[slot] = end
                return slot
        self.until.append(end)
        return len(self.until) - 1


def make_ticks(schedule: Schedule, by_mail: bool = False) -> Ticks:
    """The tables of a schedule that was checked, of all its actions or of forward passes alone.

    >>> from funcgrad.parallel.pipelines import gpipe
    >>> ticks = make_ticks(gpipe(2, 2).forwards())
    >>> ticks.table.kind.T, ticks.routes
    (array([[1, 1, 0],
           [0, 1, 1]], dtype=int32), (((0, 1),),))
    """
    timeline = run(schedule, Costs(backward=1.0))
    when = {s.action: round(s.start) for row in timeline.rows for s in row}
    return _Tables(schedule, when, round(timeline.length), by_mail).ticks()


class _Message(NamedTuple):
    """A result on its way: when and from which rank it is sent, where and when it is needed, and
    the tick at whose end it is got."""

    sent: int
    source: int
    target: int
    needed: int
    got: int


class _Tables:
    def __init__(self, schedule: Schedule, when: dict[Action, int], length: int, by_mail: bool):
        self.schedule, self.by_mail = schedule, by_mail
        self.when = when
        self.shape = (length, schedule.ranks)
        self.trains = any(a.kind != "F" for a in when)

    def ticks(self) -> Ticks:
        """All of the tables."""
        kind, number, chunk, microbatch, first, last = (self.empty() for _ in range(6))
        for action, t in self.when.items():
            stage, rank = action.stage, self.schedule.where[action.stage]
            kind[t, rank] = _CODES[action.kind]
            number[t, rank] = stage
            chunk[t, rank] = self.schedule.placement[rank].index(stage)
            microbatch[t, rank] = action.microbatch
            first[t, rank] = stage == 0
            last[t, rank] = stage == self.schedule.stages - 1
        messages, read, arrive, mail, routes, flying = self.messages()
        n_saved, save, saved = self.held("F", "BIW")
        n_kept, keep, kept = self.held("I", "W")
        where = (kind, number, chunk, microbatch, first, last)
        table = Row(*where, read, save, saved, keep, kept, arrive, mail)
        return Ticks(table, messages, n_saved, n_kept, routes, flying)

    def empty(self, *more: int, fill: int = 0) -> np.ndarray:
        """A table without entries."""
        return np.full((*self.shape, *more), fill, np.int32)

    def there(self, kinds: str, stage: int, i: int) -> list[int]:
        """The ticks of a stage's actions of these kinds, in order."""
        found = (self.when.get(Action(k, stage, i)) for k in kinds)
        return sorted(t for t in found if t is not None)

    def sent(self) -> list[_Message]:
        """All messages, by the tick at whose end they are got."""
        found = []
        for (kind, stage, i), t in self.when.items():
            at_end = stage + 1 == self.schedule.stages
            if kind == "W" or (kind != "F" and stage == 0) or (at_end and not self.trains):
                continue
            if kind == "F":
                to = stage if at_end else stage + 1
                needed = self.there("BI" if at_end else "F", to, i)
            else:
                to = stage - 1
                needed = self.there("BI", to, i)
            where = self.schedule.where
            found.append(_Message(t, where[stage], where[to], needed[0], t))
        if self.by_mail:
            found = _late(found)
        return sorted(found, key=lambda m: (m.got, m.sent, m.source))

    def messages(self) -> tuple[int, np.ndarray, np.ndarray, np.ndarray, tuple, tuple]:
        """How many slots there are for messages; which slot each action reads; where those go that
        arrive; who sends and gets; the routes, one for each distance; how many are on their way."""
        sent, ranks = self.sent(), self.schedule.ranks
        distances = sorted({(m.target - m.source) % ranks for m in sent})
        pairs: list[set] = [set() for _ in distances]
        slots = [_Slots() for _ in range(ranks)]
        read, arrive = self.empty(fill=-1), self.empty(len(distances), fill=-1)
        mail = self.empty(len(distances), 2, fill=-1)
        for m in sent:
            route = distances.index((m.target - m.source) % ranks)
            pairs[route].add((m.source, m.target))
            slot = slots[m.target].take(m.got, m.needed)
            arrive[m.got, m.target, route] = read[m.needed, m.target] = slot
            if m.source != m.target:
                mail[m.sent, m.source, route, 0] = m.target
                mail[m.got, m.target, route, 1] = m.source
        n = max(len(s.until) for s in slots)
        read[read < 0] = arrive[arrive < 0] = n
        flying = tuple(max(_flying(sent, p) for p in some) if self.by_mail else 0 for some in pairs)
        return n, read, arrive, mail, tuple(tuple(sorted(p)) for p in pairs), flying

    def held(self, begin: str, end: str) -> tuple[int, np.ndarray, np.ndarray]:
        """How many slots there are for what an action leaves for later ones of the same stage and
        microbatch; where it goes, and where those find it."""
        slots = [_Slots() for _ in self.schedule.rows]
        put, get = self.empty(fill=-1), self.empty(fill=-1)
        for (kind, stage, i), t in sorted(self.when.items(), key=lambda item: item[1]):
            if kind != begin:
                continue
            rank, users = self.schedule.where[stage], self.there(end, stage, i)
            if users:
                put[t, rank] = slot = slots[rank].take(t, users[-1])
                get[users, rank] = slot
        n = max(len(s.until) for s in slots)
        put[put < 0] = get[get < 0] = n
        return n, put, get


def _late(messages: Sequence[_Message]) -> list[_Message]:
    """Messages that are got as late as can be: between two ranks in the order in which they are
    sent, one a tick, and each before the action that needs it. To itself a rank sends nothing."""
    due: dict[tuple[int, int], int] = {}
    found = []
    for m in sorted(messages, reverse=True):
        if m.source != m.target:
            pair = (m.source, m.target)
            due[pair] = got = min(due.get(pair, m.needed), m.needed) - 1
            m = m._replace(got=got)
        found.append(m)
    return found


def _flying(messages: Sequence[_Message], pair: tuple[int, int]) -> int:
    """The most messages that are on their way from one rank to another at a time."""
    own = [m for m in messages if (m.source, m.target) == pair and m.source != m.target]
    return max((sum(o.sent <= m.sent <= o.got for o in own) for m in own), default=0)
