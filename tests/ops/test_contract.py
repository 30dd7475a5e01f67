"""dot_general against einsum, with the rules of every operand order."""

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.contract import batch_matmul, dot, dot_general
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap, vjp

# (lhs, rhs, result) in einsum's letters and the sizes of the letters.
CASES = [
    ("ik", "kj", "ikj"),
    ("ki", "kj", "ij"),
    ("bik", "bkj", "bij"),
    ("bthd", "bshd", "bhts"),
    ("ijk", "kji", ""),
    ("i", "j", "ij"),
    ("ab", "bca", "c"),
    ("xkl", "lykx", "xy"),
    ("", "ij", "ij"),
    ("iz", "zj", "ij"),
]
SIZES = dict(zip("ijkbthdsacxylz", (2, 3, 4, 2, 3, 2, 4, 5, 3, 2, 2, 3, 3, 0), strict=True))


def numbers(lhs, rhs, out):
    """Dimension numbers of an einsum: shared letters are batch where the result has them."""
    shared = [c for c in lhs if c in rhs]
    batch = [c for c in out if c in shared]
    contract = [c for c in reversed(shared) if c not in batch]
    find = lambda s, letters: tuple(s.index(c) for c in letters)
    return (find(lhs, contract), find(rhs, contract)), (find(lhs, batch), find(rhs, batch))


def result(lhs, rhs, out):
    batch = [c for c in out if c in lhs and c in rhs]
    free = [c for c in lhs if c not in rhs] + [c for c in rhs if c not in lhs]
    return "".join(batch + free)


def shapes(lhs, rhs):
    return tuple(SIZES[c] for c in lhs), tuple(SIZES[c] for c in rhs)


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64", "int8", "bool"])
def test_values(case, dtype, rng):
    a, b = (np.asarray(rng.integers(-5, 5, s)).astype(dtype) for s in shapes(*case[:2]))
    got = dot_general(Array(a), Array(b), numbers(*case))
    out = result(*case)
    wide = {"f": np.float64, "c": np.complex128}.get(np.dtype(dtype).kind, np.int64)
    expected = np.einsum(f"{case[0]},{case[1]}->{out}", a.astype(wide), b.astype(wide))
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got), expected.astype(dtype))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn])
def test_small_floats_are_rounded_once(dtype, rng):
    a, b = (rng.standard_normal((8, 512)).astype(dtype) for _ in range(2))
    got = dot_general(a, b, (((1,), (1,)), ((), ())))
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(dtype)
    np.testing.assert_array_equal(np.asarray(got), exact)
    wide = dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type="float32")
    np.testing.assert_array_equal(np.asarray(wide), a.astype(np.float32) @ b.astype(np.float32).T)


def test_small_integers_wrap_or_widen(rng):
    a, b = rng.integers(-128, 128, (3, 200)), rng.integers(-128, 128, (200, 4))
    exact = a @ b
    a, b = a.astype(np.int8), b.astype(np.int8)
    np.testing.assert_array_equal(np.asarray(dot(a, b)), exact.astype(np.int8))
    wide = dot(a, b, preferred_element_type="int32")
    assert wide.dtype == np.int32
    np.testing.assert_array_equal(np.asarray(wide), exact)
    four = dot(np.ones((2, 3), ml_dtypes.int4), np.ones((3, 2), ml_dtypes.int4))
    assert four.dtype == ml_dtypes.int4
    assert np.asarray(four).astype(int).tolist() == [[3, 3], [3, 3]]
    mixed = dot(a, b.astype(np.int32), preferred_element_type="int32")
    np.testing.assert_array_equal(np.asarray(mixed), exact)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_rules(case, rng):
    fun = lambda a, b: dot_general(a, b, numbers(*case))
    args = [rng.standard_normal(s) for s in shapes(*case[:2])]
    check_derivatives(fun, args, rng)
    check_vmap(fun, args, rng)
    check_dims(fun, args)
    check_transpose(lambda a: fun(a, Array(args[1])), [args[0].shape], rng)
    check_transpose(lambda b: fun(Array(args[0]), b), [args[1].shape], rng)


def test_transpose_keeps_the_operands_dtypes(rng):
    a = Array(rng.standard_normal((2, 3)).astype(ml_dtypes.bfloat16))
    b = Array(rng.standard_normal((3, 4)).astype(ml_dtypes.bfloat16))
    fun = lambda a, b: dot(a, b, preferred_element_type="float32")
    ct = np.asarray(rng.standard_normal((2, 4)), np.float32)
    ct_a, ct_b = vjp(fun, [a, b], [Array(ct)])
    assert ct_a.dtype == ct_b.dtype == ml_dtypes.bfloat16
    wide = lambda x: np.asarray(x).astype(np.float32)
    np.testing.assert_array_equal(wide(ct_a), wide((ct @ wide(b).T).astype(ml_dtypes.bfloat16)))
    np.testing.assert_array_equal(wide(ct_b), wide((wide(a).T @ ct).astype(ml_dtypes.bfloat16)))


def test_batch_matmul_and_dot(rng):
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 5))
    np.testing.assert_allclose(np.asarray(batch_matmul(a, b)), a @ b)
    np.testing.assert_allclose(np.asarray(dot(a[0], b[0])), a[0] @ b[0])
    np.testing.assert_allclose(np.asarray(dot(a[0, 0], b[0])), a[0, 0] @ b[0])


def test_errors():
    a, b = np.zeros((2, 3), np.float32), np.zeros((4, 5), np.float32)
    with pytest.raises(ShapeError, match=r"contracting axes \(1,\) of lhs f32\[2,3\] and \(0,\)"):
        dot_general(a, b, (((1,), (0,)), ((), ())))
    with pytest.raises(ShapeError, match="batch axes"):
        dot_general(a, b, (((), ()), ((0,), (0,))))
    with pytest.raises(ShapeError, match="go in pairs"):
        dot_general(a, b, (((1,), ()), ((), ())))
    with pytest.raises(ShapeError, match="not distinct"):
        dot_general(a, a, (((0,), (0,)), ((0,), (0,))))
    with pytest.raises(DTypeError, match="one dtype, got lhs f32.*rhs i32"):
        dot_general(a, a.astype(np.int32), (((0,), (0,)), ((), ())))
    with pytest.raises(DTypeError, match="preferred_element_type int32 can't hold"):
        dot(a, a.T, preferred_element_type="int32")
    with pytest.raises(TypeError, match="dimension_numbers must be"):
        dot_general(a, b, ((1,), (0,), 3))
    with pytest.raises(ShapeError, match="dot: need vectors or matrices"):
        dot(a, b)
    with pytest.raises(ShapeError, match="batch_matmul"):
        batch_matmul(a, b[0])
