"""Jobs that fail: all ranks end at once, and say why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from funcgrad.parallel import run
from funcgrad.parallel.supervise import ranks_of, supervise
from tests.parallel.ranks import Traces, environment, missing, mpiexec

pytestmark = pytest.mark.mpi
FAULTS = str(Path(__file__).parent / "faults.py")
RUN = ["-m", "funcgrad.parallel.run"]


@pytest.fixture(autouse=True)
def _nothing_left_in_shared_memory():
    """No job leaves names that no process holds (jobs of others may come and go meanwhile)."""
    traces = Traces()
    yield
    assert not traces.left()


def job(how, *command, launched=True, **env):
    if reason := missing():
        pytest.skip(reason)
    start = [mpiexec(), "-n", "2"] if launched else []
    return subprocess.run(
        [*start, sys.executable, *command, FAULTS, how], env=environment(**env), timeout=240,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_exception_ends_all_ranks():
    """By the hook that `import funcgrad.parallel` installs."""
    done = job("raise")
    assert done.returncode
    assert "rank 1: ValueError: as the test wants it" in done.stderr
    assert "raise ValueError" in done.stderr


def test_an_exit_status_ends_all_ranks():
    done = job("exit", *RUN)
    assert done.returncode  # 3, unless the launcher saw another rank killed first
    assert "rank 1 exits with 3" in done.stderr


def test_a_rank_that_ends_while_others_wait():
    done = job("exit")
    assert done.returncode
    assert "rank 1 has ended while others wait for it: rank 0 in #6 all_reduce" in done.stderr


def test_a_rank_that_is_late():
    done = job("late", *RUN)
    assert done.returncode
    assert (
        "rank 0 stuck > 2.0 s: rank 0 in #6 all_reduce sum float32[3] over (data); "
        "rank 1 last in #5 all_reduce sum float32[3] over (data)"
    ) in done.stderr


EARLY = """
import os, signal, threading
def die():
    while "/dev/shm/mpich_shm" not in open("/proc/self/maps").read():
        pass
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("PMI_RANK") and os.environ["FUNCGRAD_ATTEMPT"] == "0":
    threading.Thread(target=die, daemon=True).start()
"""


@pytest.mark.long
def test_ranks_killed_while_they_start_leave_no_names(tmp_path):
    """As soon as they have mapped MPI's memory, whose names are still there."""
    (tmp_path / "sitecustomize.py").write_text(EARLY)
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    options = ["--supervise", "-n", "2", "--restarts", "1"]
    done = job("no", *RUN, *options, launched=False, PYTHONPATH=path)
    assert "attempt 0 on 2 ranks ended with status 9" in done.stderr
    assert "done on 2 ranks" in done.stdout


def test_a_killed_rank_is_survived_on_fewer():
    options = ["--supervise", "-n", "4", "--min-ranks", "2", "--restarts", "2"]
    done = job("kill", *RUN, *options, launched=False)
    assert "attempt 0 on 4 ranks ended with status 9; restarting on 2" in done.stderr
    assert "done on 2 ranks, 2 processes" in done.stdout
    assert done.returncode == 0


def test_ranks_of_attempts():
    assert [ranks_of(i, 6, 1) for i in range(5)] == [6, 3, 2, 1, 1]
    assert [ranks_of(i, 4, 4) for i in range(3)] == [4, 4, 4]


def test_usage(capsys):
    assert run.main([]) == 2
    assert run.main(["--help"]) == 0
    assert "--supervise -n N" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="between 1 and 2, got 3"):
        supervise(["-n", "2", "--min-ranks", "3", "prog.py"])
    with pytest.raises(SystemExit, match="name a program"):
        supervise(["-n", "2"])


def test_a_program_alone(tmp_path, capsys):
    """Without a launcher it runs as with plain Python."""
    script = tmp_path / "prog.py"
    script.write_text("import sys; print(sys.argv[1], __name__); sys.exit(sys.argv[1] == 'bad')")
    code = (
        f"from funcgrad.parallel.run import main; raise SystemExit(main([{str(script)!r}, 'ok']))"
    )
    for how, status in (("ok", 0), ("bad", 1)):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("'ok'", repr(how))], env=environment(),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stdout, done.returncode) == (f"{how} __main__\n", status)
