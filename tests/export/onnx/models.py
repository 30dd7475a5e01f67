"""Models of functions and of rows of samples, and what runs them."""

import ml_dtypes
import numpy as np
import onnx

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.export.onnx import to_onnx
from funcgrad.ops.elementwise.convert import convert_element_type
from tests.op_checks import arrays, function, numpy_list, operands
from tests.op_samples_base import C64, C128, F32, assert_close

WIDE = {np.dtype(ml_dtypes.int4): np.dtype("int8"), np.dtype(ml_dtypes.uint4): np.dtype("uint8")}
# Types that ONNX doesn't have.
UNKNOWN = tuple(
    np.dtype(getattr(ml_dtypes, n)) for n in ("float8_e4m3b11fnuz", "float8_e3m4", "float8_e4m3")
)


def wide(dtype):
    """The type in which values of a dtype that NumPy lacks go in and out of a model."""
    narrow = dtypes.is_float(dtype) and (dtype.itemsize == 1 or dtype.name == "bfloat16")
    return F32 if narrow else WIDE.get(dtype, dtype)


def checked(path):
    """The model in a file, after ONNX's full check and strict inference of shapes."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return model


def pairs(x):
    """Complex numbers as real ones with an axis more."""
    return np.stack([x.real, x.imag], -1) if x.dtype in (C64, C128) else x


def row_model(row, case, dtype, path):
    """Write an op as a model; the inputs for it, the results that it must give, and their types."""
    args = operands(row, case, np.random.default_rng(0), dtype)
    fun = function(row, case)
    write(fun, args, path)
    return values(fun, args)


def write(fun, args, path, **options):
    """Write a function as a model, whose inputs and results are of types that NumPy has."""
    kinds = [a.dtype for a in args]

    def widened(*xs):
        xs = [
            convert_element_type(x, k) if x.dtype != k else x
            for x, k in zip(xs, kinds, strict=True)
        ]
        outs = fun(*xs)
        return [convert_element_type(o, wide(o.dtype)) for o in outs]

    to_onnx(widened, path, *(Array(np.asarray(a).astype(wide(a.dtype))) for a in args), **options)


def values(fun, args):
    """The inputs of what `write` wrote, the results that it must give, and their own types."""
    results = numpy_list(fun(*arrays(args)))
    given = [np.asarray(a).astype(wide(a.dtype)) for a in args]
    wanted = [w.astype(wide(w.dtype)) for w in results]
    return [pairs(g) for g in given], [pairs(w) for w in wanted], [r.dtype for r in results]


def complex_numbers(x, dtype):
    """The complex numbers of a dtype whose pairs these are; other arrays as they are."""
    pairs = dtypes.is_complex(dtype) and dtypes.is_float(x.dtype) and x.shape[-1:] == (2,)
    return x[..., 0] + 1j * x[..., 1] if pairs else x


def agrees(row, case, dtype, found, made, ulps):
    """An op's results of a runtime: as its own check says, or near those that `row_model` made."""
    given, wanted, kinds = made
    if row.check is None:
        compare(found, wanted, kinds, f"{row} {dtype}", ulps)
        return
    assert [g.shape for g in found] == [w.shape for w in wanted]
    ins, outs = ([complex_numbers(x, dtype) for x in xs] for xs in (given, found))
    row.check(ins, outs, **case.params)


def compare(got, wanted, kinds, what, ulps):
    """Results of a runtime against ours: up to so many ulps, of the largest element, too."""
    assert len(got) == len(wanted)
    for g, w, kind in zip(got, wanted, kinds, strict=True):
        g = np.asarray(g)
        assert g.dtype == w.dtype
        if not dtypes.is_inexact(w.dtype):
            np.testing.assert_array_equal(g, w, err_msg=str(what))
            continue
        finite = np.abs(w[np.isfinite(w)])
        size = float(finite.max()) if finite.size else 0.0
        # What was computed in a narrow type may be rounded to its other neighbour.
        coarse = float(dtypes.finfo(kind).eps) / float(dtypes.finfo(w.dtype).eps)
        step = coarse if coarse > 1 and not dtypes.is_complex(kind) else 0
        assert_close(g, w, ulps + 2 * step, (ulps + 2 * step) * max(size, 1e-2), what)


# Complex numbers are pairs of real ones, of which these ops are no formula.
_NOT_OF_PAIRS = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2", "csr_matmul", "pow", "ragged_dot",
    "ragged_outer", "exp2", "max", "min", "scatter_mul", "reduce_prod", "reduce_max", "reduce_min",
    "cumprod", "cholesky", "eigh", "lu", "qr", "svd",
))  # fmt: skip
# They ask how wide a type is, and 4 or 8 bits are held in wider ones.
_BY_WIDTH = {
    "clz": "int4 uint4", "mulhi": "int4 uint4", "population_count": "int4 uint4",
    "shift_right_logical": "int4 uint4",
    "shift_right_arithmetic": "int4 uint4", "nextafter": "bfloat16 float8",
}  # fmt: skip


def lacks(row, dtype):
    """Whether an op of a dtype has no translation."""
    name, kind = row.prim.name, str(dtype)
    if dtypes.is_complex(dtype) and name in _NOT_OF_PAIRS:
        return True
    if any(kind.startswith(k) for k in _BY_WIDTH.get(name, "").split()):
        return True
    if name == "bitcast_convert_type" and kind.startswith("float8"):
        return True
    return name in WITHOUT


# What has no translation: eigenvalues of matrices that aren't symmetric, and calls of Python.
WITHOUT = frozenset((
    "column_order", "debug_callback", "eig", "hessenberg", "io_callback", "pullback",
    "pure_callback", "schur", "tridiagonal",
))  # fmt: skip
