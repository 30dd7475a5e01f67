"""Signals end compiled programs, wherever they are, and leave all as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.llvm.runtime.interrupts import ENDLESS

INTERRUPTS = Path(__file__).parent / "interrupts.py"
ROOT = INTERRUPTS.parents[4]


def run(*args):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "FUNCGRAD_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, INTERRUPTS, *args], capture_output=True, text=True,
                          timeout=240, env=env, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENDLESS)
def test_interrupts_end_what_has_no_end(name):
    run("endless", name)


@pytest.mark.long
@pytest.mark.parametrize(
    "what", ["at_random_times", "memory", "donated", "handlers", "other_threads", "children"]
)
def test_interrupts(what):
    run(what)
