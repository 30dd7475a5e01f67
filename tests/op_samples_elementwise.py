"""Rows of the elementwise ops: arithmetic, comparisons, bits, transcendental functions, casts."""

import numpy as np

from funcgrad import dtypes
from funcgrad.ops.elementwise import arithmetic as a
from funcgrad.ops.elementwise import compare as c
from funcgrad.ops.elementwise import convert as v
from funcgrad.ops.elementwise import rounding as r
from funcgrad.ops.elementwise import transcendental as t
from funcgrad.ops.families import add
from tests.op_samples_base import (
    BOOL,
    COMPLEX,
    F32,
    F64,
    FLOATS,
    I32,
    INEXACT,
    INTEGERS,
    NUMBERS,
    POSITIVE,
    REAL,
    SIGNED,
    Arg,
    Domain,
    Row,
    any_integers,
    case,
)

ANY = (*REAL, *COMPLEX)
BITS = (BOOL, *INTEGERS)


def to_bool(dtype, params):
    return BOOL


def shapes(n, draw=SIGNED, **params):
    """Cases of n operands: vectors, matrices with a scalar among them, scalars, nothing."""
    several = [draw] * n if not isinstance(draw, tuple) else draw
    few = "eager jit vmap"

    def args(*shape_of):
        return [Arg(s, d) for s, d in zip(shape_of, several, strict=True)]

    cases = [case(*args(*[(5,)] * n), **params), case(*args(*[()] * n), tests=few, **params)]
    cases.append(case(*args(*[(0, 3)] * n), tests="eager jit", **params))
    if n == 1:
        cases.append(case(*args((3, 7)), tests="jit vmap dims", **params))
    for i in range(n if n > 1 else 0):
        cases.append(case(*args(*[() if i == j else (2, 3) for j in range(n)]), **params))
    return tuple(cases)


def unary(prim, oracle, accepted, draw=SIGNED, params=({},), **rest):
    cases = tuple(x for p in params for x in shapes(1, draw, **p))
    rest.setdefault("special", accepted)
    return Row(prim=prim, oracle=oracle, dtypes=accepted, cases=cases, **rest)


def binary(prim, oracle, accepted, draw=SIGNED, **rest):
    rest.setdefault("special", accepted)
    return Row(prim=prim, oracle=oracle, dtypes=accepted, cases=shapes(2, draw), **rest)


def on_integers(function):
    """The oracle that a function of Python integers x, …, bits and signedness is."""

    def oracle(*arrays):
        dtype = arrays[0].dtype
        bits, signed = dtypes.iinfo(dtype).bits, dtypes.is_signed(dtype)
        out = np.empty(np.broadcast_shapes(*(x.shape for x in arrays)), object)
        wide = [np.broadcast_to(x, out.shape) for x in arrays]
        for at in np.ndindex(*out.shape):
            value = function(*(int(x[at]) for x in wide), bits, signed) % (1 << bits)
            out[at] = value - (1 << bits) * (signed and value >> (bits - 1))
        return out.astype(np.uint64 if dtype == np.uint64 else np.int64).astype(dtype)

    return oracle


def either(of_integers, otherwise):
    """One oracle for integers, as they are, and another for everything else."""
    exact = on_integers(of_integers)

    def oracle(*arrays):
        if dtypes.is_integer(arrays[0].dtype):
            return exact(*arrays)
        wide = [x.astype(np.complex128 if x.dtype.kind == "c" else F64) for x in arrays]
        return otherwise(*wide)

    return oracle


def wrapping(function):
    """An oracle that is the same function of integers of unlimited size."""
    return either(lambda *args: function(*args[:-2]), function)


def truncated(x, y):
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def divide(x, y, bits, signed):
    return (-1 if y == 0 else truncated(x, y)) if signed or y else (1 << bits) - 1


def remainder(x, y, bits, signed):
    return x if y == 0 else x - y * truncated(x, y)


def power(x, y, bits, signed):
    if y < 0:
        return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    return pow(x, y, 1 << bits)


def shift(fill):
    """A shift of x by y, of which `fill` says what comes in from the left (None: to the left)."""

    def function(x, y, bits, signed):
        out_of_range = not 0 <= y < bits
        if fill is None:
            return 0 if out_of_range else x << y
        u = x % (1 << bits)
        if fill == "zeros":
            return 0 if out_of_range else u >> y
        s = u - (1 << bits) * (u >> (bits - 1))
        return s >> (bits - 1 if out_of_range else y)

    return on_integers(function)


def sign_of(x):
    if x.dtype.kind == "c":
        size = np.abs(x)
        return np.where(size == 0, 0, x / np.where(size == 0, 1, size))
    return np.where(x == 0, x, np.sign(x))


def away_from_zero(x):
    return np.where(np.isfinite(x), np.trunc(x + np.copysign(0.5, x)), x)


def rounded(x, rounding_method):
    if rounding_method == r.RoundingMethod.TO_NEAREST_EVEN:
        return np.rint(x)
    # 0.49999999999999994 + 0.5 is 1 in float64.
    return np.where(np.abs(x) < 0.5, np.copysign(0.0, x), away_from_zero(x))


def total_order(relation):
    """Compare by bits: sign and magnitude as one integer."""

    def rank(x):
        if not dtypes.is_float(x.dtype):
            return x
        bits = np.asarray(x).view(f"i{x.dtype.itemsize}").astype(np.int64)
        size = bits & ((1 << (8 * x.dtype.itemsize - 1)) - 1)
        return np.where(bits < 0, -1 - size, size)

    def oracle(x, y):
        if x.dtype.kind == "c":
            return (rank(x.real) == rank(y.real)) & (rank(x.imag) == rank(y.imag))
        return relation(rank(x), rank(y))

    return oracle


def complex_atan2(x, y):
    if x.dtype.kind != "c":
        return np.arctan2(x, y)
    return -1j * np.log((y + 1j * x) / np.sqrt(x * x + y * y))


def f(prim, oracle, draw=SIGNED, **rest):
    """A function of floats and complex numbers."""
    return unary(prim, oracle, INEXACT, draw, jit_atol=0, **rest)


TRANSCENDENTAL = [
    f(t.exp, np.exp), f(t.exp2, lambda x: np.exp2(x) if x.dtype.kind != "c" else 2**x),
    f(t.expm1, np.expm1), f(t.log, np.log, POSITIVE),
    f(t.log1p, np.log1p, Domain(-0.9, 3), special=REAL),
    f(t.logistic, lambda x: 1 / (1 + np.exp(-x))),
    f(t.sin, np.sin), f(t.cos, np.cos, atol=1), f(t.tan, np.tan, Domain(-1.2, 1.2)),
    f(t.asin, np.arcsin, Domain(-0.9, 0.9)), f(t.acos, np.arccos, Domain(-0.9, 0.9)),
    f(t.atan, np.arctan), f(t.sinh, np.sinh), f(t.cosh, np.cosh), f(t.tanh, np.tanh),
    f(t.asinh, np.arcsinh), f(t.acosh, np.arccosh, Domain(1.2, 5)),
    f(t.atanh, np.arctanh, Domain(-0.9, 0.9)),
    f(a.sqrt, np.sqrt, POSITIVE), f(a.rsqrt, lambda x: 1 / np.sqrt(x), POSITIVE),
    unary(a.cbrt, np.cbrt, FLOATS, POSITIVE),
    binary(t.atan2, complex_atan2, INEXACT, POSITIVE, ulps=16, special=REAL),
    binary(t.pow, either(power, lambda x, y: np.power(x, y)), NUMBERS, POSITIVE, exact=True,
           ulps=16, jit_ulps=16, special=()),
]  # fmt: skip

ARITHMETIC = [
    unary(a.neg, wrapping(lambda x: -x), NUMBERS, exact=True),
    unary(a.sign, sign_of, NUMBERS), unary(a.abs, np.abs, NUMBERS, POSITIVE,
          result=lambda d, p: dtypes.real_part(d)),
    unary(a.square, wrapping(lambda x: x * x), NUMBERS, exact=True),
    unary(a.integer_pow_p, lambda x, y: np.asarray(x) ** y if y >= 0 else 1 / x**-y, INEXACT,
          POSITIVE, params=({"y": 3}, {"y": -2}, {"y": 0}), ulps=16),
    binary(add, wrapping(lambda x, y: x + y), NUMBERS, exact=True),
    binary(a.sub, wrapping(lambda x, y: x - y), NUMBERS, exact=True),
    binary(a.mul, wrapping(lambda x, y: x * y), NUMBERS, exact=True),
    binary(a.div, either(divide, lambda x, y: x / y), NUMBERS, POSITIVE, exact=True),
    binary(a.rem, either(remainder, np.fmod), (*INTEGERS, *FLOATS),
           (Domain(2, 3), Domain(0.8, 0.95)), exact=True),
    binary(a.max, np.maximum, ANY, signed_zeros=False),
    binary(a.min, np.minimum, ANY, signed_zeros=False),
    binary(a.mulhi, on_integers(lambda x, y, bits, signed: (x * y) >> bits), INTEGERS,
           any_integers, exact=True),
    binary(r.nextafter, np.nextafter, FLOATS, exact=True, ulps=0, jit_ulps=0, signed_zeros=False,
           no_derivative={0: "neighbouring", 1: "neighbouring"}),
    unary(r.floor, np.floor, FLOATS), unary(r.ceil, np.ceil, FLOATS),
    unary(r.round_p, rounded, FLOATS,
          params=tuple({"rounding_method": m} for m in r.RoundingMethod)),
    unary(r.is_finite, np.isfinite, FLOATS, result=to_bool),
    binary(a.complex, lambda x, y: (np.stack([x, y], -1).view(np.complex128)[..., 0]
           if x.shape == y.shape else x + 1j * y), (F32, F64),
           result=lambda d, p: dtypes.to_complex(d)),
    unary(a.real, np.real, COMPLEX, result=lambda d, p: dtypes.real_part(d)),
    unary(a.imag, np.imag, COMPLEX, result=lambda d, p: dtypes.real_part(d)),
    unary(a.conj, np.conj, (F32, F64, *COMPLEX), result=lambda d, p: dtypes.to_complex(d)),
]  # fmt: skip

COMPARISONS = [
    binary(prim, oracle, accepted, result=to_bool, exact=True)
    for prim, oracle, accepted in (
        (c.eq, np.equal, ANY), (c.ne, np.not_equal, ANY), (c.lt, np.less, REAL),
        (c.le, np.less_equal, REAL), (c.gt, np.greater, REAL), (c.ge, np.greater_equal, REAL),
        (c.eq_to, total_order(np.equal), ANY), (c.lt_to, total_order(np.less), REAL),
        (c.le_to, total_order(np.less_equal), REAL),
    )
]  # fmt: skip


def bitwise(python):
    def oracle(*arrays):
        if arrays[0].dtype == BOOL:
            return np.vectorize(python, otypes=[object])(*arrays).astype(int) % 2 == 1
        return on_integers(lambda *args: python(*args[:-2]))(*arrays)

    return oracle


LOGIC = [
    binary(c.bitwise_and, bitwise(lambda x, y: x & y), BITS, any_integers, exact=True),
    binary(c.bitwise_or, bitwise(lambda x, y: x | y), BITS, any_integers, exact=True),
    binary(c.bitwise_xor, bitwise(lambda x, y: x ^ y), BITS, any_integers, exact=True),
    unary(c.bitwise_not, bitwise(lambda x: ~int(x)), BITS, any_integers, exact=True),
    binary(c.shift_left, shift(None), INTEGERS, (any_integers, Domain(-1, 9)), exact=True),
    binary(c.shift_right_logical, shift("zeros"), INTEGERS, (any_integers, Domain(-1, 9)),
           exact=True),
    binary(c.shift_right_arithmetic, shift("sign"), INTEGERS, (any_integers, Domain(-1, 9)),
           exact=True),
    unary(c.population_count, on_integers(lambda x, bits, s: (x % (1 << bits)).bit_count()),
          INTEGERS, any_integers, exact=True),
    unary(c.clz, on_integers(lambda x, bits, s: bits - (x % (1 << bits)).bit_length()), INTEGERS,
          any_integers, exact=True),
]  # fmt: skip

# ---- casts and choices


def cast(x, new_dtype):
    """Towards zero, held within the range, NaN as 0; complex numbers lose their imaginary part."""
    if new_dtype == BOOL:
        return x != 0
    if x.dtype.kind == "c" and new_dtype.kind != "c":
        x = x.real
    if dtypes.is_integer(new_dtype) and dtypes.is_float(x.dtype):
        limits = dtypes.iinfo(new_dtype)
        low, high = int(limits.min), int(limits.max)
        flat = [
            0 if np.isnan(e) else (high if e > 0 else low) if np.isinf(e)
            else min(max(int(e), low), high)
            for e in x.astype(F64).ravel()
        ]  # fmt: skip
        kind = np.uint64 if low == 0 else np.int64
        return np.array(flat, kind).reshape(x.shape).astype(new_dtype)
    if dtypes.is_integer(x.dtype) and dtypes.is_integer(new_dtype):
        return x.astype(np.uint64 if x.dtype == np.uint64 else np.int64).astype(new_dtype)
    return x.astype(new_dtype)


OWN_BITS = {F32: 8, F64: 11, np.dtype("float16"): 5, dtypes.canonical("bfloat16"): 8}


def reduced(x, exponent_bits, mantissa_bits):
    """The nearest multiple of the last kept bit, ties to even; a narrower exponent has limits."""
    out = x.astype(F64)
    narrower = exponent_bits < OWN_BITS[x.dtype]
    bias = (1 << (exponent_bits - 1)) - 1
    for at in np.ndindex(*x.shape):
        value = float(out[at])
        if not np.isfinite(value) or value == 0:
            continue
        least = 2 - (1 << (OWN_BITS[x.dtype] - 1))
        exponent = max(np.frexp(value)[1] - 1, least)
        unit = float(np.ldexp(1.0, int(exponent) - mantissa_bits))
        value = np.rint(value / unit) * unit if unit else value
        if narrower and abs(value) >= 2.0 ** (bias + 1):
            value = np.copysign(np.inf, value)
        elif narrower and abs(value) < 2.0 ** (1 - bias):
            value = np.copysign(0.0, value)
        out[at] = value
    return out


def choose(which, *cases):
    number = which.astype(int) if which.dtype == BOOL else which
    number = np.clip(number, 0, len(cases) - 1)
    shape = np.broadcast_shapes(which.shape, *(x.shape for x in cases))
    out = np.empty(shape, cases[0].dtype)
    for at in np.ndindex(*shape):
        k = number[at] if number.shape else number
        out[at] = cases[int(k)][at] if cases[int(k)].shape else cases[int(k)]
    return out


def selections():
    flag, number = Arg((2, 3), dtype=BOOL), Arg((4,), Domain(-1, 4), I32)
    few = "eager jit vmap dims"
    return (
        case(flag, (2, 3), (2, 3)), case(Arg((), dtype=BOOL), (4,), (4,)),
        case(flag, (), (2, 3)), case(number, (4,), (4,), (4,)), case(flag, (2, 3), tests=few),
        case(flag, (), tests=few),
        case(Arg((), Domain(0, 2), I32), (3,), (3,), (3,), tests=few),
        case(Arg((0,), dtype=BOOL), (0,), (0,), tests="eager jit"),
    )  # fmt: skip


LOW, MIDDLE, HIGH = Domain(-3, -2), Domain(-4, 4), Domain(2, 3)
CASTS = [
    Row(prim=v.convert_element_type_p, name=f"convert to {d}", oracle=cast, exact=True, ulps=0,
        jit_ulps=0, dtypes=ANY, cases=shapes(1, Domain(-9, 9), new_dtype=d), special=ANY,
        order=int(d in (F64, np.dtype("complex128"))), result=lambda dtype, p: p["new_dtype"])
    for d in ANY
] + [
    Row(prim=v.bitcast_convert_type_p, name=f"bitcast to {d}", dtypes=others, exact=True, ulps=0,
        jit_ulps=0, oracle=lambda x, new_dtype: np.asarray(x).view(new_dtype),
        cases=shapes(1, Domain(-9, 9), new_dtype=np.dtype(d)), special=ANY,
        result=lambda dtype, p: p["new_dtype"])
    for d, others in (
        ("int32", (F32, np.dtype("uint32"))), ("float64", (np.dtype("int64"),)),
        ("uint16", (np.dtype("float16"), dtypes.canonical("bfloat16"))),
        ("uint8", (*dtypes.FLOAT8, np.dtype("int8"))), ("float32", (np.dtype("uint32"),)),
    )
] + [
    Row(prim=v.select_n_p, oracle=choose, exact=True, ulps=0, jit_ulps=0, dtypes=ANY,
        cases=selections()),
    Row(prim=v.clamp, oracle=lambda lo, x, hi: np.minimum(np.maximum(lo, x), hi), dtypes=REAL,
        signed_zeros=False, special=ANY, cases=(
            case(Arg((5,), LOW), Arg((5,), MIDDLE), Arg((5,), HIGH)),
            case(Arg((), LOW), Arg((2, 3), MIDDLE), Arg((), HIGH)),
            case(Arg((), LOW), Arg((), MIDDLE), Arg((), HIGH), tests="eager jit"),
        )),
    Row(prim=v.reduce_precision_p, oracle=reduced, exact=True, ulps=0, jit_ulps=0, order=0,
        special=ANY, dtypes=(F32, F64, np.dtype("float16"), dtypes.canonical("bfloat16")),
        cases=tuple(x for e, m in ((5, 10), (8, 7), (4, 3)) for x in
                    shapes(1, exponent_bits=e, mantissa_bits=m))),
    unary(v.copy, lambda x: x, ANY, exact=True, ulps=0, jit_ulps=0),
    unary(v.stop_gradient_p, lambda x: x, INEXACT, exact=True, ulps=0, jit_ulps=0, order=0),
]  # fmt: skip

ELEMENTWISE = [*TRANSCENDENTAL, *ARITHMETIC, *COMPARISONS, *LOGIC, *CASTS]
