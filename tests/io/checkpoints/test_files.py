"""Damaged checkpoints are found out, and the message names the file."""

import hashlib
import json
import shutil
import zlib

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import CheckpointError
from funcgrad.io.checkpoints import files
from funcgrad.io.checkpoints.checkpoint import load, save
from funcgrad.io.checkpoints.files import ShardReader, write_shard
from funcgrad.parallel import NamedSharding, P, make_mesh

SHARD = "shard_00000.safetensors"


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 256)
    monkeypatch.setattr(files, "_CHUNK", 1024)


@pytest.fixture
def saved(tmp_path, rng):
    state = {
        "a": rng.normal(size=(16, 9)).astype("float32"),
        "b": rng.integers(0, 99, (5, 4, 3)),
        "c": np.float32(2.0),
        "n": 3,
    }
    return save(tmp_path / "c", state).wait(), state


def test_every_changed_byte_is_found(small_blocks, saved, rng):
    folder, state = saved
    for file in folder.iterdir():
        whole = file.read_bytes()
        for at in {0, len(whole) - 1, *rng.integers(0, len(whole), 40).tolist()}:
            broken = bytearray(whole)
            broken[at] ^= int(rng.integers(1, 256))
            file.write_bytes(broken)
            with pytest.raises(CheckpointError, match=f"{folder}.*{file.stem}"):
                load(folder, state)
        file.write_bytes(whole)
    load(folder, state)


@pytest.mark.parametrize("name", [SHARD, "manifest.json", "manifest.sha256"])
def test_truncated_longer_and_missing_files(name, saved):
    folder, state = saved
    whole = (folder / name).read_bytes()
    for broken in (b"", whole[:5], whole[:-1], whole + b"x"):
        (folder / name).write_bytes(broken)
        with pytest.raises(CheckpointError, match=name):
            load(folder, state)
    (folder / name).unlink()
    error = FileNotFoundError if name == "manifest.json" else CheckpointError
    with pytest.raises(error, match=str(folder)):
        load(folder, state)


def test_messages_say_what_was_found_and_needed(saved):
    folder, state = saved
    file = folder / SHARD
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    n = len(whole)
    with pytest.raises(
        CheckpointError, match=f"truncated: it has {n - 10} bytes, the manifest {n}"
    ):
        load(folder, state)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"corrupt between bytes 0 and \d+: the checksum is"):
        load(folder, state)


def rewrite(folder, change):
    """Change the manifest and give it a checksum that fits: not damage, but nonsense."""
    found = json.loads((folder / "manifest.json").read_text())
    change(found)
    text = json.dumps(found).encode()
    (folder / "manifest.json").write_bytes(text)
    sum_ = hashlib.sha256(text).hexdigest()
    (folder / "manifest.sha256").write_text(f"{sum_}  manifest.json\n")


def leaf(**fields):
    return lambda m: m["leaves"][0].update(fields)


def piece(**fields):
    return lambda m: m["leaves"][0]["pieces"][0].update(fields)


def file_of(**fields):
    return lambda m: m["files"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(version=2), "format version 2; this funcgrad reads 1"),
        (lambda m: m.update(format="x"), "format is 'x'"),
        (lambda m: m.pop("files"), "the manifest lacks the field 'files'"),
        (lambda m: m.update(leaves={}), r"'leaves' of the manifest can't be \{\}"),
        (lambda m: m["leaves"].append(m["leaves"][0]), "a leaf twice"),
        (leaf(dtype="object"), r"'dtype' of the leaf \['a'\] can't be 'object'"),
        (leaf(shape=[16, -9]), "can't be"),
        (leaf(shape=[16, 10]), r"pieces of \['a'\] hold 144 elements of 160"),
        (leaf(pieces=[]), r"pieces of \['a'\] hold 0 elements of 144"),
        (leaf(pieces=[3]), r"a piece of \['a'\] must be a JSON object, found 3"),
        (leaf(type="eval"), "can't be 'eval'"),
        (piece(stop=[17, 9]), r"lies outside shape \(16, 9\)"),
        (piece(stop=[16]), "lies outside"),
        (piece(file="shard_00001.safetensors"), "which isn't listed"),
        (piece(tensor="['b']"), r"\['b'\]\S is I64 of shape \[5, 4, 3\], the manifest says F32"),
        (piece(tensor="['z']"), "has no tensor \"\\['z'\\]\""),
        (file_of(name="../../secret"), "can't be '../../secret'"),
        (file_of(name="shard_00001.safetensors"), "isn't listed"),
        (file_of(crc32=[]), "has 0 checksums"),
        (file_of(crc32=["xyz"]), "can't be"),
        (file_of(block_bytes=0), "can't be 0"),
        (file_of(bytes=True), "can't be True"),
    ],
)
def test_nonsense_in_the_manifest(change, words, saved):
    folder, state = saved
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=words):
        load(folder, state)


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100000, "null", "\x00"])
def test_no_manifest_at_all(text, saved):
    folder, state = saved
    rewrite(folder, lambda m: None)
    (folder / "manifest.json").write_text(text)
    sum_ = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.sha256").write_text(f"{sum_}  manifest.json\n")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load(folder, state)


def test_a_file_of_another_checkpoint(saved, tmp_path):
    folder, state = saved
    other = save(tmp_path / "d", state | {"c": np.float32(3.0)}).wait()
    shutil.copy(other / SHARD, folder / SHARD)
    with pytest.raises(CheckpointError, match=f"{SHARD}: corrupt"):
        load(folder, state)


@pytest.mark.parametrize("header", [b"{}", b"[]", b"nonsense", b'{"x": 3}', b'{"x": {}}'])
def test_headers(header, tmp_path):
    x = np.zeros(3, "int8")
    record = write_shard(tmp_path / SHARD, [("x", x)])
    ShardReader(tmp_path, record).close()
    text = header.ljust(record.nbytes - 8 - 3)
    data = len(text).to_bytes(8, "little") + text + bytes(3)
    (tmp_path / SHARD).write_bytes(data)
    forged = files.ShardFile(SHARD, len(data), (zlib.crc32(data),), 1024)
    with pytest.raises(CheckpointError, match=f"{SHARD}: (its header|it has no tensor)"):
        ShardReader(tmp_path, forged).read("x", np.dtype("int8"), (3,), (0,), x)


def test_only_overlapping_blocks_are_read(small_blocks, tmp_path):
    """Damage in a part that no one asks for is not seen, and costs nothing."""
    x = np.arange(64 * 64, dtype="float32").reshape(64, 64)
    folder = save(tmp_path / "c", {"x": x, "y": x}).wait()
    file = folder / SHARD
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    load(folder, {"x": x}, partial=True)
    with pytest.raises(CheckpointError, match="corrupt between bytes"):
        load(folder, {"x": x, "y": x})


@pytest.mark.parametrize("spec", [P("a"), P(None, "a"), P(None, None, "a"), P("a", None, "b")])
def test_chunked_reading(spec, small_blocks, tmp_path):
    """Arrays of many chunks, and of rows longer than one."""
    mesh = make_mesh((2, 2), ("a", "b"))
    x = fnp.arange(4 * 30 * 40).reshape(4, 30, 40)
    folder = save(tmp_path / "c", {"x": x, "long": x.reshape(4, 1200)}).wait()
    like = {
        "x": fg.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)),
        "long": fg.ShapeDtypeStruct((4, 1200), x.dtype, sharding=NamedSharding(mesh, P(None, "b"))),
    }
    found = load(folder, like)
    assert np.array_equal(found["x"], x)
    assert np.array_equal(found["long"], x.reshape(4, 1200))
