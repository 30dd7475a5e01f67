"""The library's own classes among arguments and results of what files hold."""

import json
import subprocess
import sys

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, optim, quantization, random, recsys, sparse, tree
from funcgrad.errors import FormatError
from funcgrad.export.program.trees import tree_from_json, tree_to_json
from funcgrad.scipy.spatial.transform import Rotation

WEIGHTS = {"w": np.arange(4096, dtype="float32").reshape(64, 64) / 4096}


def affine(params, x):
    return x @ params["w"]


def quantized(config):
    return fg.quantize(affine, WEIGHTS, config)[1]


NODES = {
    "jagged": lambda: recsys.KeyedJaggedTensor.from_lists({"a": [[1, 2], [3]], "b": [[], [4]]}),
    "bcoo": lambda: sparse.BCOO.fromdense(fnp.eye(3)),
    "bcsr": lambda: sparse.BCSR.fromdense(fnp.eye(3)),
    "loss scale": lambda: optim.LossScale(),
    "rotation": lambda: Rotation.from_quat(fnp.array([0.0, 0, 0, 1])),
    "key": lambda: random.key(1),
    "state": lambda: optim.adam(0.1).init(WEIGHTS),
    "int8": lambda: quantized(quantization.Int8Dynamic()),
    "int4": lambda: quantized(quantization.WeightOnly(bits=4, group=32)),
    "nf4": lambda: quantized(quantization.NF4(block=64)),
    "float8": lambda: quantized(quantization.Float8()),
    "mxfp4": lambda: quantized(quantization.MXFP4()),
    "adapter": lambda: fg.lora(affine, WEIGHTS, ["w"], random.key(0))[2],
}


@pytest.mark.parametrize("name", NODES)
def test_structure_comes_back(name):
    found = tree.structure(NODES[name]())
    assert tree_from_json(json.loads(json.dumps(tree_to_json(found, name)))) == found


def test_another_process_loads_a_step_of_adapters_of_a_quantized_function(tmp_path, rng):
    qf, qparams, _ = fg.quantize(affine, WEIGHTS, quantization.WeightOnly(bits=4, group=32))
    lf, base, adapters = fg.lora(qf, qparams, ["w"], random.key(0), rank=2)
    x = rng.normal(size=(3, 64)).astype("float32")

    def step(adapters, base, x):
        grads = fg.grad(lambda a: fnp.mean(lf(base, a, x) ** 2))(adapters)
        return tree.map(lambda p, g: p - g, adapters, grads)

    path = tmp_path / "step.fg"
    exported = export.export(fg.jit(step))(adapters, base, x)
    exported.save(path, samples=[(adapters, base, x)])
    code = f"""
import numpy as np
from funcgrad import export, tree
step = export.load({str(path)!r})
(sample,) = step.samples
args, kwargs = tree.unflatten(step.in_tree, sample.args)
made = step.call(*args, **kwargs)
assert type(made["w"]).__name__ == "Adapter" and made["w"].rank == 2
np.save({str(tmp_path / "b.npy")!r}, made["w"].b)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    want = fg.jit(step)(adapters, base, x)["w"].b
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), want)


def test_a_field_of_later_takes_its_default():
    """As of a file from before the field was there."""
    (node,) = tree_to_json(tree.structure(quantized(quantization.Int8Dynamic())), "x")["dict"]
    name, blob, children = node[1]["node"]
    held = json.loads(bytes.fromhex(blob))
    place = held["children"].index("less")
    del held["children"][place], children[place], held["static"]["group"]
    old = {"node": [name, json.dumps(held).encode().hex(), children]}
    found = tree_from_json(old).unflatten([0] * tree_from_json(old).num_leaves)
    assert (found.less, found.group) == (None, 0)


@pytest.mark.parametrize("name", ["quantization.Nothing", "quantization.quantize", "os.path", ""])
def test_names_of_nothing_are_refused(name):
    with pytest.raises(FormatError, match="isn't known here"):
        tree_from_json({"node": [name, "", []]})
