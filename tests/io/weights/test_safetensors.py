"""Safetensors files and folders as trees; files that break a rule of the format."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from funcgrad.errors import FormatError
from funcgrad.io import load_safetensors


def test_a_file_is_a_tree_by_names(tmp_path):
    path = tmp_path / "a.safetensors"
    x = np.arange(6, dtype="f4").reshape(2, 3)
    save_file({"layers.0.w": x, "layers.0.b": x[0].copy(), "n": np.array(3)}, path)
    tree = load_safetensors(path)
    np.testing.assert_array_equal(tree["layers"]["0"]["w"], x)
    assert tree["n"].shape == ()
    assert sorted(load_safetensors(path, flat=True)) == ["layers.0.b", "layers.0.w", "n"]


def test_a_folder_with_an_index(tmp_path):
    save_file({"a.w": np.zeros(2), "old": np.zeros(1)}, tmp_path / "1.safetensors")
    save_file({"b.w": np.ones(2)}, tmp_path / "2.safetensors")
    assert set(load_safetensors(tmp_path)) == {"a", "b", "old"}
    index = {"weight_map": {"a.w": "1.safetensors", "b.w": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(load_safetensors(tmp_path)) == {"a", "b"}
    index["weight_map"]["c"] = "3.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match="that no file holds: \\['c'\\]"):
        load_safetensors(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[")
    with pytest.raises(FormatError, match="no index"):
        load_safetensors(tmp_path)


def made(header, data=b""):
    head = json.dumps(header) if isinstance(header, dict) else header
    return len(head).to_bytes(8, "little") + head.encode() + data


def one(shape=(2,), dtype="F32", offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BAD = {
    "can't be read": made("{"),
    "no dictionary": made("[1]"),
    "ends behind": (1 << 20).to_bytes(8, "little") + b"{}",
    "more than the": (1 << 40).to_bytes(8, "little"),
    "has 8 bytes": made({"w": one((3,))}, b"\0" * 8),
    "none of": made({"w": one(dtype="F7")}, b"\0" * 8),
    "makes no array": made({"w": one((-2,))}, b"\0" * 8),
    "incomplete": made({"w": {"dtype": "F32"}}),
    "is the end of what": made({"a": one(), "b": one(offsets=(4, 12))}, b"\0" * 12),
    "there are 9": made({"w": one()}, b"\0" * 9),
    "stands twice": made('{"w": 1, "w": 2}'),
}


@pytest.mark.parametrize("match", BAD)
def test_files_that_break_a_rule(match, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(BAD[match])
    with pytest.raises(FormatError, match=match):
        load_safetensors(path)


def test_bfloat16_and_empty_folders(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(made({"w": one((4,), "BF16")}, np.ones(4, ml_dtypes.bfloat16).tobytes()))
    np.testing.assert_array_equal(load_safetensors(path)["w"].astype("f4"), np.ones(4, "f4"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="holds no safetensors"):
        load_safetensors(tmp_path / "empty")
