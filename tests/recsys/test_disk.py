"""Tables in files against an array in memory, and what is left after a process died."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from funcgrad import recsys
from funcgrad.errors import ArgumentError, CheckpointError, OutOfBoundsError
from funcgrad.recsys import disk

COLUMNS = {"rows": (3,), "sum": ()}


def table_of(folder, cache=8, rows=40):
    if not (folder / "table.json").exists():
        begin = {"rows": lambda a, b: np.arange(3 * a, 3 * b, dtype="float32").reshape(-1, 3)}
        recsys.create_disk_table(folder, rows, COLUMNS, begin)
    return recsys.DiskTable(folder, cache)


def train(table, want, rng, steps):
    """The same changes of a table in files and of one in memory."""
    for _ in range(steps):
        ids = rng.integers(0, 40, 6)
        slots = table.slots(ids)
        change = rng.normal(size=(6, 3)).astype("float32")
        np.testing.assert_array_equal(np.asarray(table.cache["rows"])[slots], want["rows"][ids])
        table.cache = {
            "rows": table.cache["rows"].at[slots].add(change),
            "sum": table.cache["sum"].at[slots].add(1.0),
        }
        np.add.at(want["rows"], ids, change)
        np.add.at(want["sum"], ids, 1)
        np.testing.assert_allclose(table.read(ids)["rows"], want["rows"][ids], rtol=1e-6)
        want["rows"][ids] = table.read(ids)["rows"]


def start():
    return {"rows": np.arange(120, dtype="float32").reshape(40, 3), "sum": np.zeros(40)}


def held(table):
    return table.read(np.arange(40))


def test_as_in_memory(rng, tmp_path):
    table, want = table_of(tmp_path), start()
    train(table, want, rng, 30)
    table.save()
    train(table, want, rng, 5)
    for x in (table, None):
        if x is None:
            table.save()
            x = table_of(tmp_path, cache=5)
        for k, v in held(x).items():
            np.testing.assert_array_equal(v, want[k])
    assert table.hits + table.misses == 35 * 6
    assert table.hits > 20


def test_what_was_not_saved_is_as_it_was_saved(rng, tmp_path):
    table, want = table_of(tmp_path), start()
    train(table, want, rng, 10)
    table.save()
    saved = {k: v.copy() for k, v in held(table).items()}
    train(table, want, rng, 10)
    for k, v in held(table_of(tmp_path)).items():
        np.testing.assert_array_equal(v, saved[k])


@pytest.mark.parametrize("at", ["before the rename", "after the rename", "half applied"])
def test_a_save_is_done_or_not(rng, tmp_path, monkeypatch, at):
    table, want = table_of(tmp_path), start()
    table.save()
    saved = held(table)
    train(table, want, rng, 10)

    def die(*args):
        raise KeyboardInterrupt

    if at == "before the rename":
        monkeypatch.setattr(disk.os, "replace", die)
    else:
        monkeypatch.setattr(table, "_recover", die)
    with pytest.raises(KeyboardInterrupt):
        table.save()
    monkeypatch.undo()
    if at == "half applied":
        table._saved["rows"][:20] = -1
        with np.load(tmp_path / "journal.npz") as journal:
            assert set(journal["ids"].tolist()) <= set(range(40))
            table._saved["rows"][:] = np.where(
                np.isin(np.arange(40), journal["ids"])[:, None], -1, saved["rows"]
            )
    left = saved if at == "before the rename" else want
    again = table_of(tmp_path)
    assert not (tmp_path / "journal.npz").exists()
    for k, v in held(again).items():
        np.testing.assert_array_equal(v, left[k])


def test_killed(tmp_path):
    """A process that is killed in the midst leaves what it saved last."""
    table_of(tmp_path)
    program = (
        "import os, signal, sys, numpy as np\n"
        "from funcgrad import recsys\n"
        "table = recsys.DiskTable(sys.argv[1], 4)\n"
        "for i in range(20):\n"
        "    slots = table.slots([i])\n"
        "    cache = table.cache\n"
        "    table.cache = {k: v.at[slots].set(-1.0) for k, v in cache.items()}\n"
        "    if i == 9:\n"
        "        table.save()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=os.environ)
    assert done.returncode == -9
    rows = held(table_of(tmp_path))["rows"]
    assert (rows[:10] == -1).all()
    np.testing.assert_array_equal(rows[10:], start()["rows"][10:])


def test_rows_of_few_bits_in_files(tmp_path, rng):
    """A table for serving of which a cache has some rows, as they are in the file."""
    q = recsys.quantize_rows(rng.normal(size=(40, 6)).astype("float32"), 4)
    begin = {"values": lambda a, b: q.values[a:b], "scales": lambda a, b: q.scales[a:b]}
    dtype = {"values": "uint8", "scales": "float32"}
    recsys.create_disk_table(tmp_path, 40, {"values": (3,), "scales": ()}, begin, dtype)
    table = recsys.DiskTable(tmp_path, 8)
    for ids in ([3, 39, 3], [7, 8, 9, 10, 11, 12]):
        slots = table.slots(ids)
        cached = recsys.QuantizedTable(table.cache["values"], table.cache["scales"], 4)
        np.testing.assert_array_equal(
            recsys.embedding(cached, slots), recsys.embedding(q, np.array(ids))
        )
    with pytest.raises(ArgumentError, match="dtypes are for .'a'., columns are .'b'."):
        recsys.create_disk_table(tmp_path / "x", 4, {"b": ()}, dtype={"a": "int8"})


def test_refused(tmp_path):
    with pytest.raises(CheckpointError, match="has no table"):
        recsys.DiskTable(tmp_path, 4)
    table = table_of(tmp_path)
    with pytest.raises(CheckpointError, match="has a table already"):
        recsys.create_disk_table(tmp_path, 4, COLUMNS)
    with pytest.raises(ArgumentError, match="need rows and columns"):
        recsys.create_disk_table(tmp_path / "other", 0, COLUMNS)
    with pytest.raises(ArgumentError, match="cache must be 1 or more"):
        recsys.DiskTable(tmp_path, 0)
    for bad in (40, -1):
        with pytest.raises(OutOfBoundsError, match=f"slots: id {bad} at position 1 is none of 40"):
            table.slots([3, bad])
    with pytest.raises(ArgumentError, match="9 different ids don't fit into a cache of 8"):
        table.slots(np.arange(9))
    with pytest.raises(ArgumentError, match="ids must be integers"):
        table.read([1.5])
    shutil.copy(tmp_path / "table.json", tmp_path / "rows.npy")
    with pytest.raises(CheckpointError, match=r"rows\.npy"):
        recsys.DiskTable(tmp_path, 4)
