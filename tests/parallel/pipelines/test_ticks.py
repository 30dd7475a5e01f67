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

    def __init__(self, schedule, by_mail=False):
        self.schedule = schedule
        self.ticks = make_ticks(schedule, by_mail)
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

    def run_by_mail(self, rng):
        """Each rank by itself, in any order: who finds a queue full or empty waits."""
        length, n = self.ticks.table.kind.shape
        queues = {pair: [] for pairs in self.ticks.routes for pair in pairs}
        at, parts = [0] * n, [None] * n
        while left := [r for r in range(n) if at[r] < length]:
            moved = [r for r in rng.permutation(left) if self.step(at[r], r, parts, queues)]
            assert moved, "all ranks wait"
            for r in moved:
                at[r] += parts[r] is None
        assert not any(queues.values())
        return self.done

    def step(self, t, rank, parts, queues):
        """Do what a rank can: its action, or one more of its messages. Whether it did anything."""
        if parts[rank] is None:
            message = self.act(t, rank)
            parts[rank] = self.errands(t, rank, message, queues)
        before = len(parts[rank])
        while parts[rank] and parts[rank][0]():
            parts[rank].pop(0)
        done = before - len(parts[rank])
        parts[rank] = parts[rank] or None
        return done or parts[rank] is None

    def errands(self, t, rank, message, queues):
        found = []
        for route in range(len(self.ticks.routes)):
            slot, room = self.ticks.table.arrive[t, rank, route], self.ticks.flying[route]
            to, source = self.ticks.table.mail[t, rank, route]

            def put(to=to, room=room):
                queue = queues[rank, to]
                return len(queue) < room and not queue.append(message)

            def get(source=source, slot=slot):
                queue = queues[source, rank]
                if queue:
                    self.inbox[rank][slot] = queue.pop(0)
                    return True
                return False

            if not room:
                assert (to, source) == (-1, -1)
                found.append(lambda slot=slot: self.inbox[rank].__setitem__(slot, message) or True)
            else:
                found += [put] * int(to >= 0) + [get] * int(source >= 0)
        return found

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


@pytest.mark.parametrize("schedule", [*SCHEDULES, FAR], ids=repr)
def test_by_mail_ranks_run_by_themselves(schedule):
    """In any order, with queues of as many messages as are on their way in ticks."""
    for seed in range(3):
        done = Played(schedule, by_mail=True).run_by_mail(np.random.default_rng(seed))
        assert sorted(done) == sorted(a for row in schedule.rows for a in row)


def test_mail_is_got_right_before_it_is_needed():
    """In 1F1B the last rank's second forward pass comes after its first backward pass, when the
    message has been there for a while."""
    table = make_ticks(make_schedule("1f1b", 2, 2), by_mail=True).table
    sent = np.argwhere(table.mail[:, 0, 1, 0] >= 0)[:, 0]
    got = np.argwhere(table.mail[:, 1, 1, 1] >= 0)[:, 0]
    assert sent.tolist() == [0, 1]
    assert (table.kind[got + 1, 1] == 1).all()


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
