"""Several processes save together; here they are threads, each with the shards of its device."""

import threading
import uuid

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.sharding import Device, Shard
from funcgrad.errors import CheckpointError
from funcgrad.io.checkpoints import saving as checkpoint_save
from funcgrad.io.checkpoints.checkpoint import Checkpointer, Processes, contents, load, save
from funcgrad.parallel import NamedSharding, P, make_mesh
from tests.parallel.threads import PATIENCE

SHAPE = (8, 4)
VALUE = np.arange(32, dtype="float32").reshape(SHAPE)


class OnRanks:
    """A sharded array as process k of several sees it: the parts of its own device."""

    weak_type = False

    def __init__(self, value: np.ndarray, sharding: NamedSharding, process: int):
        self.value, self.sharding, self.process = value, sharding, process
        self.shape, self.dtype = value.shape, value.dtype

    @property
    def addressable_shards(self):
        where = self.sharding.devices_indices_map(self.shape)
        seen: dict = {}
        for device, index in where.items():
            replica = seen.setdefault(str(index), -1) + 1
            seen[str(index)] = replica
            if device.process_index == self.process:
                yield Shard(device, index, replica, self.value[index])


def ranks_mesh(shape, names):
    n = int(np.prod(shape))
    return make_mesh(shape, names, devices=[Device(i, i, "rank") for i in range(n)])


def on_all(n, work):
    """work(k) on n threads; results or exceptions."""
    results: list = [None] * n

    def run(k):
        try:
            results[k] = work(k)
        except Exception as e:
            results[k] = e

    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert not any(t.is_alive() for t in threads), "a process hangs"
    return results


def processes(n):
    session = uuid.uuid4().hex
    return [Processes(k, n, session) for k in range(n)]


def save_on(n, path, tree_of, **options):
    who = processes(n)
    return on_all(n, lambda k: save(path, tree_of(k), processes=who[k], **options).wait())


@pytest.mark.parametrize(
    ("sizes", "spec"),
    [((2,), P("a")), ((4,), P(None, "a")), ((4,), P()), ((2, 2), P("b")), ((2, 2), P("a", "b"))],
)
@pytest.mark.parametrize("count", [None, 2, 4])
def test_saved_by_several_loaded_by_others(sizes, spec, count, tmp_path):
    cut = NamedSharding(ranks_mesh(sizes, ("a", "b")[: len(sizes)]), spec)
    n = cut.mesh.size
    results = save_on(
        n,
        tmp_path / "c",
        lambda k: {"x": OnRanks(VALUE, cut, k), "plain": fnp.ones(3), "n": 5},
        metadata="m",
    )
    assert results == [tmp_path / "c"] * n
    written = sorted(p.name for p in (tmp_path / "c").iterdir())
    parts = n if spec.axes() == cut.mesh.axis_names else cut.mesh.extent(spec.axes())
    assert len([w for w in written if w.startswith("shard")]) == parts
    assert all(w.startswith(("shard", "manifest")) for w in written)
    found = contents(tmp_path / "c")
    assert (found.processes, found.metadata) == (n, "m")
    there = None if count is None else NamedSharding(make_mesh((count,), "z"), P("z"))
    like = {"x": fg.ShapeDtypeStruct(SHAPE, "float32", sharding=there), "plain": fnp.zeros(3)}
    back = load(tmp_path / "c", like | {"n": 0})
    assert np.array_equal(back["x"], VALUE)
    assert (back["plain"].tolist(), back["n"]) == ([1.0, 1.0, 1.0], 5)


def test_checkpointers(tmp_path):
    cut = NamedSharding(ranks_mesh((3,), "a"), P("a"))
    who = processes(3)

    def run(k):
        with Checkpointer(tmp_path, keep=2, processes=who[k]) as c:
            for step in range(5):
                c.save(step, {"x": OnRanks(np.full(6, step), cut, k)})
            c.wait()
            return c.latest()

    assert on_all(3, run) == [4, 4, 4]
    c = Checkpointer(tmp_path)
    assert c.steps() == [3, 4]
    assert c.restore({"x": np.zeros(6, int)})["x"].tolist() == [4] * 6


def broken_on(monkeypatch, process):
    write = checkpoint_save.write_shard

    def broken(path, tensors):
        if path.name == f"shard_{process:05d}.safetensors":
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return write(path, tensors)

    monkeypatch.setattr(checkpoint_save, "write_shard", broken)


@pytest.mark.parametrize("process", [0, 1, 2])
def test_one_process_can_not_write(process, monkeypatch, tmp_path):
    cut = NamedSharding(ranks_mesh((3,), "a"), P("a"))
    save_on(3, tmp_path / "c", lambda k: OnRanks(np.zeros(6), cut, k))
    with monkeypatch.context() as m:
        broken_on(m, process)
        results = save_on(3, tmp_path / "c", lambda k: OnRanks(np.ones(6), cut, k))
    for e in results:
        assert isinstance(e, CheckpointError)
        assert "No space left" in str(e)
    if process:
        assert f"failed in process {process}" in str(results[0])
    assert load(tmp_path / "c", np.zeros(6)).tolist() == [0.0] * 6
    save_on(3, tmp_path / "c", lambda k: OnRanks(np.ones(6), cut, k))
    assert load(tmp_path / "c", np.zeros(6)).tolist() == [1.0] * 6
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("absent", [0, 1])
def test_a_process_that_never_comes(absent, tmp_path):
    cut = NamedSharding(ranks_mesh((2,), "a"), P("a"))
    who = processes(2)[1 - absent]
    waits = f"process {1 - absent} has waited for process {absent} to"
    with pytest.raises(CheckpointError, match=waits):
        save(tmp_path / "c", OnRanks(np.ones(6), cut, who.index), processes=who, timeout=0.2)
    save(tmp_path / "c", 1)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("trees", "words"),
    [
        (({"a": 1}, {"b": 1}), r"save different trees: \"\['a'\]\" in one, \"\['b'\]\" in"),
        (({"a": 1}, {"a": 1, "b": 2}), "1 leaves, and 2 leaves"),
        (({"a": 1}, {"a": 1.0}), r"\['a'\] is a Python int, and a Python float"),
        (({"a": 1}, {"a": 2}), r"\['a'\] differs between processes 0 and 1"),
        (({"a": np.ones(3)}, {"a": np.ones(4)}), r"float64 of shape \(3,\), and .* \(4,\)"),
        (({"a": np.ones(3)}, {"a": np.zeros(3)}), r"\['a'\] differs between .* gather"),
    ],
)
def test_processes_that_disagree(trees, words, tmp_path):
    results = save_on(2, tmp_path / "c", lambda k: trees[k])
    for e in results:
        with pytest.raises(CheckpointError, match=words):
            raise e


def test_a_piece_that_nobody_has(tmp_path):
    cut = NamedSharding(ranks_mesh((2,), "a"), P("a"))
    results = save_on(2, tmp_path / "c", lambda k: {"x": OnRanks(np.ones(6), cut, 0)})
    assert "pieces of ['x'] overlap" in str(results[0])
    results = save_on(2, tmp_path / "c", lambda k: {"x": OnRanks(np.ones(6), cut, 7)})
    assert "the pieces of ['x'] hold 0 elements of 6" in str(results[0])


@pytest.mark.mpi
@pytest.mark.parametrize("n", [2, 3])
def test_mpi_ranks(n, ranks, tmp_path):
    job = "tests.io.checkpoint_jobs:run"
    assert ranks(n).run(job, str(tmp_path / "run")) == [(3, n)] * n
    c = Checkpointer(tmp_path / "run")
    assert c.steps() == [2, 3]
    found = c.restore({"x": np.zeros((6, 2), "float32"), "step": 0})
    assert (found["x"] == 3).all()


@pytest.mark.mpi
def test_a_rank_that_is_killed(ranks, tmp_path):
    """While all save, again and again: the step before is there, and the next job goes on."""
    folder = str(tmp_path / "run")
    with pytest.raises(AssertionError, match="has ended|failed on rank"):
        ranks(3).run("tests.io.checkpoint_jobs:killed", folder)
    last = Checkpointer(folder).latest()
    assert last >= 3
    like = {"x": np.zeros((6, 2), "float32"), "step": 0}
    found = Checkpointer(folder).restore(like)
    assert found["step"] == last
    assert (found["x"] == last).all()
    assert ranks(2).run("tests.io.checkpoint_jobs:run", folder, last + 1) == [(last + 4, 2)] * 2
