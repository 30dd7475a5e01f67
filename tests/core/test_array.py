"""Arrays: immutable values that NumPy, Python's protocols and other libraries understand."""

import copy
import math
import pickle

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.core.array import Array, raw
from funcgrad.errors import DonatedBufferError, ShapeError


def test_attributes():
    x = fnp.ones((2, 3), "float64")
    assert (x.shape, x.dtype, x.ndim, x.size) == ((2, 3), np.float64, 2, 6)
    assert (x.nbytes, x.itemsize, x.weak_type) == (48, 8, False)
    assert x.concrete() is x
    assert x.block_until_ready() is x


# ---- immutability


def test_item_assignment_shows_the_functional_way():
    x = fnp.ones(3)
    with pytest.raises(TypeError, match=r"\.at\[.*\]\.set\("):
        x[0] = 5.0


def test_in_place_operators_make_new_arrays():
    x = y = fnp.ones(3)
    y += 1.0
    np.testing.assert_array_equal(x, [1, 1, 1])
    np.testing.assert_array_equal(y, [2, 2, 2])


def test_numpy_views_are_read_only():
    view = np.asarray(fnp.ones(3))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5


def test_attributes_cannot_be_added():
    with pytest.raises(AttributeError):
        fnp.ones(3).color = "red"


@pytest.mark.parametrize("backend", ["numpy", "llvm"])
def test_results_do_not_share_memory_with_the_callers_arrays(backend):
    given = np.ones(4, "float32")
    results = [
        fg.jit(lambda x: x, backend=backend)(given),
        fg.jit(lambda x: fnp.reshape(x, (2, 2)), backend=backend)(given),
        fnp.array(given),
        fg.lax.reshape(given, (2, 2)),
        fg.vmap(lambda x: x)(given) + 0,
    ]
    given[:] = 9
    for r in results:
        assert float(fnp.max(r)) == 1.0


# ---- NumPy


def test_asarray_is_free_and_converts():
    x = fnp.ones(3)
    assert np.shares_memory(np.asarray(x), x.value)
    assert np.asarray(x, np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(x), x.value)
    assert np.array(x).flags.writeable
    assert np.shares_memory(np.asarray(x, copy=False), x.value)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, np.float64, copy=False)


def test_numpy_operators_give_arrays():
    x = fnp.ones(3)
    for y in (np.ones(3, "float32") + x, x - np.ones(3), np.float32(2) * x, np.ones(3) @ x):
        assert type(y) is Array
    assert (np.ones(3, "float64") * x).dtype == np.float64


def test_numpy_functions_accept_arrays():
    x = fnp.arange(4.0)
    assert type(np.sin(x)) is np.ndarray
    np.testing.assert_array_equal(np.sort(x)[::-1], [3, 2, 1, 0])
    assert np.shape(x) == (4,)


# ---- Python's protocols


def test_scalars_convert():
    x = fnp.asarray(2.5)
    assert (float(x), int(x), complex(x), bool(x)) == (2.5, 2, 2.5 + 0j, True)
    assert [10, 20, 30][fnp.asarray(1)] == 20
    assert list(range(fnp.asarray(2))) == [0, 1]
    assert math.sqrt(fnp.asarray(4.0)) == 2.0
    assert round(float(x)) == 2
    with pytest.raises(TypeError):
        [1, 2][fnp.asarray(1.0)]


@pytest.mark.parametrize("convert", [float, int, bool, complex])
def test_arrays_are_no_scalars(convert):
    with pytest.raises((TypeError, ValueError)):
        convert(fnp.ones(3))


def test_hash_is_an_error():
    with pytest.raises(TypeError, match="unhashable"):
        hash(fnp.ones(3))
    with pytest.raises(TypeError, match="unhashable"):
        {fnp.asarray(1): 2}


def test_iteration():
    rows = list(fnp.arange(4.0).reshape(2, 2))
    assert all(type(r) is Array for r in rows)
    np.testing.assert_array_equal(rows[1], [2, 3])
    a, b = fnp.asarray([1, 2])
    assert (a.shape, int(b)) == ((), 2)
    assert len(fnp.ones((3, 2))) == 3
    assert 2.0 in fnp.arange(4.0)
    with pytest.raises(TypeError, match="0-d"):
        iter(fnp.asarray(1.0))
    with pytest.raises(TypeError):
        len(fnp.asarray(1.0))


def test_item_tolist_tobytes():
    x = fnp.asarray([[1, 2], [3, 4]])
    assert x.tolist() == [[1, 2], [3, 4]]
    assert x.item(3) == 4
    assert type(fnp.asarray(1.5).item()) is float
    assert x.tobytes() == np.asarray(x).tobytes()


def test_format():
    assert f"{fnp.asarray(1.23456):.2f}" == "1.23"
    assert f"{fnp.asarray(3)}" == "3"
    assert f"{fnp.asarray(1.5, 'bfloat16'):.2f}" == "1.50"
    assert f"{fnp.arange(3)}" == "[0 1 2]"
    assert str(fnp.asarray(0.5)) == "0.5"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda: fnp.arange(3.0), "Array([0., 1., 2.], dtype=float32)"),
        (lambda: fnp.asarray(1.5), "Array(1.5, dtype=float32, weak_type=True)"),
        (lambda: fnp.asarray(1.5, "bfloat16"), "Array(1.5, dtype=bfloat16)"),
        (lambda: fnp.asarray([True, False]), "Array([ True, False], dtype=bool)"),
        (lambda: fnp.asarray(1 + 2j, "complex128"), "Array(1.+2.j, dtype=complex128)"),
        (lambda: fnp.zeros((0, 3)), "Array([], shape=(0, 3), dtype=float32)"),
        (lambda: fnp.asarray([1, 2], "int4"), "Array([1, 2], dtype=int4)"),
        (lambda: fnp.ones((2, 2)), "Array([[1., 1.],\n       [1., 1.]], dtype=float32)"),
    ],
)
def test_repr(value, text):
    assert repr(value()) == text


def test_long_arrays_print_abridged():
    assert len(repr(fnp.zeros(100_000))) < 200


# ---- copies


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_pickle_and_copies(dtype):
    x = fnp.asarray(np.asarray([0, 1, 1]).astype(dtype))
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x)):
        assert type(y) is Array
        assert y.aval == x.aval
        np.testing.assert_array_equal(np.asarray(y), np.asarray(x))


def test_pickle_keeps_weakness_and_shape_of_broadcasts():
    x = fnp.broadcast_to(fnp.asarray(2.0), (3, 4))
    y = pickle.loads(pickle.dumps(x))
    assert y.aval == x.aval
    assert y.shape == (3, 4)
    assert pickle.loads(pickle.dumps(fnp.asarray(1.0))).weak_type


def test_deepcopy_has_its_own_memory():
    x = fnp.ones(3)
    assert not np.shares_memory(np.asarray(copy.deepcopy({"w": x})["w"]), np.asarray(x))
    assert copy.copy(x) is x


# ---- other libraries


def test_dlpack_out_shares_memory():
    x = fnp.arange(6.0).reshape(2, 3) * 1
    y = np.from_dlpack(x)
    np.testing.assert_array_equal(y, np.asarray(x))
    assert np.shares_memory(y, x.value)


def test_dlpack_out_is_read_only_where_the_consumer_can_know():
    x = fnp.asarray([1.0, 2.0]) * 1
    y = np.from_dlpack(x)
    assert not y.flags.writeable
    old = np.from_dlpack(Legacy(fnp.ones(3)))
    np.testing.assert_array_equal(old, [1, 1, 1])


class Legacy:
    """A consumer that speaks DLPack's first protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_out_of_a_broadcast():
    np.testing.assert_array_equal(np.from_dlpack(fnp.ones(3)), [1, 1, 1])
    np.testing.assert_array_equal(np.from_dlpack(fnp.asarray(2.0)), 2.0)


def test_dlpack_in_shares_memory():
    given = np.arange(3.0)
    x = fnp.from_dlpack(given)
    assert type(x) is Array
    assert np.shares_memory(x.value, given)


def test_dlpack_device_is_the_cpu():
    assert fnp.ones(3).__dlpack_device__()[0] == 1


# ---- zero dimensions, zero size


def test_zero_dimensional_arrays_stay_arrays():
    x = fnp.asarray(2.0)
    for y in (x + 1, x * x, fnp.sin(x), -x, x**2, fnp.sum(x), x.reshape(()), x[...]):
        assert type(y) is Array
        assert y.shape == ()


def test_zero_size_arrays():
    x = fnp.zeros((0, 3))
    assert fnp.sum(x).shape == ()
    assert float(fnp.sum(x)) == 0.0
    assert (x + 1.0).shape == (0, 3)
    assert fnp.sum(x, axis=0).tolist() == [0, 0, 0]
    assert (x @ fnp.ones((3, 2))).shape == (0, 2)
    assert (fnp.ones((2, 0)) @ fnp.ones((0, 2))).tolist() == [[0, 0], [0, 0]]
    assert list(x) == []
    assert fg.grad(lambda v: fnp.sum(v))(x).shape == (0, 3)


# ---- deletion


def test_deleted_arrays_say_so():
    x = fnp.ones((2, 3))
    assert not x.is_deleted()
    x.delete()
    assert x.is_deleted()
    assert (x.shape, x.dtype) == ((2, 3), np.float32)
    assert repr(x) == "Array(f32[2,3], deleted)"
    for use in (lambda: x + 1, lambda: np.asarray(x), lambda: x.tolist(), lambda: fg.jit(abs)(x)):
        with pytest.raises(DonatedBufferError, match=r"f32\[2,3\] is gone: it was deleted by"):
            use()


def test_deletion_frees_nothing_that_others_hold():
    x = fnp.arange(3.0) * 1
    y = x.reshape(3, 1)
    x.delete()
    np.testing.assert_array_equal(y, [[0], [1], [2]])


# ---- notebooks


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3),
        np.full((2, 2), np.nan),
        np.array([[np.inf, -np.inf, 0.0]]),
        np.zeros((0, 2)),
        np.array(1 + 1j),
        np.array([[True, False]]),
        np.arange(3).astype(ml_dtypes.int4),
        np.ones((2, 2), ml_dtypes.bfloat16),
        np.ones((2, 2), ml_dtypes.float8_e4m3fn),
        np.array(np.nan),
        np.zeros((50, 50)),
        np.zeros((2, 3, 4)),
    ],
    ids=lambda v: f"{v.dtype}{v.shape}",
)
def test_html(value):
    page = fnp.asarray(value)._repr_html_()
    assert dtypes.short_name(value.dtype) in page
    assert len(page) < 50_000


# ---- what evaluation is given


def test_raw_takes_arrays_and_scalars():
    assert raw(2).dtype == np.int32
    assert raw(np.float64(2)).dtype == np.float64
    x = np.ones(3)
    assert raw(x) is x
    assert raw(Array(x)) is x


def test_big_python_integers_do_not_wrap():
    with pytest.raises(OverflowError):
        fnp.ones(3, "int32") + 2**40
    with pytest.raises(OverflowError):
        fnp.asarray(2**40)
    assert int(fnp.asarray(2**40, "int64")) == 2**40


def test_operands_that_broadcast_and_numbers_are_remembered():
    rows, column = (
        fnp.array(np.arange(6, dtype=np.float32).reshape(2, 3)),
        fnp.array([[1.0], [2.0]]),
    )
    byte = fnp.array([1, 2], dtype="int8")
    for _ in range(3):
        assert (rows - column).tolist() == [[-1, 0, 1], [1, 2, 3]]
        assert (rows < 2).tolist() == [[True, True, False], [False, False, False]]
        assert (1.0 / (1 + rows[:, :2])).tolist() == [[1.0, 0.5], [0.25, np.float32(0.2)]]
        assert (byte + 1).dtype == np.int8
        assert (byte + 1.5).dtype == np.float32
        assert (byte + rows[:, :2]).dtype == np.float32
        with pytest.raises(OverflowError, match="add: y is 300"):
            byte + 300
        with pytest.raises(ShapeError):
            rows + fnp.ones(2)
    with fg.default_dtype("float64"):
        assert (byte + 1.5).dtype == np.float64


def test_strict_operations_do_not_broadcast_what_functions_of_numpy_did():
    x, y = fnp.ones((2, 3)), fnp.ones(3)
    assert (x + y).shape == (2, 3)
    assert (x + y).shape == (2, 3)
    with pytest.raises(ShapeError, match="add"):
        lax.add(x, y)


def test_an_array_that_is_a_view_is_copied_once_for_compiled_code():
    step = fg.jit(lambda x: x * 2)
    x = fnp.array(np.arange(6, dtype=np.float32).reshape(2, 3)).T
    assert not x.value.flags.c_contiguous
    assert step(x).tolist() == [[0, 6], [2, 8], [4, 10]]
    held = x.value
    assert held.flags.c_contiguous
    assert step(x).tolist() == [[0, 6], [2, 8], [4, 10]]
    assert x.value is held
    assert x.tolist() == [[0, 3], [1, 4], [2, 5]]
