"""ONNX's own cases for its operators, read by `from_onnx`: what is read agrees."""

import warnings

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")  # what generates the cases takes a minute

import onnx

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
