"""Derivatives checked against finite differences, by the names of `jax.test_util`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.array import raw
from funcgrad.core.trace import aval_of
from funcgrad.transforms.derivatives.linear import jvp, vjp

__all__ = ["check_grads", "check_jvp", "check_vjp"]

# Steps, and what differences of so large steps are good for, by the narrowest dtype.
_STEPS = {2: 1e-2, 4: 1e-3, 8: 1e-5}
_TOLERANCES = {2: 5e-2, 4: 2e-2, 8: 1e-5}
# A tolerance, or one for each of some dtypes.
Tolerance = float | Mapping[Any, float] | None


def check_grads(
    f: Callable,
    args: tuple,
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float | None = None,
) -> None:
    """Compare derivatives of f at some arguments with finite differences, to some order.

    modes: "fwd" for `jvp`, "rev" for `vjp`; higher orders mix them. eps: the step of the central
    differences, by default what suits the dtype; so are atol and rtol, which may also be dicts of
    tolerances by dtype. Raises AssertionError with what differs.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad.test_util import check_grads
    >>> check_grads(fnp.sin, (1.0,), order=2)
    """
    for mode in modes:
        if mode not in ("fwd", "rev"):
            raise ValueError(f"check_grads: modes are 'fwd' and 'rev', got {mode!r}")
    _check(f, tuple(args), order, modes, atol, rtol, eps, "f")


def _check(f: Callable, args: tuple, order: int, modes: Sequence[str], atol: Tolerance,
           rtol: Tolerance, eps: float | None, what: str) -> None:  # fmt: skip
    if order < 1:
        return
    rng = np.random.default_rng(0)
    if "fwd" in modes:
        tangents = tree.map(lambda x: _drawn(rng, x), args)
        name = f"jvp of {what}"
        check_jvp(f, lambda p, t: jvp(f, p, t), args, atol, rtol, eps, name)
        _check(lambda *p: jvp(f, p, tangents)[1], args, order - 1, modes, atol, rtol, eps, name)
    if "rev" in modes:
        out, _ = vjp(f, *args)
        ct = tree.map(lambda x: _drawn(rng, x), out)
        name = f"vjp of {what}"
        check_vjp(f, lambda *p: vjp(f, *p), args, atol, rtol, eps, name)
        _check(lambda *p: vjp(f, *p)[1](ct), args, order - 1, modes, atol, rtol, eps, name)


def check_jvp(
    f: Callable, f_jvp: Callable, args: tuple, atol: Tolerance = None,
    rtol: Tolerance = None, eps: float | None = None, err_msg: str = "",
) -> None:  # fmt: skip
    """Compare f_jvp(primals, tangents) → (value, tangent) with differences of f.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.test_util import check_jvp
    >>> check_jvp(fnp.sin, lambda p, t: fg.jvp(fnp.sin, p, t), (1.0,))
    """
    tangents = tree.map(lambda x: _drawn(np.random.default_rng(1), x), args)
    value, moved = f_jvp(args, tangents)
    step = _step(args, eps)
    tolerances = _tolerances((args, value), atol, rtol)
    _compare(value, f(*args), *tolerances, f"{err_msg or 'check_jvp'}: the value")
    _compare(moved, _difference(f, args, tangents, step), *tolerances, err_msg or "check_jvp")


def check_vjp(
    f: Callable, f_vjp: Callable, args: tuple, atol: Tolerance = None,
    rtol: Tolerance = None, eps: float | None = None, err_msg: str = "",
) -> None:  # fmt: skip
    """Compare f_vjp(*primals) → (value, function of the cotangent) with differences of f.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.test_util import check_vjp
    >>> check_vjp(fnp.sin, lambda x: fg.vjp(fnp.sin, x), (1.0,))
    """
    rng = np.random.default_rng(2)
    value, pull = f_vjp(*args)
    tangents = tree.map(lambda x: _drawn(rng, x), args)
    cts = tree.map(lambda x: _drawn(rng, x), value)
    step = _step(args, eps)
    tolerances = _tolerances((args, value), atol, rtol)
    _compare(value, f(*args), *tolerances, f"{err_msg or 'check_vjp'}: the value")
    there = _inner(_difference(f, args, tangents, step), cts)
    _compare(_inner(tangents, pull(cts)), there, *tolerances, err_msg or "check_vjp")


def _drawn(rng: np.random.Generator, x: Any) -> np.ndarray:
    """A random direction of a value's shape and dtype, nowhere small, so that what is wrong shows;
    nothing for integers."""
    aval = aval_of(x).tangent()
    if aval.dtype == dtypes.float0:
        return np.zeros(aval.shape, dtypes.float0)
    made = rng.uniform(0.5, 1.5, aval.shape) * rng.choice([-1, 1], aval.shape)
    if dtypes.is_complex(aval.dtype):
        made = made * np.exp(1j * rng.uniform(0, 6, aval.shape))
    return np.asarray(made, aval.dtype)


def _kinds(values: Any) -> list[np.dtype]:
    """The dtypes of values that have derivatives."""
    kinds = [aval_of(x).dtype for x in tree.leaves(values)]
    return [d for d in kinds if dtypes.is_inexact(d)]


def _narrowest(values: Any) -> int:
    return min([dtypes.real_part(d).itemsize for d in _kinds(values)], default=8)


def _step(args: Any, eps: float | None) -> float:
    return _STEPS.get(_narrowest(args), 1e-1) if eps is None else eps


def _tolerances(values: Any, atol: Tolerance, rtol: Tolerance) -> tuple[float, float]:
    default = _TOLERANCES.get(_narrowest(values), 2e-1)

    def of(given: Tolerance) -> float:
        if isinstance(given, Mapping):
            by_dtype = {np.dtype(d): tolerance for d, tolerance in given.items()}
            return max([by_dtype.get(d, default) for d in _kinds(values)], default=default)
        return default if given is None else given

    return of(atol), of(rtol)


def _difference(f: Callable, args: tuple, tangents: tuple, eps: float) -> Any:
    def moved(by: float) -> Any:
        def move(x: Any, t: np.ndarray) -> np.ndarray:
            value = np.asarray(raw(x), aval_of(x).dtype)
            return value if t.dtype == dtypes.float0 else (value + by * t).astype(value.dtype)

        return f(*tree.map(move, args, tangents))

    def slope(low: Any, high: Any) -> np.ndarray:
        low, high = _wide(low), _wide(high)
        return (high - low) / (2 * eps)

    return tree.map(slope, moved(-eps), moved(eps))


def _wide(x: Any) -> np.ndarray:
    value = np.asarray(raw(x))
    if value.dtype == dtypes.float0:
        return np.zeros(value.shape)
    return value.astype(np.complex128 if dtypes.is_complex(value.dtype) else np.float64)


def _inner(a: Any, b: Any) -> np.ndarray:
    """The real part of Σ a·b over all leaves, as cotangents and tangents are paired."""
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return np.asarray(sum((np.sum(_wide(x) * _wide(y)).real for x, y in pairs), start=0.0))


def _compare(got: Any, wanted: Any, atol: float, rtol: float, what: str) -> None:
    tree.check_same_structure(got, wanted, what_a=f"{what}: got", what_b="wanted")
    for g, w in zip(tree.leaves(got), tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(_wide(g), _wide(w), atol=atol, rtol=rtol, err_msg=what)
