"""Models as functions: written by us, by ONNX's helpers, and what is no model."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ExportError, FormatError
from funcgrad.export.onnx import from_onnx, to_onnx
from tests.export.onnx.programs import PROGRAMS
from tests.io.weights.test_fuzz import COUNTS, reads_damaged


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "spectrum"])
def test_what_is_written_is_read(name, tmp_path):
    program = PROGRAMS[name]()
    path = tmp_path / "program.onnx"
    to_onnx(
        program.fun, path, *program.args, stored_argnums=program.stored, dynamic=program.dynamic
    )
    f, params = from_onnx(path)
    for inputs in program.inputs():
        got = fg.tree.leaves(f(params, *program.flat(*inputs)))
        for g, w in zip(got, program.results(*inputs), strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-4, atol=2e-5)


def model_of(nodes, ins, outs, weights, path, opset=21):
    made = helper.make_graph(
        nodes, "g", ins, outs, [numpy_helper.from_array(v, k) for k, v in weights.items()]
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=10), path)


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def test_parameters_are_differentiated(tmp_path):
    path = tmp_path / "m.onnx"
    weights = {"w": np.ones((3, 2), "f4"), "b": np.zeros(2, "f4"), "s": np.array([-1], "i8")}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Reshape", ["r", "s"], ["y"]),
    ]
    model_of(nodes, [info("x", ["n", 3])], [info("y", ["m"])], weights, path)
    f, params = from_onnx(path)
    assert sorted(params) == ["b", "w"]
    x = fnp.asarray(np.random.default_rng(0).standard_normal((4, 3)).astype("f4"))
    loss = lambda p: fnp.sum(f(p, x) ** 2)
    plain = lambda p: fnp.sum(fg.nn.relu(x @ p["w"] + p["b"]) ** 2)
    got, wanted = fg.jit(fg.grad(loss))(params), fg.grad(plain)(params)
    for key in params:
        np.testing.assert_allclose(got[key], wanted[key], rtol=1e-5)
    each = fg.vmap(lambda row: f(params, row[None]))(x)
    np.testing.assert_allclose(each.reshape(-1), f(params, x), rtol=1e-6)
    np.testing.assert_array_equal(f(params, x=x), f(params, x))


def test_errors_name_what_is_wrong(tmp_path):
    path = tmp_path / "m.onnx"
    strange = [helper.make_node("Strange", ["x"], ["y"], domain="mine")]
    made = helper.make_graph(strange, "g", [info("x", [2])], [info("y", [2])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=10), path)
    with pytest.raises(ExportError, match=r"operators that aren't read: \['mine.Strange'\]"):
        from_onnx(path)
    old = [helper.make_node("Relu", ["x"], ["y"])]
    model_of(old, [info("x", [2])], [info("y", [2])], {}, path, opset=9)
    with pytest.raises(ExportError, match="of opset 9, from 13 on"):
        from_onnx(path)
    model_of(old, [info("x", [2])], [info("y", [2])], {}, path)
    f, params = from_onnx(path)
    with pytest.raises(ExportError, match=r"needs the inputs \['x'\]"):
        f(params)
    with pytest.raises(ExportError, match="each is given once"):
        f(params, 1.0, x=2.0)
    with pytest.raises(FileNotFoundError, match="no file"):
        from_onnx(tmp_path / "none.onnx")


def test_shapes_that_depend_on_inputs_are_named(tmp_path):
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    ins = [info("x", [4]), info("s", [2], TensorProto.INT64)]
    model_of(nodes, ins, [info("y", ["a", "b"])], {}, path)
    f, params = from_onnx(path)
    assert f(params, fnp.ones(4), np.array([2, 2])).shape == (2, 2)
    with pytest.raises(ExportError, match="must be known while the function is traced"):
        fg.jit(f)(params, fnp.ones(4), np.array([2, 2]))


@COUNTS
def test_damaged_models_are_format_errors_in_bounded_memory(count, tmp_path):
    """Those that are read are traced, too, for one type of input."""
    program = PROGRAMS["dense"]()
    path = tmp_path / "m.onnx"
    to_onnx(program.fun, path, *program.args, stored_argnums=0)

    def load(path):
        f, params = from_onnx(path)
        fg.eval_shape(f, params, program.args[1])

    reads_damaged(load, path.read_bytes(), count, path, (FormatError, ExportError))
