"""A supervised job that is killed again and again ends as one that nobody disturbed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.ranks import Traces, environment, missing

pytestmark = pytest.mark.mpi
SURVIVOR = str(Path(__file__).parent / "survivor.py")
PIPELINED = str(Path(__file__).parent / "survivor_pipelined.py")


def supervised(folder, kills, steps, job=SURVIVOR, ranks="2"):
    """What a job says in the end, and how often it was restarted."""
    if reason := missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "funcgrad.parallel.run", "--supervise", "-n", ranks]
    command += ["--min-ranks", ranks, "--restarts", str(kills + 1), job]
    done = subprocess.run(
        [*command, str(folder), str(kills), str(steps)], env=environment(), timeout=1500,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    # A rank that is killed after it said the loss says it again when it comes back.
    (loss,) = set(re.findall(rf"loss of step {steps}: (\S+)", done.stdout))
    return loss, done.stderr.count("restarting")


@pytest.mark.long
def test_kills_leave_no_trace(tmp_path, request):
    traces = Traces()
    kills, steps = (100, 2500) if request.config.getoption("--slow") else (3, 100)
    wanted, restarts = supervised(tmp_path / "undisturbed", 0, steps)
    assert restarts == 0
    got, restarts = supervised(tmp_path / "disturbed", kills, steps)
    assert got == wanted
    # A short job may be done before its last killers come.
    assert restarts == kills or (kills < 100 and restarts >= 1)
    # Wherever it was killed, no job left a name in /dev/shm.
    assert not traces.left()


@pytest.mark.slow
def test_a_killed_stage_of_a_pipeline(tmp_path):
    """Two stages, each cut over two ranks."""
    traces = Traces()
    wanted, restarts = supervised(tmp_path / "undisturbed", 0, 6, PIPELINED, "4")
    assert restarts == 0
    got, restarts = supervised(tmp_path / "disturbed", 1, 6, PIPELINED, "4")
    assert (got, restarts) == (wanted, 1)
    assert not traces.left()
