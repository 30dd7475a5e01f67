"""Whichever rank fails, however and wherever: the job ends, and says why."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from funcgrad.parallel.communicators import mpi
from funcgrad.parallel.launch import hooks
from tests.parallel.ranks import environment, missing, mpiexec

FAILURES = str(Path(__file__).parent / "failures.py")
PLACES = ("before the import", "after the import", "before the first call", "tracing", "running",
          "after a call")  # fmt: skip


def job(rank, where, how, limit=60):
    if reason := missing():
        pytest.skip(reason)
    return subprocess.run(
        [mpiexec(), "-n", "2", sys.executable, FAILURES, str(rank), where, how], timeout=240,
        env=environment(FUNCGRAD_COLLECTIVE_TIMEOUT=str(limit)), capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.sampled(18)
@pytest.mark.mpi
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["raise", "exit", "vanish", "return", "sleep"])
@pytest.mark.parametrize("where", PLACES)
def test_a_rank_that_fails_ends_the_job(where, how, rank):
    early = where == PLACES[0]
    limit = 5 if early or how == "sleep" else 60
    done = job(rank, where, how, limit)
    assert done.returncode
    if early:
        words = f"rank {1 - rank} stuck > 5.0 s: it starts, and waits for all 2 ranks"
    else:
        words = {
            "raise": f"rank {rank}: ValueError: as the test wants it",
            "exit": f"rank {rank} has ended while others wait for it: ",
            "return": f"rank {rank} has ended while others wait for it: ",
            "sleep": "stuck > 5.0 s: ",
            "vanish": "",  # what the launcher makes of it
        }[how]
    assert words in done.stderr, done.stderr
    if how == "raise":
        assert 'raise ValueError("as the test wants it")' in done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("how", ["waiting", "running"])
def test_an_interrupted_rank_ends_the_job(how):
    done = job(1, "interrupted", how)
    assert done.returncode
    assert "rank 1: KeyboardInterrupt" in done.stderr, done.stderr


@pytest.mark.mpi
def test_an_exception_on_a_thread_ends_the_job():
    done = job(1, "on a thread", "raise")
    assert done.returncode
    assert "rank 1: ValueError: as the test wants it" in done.stderr


@pytest.mark.mpi
def test_processes_that_a_rank_starts_are_none():
    done = job(0, "beside", "")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "1", "36.0", "36.0"]
    assert done.stderr.count("ValueError: of a child") == 2
    assert done.stderr.count("ValueError: of a fork") == 2


@pytest.fixture
def rank(monkeypatch):
    """This process as a rank that has joined others; gives what it did since then."""
    done = []
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hooks, "_before", list(hooks._before))
    monkeypatch.setattr(mpi, "start", lambda: done.append("start"))
    monkeypatch.setattr(mpi, "abort", lambda status: done.append("abort"))
    # To be put back.
    monkeypatch.setenv(hooks._PROCESS, "")
    monkeypatch.delenv(hooks._PROCESS)
    monkeypatch.setattr(sys, "excepthook", lambda *args: done.append("shown"))
    monkeypatch.setattr(threading, "excepthook", lambda args: done.append("shown"))
    hooks.install()
    hooks.install()
    return done


def thread_error(error):
    return threading.ExceptHookArgs((type(error), error, None, None))


def test_a_hook_of_others_is_called_first(rank, capsys):
    error = ValueError("wrong")
    sys.excepthook(ValueError, error, None)
    threading.excepthook(thread_error(error))
    assert rank == ["start", "shown", "abort", "shown", "abort"]
    assert capsys.readouterr().err == "rank 1: ValueError: wrong\n" * 2


def test_a_hook_that_fails_itself_ends_the_job_too(rank):
    hooks._before[0] = None
    with pytest.raises(TypeError):
        sys.excepthook(ValueError, ValueError("wrong"), None)
    assert rank == ["start", "abort"]


def test_what_ends_no_job(rank, monkeypatch):
    """A thread's own exit, and what is typed in."""
    threading.excepthook(thread_error(SystemExit(3)))
    assert rank == ["start", "shown"]
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    sys.excepthook(ValueError, ValueError("wrong"), None)
    threading.excepthook(thread_error(ValueError("wrong")))
    assert rank == ["start", "shown", "shown", "shown"]


def test_nothing_changes_without_a_launcher(monkeypatch):
    monkeypatch.setattr(mpi, "start", lambda: pytest.fail("there are no ranks"))
    before = sys.excepthook, threading.excepthook
    hooks.install()
    assert (sys.excepthook, threading.excepthook) == before
