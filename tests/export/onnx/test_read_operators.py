"""Operators that `from_onnx` reads, against ONNX's reference; tests/peers has all of its cases."""

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper

import funcgrad as fg
from funcgrad.export.onnx import from_onnx

RNG = np.random.default_rng(0)
IMAGE = RNG.standard_normal((1, 2, 5, 4)).astype("f4")
BYTES = RNG.integers(0, 255, (1, 2, 6, 6)).astype("u1")
KERNEL = RNG.integers(-9, 9, (3, 2, 3, 3)).astype("i1")
GRID = RNG.uniform(-1.3, 1.3, (1, 3, 6, 2)).astype("f4")
SIGNAL = RNG.standard_normal((2, 24, 1)).astype("f4")


def f4(*values):
    return np.array(values, "f4")


def i8(*values):
    return np.array(values, "i8")


# name: operator, inputs of the model, inputs that are stored, attributes
CASES = {
    "ConvInteger": (BYTES, [KERNEL, np.uint8(7)], {"pads": [1, 1, 1, 1]}),
    "QLinearConv": (
        BYTES,
        [np.float32(0.1), np.uint8(9), KERNEL, f4(0.1, 0.2, 0.3), np.zeros(3, "i1"),
         np.float32(0.7), np.uint8(120), np.arange(3, dtype="i4")],
        {"strides": [2, 2]},
    ),
    "Resize cubic": (IMAGE, [f4(), f4(1, 1, 1.5, 0.7)], {"mode": "cubic", "exclude_outside": 1}),
    "Resize smooth": (IMAGE, [f4(), f4(1, 1, 0.6, 0.5)], {"mode": "linear", "antialias": 1}),
    "Resize crop": (
        IMAGE, [f4(0, 0, 0.2, 0.3, 1, 1, 0.9, 1.2), f4(), i8(1, 2, 3, 3)],
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
         "extrapolation_value": 9.0},
    ),
    "CenterCropPad": (IMAGE, [i8(1, 4, 3, 6)], {}),
    "AffineGrid": (RNG.standard_normal((2, 2, 3)).astype("f4"), [i8(2, 1, 3, 4)], {}),
    "GridSample": (IMAGE, [GRID], {"mode": "linear", "padding_mode": "border"}),
    "GridSample near": (IMAGE, [GRID], {"mode": "nearest", "padding_mode": "reflection"}),
    "Col2Im": (RNG.standard_normal((1, 18, 12)).astype("f4"), [i8(5, 6), i8(3, 3)], {}),
    "STFT": (SIGNAL, [i8(5).reshape(()), np.hanning(8).astype("f4")], {}),
}  # fmt: skip


def written(path, name, x, stored, attrs):
    """A model of one node."""
    names = [f"s{i}" if np.size(s) else "" for i, s in enumerate(stored)]
    node = helper.make_node(name.split()[0], ["x", *names], ["y"], **attrs)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    made = [
        onnx.numpy_helper.from_array(np.asarray(s), n)
        for s, n in zip(stored, names, strict=True) if n
    ]  # fmt: skip
    out = helper.make_tensor_value_info("y", onnx.TensorProto.UNDEFINED, None)
    out.ClearField("type")
    ins = [helper.make_tensor_value_info("x", kind, x.shape)]
    graph = helper.make_graph([node], "g", ins, [out], made)
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    )
    onnx.save(model, path)
    return model


@pytest.mark.parametrize("name", CASES)
def test_operators_mean_what_they_do_in_the_reference(name, tmp_path):
    x, stored, attrs = CASES[name]
    path = str(tmp_path / "m.onnx")
    model = written(path, name, x, stored, attrs)
    (wanted,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    f, params = from_onnx(path)
    got = np.asarray(f(params, x))
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Resize cubic", "GridSample", "Col2Im"])
def test_they_compile_and_differentiate(name, tmp_path):
    x, stored, attrs = CASES[name]
    path = str(tmp_path / "m.onnx")
    written(path, name, x, stored, attrs)
    f, params = from_onnx(path)
    np.testing.assert_allclose(fg.jit(f)(params, x), f(params, x), rtol=1e-5, atol=1e-5)
    tangent = RNG.standard_normal(x.shape).astype("f4")
    # All of them are linear in x.
    _, change = fg.jvp(lambda x: f(params, x), (fg.numpy.asarray(x),), (tangent,))
    np.testing.assert_allclose(change, f(params, tangent), rtol=1e-4, atol=1e-5)
