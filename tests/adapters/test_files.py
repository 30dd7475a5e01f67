"""PEFT's files: their names, shapes and fields, and adapters that come back as they went."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, random, tree
from funcgrad.adapters import load_adapters, save_adapters
from funcgrad.errors import CheckpointError

RNG = np.random.default_rng(0)
IDS = np.array([[1, 2, 3, 6], [0, 0, 4, 5]])


def model(p, ids):
    h = p["emb.weight"][ids]
    h = lax.conv_general_dilated(h[:, None], p["conv.weight"], (1, 1), "SAME").sum(1)
    h = lax.scan(lambda h, w: (h @ w, None), h, p["layers.w"])[0]
    return h @ p["q_proj.weight"].T


def normal(*shape):
    return fnp.asarray(RNG.standard_normal(shape), "float32")


PARAMS = {
    "emb.weight": normal(7, 6),
    "conv.weight": normal(4, 1, 3, 3),
    "layers.w": normal(3, 6, 6),
    "q_proj.weight": normal(5, 6),
}


def made(kind="lora", rank=2):
    _, _, adapters = fg.lora(
        model, PARAMS, ".", random.key(0), rank=rank, alpha=5, kind=kind, inputs=(IDS,)
    )
    return tree.map(lambda x: x + normal(*x.shape), adapters)


@pytest.mark.parametrize("kind", ["lora", "rslora", "dora"])
def test_round_trip(tmp_path, kind):
    adapters = made(kind)
    if kind == "dora":  # of which PEFT's files have no magnitudes of embeddings
        del adapters["emb.weight"]
    save_adapters(tmp_path, adapters)
    like = {name: a for name, a in made(rank=3).items() if name in adapters}
    loaded = load_adapters(tmp_path, like)
    assert tree.structure(loaded) == tree.structure(adapters)
    tree.map(np.testing.assert_array_equal, loaded, adapters)


def test_names_and_shapes_are_those_of_peft(tmp_path):
    adapters = made()
    save_adapters(tmp_path, adapters)
    found = {k: v.shape for k, v in load_file(tmp_path / "adapter_model.safetensors").items()}
    prefix = "base_model.model."
    layers = {
        f"{prefix}layers.{i}.lora_{f}.weight": s
        for i in range(3)
        for f, s in (("A", (2, 6)), ("B", (6, 2)))
    }
    assert found == layers | {
        f"{prefix}emb.lora_embedding_A": (2, 7),
        f"{prefix}emb.lora_embedding_B": (6, 2),
        f"{prefix}conv.lora_A.weight": (2, 1, 3, 3),
        f"{prefix}conv.lora_B.weight": (4, 2, 1, 1),
        f"{prefix}q_proj.lora_A.weight": (2, 6),
        f"{prefix}q_proj.lora_B.weight": (5, 2),
    }
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (2, 5.0, False)
    assert config["target_modules"] == ["conv", "emb", "layers.0", "layers.1", "layers.2", "q_proj"]
    a = load_file(tmp_path / "adapter_model.safetensors")[f"{prefix}q_proj.lora_A.weight"]
    np.testing.assert_array_equal(a, np.asarray(adapters["q_proj.weight"].a).T)


def test_other_names(tmp_path):
    naming = lambda leaf, place: ".".join(["model", *map(str, place), leaf.partition(".")[0]])
    adapters = made()
    save_adapters(tmp_path, adapters, naming)
    assert "base_model.model.model.1.layers.lora_A.weight" in load_file(
        tmp_path / "adapter_model.safetensors"
    )
    loaded = load_adapters(tmp_path, adapters, naming)
    tree.map(np.testing.assert_array_equal, loaded, adapters)
    with pytest.raises(CheckpointError, match="has no base_model.model.conv.lora_A.weight"):
        load_adapters(tmp_path, adapters)


def test_what_the_files_have_no_place_for(tmp_path):
    mixed = made() | {"q_proj.weight": made(rank=3)["q_proj.weight"]}
    with pytest.raises(ValueError, match="of one rank, alpha and kind"):
        save_adapters(tmp_path, mixed)
    with pytest.raises(ValueError, match="one name to several weights"):
        save_adapters(tmp_path, made(), lambda leaf, place: "same")


def test_files_that_do_not_fit(tmp_path):
    adapters = made()
    with pytest.raises(CheckpointError, match="has no adapters"):
        load_adapters(tmp_path, adapters)
    save_adapters(tmp_path, adapters)
    one = {"q_proj.weight": adapters["q_proj.weight"]}
    with pytest.raises(CheckpointError, match=r"has also base_model.model.conv.lora_A.weight \(10"):
        load_adapters(tmp_path, one)
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    bad = tensors | {"base_model.model.q_proj.lora_B.weight": np.zeros((7, 2), np.float32)}
    save_file(bad, path)
    with pytest.raises(CheckpointError, match=r"leaf q_proj.weight needs B of 10 elements"):
        load_adapters(tmp_path, adapters)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="has no adapters"):
        load_adapters(tmp_path, adapters)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "must have peft_type LORA"),
        ({"lora_alpha": "8"}, "a number lora_alpha"),
        ({"rank_pattern": {"q": 4}}, "several kinds in one file"),
        ({"use_dora": True, "use_rslora": True}, "DoRA and rsLoRA at once"),
    ],
)
def test_configurations_that_are_not_read(tmp_path, change, words):
    adapters = made()
    save_adapters(tmp_path, adapters)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=words):
        load_adapters(tmp_path, adapters)
