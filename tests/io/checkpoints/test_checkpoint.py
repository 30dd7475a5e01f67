"""Checkpoints: what goes in comes out, on any mesh; steps; errors."""

import json
import threading
from collections import namedtuple

import numpy as np
import pytest
from safetensors import safe_open

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, optim, random, tree
from funcgrad.core.array import Array
from funcgrad.errors import CheckpointError, DonatedBufferError, DTypeError
from funcgrad.io.checkpoints import checkpoint
from funcgrad.io.checkpoints import saving as checkpoint_save
from funcgrad.io.checkpoints.checkpoint import Checkpointer, contents, load, save
from funcgrad.parallel import NamedSharding, P, device_put, make_mesh

Point = namedtuple("Point", "x y")

MESHES = {
    "one": (make_mesh((1,), ("a",)), P("a")),
    "rows2": (make_mesh((2,), ("a",)), P("a")),
    "columns2": (make_mesh((2,), ("a",)), P(None, "a")),
    "rows4": (make_mesh((4,), ("a",)), P("a")),
    "whole4": (make_mesh((4,), ("a",)), P()),
    "grid": (make_mesh((2, 2), ("a", "b")), P("a", "b")),
    "turned": (make_mesh((2, 2), ("a", "b")), P("b", "a")),
    "both": (make_mesh((2, 2), ("a", "b")), P(None, ("b", "a"))),
    "half": (make_mesh((2, 2), ("a", "b")), P("b")),
}


def sharding(name):
    return None if name == "plain" else NamedSharding(*MESHES[name])


def assert_same(found, wanted):
    assert tree.structure(found) == tree.structure(wanted)
    for (path, a), b in zip(tree.leaves_with_path(found), tree.leaves(wanted), strict=True):
        where = tree.keystr(path)
        assert type(a) is type(b), where
        if isinstance(b, Array | np.ndarray | np.generic):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), where
            assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None), where
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), where
        else:
            assert a == b or a != a, where


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_dtypes(dtype, tmp_path, rng):
    small = dtype.name in ("int4", "uint4")
    bits = rng.integers(0, 8 if small else 2, (8, 12))
    values = bits.astype(dtype) if dtype.kind in "cb" or small else None
    if values is None:
        values = rng.integers(0, 256, (8, 12 * dtype.itemsize), np.uint8).view(dtype)
    if dtype.kind == "c":
        values = (rng.normal(size=(8, 12)) + 1j * rng.normal(size=(8, 12))).astype(dtype)
    state = {"x": Array(values), "scalar": Array(values[3, 4, ...]), "none": Array(values[:, :0])}
    save(tmp_path / "c", state)
    assert_same(load(tmp_path / "c", state), state)
    cut = NamedSharding(*MESHES["both"])
    like = {"x": fg.ShapeDtypeStruct((8, 12), dtype, sharding=cut)}
    found = load(tmp_path / "c", like, partial=True)["x"]
    assert found.sharding == cut
    assert np.asarray(found).tobytes() == values.tobytes()


def test_negative_int4(tmp_path):
    x = Array(np.arange(-8, 8).astype(dtypes.int4))
    save(tmp_path / "c", x)
    assert load(tmp_path / "c", x).astype("int32").tolist() == list(range(-8, 8))


@pytest.mark.parametrize("there", ["plain", *MESHES])
@pytest.mark.parametrize("here", ["plain", *MESHES])
def test_meshes(here, there, tmp_path):
    value = fnp.arange(8 * 12, dtype="float32").reshape(8, 12)
    x = device_put(value, sharding(here))
    save(tmp_path / "c", {"x": x})
    like = fg.ShapeDtypeStruct((8, 12), "float32", sharding=sharding(there))
    found = load(tmp_path / "c", {"x": like})["x"]
    assert np.array_equal(found, value)
    if there != "plain":
        assert found.sharding == sharding(there)


def test_replicas_are_written_once(tmp_path):
    x = device_put(fnp.ones((256, 64)), sharding("half"))
    folder = save(tmp_path / "c", x).wait()
    nbytes = (folder / "shard_00000.safetensors").stat().st_size
    assert 256 * 64 * 4 < nbytes < 256 * 64 * 4 + 1000


def test_a_tree_of_everything(tmp_path):
    params = {"layers": [{"w": fnp.ones((3, 5)), "b": fnp.zeros(5)}, {}], "none": None}
    state = {
        "params": params,
        "optimizer": optim.adamw(1e-3).init(params),
        "key": random.key(7),
        "point": Point(1.5, (np.arange(3), np.float64(2.5))),
        "weak": fnp.multiply(2.0, 3.0),
        "empty": fnp.zeros((0, 3)),
        "loader": {"epoch": 3, "shuffle": True, "name": "ε\udc80", "rate": 0.1, "rest": None},
        "numpy rng": np.random.default_rng(0).bit_generator.state,
        "odd floats": [float("inf"), float("-inf"), float("nan"), -0.0, 1e-320],
        "odd ints": [2**53, -(2**200), -1],
        "it's": {"a']['b": 1, "a": {"b": 2}},
    }
    assert state["weak"].weak_type
    save(tmp_path / "c", state)
    assert_same(load(tmp_path / "c", state), state)


@pytest.mark.parametrize("leaf", [fnp.arange(3), 5, "text", np.zeros(()), None, {}])
def test_trees_of_one_leaf_or_none(leaf, tmp_path):
    save(tmp_path / "c", leaf)
    assert_same(load(tmp_path / "c", leaf), leaf)


def test_other_orders_of_memory(tmp_path):
    base = np.arange(24, dtype=">f4").reshape(2, 3, 4)
    state = {"turned": base.T, "strided": base[:, ::2], "backwards": base[::-1]}
    save(tmp_path / "c", state)
    found = load(tmp_path / "c", state)
    for k, x in state.items():
        assert np.array_equal(found[k], x)
        assert found[k].dtype == np.float32


def test_loads_numpy_arrays_where_like_has_them(tmp_path):
    save(tmp_path / "c", fnp.ones(3))
    found = load(tmp_path / "c", np.zeros(3, "float32"))
    assert type(found) is np.ndarray
    found[0] = 5.0


def test_other_programs_can_read_it(tmp_path):
    x = fnp.arange(32, dtype="bfloat16").reshape(4, 8)
    folder = save(tmp_path / "c", {"x": x, "cut": device_put(x, sharding("rows2"))}).wait()
    with safe_open(folder / "shard_00000.safetensors", framework="numpy") as file:
        assert sorted(file.keys()) == ["['cut']@0:2,0:8", "['cut']@2:4,0:8", "['x']"]
        assert np.array_equal(file.get_tensor("['x']"), x)
        assert np.array_equal(file.get_slice("['cut']@2:4,0:8")[:, 2:4], x[2:, 2:4])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [leaf["path"] for leaf in manifest["leaves"]] == ["['cut']", "['x']"]


def test_contents(tmp_path):
    metadata = {"run": "a", "losses": [1.0, None, True]}
    state = {"w": device_put(fnp.ones((4, 4)), sharding("grid")), "epoch": 2}
    save(tmp_path, state, step=7, metadata=metadata)
    found = contents(tmp_path)
    assert (found.step, found.processes, found.metadata) == (7, 1, metadata)
    assert found.leaves == {"['epoch']": 2, "['w']": fg.ShapeDtypeStruct((4, 4), "float32")}


def test_partial(tmp_path):
    save(tmp_path / "c", {"params": fnp.ones(3), "moments": fnp.zeros(3)})
    like = {"params": fnp.zeros(3)}
    assert load(tmp_path / "c", like, partial=True)["params"].tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(CheckpointError, match=r"has \['moments'\], which `like` lacks; partial"):
        load(tmp_path / "c", like)


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({"w": fnp.zeros((3, 4)), "n": 1, "m": 1}, r"lacks \['m'\], which `like` has"),
        ({"w": fnp.zeros((3, 4))}, r"has \['n'\], which `like` lacks"),
        ({"w": fnp.zeros((4, 3)), "n": 1}, r"\['w'\] is float32 of shape \(3, 4\).*\(4, 3\)"),
        ({"w": fnp.zeros((3, 4), "int32"), "n": 1}, r"\['w'\] is float32 .* has int32"),
        ({"w": 1.0, "n": 1}, r"\['w'\] is float32 .* has a Python float"),
        ({"w": fnp.zeros((3, 4)), "n": 1.0}, r"\['n'\] is a Python int .* has a Python float"),
        ({"w": fnp.zeros((3, 4)), "n": True}, r"\['n'\] is a Python int .* has a Python bool"),
        ({"w": fnp.zeros((3, 4)), "n": fnp.array(1)}, r"\['n'\] is a Python int .* has int32"),
    ],
)
def test_like_differs(like, words, tmp_path):
    save(tmp_path / "c", {"w": fnp.zeros((3, 4)), "n": 1})
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path / "c", like)


def test_what_can_not_be_saved(tmp_path):
    path = tmp_path / "c"
    with pytest.raises(TypeError, match=r"save: \['f'\]\[1\] is a bytes; what can be saved"):
        save(path, {"f": [1, b"x"]})
    with pytest.raises(DTypeError, match=r"save: \['x'\] has dtype object"):
        save(path, {"x": np.array([None])})
    with pytest.raises(DTypeError, match="the tree itself has dtype .*U3"):
        save(path, np.array(["abc"]))
    with pytest.raises(TypeError, match=r"\['x'\] is traced"):
        fg.jit(lambda x: save(path, {"x": x}))(1.0)
    with pytest.raises(TypeError, match="metadata must be what JSON can hold"):
        save(path, 1, metadata={1, 2})
    with pytest.raises(ValueError, match="step must be an integer of at least 0, got -1"):
        save(path, 1, step=-1)
    with pytest.raises(TypeError, match=r"\[0\] can't be saved: Exceeds the limit"):
        save(path, [10**5000])
    donated = fnp.ones(3)
    donated.delete()
    with pytest.raises(DonatedBufferError):
        save(path, donated)
    assert not list(tmp_path.iterdir())


def test_nothing_else_is_written_over(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "precious.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="results exists and is no checkpoint"):
        save(tmp_path / "results", 1)
    with pytest.raises(CheckpointError, match="file exists and is no folder"):
        save(tmp_path / "file", 1)
    save(tmp_path / "results", 1, step=0)
    assert (tmp_path / "results" / "precious.txt").exists()


def test_replaces_a_checkpoint(tmp_path):
    for value in range(3):
        save(tmp_path / "c", {"n": value})
    assert load(tmp_path / "c", {"n": 0}) == {"n": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no checkpoint and has none"):
        load(tmp_path / "c", 1)
    save(tmp_path, 1, step=3)
    with pytest.raises(FileNotFoundError, match=r"has no step 4; it has the steps \[3\]"):
        load(tmp_path, 1, step=4)
    with pytest.raises(FileNotFoundError, match="restore: .* has none"):
        Checkpointer(tmp_path / "d").restore(1)


def test_steps(tmp_path):
    with Checkpointer(tmp_path / "run", keep=2) as c:
        assert (c.steps(), c.latest()) == ([], None)
        for step in (0, 5, 1000000, 12):
            c.save(step, {"n": step}, metadata={"loss": step / 2})
        c.wait()
        assert c.steps() == [12, 1000000]
        assert c.latest() == 1000000
        assert c.restore({"n": 0}) == {"n": 1000000}
        assert c.restore({"n": 0}, 12) == {"n": 12}
        assert c.contents(12).metadata == {"loss": 6.0}
        c.save(3, {"n": 3})  # stays, though it isn't among the last
        c.wait()
        assert c.steps() == [3, 12, 1000000]
    (tmp_path / "run" / "step_000abc").mkdir()
    (tmp_path / "run" / "step_000099").mkdir()
    (tmp_path / "run" / "step_0000012").mkdir()
    assert Checkpointer(tmp_path / "run").steps() == [3, 12, 1000000]
    with pytest.raises(ValueError, match="keep must be at least 1"):
        Checkpointer(tmp_path, keep=0)


def test_fallback(tmp_path):
    c = Checkpointer(tmp_path, asynchronous=False)
    for step in (1, 2, 3):
        c.save(step, {"x": fnp.full(3, float(step))})
    (tmp_path / "step_000003" / "shard_00000.safetensors").unlink()
    (tmp_path / "step_000002" / "manifest.json").write_text("{}")
    like = {"x": fnp.zeros(3)}
    with pytest.raises(CheckpointError, match="step_000003/shard_00000.safetensors: the manifest"):
        c.restore(like)
    with pytest.warns(UserWarning, match="passing over step") as warned:
        found = c.restore(like, fallback=True)
    assert found["x"].tolist() == [1.0, 1.0, 1.0]
    assert len(warned) == 2
    with pytest.raises(CheckpointError, match=r"\['y'\]"), pytest.warns(UserWarning, match="over"):
        c.restore({"y": fnp.zeros(3)}, fallback=True)
    (tmp_path / "step_000001" / "manifest.sha256").unlink()
    with (
        pytest.raises(CheckpointError, match="no whole checkpoint"),
        pytest.warns(UserWarning, match="over"),
    ):
        c.restore(like, fallback=True)


@pytest.fixture
def held(monkeypatch):
    """An event that background saves wait for before they write."""
    event = threading.Event()
    write = checkpoint_save.write_shard

    def late(path, tensors):
        assert event.wait(240)
        return write(path, tensors)

    monkeypatch.setattr(checkpoint_save, "write_shard", late)
    yield event
    event.set()


@pytest.mark.parametrize("mesh", ["plain", "rows2", "both"])
def test_donation_and_changes_during_a_save(mesh, held, tmp_path):
    state = {"x": device_put(fnp.ones((64, 64)), sharding(mesh)), "loader": np.zeros(3)}
    like = {"x": state["x"], "loader": np.zeros(3)}
    saving = save(tmp_path / "c", state, asynchronous=True)
    step = fg.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = state["x"]
    for _ in range(3):
        x = step(x)
    state["loader"] += 7
    assert state["x"].is_deleted()
    assert not saving.done()
    held.set()
    saving.wait()
    assert saving.done()
    like["x"] = fg.ShapeDtypeStruct((64, 64), "float32", sharding=sharding(mesh))
    found = load(tmp_path / "c", like)
    assert np.array_equal(found["x"], np.ones((64, 64)))
    assert np.array_equal(found["loader"], np.zeros(3))
    assert np.array_equal(x, np.full((64, 64), 15.0))


def test_errors_surface_at_wait_and_at_the_next_save(monkeypatch, tmp_path, capsys):
    def broken(path, tensors):
        raise OSError(28, "No space left on device")

    c = Checkpointer(tmp_path)
    c.save(1, {"x": fnp.ones(3)})
    c.wait()
    with monkeypatch.context() as m:
        m.setattr(checkpoint_save, "write_shard", broken)
        c.save(2, {"x": fnp.ones(3)})
        with pytest.raises(CheckpointError, match="step_000002 failed: .*No space left"):
            c.wait()
        c.wait()
        c.save(3, {"x": fnp.ones(3)})
        with pytest.raises(CheckpointError, match="step_000003 failed: .*No space left"):
            c.save(4, {"x": fnp.ones(3)})
        save(tmp_path / "lost", fnp.ones(3), asynchronous=True)
        for thread in threading.enumerate():
            if thread.name == "saving lost":
                thread.join()
    assert "lost was not saved" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000001"]
    assert c.latest() == 1


def test_two_savers_at_once(tmp_path):
    """Of the same name: one of them wins, whole, and nothing is left behind."""

    def work(n):
        for _ in range(8):
            save(tmp_path / "c", {"n": n, "x": fnp.full(1000, float(n))})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    found = []
    while any(t.is_alive() for t in threads):
        try:
            found.append(contents(tmp_path / "c").leaves["['n']"])
        except FileNotFoundError:
            assert not found, "a checkpoint that was there is gone"
        except CheckpointError:
            pass  # replaced while it was read
    for t in threads:
        t.join()
    like = {"n": 0, "x": fnp.zeros(1000)}
    last = load(tmp_path / "c", like)
    assert last["x"].tolist() == [float(last["n"])] * 1000
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert checkpoint.TIMEOUT > 0
