"""examples/gpt.py in small: it learns, leaves its files, and goes on as if it had never stopped."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

SOURCE = Path(__file__).parent.parent / "examples" / "gpt.py"
SMALL = ["--steps", "60", "--batch", "4", "--width", "16", "--layers", "1", "--save-every", "25"]


@pytest.fixture(scope="module")
def gpt():
    spec = importlib.util.spec_from_file_location("gpt_example", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def whole(gpt, tmp_path_factory):
    """The folder of a run without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    gpt.main([*SMALL, "--out", str(folder)])
    return folder


def test_it_learns_and_leaves_its_files(whole):
    losses = load_file(whole / "gpt.safetensors")["losses"]
    assert len(losses) == 60
    assert losses[0] == pytest.approx(np.log(100), rel=0.1)
    assert losses[-10:].mean() < losses[0] - 1
    assert (whole / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in whole.iterdir()) == ["gpt.safetensors", "loss.png"]


def test_a_resumed_run_is_the_whole_run(gpt, whole, tmp_path, capsys):
    gpt.main([*SMALL, "--out", str(tmp_path), "--stop-at", "35"])
    assert int(load_file(tmp_path / "gpt.safetensors")["['step']"]) == 35
    capsys.readouterr()
    gpt.main([*SMALL, "--out", str(tmp_path), "--resume"])
    wanted, got = (load_file(p / "gpt.safetensors") for p in (whole, tmp_path))
    assert wanted.keys() == got.keys()
    for name, tensor in wanted.items():
        assert np.array_equal(tensor, got[name]), name
    said = capsys.readouterr().out
    assert f"loss of step 60: {wanted['losses'][-1]:.6f}" in said
    assert "validation loss: " in said
    assert "--- a sample ---\n" in said


def test_a_checkpoint_of_another_run_is_refused(gpt, whole, tmp_path):
    with pytest.raises(
        SystemExit, match=r"another run, with width 16 \(now 32\), seed 0 \(now 5\)"
    ):
        gpt.main([*SMALL, "--out", str(whole), "--resume", "--width", "32", "--seed", "5"])
    with pytest.raises(SystemExit, match="there is no checkpoint .*start without --resume"):
        gpt.main([*SMALL, "--out", str(tmp_path), "--resume"])
    save_file({"x": np.zeros(2)}, tmp_path / "gpt.safetensors")
    with pytest.raises(SystemExit, match=r"another run, with .*width None \(now 16\)"):
        gpt.main([*SMALL, "--out", str(tmp_path), "--resume"])
