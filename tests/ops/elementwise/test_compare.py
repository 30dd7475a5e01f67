"""Comparisons, logic, shifts and bit counts against NumPy and Python's integers."""

import itertools
import operator

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.aval import Zero
from funcgrad.errors import DTypeError
from funcgrad.ops.elementwise import compare as ops
from funcgrad.transforms.autodiff.jvp import jvp_flat
from tests.ops.rules import check_dims, check_vmap

INTEGERS = [d for d in dtypes.ALL if dtypes.is_integer(d)]
COMPARISONS = [
    (ops.eq, operator.eq), (ops.ne, operator.ne), (ops.lt, operator.lt), (ops.le, operator.le),
    (ops.gt, operator.gt), (ops.ge, operator.ge),
]  # fmt: skip
TOTAL = [(ops.eq_to, operator.eq), (ops.lt_to, operator.lt), (ops.le_to, operator.le)]
LOGIC = [
    (ops.bitwise_and, operator.and_), (ops.bitwise_or, operator.or_),
    (ops.bitwise_xor, operator.xor),
]  # fmt: skip
SHIFTS = [ops.shift_left, ops.shift_right_logical, ops.shift_right_arithmetic]


def name(value):
    return getattr(value, "name", None)


def every_integer(dtype):
    """The extremes of a dtype and what lies around zero."""
    info = dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    return sorted({low, low + 1, low // 2, 0, 1, 2, 5, high // 2, high - 1, high} |
                  ({-1, -2, -6} if low else set()))  # fmt: skip


def exact(values, dtype):
    """Python integers as an array, whatever their size."""
    return np.array(values, np.int64 if min(values) < 0 else np.uint64).astype(dtype)


def pairs(dtype):
    both = list(itertools.product(every_integer(dtype), repeat=2))
    x, y = zip(*both, strict=True)
    return exact(x, dtype), exact(y, dtype), both


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize(("op", "reference"), COMPARISONS, ids=name)
def test_comparisons(op, reference, dtype):
    x, y = np.array([0, 1, 1, 0]).astype(dtype), np.array([0, 0, 1, 1]).astype(dtype)
    if dtypes.is_complex(dtype) and op not in (ops.eq, ops.ne):
        with pytest.raises(DTypeError, match="complex numbers have no order"):
            op(x, y)
        return
    got = op(x, y)
    assert got.dtype == dtypes.BOOL
    assert not got.weak_type
    assert np.asarray(got).tolist() == [
        reference(a, b) for a, b in [(0, 0), (1, 0), (1, 1), (0, 1)]
    ]


@pytest.mark.parametrize(("op", "reference"), COMPARISONS + TOTAL, ids=name)
def test_comparisons_of_integers(op, reference):
    for dtype in INTEGERS:
        x, y, both = pairs(dtype)
        assert np.asarray(op(x, y)).tolist() == [reference(a, b) for a, b in both]


@pytest.mark.parametrize(("op", "reference"), COMPARISONS, ids=name)
def test_nan_is_unordered(op, reference):
    nan = np.float32(np.nan)
    assert op(nan, nan).item() == (op is ops.ne)
    assert op(np.float32(1), nan).item() == (op is ops.ne)


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize(("op", "reference"), TOTAL, ids=name)
def test_total_order(op, reference, dtype):
    if "fnuz" in dtype.name:
        ordered = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]).astype(dtype)
    else:
        nan = np.array(np.nan).astype(dtype)
        ordered = np.array([-2, -1, -0.0, 0.0, 1, 2]).astype(dtype)
        ordered = np.array([np.negative(np.abs(nan)), *ordered, np.abs(nan)])
    for (i, x), (j, y) in itertools.product(enumerate(ordered), repeat=2):
        assert op(x, y).item() == reference(i, j), (x, y)


def test_total_equality_of_complex_numbers():
    x = np.array([0j, complex(-0.0, 0), complex(np.nan, 1)], np.complex64)
    y = np.array([0j, 0j, complex(np.nan, 1)], np.complex64)
    assert np.asarray(ops.eq_to(x, y)).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [dtypes.BOOL, *INTEGERS], ids=str)
@pytest.mark.parametrize(("op", "reference"), LOGIC, ids=name)
def test_logic(op, reference, dtype):
    if dtype == dtypes.BOOL:
        both = list(itertools.product([False, True], repeat=2))
        x, y = (np.array(v) for v in zip(*both, strict=True))
    else:
        x, y, both = pairs(dtype)
    got = op(x, y)
    assert got.dtype == dtype
    assert np.asarray(got).tolist() == [reference(a, b) for a, b in both]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_complement(dtype):
    values = every_integer(dtype)
    got = ops.bitwise_not(exact(values, dtype))
    assert got.dtype == dtype
    flip = -1 if dtypes.is_signed(dtype) else int(dtypes.iinfo(dtype).max)
    assert np.asarray(got).tolist() == [v ^ flip for v in values]
    assert np.asarray(ops.bitwise_not(np.array([True, False]))).tolist() == [False, True]


def wrapped(value, dtype):
    bits = dtypes.iinfo(dtype).bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtypes.is_signed(dtype) and value >> (bits - 1) else value


def shifted(op, x, n, dtype):
    """What XLA's shifts mean, on Python's integers."""
    bits = dtypes.iinfo(dtype).bits
    unsigned = x & ((1 << bits) - 1)
    signed = unsigned - (1 << bits) if unsigned >> (bits - 1) else unsigned
    inside = 0 <= n < bits
    if op is ops.shift_left:
        return wrapped(unsigned << n, dtype) if inside else 0
    if op is ops.shift_right_logical:
        return wrapped(unsigned >> n, dtype) if inside else 0
    return wrapped(signed >> (n if inside else bits - 1), dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", SHIFTS, ids=name)
def test_shifts(op, dtype):
    info = dtypes.iinfo(dtype)
    amounts = [n for n in (-1, 0, 1, 3, info.bits - 1, info.bits, info.bits + 9)
               if int(info.min) <= n <= int(info.max)]  # fmt: skip
    both = list(itertools.product(every_integer(dtype), amounts))
    x, n = (exact(v, dtype) for v in zip(*both, strict=True))
    got = op(x, n)
    assert got.dtype == dtype
    assert np.asarray(got).tolist() == [shifted(op, a, b, dtype) for a, b in both]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bit_counts(dtype):
    values, bits = every_integer(dtype), dtypes.iinfo(dtype).bits
    patterns = [v & ((1 << bits) - 1) for v in values]
    x = exact(values, dtype)
    assert ops.clz(x).dtype == ops.population_count(x).dtype == dtype
    assert np.asarray(ops.population_count(x)).tolist() == [p.bit_count() for p in patterns]
    assert np.asarray(ops.clz(x)).tolist() == [bits - p.bit_length() for p in patterns]


@pytest.mark.parametrize("op", [*SHIFTS, ops.clz, ops.population_count], ids=name)
def test_only_integers_have_shifts(op):
    args = [True] * (2 if op in SHIFTS else 1)
    with pytest.raises(DTypeError, match=f"{op.name} .*: need integers, got bool"):
        op(*args)


def test_only_bits_have_logic():
    with pytest.raises(DTypeError, match=r"and.*: need bool or integers, got f32\[\]"):
        ops.bitwise_and(1.0, 2.0)
    with pytest.raises(DTypeError, match="eq: operands must have one dtype"):
        ops.eq(np.int32(1), np.int8(1))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (ops.lt, (np.array([1.0, 3.0]), np.array([2.0, 2.0]))),
        (ops.eq_to, (np.array([1.0, 3.0]), np.array(3.0))),
        (ops.bitwise_or, (np.array([1, 3]), np.array([2, 2]))),
        (ops.shift_left, (np.array(1), np.array([2, 2]))),
        (ops.clz, (np.array([[1], [3]]),)),
    ],
    ids=name,
)
def test_rules(op, args, rng):
    check_vmap(op, args, rng)
    check_dims(op, args)
    primals = [Array(np.asarray(a)) for a in args]
    _, tangents = jvp_flat(lambda *xs: [op(*xs)], primals, primals)
    assert type(tangents[0]) is Zero
    assert tangents[0].aval.dtype == dtypes.float0
