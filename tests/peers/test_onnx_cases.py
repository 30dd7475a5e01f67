"""ONNX's own cases and models, read by `from_onnx`: what is read agrees.

Models that the package has are older than what is read, and brought to opset 17 by its converter.
"""

import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")  # what generates the cases takes a minute

import onnx
import onnx.version_converter
import onnxruntime

import funcgrad as fg
from funcgrad import dtypes
from funcgrad.errors import ExportError
from funcgrad.export.onnx import from_onnx
from funcgrad.export.onnx.read.model import OLDEST


def node_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import onnx.backend.test.case.node as node

        return node.collect_testcases(None)


def are_arrays(values):
    kinds = [np.asarray(x).dtype.kind if isinstance(x, np.ndarray | np.generic) else "O"
             for x in values]  # fmt: skip
    return not set(kinds) & set("OUS")


def assert_same(got, wanted, name):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
    if not dtypes.is_inexact(got.dtype):
        np.testing.assert_array_equal(got, wanted, err_msg=name)
        return
    wide = np.complex128 if dtypes.is_complex(got.dtype) else np.float64
    close = (
        {"rtol": 1e-2, "atol": 1e-2} if got.dtype.itemsize <= 2 else {"rtol": 1e-3, "atol": 1e-5}
    )
    np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), err_msg=name, **close)


def lifted(model):
    """The model at opset 13 where its operators haven't changed until there: cases are of the
    opset that first had theirs."""
    (opset,) = [o for o in model.opset_import if o.domain in ("", "ai.onnx")][:1] or [None]
    if opset is not None and opset.version < OLDEST:
        try:
            news = [onnx.defs.get_schema(n.op_type, OLDEST).since_version for n in model.graph.node]
        except onnx.defs.SchemaError:
            return model
        if max(news, default=0) <= opset.version:
            opset.version = OLDEST
    return model


def test_cases_of_operators(tmp_path):
    path, passed, cases = tmp_path / "case.onnx", 0, node_cases()
    for case in cases:
        if not all(are_arrays(ins) and are_arrays(outs) for ins, outs in case.data_sets):
            continue
        path.write_bytes(lifted(case.model).SerializeToString())
        try:
            f, params = from_onnx(path)
            for ins, outs in case.data_sets:
                got = f(params, *ins)
                got = got if isinstance(got, tuple) else (got,)
                for g, w in zip(got, outs, strict=True):
                    assert_same(g, w, case.name)
        except ExportError:
            continue  # what isn't read says so
        passed += 1
    assert passed >= 1520, f"{passed} of {len(cases)}"


DATA = Path(onnx.__file__).parent / "backend/test/data"
CONVERTERS = "pytorch-converted", "pytorch-operator", "simple"


def converted(path):
    """A model of the package at an opset that is read; None where its converter can't."""
    try:
        made = onnx.version_converter.convert_version(onnx.load(path), 17)
    except (RuntimeError, onnx.checker.ValidationError):
        return None
    made.ir_version = 8  # in which weights needn't be inputs
    return made


def tensors(folder, kind):
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(p)) for p in paths]


def test_models_that_pytorch_wrote(tmp_path):
    path, passed = tmp_path / "model.onnx", 0
    models = [p for kind in CONVERTERS for p in sorted((DATA / kind).glob("*/model.onnx"))]
    for model in models:
        made, folder = converted(model), model.parent / "test_data_set_0"
        if made is None or not folder.exists():
            continue
        onnx.save(made, path)
        try:
            f, params = from_onnx(path)
            got = f(params, *tensors(folder, "input"))
        except ExportError:
            continue
        for g, w in zip(fg.tree.leaves(got), tensors(folder, "output"), strict=True):
            assert_same(g, w, model.parent.name)
        passed += 1
    assert passed >= 120, f"{passed} of {len(models)}"


def drawn(model):
    """The model with other weights: those in the package are one number each."""
    rng, shapes = np.random.default_rng(0), {i.name: i for i in model.graph.initializer}
    for node in [n for n in model.graph.node if n.op_type == "ConstantOfShape"]:
        shape = onnx.numpy_helper.to_array(shapes[node.input[0]])
        size = max(float(np.prod(shape[1:])), 1.0)
        value = rng.uniform(0.5, 1, shape) if len(shape) == 1 else rng.normal(size=shape)
        value = (value * (2 / size) ** 0.5).astype("f4")
        model.graph.node.remove(node)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, node.output[0]))
    return model


@pytest.mark.parametrize(
    "name", ["densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"]
)
def test_networks_that_the_package_has(name, tmp_path):
    path = str(tmp_path / "model.onnx")
    onnx.save(drawn(converted(DATA / f"light/light_{name}.onnx")), path)
    f, params = from_onnx(path)
    x = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype("f4")
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {f.signature[0][0]: x})
    got = np.asarray(fg.jit(f)(params, x))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
