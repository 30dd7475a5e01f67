"""Models that we write, run by ONNX Runtime: each op's samples in each dtype, and programs.

ONNX Runtime is not what the tests install; `make test-peers` runs them where it is.
"""

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import onnx
import onnx.numpy_helper
import onnxruntime

import funcgrad as fg
from funcgrad import quantization
from funcgrad.errors import ExportError
from funcgrad.export.onnx import to_onnx
from funcgrad.quantization.formats import to_codes
from tests.export.onnx.applications import APPLICATIONS
from tests.export.onnx.models import (
    UNKNOWN,
    agrees,
    checked,
    compare,
    lacks,
    row_model,
    values,
    write,
)
from tests.export.onnx.programs import PROGRAMS
from tests.op_checks import (
    batched_rows,
    by_dtype,
    by_row,
    function,
    stacked,
    typical,
)

onnxruntime.set_default_logger_severity(4)
# Special functions go through many steps, each a kernel with an error of its own.
ULPS = 256


def run(path, inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


@by_dtype()
def test_ops_mean_the_same_in_onnx_runtime(row, dtype, tmp_path):
    path = str(tmp_path / "op.onnx")
    for case in row.cases:
        made = np.dtype(case.params.get("dtype") or bool)  # of an iota
        kinds = {dtype, made, str(row).removeprefix("convert to ")}
        refused = any(str(k) in map(str, UNKNOWN) for k in kinds) or made.kind == "c"
        try:
            found = row_model(row, case, dtype, path)
        except ExportError:
            # Some cases of an op without a translation are nothing once they are simplified.
            if not refused and not lacks(row, dtype):
                raise
            continue
        checked(path)
        agrees(row, case, dtype, run(path, found[0]), found, ULPS)


@pytest.mark.parametrize("name", [*PROGRAMS, *APPLICATIONS])
def test_programs_mean_the_same_in_onnx_runtime(name, tmp_path):
    program = (PROGRAMS | APPLICATIONS)[name]()
    path = str(tmp_path / "program.onnx")
    to_onnx(
        program.fun, path, *program.args, stored_argnums=program.stored, dynamic=program.dynamic
    )
    checked(path)
    for inputs in program.inputs():
        wanted = program.results(*inputs)
        got = run(path, program.flat(*inputs))
        for g, w in zip(got, wanted, strict=True):
            w = np.asarray(w)
            scale = max(float(np.abs(w).max(initial=0)), 1e-6) if w.dtype.kind == "f" else 0
            assert g.dtype == w.dtype
            np.testing.assert_allclose(g, w, rtol=0, atol=1e-5 * scale, err_msg=name)


def test_static_products_of_codes_are_computed_on_integers(tmp_path, rng):
    path, made = str(tmp_path / "q.onnx"), str(tmp_path / "made.onnx")
    params = {k: rng.standard_normal(s).astype("f4") / 16
              for k, s in {"w": (256, 512), "v": (512, 128)}.items()}  # fmt: skip
    x = rng.standard_normal((64, 256)).astype("f4")
    layers = lambda p, x: fg.nn.relu(x @ p["w"]) @ p["v"]
    f, params, _ = fg.quantize(layers, params, quantization.Int8Static(), [(x,)])
    to_onnx(f, path, params, x, stored_argnums=0, dynamic={"n": {"x": 0}})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = made
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = [n.op_type for n in onnx.load(made).graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 2
    for rows in (64, 7):
        got, wanted = session.run(None, {"x": x[:rows]})[0], np.asarray(f(params, x[:rows]))
        # One step of the codes between the layers, at most.
        np.testing.assert_allclose(got, wanted, rtol=0, atol=np.abs(wanted).max() / 127)


def batches(row, case, size):
    """As many operands of an op, stacked."""
    rng = np.random.default_rng(size)
    return stacked(case, [0] * len(case.args), rng, typical(row), size)[0]


def known(row):
    """Whether an op has a translation, of types that ONNX has, and one result."""
    return (
        row.check is None
        and not lacks(row, typical(row))
        and str(row).removeprefix("convert to ") not in map(str, UNKNOWN)
    )


@by_row(filter(known, batched_rows()))
def test_ops_of_batches_of_two_sizes(row, tmp_path):
    path, case = str(tmp_path / "op.onnx"), row.cases_for("vmap")[0]
    fun, given = fg.vmap(function(row, case)), batches(row, case, 2)
    axes = {f"xs[{i}]": 0 for i in range(len(given))}
    write(fun, given, path, dynamic={"n": axes})
    checked(path)
    for args in (given, batches(row, case, 5)):
        inputs, *wanted = values(fun, args)
        compare(run(path, inputs), *wanted, f"{row} of {len(args[0])}", ULPS)


def quantized_model(path, nodes, held, types):
    """Write a model of QuantizeLinear and its like: x float32 in, results of these types."""
    held = [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in held.items()]
    kinds = {"x": np.float32, **types}
    infos = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None
        )
        for name, kind in kinds.items()
    ]
    made = [onnx.helper.make_node(op, ins, [out], **more) for op, ins, out, more in nodes]
    graph = onnx.helper.make_graph(made, "quantized", infos[:1], infos[1:], held)
    opset = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [0.5, 0.1, 1 / 3])
def test_codes_are_those_of_onnx_runtime(kind, scale, tmp_path, rng):
    """To the bit: ties, odd zero points, and what lies outside."""
    path = str(tmp_path / "qdq.onnx")
    scale, info = np.float32(scale), np.iinfo(kind)
    ties = scale * (np.arange(-300, 300) + np.float32(0.5))
    x = np.concatenate([ties, 40 * rng.standard_normal(1000), [-1e9, 1e9]]).astype(np.float32)
    nodes = [
        ("QuantizeLinear", ["x", "scale", "zero"], "codes", {}),
        ("DequantizeLinear", ["codes", "scale", "zero"], "y", {}),
    ]
    for zero in (info.min, info.min + 37, info.max - 2, info.max):
        held = {"scale": scale, "zero": np.array(zero, kind)}
        quantized_model(path, nodes, held, {"codes": kind, "y": np.float32})
        codes, y = run(path, [x])
        own = to_codes(x, scale, np.float32(zero), info.min, info.max)
        np.testing.assert_array_equal(own, codes)
        np.testing.assert_array_equal((own - np.float32(zero)) * scale, y)


def test_static_convolutions_are_those_of_onnx_runtime(tmp_path, rng):
    """Its QLinearConv, of what lies between QuantizeLinear and DequantizeLinear."""
    path, made = str(tmp_path / "c.onnx"), str(tmp_path / "made.onnx")
    w = rng.standard_normal((16, 8, 3, 3)).astype("f4") / 8
    x = rng.standard_normal((4, 8, 12, 12)).astype("f4") + 1
    conv = lambda p, x: fg.nn.relu(fg.lax.conv(x, p["w"], (1, 1), "SAME"))
    f, params, _ = fg.quantize(conv, {"w": w}, quantization.Int8Static(), [(x,)])
    wanted, held = np.asarray(f(params, x)), params["w"]
    step = np.float32(wanted.max() / 255)
    numbers = {
        "scale": held.x_scale.reshape(()), "zero": held.x_zero.reshape(()).astype("int8"),
        "codes": held.codes, "scales": held.scale.reshape(-1), "step": step, "low": np.int8(-128),
        "zeros": np.zeros(16, np.int8),
    }  # fmt: skip
    nodes = [
        ("QuantizeLinear", ["x", "scale", "zero"], "q", {}),
        ("DequantizeLinear", ["q", "scale", "zero"], "a", {}),
        ("DequantizeLinear", ["codes", "scales", "zeros"], "b", {"axis": 0}),
        ("Conv", ["a", "b"], "c", {"auto_pad": "SAME_UPPER"}),
        ("Relu", ["c"], "r", {}),
        ("QuantizeLinear", ["r", "step", "low"], "y", {}),
    ]
    quantized_model(path, nodes, numbers, {"y": np.int8})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = made
    # Unsigned codes, which it prefers, overflow its sums of two on processors without VNNI.
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert "QLinearConv" in [n.op_type for n in onnx.load(made).graph.node]
    got = session.run(None, {"x": x})[0].astype(np.int32)
    different = np.abs(got - np.asarray(to_codes(wanted, step, np.float32(-128), -128, 127)))
    assert different.max() <= 1
    assert different.mean() < 0.01  # scales are multiplied in another order
