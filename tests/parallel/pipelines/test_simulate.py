"""Schedules on paper: lengths, idle times and memory by the papers' formulas; faults by name."""

import pytest

from funcgrad.errors import ScheduleError
from funcgrad.parallel.pipelines import (
    Costs,
    Schedule,
    gpipe,
    interleaved,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_v,
)  # fmt: skip

SIZES = [(1, 1), (1, 4), (2, 2), (2, 7), (3, 5), (4, 8), (8, 8), (8, 32)]
F, B, W = 1.0, 2.0, 1.0


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_idle_time_of_gpipe_and_1f1b(p, m):
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        found = simulate(schedule)
        assert found.idle == ((p - 1) * (F + B),) * p
        assert found.bubble == pytest.approx((p - 1) / m)


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 8), (3, 9), (4, 8), (8, 16)])
@pytest.mark.parametrize("v", [2, 3, 4])
def test_idle_time_of_interleaved(p, m, v):
    found = simulate(interleaved(p, m, v))
    # A stage is a v-th of what a rank has.
    assert found.idle == ((p - 1) * (F + B),) * p
    assert found.bubble == pytest.approx((p - 1) / (v * m))
    assert v * p < max(found.peak) + 1 <= v * p + p + 1


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= p])
def test_idle_time_of_zero_bubbles(p, m):
    found = simulate(zb_h1(p, m))
    assert max(found.idle) == (p - 1) * (F + B - 2 * W)
    assert found.bubble == pytest.approx((p - 1) / (3 * m))
    assert max(found.peak) == p


@pytest.mark.parametrize(("p", "m"), [(2, 8), (3, 9), (4, 8), (8, 16)])
def test_idle_time_of_a_v(p, m):
    """In chunks, of which a rank has two; as many activations as 1F1B's first rank keeps."""
    found = simulate(zb_v(p, m))
    assert max(found.idle) == p - 1
    assert found.peak == (2 * p,) * p


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_activations(p, m):
    assert simulate(gpipe(p, m)).peak == (m,) * p
    assert simulate(one_f_one_b(p, m)).peak == tuple(min(p - r, m) for r in range(p))


def test_costs():
    schedule = one_f_one_b(4, 8)
    slow = simulate(schedule, Costs(forward=2, inputs=3, weights=1))
    assert slow.idle == (3 * (2 + 4),) * 4
    assert simulate(schedule, Costs(message=0.5)).length > simulate(schedule).length
    assert simulate(gpipe(1, 4), Costs(message=0.5)).length == 12
    assert Costs(backward=5).of("B") == 5


def test_texts():
    found = simulate(zb_h1(2, 2))
    assert str(found).splitlines() == ["rank 0: F0 F1 .  I0 W0 I1 W1",
                                       "rank 1: .  F0 I0 F1 I1 W0 W1"]  # fmt: skip
    assert repr(found) == (
        "Timeline(Schedule('zb-h1', 2 ranks, 2 stages, 2 microbatches), length 7, idle 1, "
        "activations 2)"
    )


# ---- faults


def rows(schedule):
    return [list(row) for row in schedule.rows]


def without(kind, rank):
    found = rows(zb_h1(2, 2))
    found[rank] = [a for a in found[rank] if a[0] != kind or a[2]]
    return found


def swapped():
    """Rank 1 wants the second microbatch before the first, of which it has to send back first."""
    found = rows(one_f_one_b(2, 2))
    found[1] = [found[1][i] for i in (2, 3, 0, 1)]
    found[0] = [found[0][i] for i in (0, 2, 1, 3)]
    return found


def doubled():
    found = rows(gpipe(2, 2))
    found[1].append(found[1][0])
    return found


def elsewhere():
    found = rows(gpipe(2, 2))
    found[1].append(found[0][0])
    return found


FAULTS = {
    "lacks F": (without("F", 1), "rank 1 lacks F0 of stage 1"),
    "lacks I": (without("I", 0), "rank 0 lacks I0 of stage 0, the other half of its backward pass"),
    "lacks W": (without("W", 1), "rank 1 lacks W0 of stage 1, the other half of its backward pass"),
    "lacks B": ([[("F", 0, 0)]], r"rank 0 lacks B0 of stage 0 \(or I and W in its place\)"),
    "both": (
        [[("F", 0, 0), ("B", 0, 0), ("I", 0, 0), ("W", 0, 0)]],
        "rank 0 has B0 of stage 0 and its half I0 of stage 0",
    ),
    "twice": (doubled(), "rank 1 has F0 of stage 1 2 times"),
    "elsewhere": (elsewhere(), "rank 1 has F0 of stage 0, but rank 0 has this stage, too"),
    "no stage": ([[("F", 0, 0), ("B", 0, 0), ("F", 2, 0), ("B", 2, 0)]], "stage 1 is on no rank"),
    "uneven": (
        [[(k, s, 0) for s in (0, 1) for k in "FB"], [("F", 2, 0), ("B", 2, 0)]],
        "rank 1 has 1 stages, rank 0 2: all must have as many",
    ),
    "cycle": (
        swapped(),
        "deadlocks: rank 0 waits with B0 of stage 0 for B0 of stage 1, which rank 1 has not done; "
        "rank 1 waits with F1 of stage 1 for F1 of stage 0, which rank 0 has not done",
    ),
    "own order": (
        [[("B", 0, 0), ("F", 0, 0)]],
        "deadlocks: rank 0 waits with B0 of stage 0 for F0 of stage 0, which rank 0 has not done",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_by_name(fault):
    table, words = FAULTS[fault]
    with pytest.raises(ScheduleError, match=f"schedule 'mine'.*{words}"):
        simulate(Schedule("mine", table))
