import time

from funcgrad.serve import batching


def test_a_model_that_waits_is_no_quick_one(monkeypatch):
    """It would hold up the loop, if it ran there, though its thread computes nothing."""
    waits = 2 * batching.HELD_UP
    monkeypatch.setattr(batching, "together", lambda model, batch: time.sleep(waits))
    assert batching.timed(None, [])[1] >= waits
