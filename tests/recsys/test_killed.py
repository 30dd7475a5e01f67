"""A supervised job that is killed at random times ends as one that nobody disturbed."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest


def ended(folder, kills):
    """What a job has in the end; it is started again whenever it was killed."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.recsys.killed_job", str(folder), str(kills)]
    environment = {**os.environ, "FUNCGRAD_NUM_THREADS": "1"}
    attempts = 0
    while (status := subprocess.run(command, env=environment).returncode) != 0:
        assert status == -signal.SIGKILL
        attempts += 1
    assert attempts <= kills
    with np.load(folder / "result.npz") as found:
        return dict(found.items()), attempts


def same_after(tmp_path, kills):
    want, none = ended(tmp_path / "whole", 0)
    got, attempts = ended(tmp_path / "killed", kills)
    assert not none
    assert attempts > kills // 2  # all steps may be done before the last ones
    assert got.keys() == want.keys()
    for k, v in want.items():
        np.testing.assert_array_equal(got[k], v, err_msg=k)
    assert want["auc"] > 0.5


@pytest.mark.long
def test_a_kill(tmp_path):
    same_after(tmp_path, 1)


@pytest.mark.slow
def test_fifty_kills(tmp_path):
    same_after(tmp_path, 50)
