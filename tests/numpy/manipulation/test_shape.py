"""Shapes, axes and broadcasting against NumPy."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors
from funcgrad.errors import ShapeError
from tests.numpy.compare import same, same_as_numpy, same_batched

CASES = [
    ("reshape", (2, 3, 4), ((4, -1),), {}),
    ("reshape", (2, 3, 4), ((6, 4),), {"order": "F"}),
    ("reshape", (0, 3), ((3, 0),), {}),
    ("reshape", (), ((1, 1),), {}),
    ("reshape", (4,), (4,), {}),
    ("ravel", (2, 3), (), {}),
    ("ravel", (2, 3), ("F",), {}),
    ("ravel", (0, 3), (), {}),
    ("ravel", (), (), {}),
    ("squeeze", (1, 3, 1), (), {}),
    ("squeeze", (1, 3, 1), (-1,), {}),
    ("squeeze", (1, 3, 1), ((0, 2),), {}),
    ("expand_dims", (3,), (0,), {}),
    ("expand_dims", (3,), ((0, -1),), {}),
    ("transpose", (2, 3, 4), (), {}),
    ("transpose", (2, 3, 4), ((1, -1, 0),), {}),
    ("transpose", (), (), {}),
    ("permute_dims", (2, 3, 4), ((1, 2, 0),), {}),
    ("matrix_transpose", (5, 2, 3), (), {}),
    ("moveaxis", (2, 3, 4, 5), (0, -1), {}),
    ("moveaxis", (2, 3, 4, 5), ((0, 1), (-1, 0)), {}),
    ("swapaxes", (2, 3, 4), (0, -1), {}),
    ("flip", (2, 3), (), {}),
    ("flip", (2, 3), ((1,),), {}),
    ("flip", (), (), {}),
    ("fliplr", (2, 3), (), {}),
    ("flipud", (3,), (), {}),
    *[("rot90", (2, 3, 4), (k, (0, 2)), {}) for k in range(-2, 5)],
    *[("rollaxis", (2, 3, 4), (a, s), {}) for a in (-1, 0, 1) for s in (-2, 0, 1, 3)],
    ("broadcast_to", (3, 1), ((2, 3, 4),), {}),
    ("broadcast_to", (), (3,), {}),
    *[(f"atleast_{n}d", (2, 3, 4, 5)[:k], (), {}) for n in (1, 2, 3) for k in range(5)],
]


@pytest.mark.parametrize(("name", "shape", "args", "kwargs"), CASES)
def test_as_numpy(name, shape, args, kwargs):
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    same_as_numpy(
        lambda x: getattr(fnp, name)(x, *args, **kwargs),
        lambda x: getattr(np, name)(x, *args, **kwargs),
        x,
    )


@pytest.mark.parametrize("dtype", [bool, "int8", "uint64", "float16", "float64", "complex64"])
def test_dtypes_stay(dtype):
    x = np.ones((2, 3), dtype)
    for f in (fnp.ravel, fnp.transpose, fnp.flip, fnp.atleast_3d):
        assert f(x).dtype == x.dtype


def test_broadcast_arrays(rng):
    a, b = rng.standard_normal((2, 1)), rng.standard_normal(3)
    same(fnp.broadcast_arrays(a, b), np.broadcast_arrays(a, b))
    assert isinstance(fnp.broadcast_arrays(a, b), tuple)


def test_several_arguments_give_a_list():
    found = fnp.atleast_2d(1.0, np.ones(2))
    assert [x.shape for x in found] == [(1, 1), (1, 2)]


def test_weak_types_stay_weak():
    assert fnp.atleast_1d(1.0).weak_type
    assert fnp.broadcast_to(1.0, (2,)).weak_type


def test_batched(rng):
    same_batched(lambda x: fnp.rot90(fnp.moveaxis(x, 0, 2)), rng.standard_normal((3, 2, 4, 5)))


ERRORS = [
    (lambda: fnp.reshape([1, 2], 2), TypeError, r"reshape: a is a list.*fnp\.array"),
    (lambda: fnp.reshape(np.ones(3), (2, 2)), ShapeError, "reshape.*3 elements.*4"),
    (lambda: fnp.reshape(np.ones(3), 3, order="A"), ValueError, "order must be 'C' or 'F'"),
    (lambda: fnp.squeeze(np.ones((2, 1)), 0), ShapeError, "must have size 1"),
    (lambda: fnp.transpose(np.ones((2, 1)), (0, 0)), ShapeError, "no permutation"),
    (lambda: fnp.transpose(np.ones((2, 1)), (0, 2)), ShapeError, "axis 2 is out of range"),
    (lambda: fnp.moveaxis(np.ones((2, 1)), (0, 1), 0), ShapeError, "as many axes"),
    (lambda: fnp.fliplr(np.ones(2)), ShapeError, "fliplr: need at least 2 axes"),
    (lambda: fnp.rot90(np.ones((2, 2)), axes=(1, 1)), ShapeError, "rot90.*not distinct"),
    (lambda: fnp.broadcast_to(np.ones(2), (3,)), ShapeError, "does not broadcast"),
    (lambda: fnp.matrix_transpose(np.ones(2)), ShapeError, "at least two axes"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_sizes_and_axes_that_are_no_integers():
    x = fnp.ones((3, 3))
    for sizes in (9, (9,), [9], np.int8(9), np.array(9), fnp.array(9)):
        assert fnp.reshape(x, sizes).shape == (9,)
    with pytest.raises(TypeError, match=r"reshape: shape must be integers, got 9.0"):
        fnp.reshape(x, 9.0)
    with pytest.raises(errors.TracerIntegerConversionError, match="argument n of jit"):
        fg.jit(lambda x, n: x.reshape(n))(x, 9)
    for axis in (1.0, "a"):
        with pytest.raises(TypeError, match=f"sum: axis must be an integer, got {axis!r}"):
            x.sum(axis=axis)
