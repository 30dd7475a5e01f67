"""Pipeline schedules as data: for each rank the actions that it does, in their order.

An action is the forward pass of a stage on a microbatch (F), its backward pass (B), or the latter
in two halves: the cotangent of the stage's input (I), which the stage before waits for, and that of
its weights (W), which nobody does. Messages are implied: what a stage makes goes to its neighbour.

GPipe: Huang et al., 2019. 1F1B: Narayanan et al., PipeDream-Flush, 2021; interleaved: the same,
Megatron-LM, 2021. ZB-H1 and ZB-V: Qi et al., Zero Bubble Pipeline Parallelism, 2023, where "B"
is what is I here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from funcgrad.errors import ScheduleError

KINDS = ("F", "B", "I", "W")


class Action(NamedTuple):
    """What a rank does at a time: "F", "B", "I" or "W" of a stage, on a microbatch."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch} of stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """The actions of each rank, in order; a user's own is made likewise.

    name: for messages. rows: for each rank its actions, each an `Action` or such a tuple: F and B
    (or I and W) of each of its stages on each microbatch. Only their form is looked at here;
    `simulate` says whether they can run.

    Raises ScheduleError for what are no actions.

    >>> from funcgrad.parallel.pipelines import Schedule
    >>> first = [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)]
    >>> mine = Schedule("mine", [first, [("F", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)]])
    >>> mine
    Schedule('mine', 2 ranks, 2 stages, 2 microbatches)
    """

    name: str
    rows: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        rows = [[self._action(rank, a) for a in row] for rank, row in enumerate(self.rows)]
        object.__setattr__(self, "rows", tuple(map(tuple, rows)))
        for rank, row in enumerate(self.rows):
            if not row:
                raise ScheduleError(f"schedule {self.name!r}: rank {rank} has no action")
        if not self.rows:
            raise ScheduleError(f"schedule {self.name!r} has no ranks")

    def _action(self, rank: int, given: Iterable) -> Action:
        items = tuple(given) if isinstance(given, tuple | list) else ()
        good = len(items) == 3 and items[0] in KINDS
        if not good or any(type(n) is not int or n < 0 for n in items[1:]):
            raise ScheduleError(
                f"schedule {self.name!r}: rank {rank} has {given!r}, which is no action: (kind, "
                "stage, microbatch) with a kind of 'F', 'B', 'I', 'W' and numbers from 0 on"
            )
        return Action(*items)

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.rows)

    @cached_property
    def stages(self) -> int:
        """How many stages there are, on all ranks."""
        return 1 + max(a.stage for row in self.rows for a in row)

    @cached_property
    def microbatches(self) -> int:
        """How many microbatches there are."""
        return 1 + max(a.microbatch for row in self.rows for a in row)

    @cached_property
    def placement(self) -> tuple[tuple[int, ...], ...]:
        """For each rank its stages, in their order."""
        return tuple(tuple(sorted({a.stage for a in row})) for row in self.rows)

    @cached_property
    def where(self) -> dict[int, int]:
        """For each stage its rank: the first one, where several have it."""
        found: dict[int, int] = {}
        for rank, stages in enumerate(self.placement):
            for stage in stages:
                found.setdefault(stage, rank)
        return found

    @cached_property
    def actions(self) -> frozenset[Action]:
        """The actions of all ranks."""
        return frozenset(a for row in self.rows for a in row)

    def forwards(self) -> Schedule:
        """The schedule of the forward passes alone, in the same order."""
        rows = [[a for a in row if a.kind == "F"] for row in self.rows]
        return Schedule(f"{self.name}, forwards", tuple(map(tuple, rows)))

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name!r}, {self.ranks} ranks, {self.stages} stages, "
            f"{self.microbatches} microbatches)"
        )


# ---- the schedules there are


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes: a rank keeps all microbatches' activations.

    >>> from funcgrad.parallel.pipelines import gpipe, simulate
    >>> simulate(gpipe(4, 8)).bubble
    0.375
    """
    _check("gpipe", ranks, microbatches)
    rows = []
    for r in range(ranks):
        rows.append([Action(k, r, i) for k in "FB" for i in range(microbatches)])
    return Schedule("gpipe", tuple(map(tuple, rows)))


def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """One forward pass, one backward pass: a rank keeps the activations of as many microbatches as
    there are ranks from it on.

    >>> from funcgrad.parallel.pipelines import one_f_one_b, simulate
    >>> simulate(one_f_one_b(4, 8)).peak
    (4, 3, 2, 1)
    """
    _check("1f1b", ranks, microbatches)
    rows = []
    for r in range(ranks):
        ahead = min(ranks - 1 - r, microbatches)
        forward = [Action("F", r, i) for i in range(microbatches)]
        backward = [Action("B", r, i) for i in range(microbatches)]
        rows.append(_alternating(forward, backward, ahead))
    return Schedule("1f1b", tuple(map(tuple, rows)))


def _alternating(forward: list[Action], backward: list[Action], ahead: int) -> list[Action]:
    """So many forward passes ahead, then one of each in turns, then what is left."""
    row = forward[:ahead]
    for pair in zip(forward[ahead:], backward, strict=False):
        row += pair
    return row + backward[len(forward) - ahead :]


def interleaved(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B with several stages a rank: rank r has the stages r, r + ranks, r + 2 ranks, …, so that
    the pipeline fills and drains in that much less time. `microbatches` must be a multiple of
    `ranks`.

    >>> from funcgrad.parallel.pipelines import interleaved, simulate
    >>> simulate(interleaved(4, 8, chunks=2)).bubble
    0.1875
    """
    _check("interleaved", ranks, microbatches, chunks)
    if chunks == 1:
        return Schedule("interleaved", one_f_one_b(ranks, microbatches).rows)
    if microbatches % ranks:
        raise ScheduleError(
            f"schedule 'interleaved': microbatches={microbatches} must be a multiple of the "
            f"{ranks} ranks, which take turns with groups of {ranks}"
        )
    rows, total = [], microbatches * chunks
    for r in range(ranks):

        def action(kind: str, k: int, rank: int = r) -> Action:
            group, inside = divmod(k, ranks * chunks)
            chunk, i = divmod(inside, ranks)
            chunk = chunk if kind == "F" else chunks - 1 - chunk
            return Action(kind, chunk * ranks + rank, group * ranks + i)

        ahead = min(2 * (ranks - 1 - r) + (chunks - 1) * ranks, total)
        forward = [action("F", k) for k in range(total)]
        backward = [action("B", k) for k in range(total)]
        rows.append(_alternating(forward, backward, ahead))
    return Schedule("interleaved", tuple(map(tuple, rows)))


def zb_h1(ranks: int, microbatches: int) -> Schedule:
    """1F1B with backward passes in halves: those of weights fill the time in which the pipeline
    drains. As many activations are kept as `ranks`.

    >>> from funcgrad.parallel.pipelines import simulate, zb_h1
    >>> simulate(zb_h1(4, 8)).bubble
    0.125
    """
    _check("zb-h1", ranks, microbatches)
    rows = []
    for r in range(ranks):
        ahead, behind = min(ranks - 1 - r, microbatches), r
        row = [Action("F", r, i) for i in range(ahead)]
        for k in range(microbatches):
            if k + ahead < microbatches:
                row.append(Action("F", r, k + ahead))
            row.append(Action("I", r, k))
            if k >= behind:
                row.append(Action("W", r, k - behind))
        row += [Action("W", r, k) for k in range(max(0, microbatches - behind), microbatches)]
        rows.append(row)
    return Schedule("zb-h1", tuple(map(tuple, rows)))


def zb_v(ranks: int, microbatches: int) -> Schedule:
    """Two stages a rank, placed as a V: rank r has the stages r and 2 ranks − 1 − r. The last stage
    is where the first is, and if F, I and W take the same time, hardly any time is idle.

    >>> from funcgrad.parallel.pipelines import zb_v
    >>> zb_v(3, 6).placement
    ((0, 5), (1, 4), (2, 3))
    """
    _check("zb-v", ranks, microbatches)
    # The pattern is that of many microbatches; those that aren't there are left out.
    n = max(2 * ranks - 1, microbatches)
    rows = [[a for a in _v_row(ranks, r, n) if a.microbatch < microbatches] for r in range(ranks)]
    return Schedule("zb-v", tuple(map(tuple, rows)))


def _v_row(ranks: int, rank: int, n: int) -> list[Action]:
    row: list[Action] = []
    done = {(kind, down): 0 for kind in "FIW" for down in (True, False)}

    def do(kinds: str, down: bool) -> None:
        for kind in kinds:
            stage = rank if down else 2 * ranks - 1 - rank
            row.append(Action(kind, stage, done[kind, down]))
            done[kind, down] += 1

    for _ in range(2 * (ranks - rank) - 1):
        do("F", True)
    for _ in range(rank):
        do("F", False)
        do("F", True)
    for _ in range(ranks - rank):
        do("FIW", False)
    while done["F", False] < n:
        if done["F", True] < n:
            do("F", True)
        do("IW", True)
        do("FIW", False)
    for _ in range(rank):
        do("I", True)
        do("I", False)
    for _ in range(ranks - rank):
        do("IW", True)
    for down in (False, True):
        do("W" * (n - done["W", down]), down)
    return row


def _check(name: str, ranks: int, microbatches: int, chunks: int = 1) -> None:
    for what, n in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        if type(n) is not int or n < 1:
            raise ScheduleError(f"schedule {name!r}: {what} must be an integer ≥ 1, got {n!r}")


_MAKERS: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-v": zb_v,
}


def make_schedule(
    schedule: str | Schedule, ranks: int, microbatches: int, chunks: int = 1
) -> Schedule:
    """The schedule of a name, for so many ranks and microbatches; a `Schedule` is given back, if it
    is one for these.

    chunks: how many stages a rank has, which only "interleaved" asks for
    schedule: "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", or a `Schedule`

    Raises ScheduleError where there is none.

    >>> from funcgrad.parallel.pipelines import make_schedule
    >>> make_schedule("interleaved", 2, 4, chunks=3)
    Schedule('interleaved', 2 ranks, 6 stages, 4 microbatches)
    """
    if isinstance(schedule, str):
        if schedule not in _MAKERS:
            names = ", ".join(map(repr, _MAKERS))
            raise ScheduleError(f"there is no schedule {schedule!r}; there are {names}")
        maker = _MAKERS[schedule]
        found = maker(ranks, microbatches, *((chunks,) if maker is interleaved else ()))
    elif isinstance(schedule, Schedule):
        found = schedule
    else:
        raise ScheduleError(f"schedule must be a name or a Schedule, got {schedule!r}")
    has, wants = (found.ranks, found.microbatches), (ranks, microbatches)
    if has != wants:
        raise ScheduleError(
            f"schedule {found.name!r} is of {has[0]} ranks and {has[1]} microbatches, but "
            f"{wants[0]} ranks and {wants[1]} microbatches are given"
        )
    return found
