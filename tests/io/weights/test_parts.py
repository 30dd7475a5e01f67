"""Weights that are cut as they are read."""

import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

import funcgrad as fg
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.io.weights import load_gguf, load_safetensors
from funcgrad.io.weights.parts import Blocks
from tests.io.weights.test_gguf import gguf

MESH = fg.make_mesh((2, 2), ("data", "model"))


def cut(name, aval):
    """Matrices by rows and columns; others whole."""
    return fg.NamedSharding(MESH, fg.P("data", "model")) if len(aval.shape) == 2 else None


def test_safetensors_are_cut(tmp_path):
    w = np.arange(32, dtype="f4").reshape(4, 8)
    save_file({"layer.w": w, "layer.b": np.ones(3, "f4")}, tmp_path / "a.safetensors")
    for path in (tmp_path, tmp_path / "a.safetensors"):
        found = load_safetensors(path, shardings=cut)["layer"]
        assert found["w"].sharding == cut("w", w)
        np.testing.assert_array_equal(np.asarray(found["w"]), w)
        assert isinstance(found["b"], np.ndarray)
    assert str(fg.jit(lambda x: x @ x.T)(found["w"])[0, 0]) == "140.0"


def test_blocks_of_gguf_become_floats_part_by_part(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    rows = [struct.pack("<e", s) + rng.bytes(32) for s in rng.uniform(0.1, 1, 8)]
    path = tmp_path / "q.gguf"
    path.write_bytes(gguf([("blk.w", (4, 64), 8, b"".join(rows))]))
    whole = load_gguf(path, flat=True)[0]["blk.w"]
    assert whole.shape == (4, 64)
    seen = []
    part = Blocks.part
    monkeypatch.setattr(Blocks, "part", lambda self, index: seen.append(index) or part(self, index))
    found = load_gguf(path, flat=True, shardings=cut)[0]["blk.w"]
    np.testing.assert_array_equal(np.asarray(found), whole)
    assert sorted((r.start, c.start) for r, c in seen) == [(0, 0), (0, 32), (2, 0), (2, 32)]


def test_parts_of_rows_are_made_of_their_own_blocks():
    made = []

    def meaning(raw):
        made.append(len(raw))
        return raw[:, :1] + np.arange(4, dtype="f4")

    raw = np.arange(12, dtype="u1").reshape(3, 2, 2) * 4
    blocks = Blocks((3, 8), raw, meaning)
    whole = blocks.whole()
    np.testing.assert_array_equal(whole[0], [0, 1, 2, 3, 8, 9, 10, 11])
    for columns, count in ((slice(4, 8), 1), (slice(3, 6), 2), (slice(0, 2), 1), (slice(2, 2), 1)):
        found = blocks.part((slice(1, 3), columns))
        np.testing.assert_array_equal(found, whole[1:3, columns])
        assert made[-1] == 2 * count


def test_what_is_no_sharding(tmp_path):
    save_file({"w": np.ones((3, 4), "f4")}, tmp_path / "a.safetensors")
    with pytest.raises(ArgumentError, match="function of an array's name and type, got NamedSh"):
        load_safetensors(tmp_path, shardings=cut("w", np.ones((2, 2))))
    with pytest.raises(ArgumentError, match="of w must be a NamedSharding or None, got 'data'"):
        load_safetensors(tmp_path, shardings=lambda name, aval: "data")
    with pytest.raises(ShardingError, match="shardings of w: .* of size 3, can't be cut into 2"):
        load_safetensors(tmp_path, shardings=cut)
