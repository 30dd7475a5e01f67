"""A supervised job that is killed again and again ends as one that nobody disturbed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.ranks import environment, missing

pytestmark = pytest.mark.mpi
SURVIVOR = str(Path(__file__).parent / "survivor.py")


def supervised(folder, kills, seed=0, timeout=300):
    """What a job says in the end, and how often it was restarted."""
    if reason := missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "funcgrad.parallel.run", "--supervise", "-n", "2"]
    command += ["--min-ranks", "2", "--restarts", str(kills + 1), SURVIVOR]
    done = subprocess.run(
        [*command, str(folder), str(kills), str(seed)], env=environment(), timeout=timeout,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (loss,) = re.findall(r"loss of step 60: (\S+)", done.stdout)
    return loss, done.stderr.count("restarting")


def test_kills_leave_no_trace(tmp_path, request):
    kills = 100 if request.config.getoption("--slow") else 4
    wanted, restarts = supervised(tmp_path / "undisturbed", 0)
    assert restarts == 0
    got, restarts = supervised(tmp_path / "disturbed", kills, seed=1, timeout=1200)
    assert got == wanted
    # A job that is done before its killer comes isn't killed.
    assert 1 <= restarts <= kills
