"""Quantized programs and attention as nodes of their own, run by ONNX's reference and read back."""

import collections

import numpy as np
import onnx
import onnx.reference
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad import quantization as q
from funcgrad.errors import ExportError
from funcgrad.export.onnx import from_onnx, to_onnx
from tests.export.onnx.models import checked
from tests.export.onnx.programs import normal

CONFIGS = {
    "4 bits in groups": q.WeightOnly(4, group=16),
    "4 bits by column": q.WeightOnly(4, group=0),
    "8 bits": q.WeightOnly(8),
    "dynamic": q.Int8Dynamic(),
    "static": q.Int8Static(q.MinMax()),
    "nf4": q.NF4(block=16),
}
NODES = {
    "4 bits in groups": {"DequantizeLinear": 2, "MatMul": 2},
    "4 bits by column": {"DequantizeLinear": 2, "MatMul": 2},
    "8 bits": {"DequantizeLinear": 2, "MatMul": 2},
    "dynamic": {"MatMulInteger": 2},
    "static": {"QuantizeLinear": 2, "DequantizeLinear": 4, "MatMul": 2},
    "nf4": {"MatMul": 2},
}


def layers(params, x):
    return nn.relu(x @ params["w"]) @ params["v"]


PARAMS = {"w": normal(32, 16) / 8, "v": normal(16, 16, seed=1)}
X = normal(10, 32, seed=2)


def kinds(model):
    """How many nodes of the kinds that matter here."""
    names = ("DequantizeLinear", "QuantizeLinear", "MatMulInteger", "MatMul", "Attention")
    return collections.Counter(n.op_type for n in model.graph.node if n.op_type in names)


def run(path, *inputs):
    session = onnx.reference.ReferenceEvaluator(str(path))
    return session.run(None, dict(zip(session.input_names, map(np.asarray, inputs), strict=True)))


@pytest.mark.parametrize("name", CONFIGS)
def test_quantized_programs_have_the_nodes_for_it(name, tmp_path):
    path = tmp_path / "q.onnx"
    f, params, _ = fg.quantize(layers, PARAMS, CONFIGS[name], [(X,)])
    to_onnx(f, path, params, X, stored_argnums=0, dynamic={"n": {"x": 0}})
    assert kinds(checked(path)) == NODES[name]
    x = X[:3]
    wanted = np.asarray(f(params, x))
    np.testing.assert_allclose(run(path, x)[0], wanted, rtol=1e-5, atol=1e-5)
    g, stored = from_onnx(path)
    np.testing.assert_allclose(np.asarray(g(stored, x)), wanted, rtol=2e-6, atol=2e-6)


def test_rows_with_nan_of_static_products_are_nan(tmp_path):
    path = tmp_path / "q.onnx"
    f, params, _ = fg.quantize(layers, PARAMS, CONFIGS["static"], [(X,)])
    x = X.reshape(2, 5, 32).at[1, 2, 3].set(np.nan)
    to_onnx(f, path, params, x, stored_argnums=0)
    assert kinds(checked(path)) == NODES["static"]
    got, wanted = run(path, x)[0], np.asarray(f(params, x))
    assert np.isnan(wanted[1, 2]).all()
    assert np.isnan(wanted).sum() == 16
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_codes_of_4_bits_are_stored_as_such(tmp_path):
    path = tmp_path / "q.onnx"
    f, params, _ = fg.quantize(layers, PARAMS, q.WeightOnly(4, group=8), [(X,)])
    to_onnx(f, path, params, X, stored_argnums=0)
    types = {i.name: i.data_type for i in onnx.load(path).graph.initializer}
    assert types["params.w.codes.uint4"] == types["params.w.codes.zero.uint4"] == (
        onnx.TensorProto.UINT4
    )  # fmt: skip
    assert "params.w.codes" not in types
    to_onnx(f, path, params, X, stored_argnums=0, opset=20)  # has neither blocks nor 4 bits
    assert kinds(checked(path)) == {"MatMul": 2}
    np.testing.assert_allclose(run(path, X)[0], np.asarray(f(params, X)), rtol=1e-5, atol=1e-5)


def test_layers_of_a_scan_are_dequantized_in_its_body(tmp_path):
    path = tmp_path / "q.onnx"
    f = lambda p, x: lax.scan(lambda h, w: (h + nn.relu(h @ w), None), x, p["layers"])[0]
    x, weights = normal(4, 16), {"layers": normal(2, 16, 16) / 8}
    f, params, _ = fg.quantize(f, weights, q.WeightOnly(4, group=8), [(x,)])
    to_onnx(f, path, params, x, stored_argnums=0)
    (loop,) = [n for n in checked(path).graph.node if n.op_type == "Scan"]
    assert "DequantizeLinear" in {n.op_type for n in loop.attribute[0].g.node}
    np.testing.assert_allclose(run(path, x)[0], np.asarray(f(params, x)), rtol=1e-5, atol=1e-5)


def test_codes_of_nan_are_ours(tmp_path):
    path = tmp_path / "q.onnx"
    codes = lambda x: fnp.clip(fnp.round(x / 0.5) + 3, -128, 127).astype("int8")
    x = np.array([np.nan, 0.25, 0.75, -99, 99, 3.3], "f4")
    to_onnx(codes, path, x)
    assert kinds(checked(path)) == {"QuantizeLinear": 1}
    np.testing.assert_array_equal(run(path, x)[0], np.asarray(codes(x)))


@pytest.mark.parametrize("f", [
    lambda x: fnp.clip(fnp.round(x / 0.5) + 3, -127, 127).astype("int8"),  # another range
    lambda x: fnp.clip(fnp.round(x / 0.5) + 0.5, -128, 127).astype("int8"),  # no integer
    lambda x: fnp.clip(lax.round(x / 0.5) + 3, -128, 127).astype("int8"),  # halves go elsewhere
], ids=["range", "zero", "halves"])  # fmt: skip
def test_what_only_looks_like_codes_is_written_step_by_step(f, tmp_path):
    path, x = tmp_path / "q.onnx", np.array([0.25, 0.75, -0.25, 1e9, -1e9], "f4")
    to_onnx(f, path, x)
    assert not kinds(checked(path))
    np.testing.assert_array_equal(run(path, x)[0], np.asarray(f(x)))


@pytest.mark.parametrize("given", [{}, {"is_causal": True}, {"local_window_size": (2, 1)},
                                   {"bias": normal(1, 4, 5, 7)}], ids=str)  # fmt: skip
def test_attention_is_a_node_where_it_is_asked_for(given, tmp_path):
    path = tmp_path / "a.onnx"
    f = lambda query, key, value: nn.dot_product_attention(query, key, value, **given)
    args = normal(2, 5, 4, 8), normal(2, 7, 2, 8, seed=1), normal(2, 7, 2, 8, seed=2)
    for asked in (False, True):
        to_onnx(f, path, *args, opset=23, attention=asked)
        assert kinds(checked(path))["Attention"] == asked
        np.testing.assert_allclose(run(path, *args)[0], np.asarray(f(*args)), atol=2e-6)
    with pytest.raises(ExportError, match="attention=True needs opset 23 or later, got 21"):
        to_onnx(f, path, *args, attention=True)


def test_attention_that_is_differentiated_is_made_of_products(tmp_path):
    path, x = tmp_path / "a.onnx", normal(1, 3, 2, 4)
    f = fg.grad(lambda x: fnp.sum(nn.dot_product_attention(x, x, x) ** 2))
    to_onnx(f, path, x, opset=23, attention=True)
    assert not kinds(checked(path))["Attention"]
    np.testing.assert_allclose(run(path, x)[0], np.asarray(f(x)), atol=1e-5)


def test_sums_of_what_is_computed_of_stored_integers_take_no_longer_by_each_step(tmp_path):
    def f(y, x):
        for _ in range(40):
            y = y * y + y  # each is read three times
        return x + fnp.sum(y)

    path, y = tmp_path / "f.onnx", np.arange(5, dtype="int32")
    to_onnx(f, path, y, np.float32(1), stored_argnums=0)
    np.testing.assert_array_equal(run(path, np.float32(1))[0], f(fnp.asarray(y), np.float32(1)))
