"""What rows of samples are made of: operands, cases, rows, special values, and how to compare."""

import importlib
import itertools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import funcgrad.core
import funcgrad.ops
import funcgrad.transforms
from funcgrad import dtypes
from funcgrad.core.primitive import Primitive

BOOL, F32, F64, C64, C128, I32 = map(
    np.dtype, ("bool", "float32", "float64", "complex64", "complex128", "int32")
)
FLOATS, COMPLEX = dtypes.FLOATS, dtypes.COMPLEX
INTEGERS = (*dtypes.SIGNED, *dtypes.UNSIGNED)
INEXACT = (*FLOATS, *COMPLEX)
NUMBERS = (*INTEGERS, *INEXACT)
REAL = (BOOL, *INTEGERS, *FLOATS)
MATRIX = (F32, F64, C64, C128)

# ---- operands


class Domain:
    """Real numbers drawn from an interval; complex ones have both parts from it, integers lie in it
    and in their dtype's range. With `whole`, floats are whole numbers."""

    def __init__(self, low=-3.0, high=3.0, whole=False):
        self.low, self.high, self.whole = low, high, whole

    def __call__(self, rng, shape, dtype):
        if dtype == BOOL:
            return rng.integers(0, 2, shape).astype(bool)
        if dtypes.is_complex(dtype):
            parts = [rng.uniform(self.low, self.high, shape) for _ in range(2)]
            return np.asarray(parts[0] + 1j * parts[1]).astype(dtype)
        if dtypes.is_float(dtype) and not self.whole:
            return np.asarray(rng.uniform(self.low, self.high, shape)).astype(dtype)
        low, high = int(np.ceil(self.low)), int(np.floor(self.high))
        if dtypes.is_integer(dtype):
            limits = dtypes.iinfo(dtype)
            low, high = max(low, int(limits.min)), min(high, int(limits.max))
        return np.asarray(rng.integers(low, max(low, high) + 1, shape)).astype(dtype)


def any_integers(rng, shape, dtype):
    """Integers of the whole range."""
    return np.frombuffer(rng.bytes(8 * int(np.prod(shape))), np.int64).reshape(shape).astype(dtype)


SIGNED, POSITIVE, UNIT = Domain(), Domain(0.2, 4.0), Domain(0.05, 0.95)


@dataclass(frozen=True)
class Arg:
    """An operand: shape, domain, and a dtype of its own where it has one. `batched`: `vmap` may map
    over it; `smooth`: derivatives with respect to it are tested."""

    shape: tuple = ()
    draw: Callable = SIGNED
    dtype: Any = None
    batched: bool = True
    smooth: bool = True

    def make(self, rng, dtype):
        return self.draw(rng, self.shape, self.dtype or dtype)


@dataclass(frozen=True)
class Case:
    """Operands and parameters of one call."""

    args: tuple[Arg, ...]
    params: dict = field(default_factory=dict)
    tests: frozenset = frozenset({"eager", "grad", "vmap", "jit", "dims"})

    def make(self, rng, dtype):
        return [a.make(rng, dtype) for a in self.args]


def case(*shapes, draw=SIGNED, tests=None, **params):
    """A case of operands that share a domain; shapes may also be `Arg`s."""
    args = tuple(s if isinstance(s, Arg) else Arg(s, draw) for s in shapes)
    return Case(args, params) if tests is None else Case(args, params, frozenset(tests.split()))


# ---- rows


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is known about an op beside its rules.

    call(*arrays, **params) → an array or a list; by default the primitive itself
    oracle(*arrays, **params): floats come as float64 and complex as complex128, integers as int64;
        with `exact` everything comes as it is
    check(arrays, results, params): instead of an oracle, where results are not unique
    result(dtype, params): the results' dtypes, by default the operands'
    ulps: what eager may be off the oracle, in units of the dtype's epsilon; `atol` likewise,
        relative to 1. jit_ulps: what compiled code may be off eager.
    special: dtypes for which also NaN, infinities, denormals are tested, in all combinations
    signed_zeros: -0.0 must be -0.0
    no_derivative: words of the error for operands without a derivative, by position
    axis: the op is a collective: calls run under `vmap` with this axis name, lanes of size 3
    staged: the primitive is found in the traced program (it may be nested)
    """

    prim: Primitive
    cases: tuple[Case, ...]
    dtypes: tuple
    oracle: Callable | None = None
    check: Callable | None = None
    call: Callable | None = None
    exact: bool = False
    result: Callable | None = None
    ulps: float = 8
    atol: float = 0
    jit_ulps: float = 8
    jit_atol: float = 0
    special: tuple = ()
    signed_zeros: bool | None = None
    order: int = 2
    no_derivative: dict = field(default_factory=dict)
    gradient_tol: float = 1e-5
    axis: str | None = None
    staged: bool = True
    name: str = ""

    def __str__(self):
        return self.name or self.prim.name

    def close(self, got, wanted, what, ulps, atol):
        """Compare, with the signs of zeros unless the row says that they are free."""
        signs = self.prim.elementwise if self.signed_zeros is None else self.signed_zeros
        assert_close(got, wanted, ulps, atol, what, signs)

    def apply(self, *arrays, **params):
        return (self.call or self.prim.bind)(*arrays, **params)

    def cases_for(self, test):
        return [c for c in self.cases if test in c.tests]


def all_primitives():
    """Every primitive of funcgrad.core, funcgrad.ops and funcgrad.transforms."""
    found = {}
    for package in (funcgrad.core, funcgrad.ops, funcgrad.transforms):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            content = importlib.import_module(module.name)
            found |= {p: None for p in vars(content).values() if isinstance(p, Primitive)}
    return sorted(found, key=lambda p: p.name)


# ---- special values


def special_values(dtype):
    """Values at which functions of a dtype tend to go wrong."""
    if dtype == BOOL:
        return np.array([False, True])
    if dtypes.is_complex(dtype):
        parts = [0.0, -0.0, 1.0, -2.5, 1e-3]
        return np.array([complex(a, b) for a in parts for b in parts], dtype)
    if dtypes.is_integer(dtype):
        limits = dtypes.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
        wanted = {low, low + 1, high, high - 1, 0, 1, 2, 3, 5, 7, high // 2, -1, -2, -7}
        return np.array(sorted(v for v in wanted if low <= v <= high)).astype(dtype)
    info = dtypes.finfo(dtype)
    tiny, least = float(info.tiny), float(info.smallest_subnormal)
    top, eps = float(info.max), float(info.eps)
    sizes = [0.0, least, 3 * least, tiny, eps, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.0, top, np.inf]
    return np.array([s * v for v in sizes for s in (1, -1)] + [np.nan]).astype(dtype)


def special_operands(dtype, n, own=()):
    """All combinations of special values for n operands, thinned out beyond two."""
    values = [special_values(own[i] if i < len(own) and own[i] else dtype) for i in range(n)]
    if n > 2:
        values = [v[:: 2 + (i > 0)] for i, v in enumerate(values)]
    places = np.array(list(itertools.product(*(range(len(v)) for v in values))))
    return [v[places[:, i]] for i, v in enumerate(values)]


# ---- comparing


def widened(x):
    """An array as float64, complex128 or integers of 64 bits."""
    x = np.asarray(x)
    if dtypes.is_complex(x.dtype):
        return x.astype(C128)
    if dtypes.is_float(x.dtype):
        return x.astype(F64)
    return x if x.dtype in (BOOL, np.uint64) else x.astype(np.int64)


def assert_close(got, wanted, ulps=0.0, atol=0.0, what="", signed_zeros=False):
    """Equal up to `ulps` relative and `atol` absolute multiples of the dtype's epsilon; NaN and
    infinities in the same places, complex numbers by their distance. Narrow floats are computed in
    float32: theirs is float32's epsilon, and one rounding."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, not {wanted.shape}"
    if not dtypes.is_inexact(got.dtype):
        np.testing.assert_array_equal(got, wanted.astype(got.dtype), err_msg=str(what))
        return
    # Overflow happens where the result is rounded to its dtype.
    rounded = widened(wanted.astype(got.dtype))
    info = dtypes.finfo(got.dtype)
    g, w = widened(got), rounded
    wide = widened(wanted) if dtypes.is_inexact(wanted.dtype) else w
    least, rounding = float(info.smallest_subnormal), 0.0
    eps = float(info.eps)
    if got.dtype.itemsize < 4:
        rounding, eps = (eps if ulps else 0.0), float(np.finfo(F32).eps)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    bound = (ulps * eps + rounding) * np.abs(w) + atol * eps + (2 * least if ulps else 0)
    edge = np.isfinite(wide) & (np.abs(wide) > float(info.max) * (1 - ulps * eps - rounding))
    near = np.isfinite(g) & np.isfinite(w) & (np.abs(g - w) <= bound)
    if got.dtype.kind == "c":
        infinite = np.isinf(g) & np.isinf(w)
        near |= infinite & ((ulps > 0) & True)
    wrong = ~(same | near | (edge if ulps else False))
    if signed_zeros and got.dtype.kind != "c":
        wrong |= (g == 0) & (w == 0) & (np.signbit(g) != np.signbit(w))
    if np.any(wrong):
        at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong))) if wrong.ndim else ()
        raise AssertionError(
            f"{what}: {int(np.sum(wrong))} of {wrong.size} differ; at {at}: {got[at]!r}, wanted "
            f"{wanted[at]!r}"
        )


def as_list(out):
    return list(out) if isinstance(out, list | tuple) else [out]
