"""Which ops are written as others, and by whom."""

from funcgrad.backends import normalize, running


def test_running_sums_are_rewritten():
    found = {op for op, rewrite in normalize._REWRITES.items() if rewrite is normalize._running}
    assert found == set(running.OPS)
