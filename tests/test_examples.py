"""examples/gpt.py in small: it learns, leaves its files, and goes on as if it had never stopped, on
any layout."""

import sys
from pathlib import Path

import numpy as np
import pytest

from funcgrad.io.checkpoints import checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ["--steps", "60", "--batch", "4", "--width", "16", "--layers", "1", "--save-every", "25"]


@pytest.fixture(scope="module")
def gpt():
    sys.path.insert(0, str(EXAMPLES))
    import gpt

    yield gpt
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def whole(gpt, tmp_path_factory):
    """The folder of a run without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    gpt.main([*SMALL, "--out", str(folder)])
    return folder


def saved(folder):
    return checkpoint.contents(folder / "checkpoints")


def test_it_learns_and_leaves_its_files(whole):
    losses = np.array(saved(whole).metadata["losses"])
    assert len(losses) == 60
    assert losses[0] == pytest.approx(np.log(100), rel=0.1)
    assert losses[-10:].mean() < losses[0] - 1
    assert (whole / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in whole.iterdir()) == ["checkpoints", "loss.png"]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["fsdp", "tensor"])
def test_a_resumed_run_is_the_whole_run(gpt, whole, tmp_path, capsys, layout):
    gpt.main([*SMALL, "--out", str(tmp_path), "--stop-at", "35"])
    assert saved(tmp_path).step == 35
    capsys.readouterr()
    gpt.main([*SMALL, "--out", str(tmp_path), "--resume", "--layout", layout])
    wanted, got = (saved(p).metadata["losses"] for p in (whole, tmp_path))
    # On another layout sums are made in another order.
    assert got == (wanted if layout == "fsdp" else pytest.approx(wanted, rel=1e-4))
    said = capsys.readouterr().out
    assert f"loss of step 60: {wanted[-1]:.4f}" in said
    assert "validation loss: " in said
    assert "--- a sample ---\n" in said


def test_a_checkpoint_of_another_run_is_refused(gpt, whole, tmp_path):
    with pytest.raises(
        SystemExit, match=r"another run, with width 16 \(now 32\), seed 0 \(now 5\)"
    ):
        gpt.main([*SMALL, "--out", str(whole), "--resume", "--width", "32", "--seed", "5"])
    with pytest.raises(SystemExit, match="has no checkpoint; start without it"):
        gpt.main([*SMALL, "--out", str(tmp_path), "--resume"])


def test_pagerank_finds_what_one_device_finds(capsys):
    sys.path.insert(0, str(EXAMPLES))
    try:
        import pagerank
    finally:
        sys.path.remove(str(EXAMPLES))
    found = []
    for devices in ("1", "3"):
        pagerank.main(["--pages", "99", "--links", "3", "--devices", devices])
        found.append(capsys.readouterr().out.splitlines()[1:])
    assert found[0] == found[1]
    assert found[0][0].startswith("page 0 has the rank 0.")


@pytest.mark.slow
def test_long_context_learns_on_cut_texts(gpt, tmp_path, capsys):
    import long_context

    last = long_context.main(["--steps", "25", "--context", "64", "--out", str(tmp_path)])
    first = float(capsys.readouterr().out.split("loss ")[1].split()[0])
    assert last < first - 1
    assert (tmp_path / "long_context.png").read_bytes().startswith(b"\x89PNG")
