"""Tables of ticks: played with names in place of values, each action finds what it needs."""

import numpy as np
import pytest

from funcgrad.parallel.pipelines import Action, Schedule, make_schedule, simulate
from funcgrad.parallel.pipelines.ticks import make_ticks

SCHEDULES = [
    make_schedule(name, p, m, chunks)
    for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3),
                         ("zb-h1", 1), ("zb-v", 2))
    for p, m in ((1, 1), (1, 3), (2, 4), (3, 6), (4, 8))
]  # fmt: skip
FAR = Schedule(
    "far",
    [
        [("F", 0, 0), ("F", 2, 0), ("B", 2, 0), ("B", 0, 0)],
        [("F", 3, 0), ("F", 5, 0), ("B", 5, 0), ("B", 3, 0)],
        [("F", 1, 0), ("F", 4, 0), ("B", 4, 0), ("B", 1, 0)],
    ],
)


class Played:
    """A run of the tables, in which values are names."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.ticks = make_ticks(schedule)
        n = schedule.ranks
        self.inbox = [[None] * (self.ticks.messages + 1) for _ in range(n)]
        self.saved = [[None] * (self.ticks.saved + 1) for _ in range(n)]
        self.kept = [[None] * (self.ticks.kept + 1) for _ in range(n)]
        self.done = []

    def run(self):
        table = self.ticks.table
        for t in range(table.kind.shape[0]):
            sent = [self.act(t, rank) for rank in range(self.schedule.ranks)]
            for route, pairs in enumerate(self.ticks.routes):
                came = dict.fromkeys(range(self.schedule.ranks))
                came.update((target, sent[source]) for source, target in pairs)
                for rank, message in came.items():
                    self.inbox[rank][table.arrive[t, rank, route]] = message
        return self.done

    def act(self, t, rank):
        cell = {k: v[t, rank] for k, v in self.ticks.table._asdict().items()}
        save = keep = message = None
        if cell["kind"]:
            kind = " FBIW"[cell["kind"]]
            stage = self.schedule.placement[rank][cell["chunk"]]
            i = int(cell["microbatch"])
            last = self.schedule.stages - 1
            assert (cell["first"], cell["last"]) == (stage == 0, stage == last)
            read = self.inbox[rank][cell["read"]]
            if kind == "F":
                assert stage == 0 or read == ("y", stage - 1, i)
                save, message = ("residuals", stage, i), ("y", stage, i)
            else:
                assert self.saved[rank][cell["saved"]] == ("residuals", stage, i)
            if kind in "BI":
                assert read == (("y", last, i) if stage == last else ("ct", stage + 1, i))
                keep, message = ("kept", stage, i), ("ct", stage, i)
            if kind == "W":
                assert self.kept[rank][cell["kept"]] == ("kept", stage, i)
            self.done.append(Action(kind, stage, i))
        self.saved[rank][cell["save"]] = save
        self.kept[rank][cell["keep"]] = keep
        return message


@pytest.mark.parametrize("schedule", [*SCHEDULES, FAR], ids=repr)
def test_each_action_finds_what_it_needs(schedule):
    done = Played(schedule).run()
    assert sorted(done) == sorted(a for row in schedule.rows for a in row)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_as_many_slots_as_activations(schedule):
    assert make_ticks(schedule).saved == max(simulate(schedule).peak)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_forwards_alone(schedule):
    ticks = make_ticks(schedule.forwards())
    assert (ticks.saved, ticks.kept) == (0, 0)
    assert sum(map(len, ticks.routes)) <= schedule.stages
    assert np.count_nonzero(ticks.table.kind) == schedule.stages * schedule.microbatches


def test_neighbours_have_one_route_each_way():
    assert make_ticks(make_schedule("1f1b", 4, 4)).routes == (
        ((3, 3),), ((0, 1), (1, 2), (2, 3)), ((1, 0), (2, 1), (3, 2)),
    )  # fmt: skip
