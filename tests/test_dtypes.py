"""The promotion lattice against JAX's (with x64 enabled), and the names and limits of dtypes."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray, promote
from funcgrad.core.settings import default_dtype
from funcgrad.dtypes import join
from funcgrad.errors import DTypeError, TypePromotionError

# What jax.numpy.promote_types gives; i*, f*, c* are weak: Python's int, float, complex.
TABLE = """
     bool i8   i16  i32  i64  u8   u16  u32  u64  bf16 f16  f32  f64  c64  c128 i*   f*   c*
bool bool i8   i16  i32  i64  u8   u16  u32  u64  bf16 f16  f32  f64  c64  c128 i*   f*   c*
i8   i8   i8   i16  i32  i64  i16  i32  i64  f*   bf16 f16  f32  f64  c64  c128 i8   f*   c*
i16  i16  i16  i16  i32  i64  i16  i32  i64  f*   bf16 f16  f32  f64  c64  c128 i16  f*   c*
i32  i32  i32  i32  i32  i64  i32  i32  i64  f*   bf16 f16  f32  f64  c64  c128 i32  f*   c*
i64  i64  i64  i64  i64  i64  i64  i64  i64  f*   bf16 f16  f32  f64  c64  c128 i64  f*   c*
u8   u8   i16  i16  i32  i64  u8   u16  u32  u64  bf16 f16  f32  f64  c64  c128 u8   f*   c*
u16  u16  i32  i32  i32  i64  u16  u16  u32  u64  bf16 f16  f32  f64  c64  c128 u16  f*   c*
u32  u32  i64  i64  i64  i64  u32  u32  u32  u64  bf16 f16  f32  f64  c64  c128 u32  f*   c*
u64  u64  f*   f*   f*   f*   u64  u64  u64  u64  bf16 f16  f32  f64  c64  c128 u64  f*   c*
bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 f32  f32  f64  c64  c128 bf16 bf16 c64
f16  f16  f16  f16  f16  f16  f16  f16  f16  f16  f32  f16  f32  f64  c64  c128 f16  f16  c64
f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f64  c64  c128 f32  f32  c64
f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  c128 c128 f64  f64  c128
c64  c64  c64  c64  c64  c64  c64  c64  c64  c64  c64  c64  c64  c128 c64  c128 c64  c64  c64
c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128
i*   i*   i8   i16  i32  i64  u8   u16  u32  u64  bf16 f16  f32  f64  c64  c128 i*   f*   c*
f*   f*   f*   f*   f*   f*   f*   f*   f*   f*   bf16 f16  f32  f64  c64  c128 f*   f*   c*
c*   c*   c*   c*   c*   c*   c*   c*   c*   c*   c64  c64  c64  c128 c64  c128 c*   c*   c*
"""
WEAK = (dtypes.WEAK_INT, dtypes.WEAK_FLOAT, dtypes.WEAK_COMPLEX)
NODES = {dtypes.short_name(d): d for d in dtypes.ALL} | {k.name: k for k in WEAK}
HEAD, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
TINY = (*dtypes.FLOAT8, np.dtype(dtypes.int4), np.dtype(dtypes.uint4))


def join_or_none(*nodes):
    try:
        return join(frozenset(nodes))
    except TypePromotionError:
        return None


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r[0])
def test_promotion_is_jaxs(row):
    name, *results = row
    for other, result in zip(HEAD, results, strict=True):
        got = join(frozenset({NODES[name], NODES[other]}))
        assert got == NODES[result], f"{name} and {other} give {got}, JAX {result}"


@pytest.mark.parametrize("tiny", TINY, ids=lambda d: d.name)
def test_tiny_dtypes_mix_with_weak_numbers_only(tiny):
    is_float = dtypes.is_float(tiny)
    for other in (*dtypes.ALL, *WEAK):
        mixes = other in (tiny, dtypes.BOOL, dtypes.WEAK_INT)
        mixes |= is_float and (other == dtypes.WEAK_FLOAT or dtypes.is_integer(other))
        mixes &= not (other in TINY and other != tiny)
        if not is_float and other in (dtypes.WEAK_FLOAT, dtypes.WEAK_COMPLEX):
            mixes = False
        assert join_or_none(tiny, other) == (tiny if mixes else None), (tiny, other)


def test_promotion_error_names_both():
    with pytest.raises(TypePromotionError, match=r"float32 and float8_e5m2.*\.astype"):
        join(frozenset({np.dtype("float32"), np.dtype(dtypes.float8_e5m2)}))


def test_join_is_a_least_upper_bound():
    nodes = [*dtypes.ALL, *WEAK]
    for a, b in itertools.product(nodes, nodes):
        ab = join_or_none(a, b)
        assert join_or_none(a, a) == a
        if ab is not None:
            assert join(frozenset({a, ab})) == ab, "the join is above its operands"
    for a, b, c in itertools.combinations([n for n in nodes if n not in TINY], 3):
        all_three = join(frozenset({a, b, c}))
        assert join(frozenset({join(frozenset({a, b})), c})) == all_three
        assert join(frozenset({a, join(frozenset({b, c}))})) == all_three


def weak(dtype):
    return ShapedArray((), dtype, weak_type=True)


def strong(dtype):
    return ShapedArray((), dtype)


@pytest.mark.parametrize(
    ("avals", "dtype", "is_weak"),
    [
        ([strong("int8"), weak("int32")], "int8", False),
        ([strong("bfloat16"), weak("float32")], "bfloat16", False),
        ([strong("int32"), weak("float32")], "float32", True),
        ([strong("float16"), weak("complex64")], "complex64", False),
        ([strong("float64"), weak("complex64")], "complex128", False),
        ([strong("bool"), weak("int32")], "int32", True),
        ([weak("int32"), weak("float32")], "float32", True),
        ([weak("float64"), weak("float32")], "float64", True),
        ([weak("float32")], "float32", True),
        ([strong("float32"), weak("float32")], "float32", False),
        ([strong("uint64"), strong("int64")], "float32", True),
        ([strong("bool"), strong("bool")], "bool", False),
    ],
)
def test_promote(avals, dtype, is_weak):
    for order in itertools.permutations(avals):
        assert promote(list(order)) == (np.dtype(dtypes.canonical(dtype)), is_weak)


def test_promotion_to_a_weak_float_takes_the_default():
    with default_dtype("float64"):
        assert promote([strong("int8"), weak("float64")]) == (np.dtype("float64"), True)
        assert promote([strong("uint64"), strong("int8")]) == (np.dtype("float64"), True)
    with default_dtype("bfloat16"):
        assert promote([strong("int8"), weak("float32")])[0] == np.dtype(dtypes.bfloat16)
        assert promote([strong("int8"), weak("complex64")])[0] == np.complex64


# ---- names and limits


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("float32", "float32"),
        (np.float64, "float64"),
        (ml_dtypes.bfloat16, "bfloat16"),
        ("int4", "int4"),
        (float, "float64"),
        (bool, "bool"),
        (">f4", "float32"),
        (np.dtype(">i8"), "int64"),
    ],
)
def test_canonical(given, name):
    found = dtypes.canonical(given)
    assert found.name == name
    assert found.isnative


@pytest.mark.parametrize("bad", ["nonsense", "U3", object, "datetime64[s]", np.longdouble, "V4"])
def test_canonical_refuses(bad):
    with pytest.raises(DTypeError, match=r"not (a dtype|supported)"):
        dtypes.canonical(bad)


def test_float0_is_a_dtype():
    assert dtypes.canonical(dtypes.float0) == dtypes.float0
    assert dtypes.short_name(dtypes.float0) == "float0"
    assert not dtypes.is_inexact(dtypes.float0)


def test_short_names_differ():
    names = [dtypes.short_name(d) for d in dtypes.ALL]
    assert len(set(names)) == len(names)
    assert {"bool", "i4", "u64", "bf16", "f16", "f8_e4m3fn", "c128"} <= set(names)


def test_every_dtype_has_one_kind():
    for d in dtypes.ALL:
        kinds = [
            d == dtypes.BOOL, dtypes.is_integer(d), dtypes.is_float(d), dtypes.is_complex(d)
        ]  # fmt: skip
        assert sum(kinds) == 1, d
        assert dtypes.is_inexact(d) == (kinds[2] or kinds[3])
        assert dtypes.is_signed(d) == d.name.startswith("int")


def test_real_and_complex_of_a_dtype():
    assert dtypes.real_part(np.dtype("complex128")) == np.float64
    assert dtypes.real_part(np.dtype(dtypes.bfloat16)) == np.dtype(dtypes.bfloat16)
    assert dtypes.to_complex(np.dtype("float16")) == np.complex64
    assert dtypes.to_complex(np.dtype("complex128")) == np.complex128
    assert dtypes.to_inexact(np.dtype("int8"), np.dtype("float64")) == np.float64


def test_limits():
    assert dtypes.iinfo("int4").min == -8
    assert dtypes.finfo("complex64").dtype == np.float32
    assert float(dtypes.finfo("bfloat16").eps) == 2**-7
    with pytest.raises(DTypeError, match="int32 is not a floating-point"):
        dtypes.finfo("int32")
    with pytest.raises(DTypeError, match="float32 is not an integer"):
        dtypes.iinfo("float32")
