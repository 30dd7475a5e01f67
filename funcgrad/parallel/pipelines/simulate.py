"""Running a schedule on paper: whether it can run, how long it takes, what it keeps.

Each rank does its actions in order, each as soon as what it needs is there. Where no rank can go
on, the schedule deadlocks; who waits for what is told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from funcgrad.errors import ScheduleError
from funcgrad.parallel.pipelines.picture import drawing, text
from funcgrad.parallel.pipelines.schedules import Action, Schedule


@dataclass(frozen=True)
class Costs:
    """How long actions of a stage take, in any unit, and a message to another rank.

    A whole backward pass, B, takes as long as I and W if nothing else is said.
    """

    forward: float = 1.0
    inputs: float = 1.0
    weights: float = 1.0
    message: float = 0.0
    backward: float | None = None

    def of(self, kind: str) -> float:
        """The time of a kind of action."""
        both = self.inputs + self.weights if self.backward is None else self.backward
        return {"F": self.forward, "B": both, "I": self.inputs, "W": self.weights}[kind]


class Span(NamedTuple):
    """An action, from when to when it runs."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A schedule as it runs: for each rank its actions and their times. It shows as a picture."""

    schedule: Schedule
    rows: tuple[tuple[Span, ...], ...]

    @cached_property
    def length(self) -> float:
        """When the last action ends."""
        return max(row[-1].end for row in self.rows)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """How long each rank works."""
        return tuple(sum(s.end - s.start for s in row) for row in self.rows)

    @cached_property
    def idle(self) -> tuple[float, ...]:
        """How long each rank waits, from the first action of any to the last."""
        return tuple(self.length - busy for busy in self.busy)

    @property
    def bubble(self) -> float:
        """The ratio of idle time to work, of the rank where it is largest."""
        return max(i / b for i, b in zip(self.idle, self.busy, strict=True))

    @cached_property
    def peak(self) -> tuple[int, ...]:
        """For each rank the most activations of a stage that it keeps at a time: from the start of
        F to the end of B (or of W)."""
        return tuple(map(_peak, self.rows))

    def __str__(self) -> str:
        return text([list(map(tuple, row)) for row in self.rows])

    def __repr__(self) -> str:
        return (
            f"Timeline({self.schedule!r}, length {self.length:g}, idle {max(self.idle):g}, "
            f"activations {max(self.peak)})"
        )

    def _repr_html_(self) -> str:
        title = (
            f"{self.schedule.name}: {self.schedule.microbatches} microbatches, "
            f"idle / work {self.bubble:.3g}, activations kept {', '.join(map(str, self.peak))}"
        )
        return drawing(title, [list(map(tuple, row)) for row in self.rows], self.schedule.ranks)


def _peak(row: tuple[Span, ...]) -> int:
    halves = {s.action[1:] for s in row if s.action.kind == "I"}
    events = []
    for (kind, *where), start, end in row:
        if kind == "F":
            events.append((start, 1))
        elif kind in "BW" and (kind == "W" or tuple(where) not in halves):
            events.append((end, -1))
    live = most = 0
    for _, change in sorted(events):
        live += change
        most = max(most, live)
    return most


def simulate(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """The schedule's timeline, after checks that it is whole and can run.

    costs: how long actions take, by default 1 for F, I and W, and nothing for messages

    Raises ScheduleError with the rank, the action and the reason: for actions that are missing or
    there twice, stages on two ranks, and ranks that wait for each other.

    >>> from funcgrad.parallel.pipelines import one_f_one_b, simulate
    >>> print(simulate(one_f_one_b(2, 3)))
    rank 0: F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2
    rank 1: .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .
    """
    check_whole(schedule)
    return run(schedule, Costs() if costs is None else costs)


def run(schedule: Schedule, costs: Costs) -> Timeline:
    """The timeline of a schedule that may be of forward passes alone."""
    ends: dict[Action, float] = {}
    rows: list[list[Span]] = [[] for _ in schedule.rows]
    left = sum(map(len, schedule.rows))
    while left:
        before = left
        for rank, row in enumerate(schedule.rows):
            while len(rows[rank]) < len(row):
                action = row[len(rows[rank])]
                needed = needs(schedule, action)
                if any(n not in ends for n in needed):
                    break
                free = rows[rank][-1].end if rows[rank] else 0.0
                there = [ends[n] + costs.message * (schedule.where[n.stage] != rank)
                         for n in needed]  # fmt: skip
                start = max([free, *there])
                ends[action] = start + costs.of(action.kind)
                rows[rank].append(Span(action, start, ends[action]))
                left -= 1
        if left == before:
            raise _deadlock(schedule, [len(r) for r in rows], ends)
    return Timeline(schedule, tuple(map(tuple, rows)))


def needs(schedule: Schedule, action: Action) -> list[Action]:
    """The actions that must have ended before one begins."""
    kind, stage, i = action
    if kind == "F":
        return [Action("F", stage - 1, i)] if stage else []
    if kind == "W":
        return [Action("I", stage, i)]
    found = [Action("F", stage, i)]
    if stage + 1 < schedule.stages:
        found.append(_backward(schedule, stage + 1, i))
    return found


def _backward(schedule: Schedule, stage: int, i: int) -> Action:
    """The action that makes the cotangent of a stage's input."""
    whole = Action("B", stage, i)
    return whole if whole in schedule.actions else Action("I", stage, i)


def _deadlock(schedule: Schedule, at: list[int], ends: dict[Action, float]) -> ScheduleError:
    parts = []
    for rank, (row, i) in enumerate(zip(schedule.rows, at, strict=True)):
        if i == len(row):
            continue
        missing = next(n for n in needs(schedule, row[i]) if n not in ends)
        home = schedule.where[missing.stage]
        parts.append(f"rank {rank} waits with {row[i]} for {missing}, which rank {home} has "
                     "not done")  # fmt: skip
    return ScheduleError(f"schedule {schedule.name!r} deadlocks: {'; '.join(parts)}")


def check_whole(schedule: Schedule) -> None:
    """Raise ScheduleError unless each stage is on one rank, each rank has as many, and each does
    all of its stages' work once."""

    def refuse(rank: int, reason: str) -> None:
        raise ScheduleError(f"schedule {schedule.name!r}: rank {rank} {reason}")

    for stage in range(schedule.stages):
        if stage not in schedule.where:
            raise ScheduleError(f"schedule {schedule.name!r}: stage {stage} is on no rank")
    for rank, row in enumerate(schedule.rows):
        for action, times in Counter(row).items():
            home = schedule.where[action.stage]
            if home != rank:
                refuse(rank, f"has {action}, but rank {home} has this stage, too")
            if times > 1:
                refuse(rank, f"has {action} {times} times")
    for rank, stages in enumerate(schedule.placement):
        if len(stages) != len(schedule.placement[0]):
            counts = f"{len(stages)} stages, rank 0 {len(schedule.placement[0])}"
            refuse(rank, f"has {counts}: all must have as many")
        for stage in stages:
            for i in range(schedule.microbatches):
                fault = _fault(schedule.actions, stage, i)
                if fault:
                    refuse(rank, fault)


def _fault(there: frozenset[Action], stage: int, i: int) -> str:
    """What is wrong with the actions of a stage on a microbatch, or nothing."""
    forward, whole, inputs, weights = (Action(k, stage, i) for k in "FBIW")
    if forward not in there:
        return f"lacks {forward}"
    if whole in there:
        extra = [a for a in (inputs, weights) if a in there]
        return f"has {whole} and its half {extra[0]}" if extra else ""
    if inputs not in there and weights not in there:
        return f"lacks {whole} (or {inputs.kind} and {weights.kind} in its place)"
    missing = [a for a in (inputs, weights) if a not in there]
    return f"lacks {missing[0]}, the other half of its backward pass" if missing else ""
