"""Schedules as data: what they are, and what is refused."""

import pytest

from funcgrad.errors import ScheduleError
from funcgrad.parallel.pipelines import (
    Action,
    Schedule,
    gpipe,
    interleaved,
    make_schedule,
    one_f_one_b,
    zb_h1,
    zb_v,
)  # fmt: skip


def kinds(row):
    return " ".join(f"{a.kind}{a.microbatch}" for a in row)


def test_gpipe():
    assert [kinds(r) for r in gpipe(2, 3).rows] == ["F0 F1 F2 B0 B1 B2"] * 2


def test_one_forward_one_backward():
    first, second, third = map(kinds, one_f_one_b(3, 4).rows)
    assert first == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert second == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert third == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert kinds(one_f_one_b(4, 1).rows[0]) == "F0 B0"


def test_interleaved_places_stages_in_turns():
    schedule = interleaved(2, 4, chunks=3)
    assert schedule.placement == ((0, 2, 4), (1, 3, 5))
    assert schedule.where == {0: 0, 2: 0, 4: 0, 1: 1, 3: 1, 5: 1}
    assert [a.stage for a in schedule.rows[0][:8]] == [0, 0, 2, 2, 4, 4, 0, 4]
    assert interleaved(3, 4, chunks=1).rows == one_f_one_b(3, 4).rows


def test_halves_of_backward_passes():
    assert kinds(zb_h1(2, 3).rows[1]) == "F0 I0 F1 I1 W0 F2 I2 W1 W2"
    assert zb_v(2, 4).placement == ((0, 3), (1, 2))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
def test_zb_v_leaves_out_what_is_not_there(ranks, microbatches):
    schedule = zb_v(ranks, microbatches)
    assert (schedule.stages, schedule.microbatches) == (2 * ranks, microbatches)
    assert all(len(row) == 6 * microbatches for row in schedule.rows)


def test_forwards():
    assert [kinds(r) for r in one_f_one_b(2, 2).forwards().rows] == ["F0 F1"] * 2


def test_equal_schedules_are_equal():
    rows = [[list(a) for a in row] for row in gpipe(2, 2).rows]
    mine = Schedule("gpipe", rows)
    assert mine == gpipe(2, 2)
    assert hash(mine) == hash(gpipe(2, 2))
    assert mine.rows[0][0] == Action("F", 0, 0)
    assert str(mine.rows[0][0]) == "F0 of stage 0"
    assert repr(mine) == "Schedule('gpipe', 2 ranks, 2 stages, 2 microbatches)"


@pytest.mark.parametrize(
    "wrong", [("G", 0, 0), ("F", -1, 0), ("F", 0), ("F", 0, 1.0), "F00", None, ("F", True, 0)]
)
def test_what_is_no_action(wrong):
    with pytest.raises(ScheduleError, match=r"schedule 'mine': rank 1 has .*, which is no action"):
        Schedule("mine", [[("F", 0, 0)], [wrong]])


def test_empty_rows():
    with pytest.raises(ScheduleError, match="rank 1 has no action"):
        Schedule("mine", [[("F", 0, 0)], []])
    with pytest.raises(ScheduleError, match="'mine' has no ranks"):
        Schedule("mine", [])


def test_make_schedule():
    assert make_schedule("1f1b", 3, 4) == one_f_one_b(3, 4)
    assert make_schedule("interleaved", 2, 4, chunks=2) == interleaved(2, 4, 2)
    assert make_schedule("zb-v", 2, 4) == zb_v(2, 4)
    mine = gpipe(2, 4)
    assert make_schedule(mine, 2, 4) is mine


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("2f2b", 2, 4), "there is no schedule '2f2b'; there are 'gpipe', '1f1b'"),
        ((3, 2, 4), "schedule must be a name or a Schedule, got 3"),
        (("gpipe", 0, 4), "ranks must be an integer ≥ 1, got 0"),
        (("1f1b", 2, 2.0), "microbatches must be an integer ≥ 1, got 2.0"),
        (("interleaved", 2, 4, 0), "chunks must be an integer ≥ 1, got 0"),
        (("interleaved", 4, 6, 2), "microbatches=6 must be a multiple of the 4 ranks"),
        ((gpipe(2, 4), 4, 4), "'gpipe' is of 2 ranks and 4 microbatches, but 4 ranks and 4"),
        ((gpipe(2, 4), 2, 8), "'gpipe' is of 2 ranks and 4 microbatches, but 2 ranks and 8"),
    ],
)
def test_schedules_that_are_not_there(args, words):
    with pytest.raises(ScheduleError, match=words):
        make_schedule(*args)
