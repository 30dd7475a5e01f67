"""What the special functions are written with: polynomials, loops and a detour through float64.

A special function is a *scalar program over an array namespace* `xp`: a straight line of
elementwise operations, with loops only through `fori` and `while_`. With `xp = numpy` it runs on
arrays; with a namespace whose values record operations it is traced once, into a fused loop. So
there is no indexing, no branch on a value, and each `where` guards the side it does not choose.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FLOAT64 = np.dtype(np.float64)
FOR_FLOAT32, FOR_FLOAT64 = 1e-9, 3e-16


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """The polynomial with these coefficients, highest power first, by Horner's scheme.

    >>> polynomial((1.0, 0.0, 2.0), np.float32(3))
    np.float32(11.0)
    """
    y = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        y = y * x + c
    return y


def ratio(table: tuple[Sequence[float], Sequence[float]], x: Any) -> Any:
    """The rational function `p(x) / q(x)` of a table `(p, q)`.

    >>> ratio(((1.0, 2.0), (1.0, 0.0)), np.float32(4))
    np.float32(1.5)
    """
    p, q = table
    return polynomial(p, x) / polynomial(q, x)


def choose_ratio(xp: Any, cond: Any, then: tuple, x: Any, otherwise: tuple, y: Any) -> Any:
    """`where(cond, ratio(then, x), ratio(otherwise, y))` with a single division.

    >>> choose_ratio(
    ...     np,
    ...     np.array([True, False]),
    ...     ((1.0, 0.0), (0.0, 2.0)),
    ...     3.0,
    ...     ((1.0, 0.0), (0.0, 4.0)),
    ...     8.0,
    ... )
    array([1.5, 2. ])
    """
    p = xp.where(cond, polynomial(then[0], x), polynomial(otherwise[0], y))
    q = xp.where(cond, polynomial(then[1], x), polynomial(otherwise[1], y))
    return p / q


def constant(xp: Any, x: Any, value: float) -> Any:
    """`value` in the shape and dtype of x; a NaN of x stays a NaN.

    >>> constant(np, np.array([1, np.nan], np.float32), 2.0)
    array([ 2., nan], dtype=float32)
    """
    return xp.where(x == x, value, x)


def is_single(x: Any) -> bool:
    """Whether x is float32, so that shorter approximations do.

    >>> is_single(np.float32(0)), is_single(np.float64(0))
    (True, False)
    """
    return x.dtype == np.dtype(np.float32)


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of float64 arrays to take float32 too, computing in float64.

    >>> in_float64(lambda xp, x: xp.exp(x))(np, np.float32(1)).dtype
    dtype('float32')
    """

    @functools.wraps(function)
    def wrapped(xp: Any, *args: Any) -> Any:
        return _widened(function, xp, args)

    return wrapped


def to_accuracy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like `in_float64`, for `function(xp, *args, eps)`; eps is the relative error to aim at.

    That is FOR_FLOAT32 or FOR_FLOAT64, by the dtype of the arguments.

    >>> to_accuracy(lambda xp, x, eps: x + eps)(np, np.float32(0))
    np.float32(1e-09)
    """

    @functools.wraps(function)
    def wrapped(xp: Any, *args: Any) -> Any:
        eps = FOR_FLOAT32 if is_single(args[-1]) else FOR_FLOAT64
        return _widened(lambda *wide: function(*wide, eps), xp, args)

    return wrapped


def _widened(function: Callable[..., Any], xp: Any, args: tuple) -> Any:
    dtype = args[-1].dtype
    if dtype == FLOAT64:
        return function(xp, *args)
    return function(xp, *(a.astype(FLOAT64) for a in args)).astype(dtype)


def fori(xp: Any, n: int, body: Callable[[Any, tuple], tuple], init: tuple) -> tuple:
    """Run `carry = body(i, carry)` for i = 0 … n-1.

    A namespace with `fori_loop(n, body, init)` runs it; else it is a Python loop. `i` may be a
    Python int or a symbolic one, so bodies that compute with a counter carry it as a float.

    >>> fori(np, 3, lambda i, carry: (carry[0] * 2.0,), (1.0,))
    (8.0,)
    """
    if hasattr(xp, "fori_loop"):
        return tuple(xp.fori_loop(n, body, init))
    carry = tuple(init)
    for i in range(n):
        carry = tuple(body(i, carry))
    return carry


def while_(
    xp: Any, cond: Callable[[tuple], Any], body: Callable[[tuple], tuple], init: tuple
) -> tuple:
    """Run `carry = body(carry)` in each element for as long as its `cond(carry)` holds.

    Elements are independent: one that is done keeps its values while others go on. A namespace
    with `while_loop(cond, body, init)` runs it, with that meaning for each scalar.

    >>> while_(np, lambda c: c[0] < 9.0, lambda c: (c[0] * 2.0,), (np.array([1.0, 5.0, 20.0]),))
    (array([16., 10., 20.]),)
    """
    if hasattr(xp, "while_loop"):
        return tuple(xp.while_loop(cond, body, init))
    carry = tuple(init)
    active = cond(carry)
    while bool(xp.any(active)):
        new = body(carry)
        carry = tuple(xp.where(active, n, c) for n, c in zip(new, carry, strict=True))
        active = cond(carry)
    return carry
