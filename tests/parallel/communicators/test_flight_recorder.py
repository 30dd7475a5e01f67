"""The flight recorder and who reads it."""

import time

import pytest

from funcgrad.parallel.communicators import watchdog
from funcgrad.parallel.communicators.flight_recorder import Records
from funcgrad.parallel.communicators.native import BARRIER, RING, what_text, what_word


def test_texts():
    assert what_text(what_word(BARRIER, 0, 0), 0) == "barrier"
    assert what_text(what_word(1, 0, 0), 7) == "all_gather bool[7]"


def test_waits_are_written_down():
    records = Records(None, [3], 0)
    assert records.text(3) == "rank 3 has exchanged nothing yet"
    assert records.history(3) == []
    with records.waiting(0, "making a communicator"):
        assert records.state(3).inside
        assert records.text(3) == "rank 3 in making a communicator"
    records.add("data", [0, 0, 1, 1], int)
    assert records.text(3) == "rank 3 last in making a communicator over (data)"
    records.end()
    assert records.text(3) == "rank 3 has ended, last in making a communicator over (data)"


def test_history_keeps_the_latest():
    records = Records(None, [0], 0)
    for i in range(RING + 3):
        with records.waiting(i, "barrier"):
            pass
    assert [e.number for e in records.history(0)] == list(range(3, RING + 3))


def test_who_waits_for_this_rank():
    records, begun = Records(None, [1], 0), [4]
    records.add("model", [0, 0, 1, 1], lambda: begun[0])
    with records.waiting(0, "barrier"):
        event = records.state(1).last._replace(sequence=5)
    assert records.needs_this(event, 0)
    assert not records.needs_this(event, 2), "of another group"
    assert records.needs_this(event._replace(number=9), 2), "a communicator that is not made here"
    begun[0] = 5
    assert not records.needs_this(event, 0), "this rank has done its part"
    making = event._replace(sequence=0)
    assert not records.needs_this(making, 0), "it is made here"


def test_stuck_ranks():
    records = Records(None, [0], 0)
    assert watchdog.stuck(records, 0.01) == []
    with records.waiting(0, "barrier"):
        assert watchdog.stuck(records, 1000) == []
        time.sleep(0.03)
        assert watchdog.stuck(records, 0.01) == [0]
        assert watchdog.report(records) == "rank 0 in barrier"
    assert watchdog.stuck(records, 0.01) == []


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_limits_that_are_none(monkeypatch, text):
    monkeypatch.setenv(watchdog.VARIABLE, text)
    with pytest.raises(ValueError, match="FUNCGRAD_COLLECTIVE_TIMEOUT must be a number of seconds"):
        watchdog.limit()


def test_limits(monkeypatch):
    monkeypatch.delenv(watchdog.VARIABLE, raising=False)
    assert watchdog.limit() == 600
    monkeypatch.setenv(watchdog.VARIABLE, "2.5")
    assert watchdog.limit() == 2.5
