"""examples/dlrm.py in small: it learns what was planted, serves, and goes on as if it had never
stopped."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import recsys
from funcgrad.io.checkpoints import checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"
pytest.importorskip("pyarrow")
SMALL = ["--steps", "40", "--batch", "256", "--dim", "4", "--held-out", "4", "--save-every", "15"]


@pytest.fixture(scope="module")
def dlrm():
    sys.path.insert(0, str(EXAMPLES))
    import dlrm

    yield dlrm
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def whole(dlrm, tmp_path_factory):
    """The folder of a run without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    dlrm.main([*SMALL, "--out", str(folder)])
    return folder


def losses(folder):
    return np.array(checkpoint.contents(folder / "checkpoints").metadata["losses"])


def test_it_learns_and_serves(dlrm, tmp_path, capsys):
    dlrm.main([*SMALL, "--learning-rate", "0.1", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    found = losses(tmp_path)
    assert len(found) == 40
    assert found[-10:].mean() < found[:3].mean() - 0.05
    auc, limit = re.search(r"AUC ([.\d]+) \(the true logits have ([.\d]+)\)", said).groups()
    assert 0.55 < float(auc) < float(limit)
    assert "ms a step" in said
    assert len(re.findall(r"\d+ \(\d+%\)", said)) == 5


@pytest.mark.long
def test_a_resumed_run_is_the_whole_run(dlrm, whole, tmp_path):
    dlrm.main([*SMALL, "--out", str(tmp_path), "--stop-at", "20"])
    assert len(losses(tmp_path)) == 20
    dlrm.main([*SMALL, "--out", str(tmp_path), "--resume"])
    np.testing.assert_array_equal(losses(tmp_path), losses(whole))


def test_a_checkpoint_of_another_run_is_refused(dlrm, whole, tmp_path):
    with pytest.raises(SystemExit, match=r"another run, with dim 4 \(now 8\)"):
        dlrm.main([*SMALL, "--out", str(whole), "--resume", "--dim", "8"])
    with pytest.raises(SystemExit, match="has no checkpoint; start without it"):
        dlrm.main([*SMALL, "--out", str(tmp_path), "--resume"])


def test_files_hold_what_was_made(dlrm, tmp_path):
    planted = dlrm.PlantedClicks(3)
    files = dlrm.ClickFiles(tmp_path, planted, 8)
    files.PER_FILE = 2
    files.write(0, 3)
    assert sorted(p.name for p in files.folder.iterdir()) == [
        "train-0000.parquet", "train-0001.parquet",
    ]  # fmt: skip
    for n in (0, 3, 1):
        got, want = files.batch(0, n), planted.batch(0, n, 8)
        for a, b in zip(fg.tree.leaves(got), fg.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_best_ads_are_the_best_scores(dlrm):
    clicks, cfg = dlrm.PlantedClicks(0), dlrm.models.DLRMConfig(tuple(dlrm.ROWS), dim=4)
    key = fg.random.key(0)
    tables = dlrm.models.init_tables(key, {k: (n, 4) for k, n in dlrm.ROWS.items()})
    params, user = dlrm.models.dlrm_init(key, cfg), clicks.batch(1, 0, 1)
    ads, chances = dlrm.top_ads(tables, params, user, cfg, 3)
    for ad, chance in zip(ads, chances, strict=True):
        ids = {k: x.values for k, x in user.ids.features().items()} | {dlrm.AD: np.array([ad])}
        one = recsys.KeyedJaggedTensor.from_columns(ids)
        logit = dlrm.logits_of(tables, params, user.dense, one, cfg)
        np.testing.assert_allclose(1 / (1 + np.exp(-np.asarray(logit)[0])), chance, rtol=1e-4)
    assert (np.diff(chances) <= 0).all()
