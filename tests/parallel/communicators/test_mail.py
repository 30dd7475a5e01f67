"""Messages between ranks: in order, without waiting for who is to get them."""

import numpy as np
import pytest

from tests.parallel.ranks import RankError

pytestmark = pytest.mark.mpi
JOBS = "tests.parallel.communicators.jobs_mail"


@pytest.fixture(params=["", "mpi"])
def pool(ranks, request):
    return ranks(2, FUNCGRAD_TRANSPORT=request.param) if request.param else ranks(2)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_sender_does_not_wait(pool, dtype):
    first, second = pool.run(f"{JOBS}:queued", dtype)
    x = np.arange(6).reshape(2, 3).astype(dtype)
    nothing = np.zeros_like(x)
    for got, want in zip(first, [nothing, nothing, nothing, x + 20], strict=True):
        np.testing.assert_array_equal(got, want.astype(dtype))
    for got, want in zip(second, [nothing, x, x + 1, x + 2], strict=True):
        np.testing.assert_array_equal(got, want.astype(dtype))


def test_order(pool):
    for rank, found in enumerate(pool.run(f"{JOBS}:of_several_values")):
        sent = [10 * turn + number + 1 - rank for turn in range(20) for number in range(2)]
        assert found == [0, 0, *sent]


def test_who_waits_for_a_rank_that_fails_ends(ranks):
    with pytest.raises(RankError, match="no message"):
        ranks(2).run(f"{JOBS}:never_sent", 0)


@pytest.mark.parametrize("interrupt", [False, True])
def test_what_a_failed_run_left_behind_is_thrown_away(pool, interrupt):
    assert pool.run(f"{JOBS}:after_a_failure", interrupt) == [11, 10]


def test_who_waits_in_a_run_that_another_rank_left_ends(pool):
    (said, found), _ = pool.run(f"{JOBS}:left_alone")
    assert "rank 1 failed in this run of a program, and has begun another one" in said
    assert found == 7


def test_queues_end_with_their_program(ranks):
    for before, *found in ranks(2).run(f"{JOBS}:queues_of_programs"):
        assert [n - before for n in found] == [4, 2, 0]
