"""Models that we write, run by ONNX's own reference; errors; files."""

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax
from funcgrad.errors import ExportError
from funcgrad.export.onnx import store, to_onnx
from funcgrad.export.onnx.linalg import FORMULAS
from funcgrad.export.onnx.rules import RULES, WITH_PROGRAMS
from funcgrad.transforms import grouped
from tests.export.onnx.models import UNKNOWN, WITHOUT, agrees, checked, lacks, row_model
from tests.export.onnx.programs import PROGRAMS
from tests.op_checks import by_row, typical
from tests.op_samples import PRIMITIVES, ROWS


def run(path, inputs):
    session = onnx.reference.ReferenceEvaluator(path)
    return session.run(None, dict(zip(session.input_names, inputs, strict=True)))


def is_translated(prim):
    made = prim.elementwise or prim.formula is not None or prim.call or prim.collective
    return bool(made or prim in RULES or prim in WITH_PROGRAMS or prim in FORMULAS)


def test_what_has_no_translation_is_known():
    # Axes' names are gone where a program is whole, and transforms are of pairs of numbers.
    marks = {"assume_invariant", "axis_index", "fft", "pvary", "psum_invariant"}
    assert {p.name for p in PRIMITIVES if not is_translated(p)} - marks == WITHOUT


def translated_rows():
    # The reference runs no scan backwards.
    unknown = [f"convert to {d}" for d in UNKNOWN]
    return [
        r for r in ROWS
        if not lacks(r, typical(r)) and not r.axis and str(r) not in ("scan reversed", *unknown)
    ]  # fmt: skip


@by_row(translated_rows())
def test_ops_in_the_reference(row, tmp_path):
    path = str(tmp_path / "op.onnx")
    dtype = typical(row)
    made = row_model(row, row.cases[0], dtype, path)
    checked(path)
    agrees(row, row.cases[0], dtype, run(path, made[0]), made, 256)


@pytest.mark.parametrize("name", ["dense", "lstm", "k_means", "branches", "drawn"])
def test_programs_in_the_reference(name, tmp_path):
    program = PROGRAMS[name]()
    path = str(tmp_path / "program.onnx")
    to_onnx(
        program.fun, path, *program.args, stored_argnums=program.stored, dynamic=program.dynamic
    )
    checked(path)
    for inputs in program.inputs():
        wanted = program.results(*inputs)
        for g, w in zip(run(path, program.flat(*inputs)), wanted, strict=True):
            np.testing.assert_allclose(g, np.asarray(w), rtol=1e-4, atol=1e-5)


# ---- names, sizes, files


def test_inputs_and_results_are_named_by_their_paths(tmp_path):
    path = tmp_path / "m.onnx"
    f = lambda p, x: {"y": x @ p["w"], "size": [fnp.sum(x)]}
    to_onnx(f, path, {"w": fnp.ones((3, 2))}, fnp.ones((4, 3)), stored_argnums=0)
    graph = onnx.load(path).graph
    assert [i.name for i in graph.input] == ["x"]
    assert sorted(o.name for o in graph.output) == ["output.size.0", "output.y"]
    assert "p.w" in {i.name for i in graph.initializer}


def test_exported_functions_are_written(tmp_path):
    path, w = str(tmp_path / "m.onnx"), np.ones((3, 2), "float32")
    exported = export.export(fg.jit(lambda p, x: x @ p["w"]))({"w": w}, fnp.ones((4, 3)))
    to_onnx(exported, path)
    assert [i.name for i in onnx.load(path).graph.input] == ["p.w", "x"]
    x = np.arange(12, dtype="float32").reshape(4, 3)
    np.testing.assert_allclose(run(path, [w, x])[0], x @ w)
    size = fg.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
    symbolic = export.export(fg.jit(lambda x: x @ w))(size)
    with pytest.raises(ExportError, match="symbolic sizes: give arguments, and axes of any size"):
        to_onnx(symbolic, path)
    to_onnx(symbolic, path, x, dynamic={"b": {"x": 0}})
    np.testing.assert_allclose(run(path, [x[:2]])[0], x[:2] @ w)


def test_sizes_that_follow_are_computed(tmp_path):
    path = str(tmp_path / "m.onnx")

    def f(x, y):
        both = fnp.concatenate([x, y])
        return fnp.reshape(both, (-1,)), fnp.mean(both), fnp.arange(2 * x.shape[0] + 1)

    x, y = fnp.ones((4, 3)), fnp.ones((2, 3))
    to_onnx(f, path, x, y, dynamic={"n": {"x": 0}, "m": {"y": 0}})
    model = checked(path)
    dims = [d.dim_param for o in model.graph.output for d in o.type.tensor_type.shape.dim]
    assert dims == ["3*n+3*m", "2*n+1"]
    for n, m in ((1, 5), (7, 2)):
        x, y = np.ones((n, 3), "f4"), np.full((m, 3), 2, "f4")
        for g, w in zip(run(path, [x, y]), f(fnp.asarray(x), fnp.asarray(y)), strict=True):
            np.testing.assert_array_equal(g, np.asarray(w))


def test_narrow_types_keep_their_values(tmp_path):
    path = str(tmp_path / "m.onnx")
    x = fnp.asarray(np.array([1.0, 1.0078125, 300.0], ml_dtypes.bfloat16))
    to_onnx(lambda x: (x * x, fnp.sum(x)), path, x)
    types = [o.type.tensor_type.elem_type for o in checked(path).graph.output]
    assert types == [onnx.TensorProto.BFLOAT16] * 2


def test_large_weights_are_beside_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LIMIT", 1000)
    path = tmp_path / "m.onnx"
    w = fnp.asarray(np.arange(600, dtype="f4").reshape(20, 30))
    to_onnx(lambda w, x: x @ w, path, w, fnp.ones((2, 20)), stored_argnums=np.int64(0))
    (entry,) = [t for t in onnx.load(path, load_external_data=False).graph.initializer
                if t.name == "w"]  # fmt: skip
    told = {e.key: e.value for e in entry.external_data}
    assert told == {"location": "m.onnx.data", "offset": "0", "length": "2400"}
    (got,) = run(str(path), [np.ones((2, 20), "f4")])
    np.testing.assert_allclose(got, np.ones((2, 20), "f4") @ np.asarray(w))


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_opsets(opset, tmp_path):
    path = str(tmp_path / "m.onnx")
    to_onnx(lambda x: fnp.cumsum(x) / 2, path, fnp.ones(4), opset=opset)
    assert checked(path).opset_import[0].version == opset


# ---- what can't be written


def test_operations_without_a_translation_are_listed_with_their_lines(tmp_path):
    def f(x):
        y = fnp.linalg.eigvals(x)
        return fnp.sum(lax.linalg.schur(x)[1]), y

    path = tmp_path / "m.onnx"
    with pytest.raises(ExportError, match="without a translation") as e:
        to_onnx(f, path, fnp.eye(3))
    assert "eig of complex numbers" in str(e.value)
    assert "schur (ONNX has nothing like it)" in str(e.value)
    assert "test_model.py" in str(e.value)
    assert "fnp.linalg.eigvals(x)" in str(e.value)
    assert not path.exists()


def refused(match, f, *args, **options):
    with pytest.raises(ExportError, match=match):
        to_onnx(f, "/nowhere/m.onnx", *args, **options)


def test_bad_arguments_are_named():
    x = fnp.ones((4, 3))
    refused("opset must be from 18", lambda x: x, x, opset=7)
    refused("stored_argnums 2 is none of the 1", lambda x: x, x, stored_argnums=2)
    refused("must be an array to be stored", lambda x: x, fg.ShapeDtypeStruct((2,), "float32"),
            stored_argnums=0)  # fmt: skip
    refused("names the inputs", lambda x: x, x, dynamic={"n": {"y": 0}})
    refused("it has no axis 2", lambda x: x, x, dynamic={"n": {"x": 2}})
    refused("must say which axes", lambda x: x, x, dynamic={"n": 0})
    refused("it has no axis '0'", lambda x: x, x, dynamic={"n": {"x": ["0"]}})
    refused("dynamic gives sizes names, .* got 'x'", lambda x: x, x, dynamic="x")
    refused("takes a function, or an Exported, got 3", 3, x)
    refused("which is stored", lambda x: x, x, dynamic={"n": {"x": 0}}, stored_argnums=0)


def test_programs_that_depend_on_a_size_are_refused():
    x = fnp.ones((4, 3))
    refused("depends on", lambda x: fnp.sum(x) * x.shape[0] ** 0.5, x, dynamic={"n": {"x": 0}})
    unrolled = lambda x: sum(x[i] for i in range(x.shape[0]))
    refused("its number of operations", unrolled, x, dynamic={"n": {"x": 0}})


def test_callbacks_are_refused():
    def f(x):
        return fg.pure_callback(np.sin, fg.ShapeDtypeStruct((), "float32"), x)

    refused("pure_callback", f, fnp.float32(1))


def test_divisions_that_trap_do_not(tmp_path):
    path = str(tmp_path / "m.onnx")
    x = fnp.asarray([7, -7, -(2**31), 5], "int32")
    y = fnp.asarray([0, 2, -1, -3], "int32")
    f = lambda x, y: (lax.div(x, y), lax.rem(x, y))
    to_onnx(f, path, x, y)
    for g, w in zip(run(path, [np.asarray(x), np.asarray(y)]), f(x, y), strict=True):
        np.testing.assert_array_equal(g, np.asarray(w))


def test_formulas_of_no_groups_are_empty():
    made = grouped.ragged_outer_p.formula
    types = [fg.ShapeDtypeStruct(s, d) for s, d in (((1, 4, 2), "float32"), ((1, 4, 3), "float32"),
                                                    ((1, 0), "int32"))]  # fmt: skip
    out = fg.eval_shape(lambda *xs: made(*xs, dtype=None), *types)
    assert out.size == 0
