"""examples/pipeline.py in small: its losses don't depend on the schedule."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ["--steps", "3", "--batch", "4", "--width", "16", "--layers", "2", "--microbatches", "2"]


@pytest.fixture
def example():
    sys.path.insert(0, str(EXAMPLES))
    import pipeline

    yield pipeline
    sys.path.remove(str(EXAMPLES))


@pytest.mark.long
def test_schedules_have_the_losses_of_no_pipeline(example, capsys):
    losses = example.main([*SMALL, "--schedule", "none", "--devices", "2"])
    found = example.main([*SMALL, "--schedule", "zb-h1", "--devices", "2"])
    assert found == pytest.approx(losses, rel=1e-4)
    assert "rank 1: .  F0 I0 F1 I1 W0 W1" in capsys.readouterr().out
