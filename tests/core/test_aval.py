"""Abstract values, their promotion's inputs, and the types of Python values."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import dtypes
from funcgrad.core.aval import Linear, ShapedArray, Zero, scalar_dtype
from funcgrad.core.settings import default_dtype
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError


def test_equality_and_hash_know_weakness():
    a, b = ShapedArray((2, 3), "float32"), ShapedArray((2, 3), np.float32)
    assert a == b
    assert hash(a) == hash(b)
    weak = ShapedArray((2, 3), "float32", weak_type=True)
    assert a != weak
    assert a.matches(weak)
    assert weak.strong() == a
    assert a.strong() is a
    assert a != "f32[2,3]"


def test_repr_and_sizes():
    a = ShapedArray((2, 0, 3), "bfloat16")
    assert repr(a) == "bf16[2,0,3]"
    assert repr(ShapedArray((), "bool")) == "bool[]"
    assert (a.ndim, a.size, a.nbytes) == (3, 0, 0)
    assert ShapedArray((2, 3), "complex128").nbytes == 96


def test_update_changes_a_copy():
    a = ShapedArray((2,), "float32", weak_type=True)
    assert a.update(shape=(3,)) == ShapedArray((3,), "float32", weak_type=True)
    assert a.update(dtype=np.dtype("int8"), weak_type=False) == ShapedArray((2,), "int8")
    assert a.shape == (2,)


@pytest.mark.parametrize("bad", ["U1", object, "datetime64[D]", "V8"])
def test_arrays_of_other_dtypes_are_refused(bad):
    with pytest.raises(DTypeError):
        ShapedArray((), np.dtype(bad))
    with pytest.raises(DTypeError):
        aval_of(np.zeros(2, bad))


def test_foreign_byte_order_is_the_same_type():
    assert aval_of(np.zeros(2, ">f4")) == ShapedArray((2,), "float32")


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_tangents(dtype):
    t = ShapedArray((2,), dtype, weak_type=True).tangent()
    if dtypes.is_inexact(dtype):
        assert t == ShapedArray((2,), dtype, weak_type=True), "as weak as the value"
    else:
        assert t == ShapedArray((2,), dtypes.float0)


@pytest.mark.parametrize(
    ("value", "dtype", "weak"),
    [
        (True, "bool", False),
        (3, "int32", True),
        (3.0, "float32", True),
        (3j, "complex64", True),
        (np.float64(3), "float64", True),
        (np.bool_(True), "bool", False),
        (np.int8(3), "int8", False),
        (np.ones((2, 2)), "float64", False),
    ],
)
def test_aval_of(value, dtype, weak):
    assert aval_of(value) == ShapedArray(np.shape(value), dtype, weak)


@pytest.mark.parametrize("bad", ["x", None, [1.0], object()])
def test_aval_of_other_values(bad):
    with pytest.raises(TypeError, match="not an array, a scalar or a tracer"):
        aval_of(bad)


def test_default_dtypes_of_scalars():
    with default_dtype("float64"), default_dtype("int64"):
        found = [scalar_dtype(v) for v in (True, 1, 1.0, 1j)]
        assert found == [np.bool_, np.int64, np.float64, np.complex128]
    with default_dtype("float16"):
        assert scalar_dtype(1j) == np.complex64
    assert scalar_dtype(1.0) == np.float32


def test_shape_dtype_struct():
    s = ShapeDtypeStruct([2, 3], "float32")
    assert (s.shape, s.dtype, s.ndim, s.size) == ((2, 3), np.float32, 2, 6)
    assert repr(s) == "ShapeDtypeStruct(shape=(2, 3), dtype=float32)"
    assert s == fg.ShapeDtypeStruct((2, 3), np.float32)
    assert s.update(shape=(4,), weak_type=True) == ShapeDtypeStruct((4,), "float32", weak_type=True)
    with pytest.raises(TypeError, match="update: there is no field 'size'; there are shape, dtype"):
        s.update(size=3)
    weak = fg.eval_shape(lambda x: x + 1, 2.0)
    assert (weak.weak_type, s.weak_type) == (True, False)
    assert repr(weak) == "ShapeDtypeStruct(shape=(), dtype=float32, weak_type=True)"
    for shape in (3, (2.5,), "ab"):
        with pytest.raises(TypeError, match="ShapeDtypeStruct: shape must be a sequence of int"):
            ShapeDtypeStruct(shape, "float32")
    assert len({s, ShapeDtypeStruct((2, 3), "float32"), ShapeDtypeStruct((2, 3), "int8")}) == 2
    assert fg.eval_shape(lambda x: x, s) == s


def test_markers_show_their_types():
    a = ShapedArray((2,), "float32")
    assert repr(Zero(a)) == "Zero(f32[2])"
    assert repr(Linear(a)) == "Linear(f32[2])"
