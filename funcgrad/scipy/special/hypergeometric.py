"""The hypergeometric functions ₁F₁ and ₂F₁ of real arguments, as power series.

Kummer's and Pfaff's transformations make terms of one sign; far out stand the asymptotic series of
₁F₁, and near 1 the connection of ₂F₁ to 1 - x. Derivatives are series, too, in the variable of any
order, in a parameter of the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.ops.elementwise import special
from funcgrad.scipy._operands import real_operands
from funcgrad.transforms.control.while_loop import while_loop
from funcgrad.transforms.derivatives.custom import SymbolicZero, custom_jvp

MOST_TERMS, EPS = 20000.0, 2e-17


def _sum(over: tuple, under: tuple, x: Any, which: int | None = None) -> Any:
    """Σ Π(a)ₙ/Π(b)ₙ xⁿ/n!, or its derivative in the parameter of this number."""
    parameters = (*over, *under)

    def step(state: tuple) -> tuple:
        n, term, moved, total, slope, _ = state
        ratio = x / (n + 1)
        for i, a in enumerate(over):
            ratio = ratio * (1.0 if i == which else a + n)
        for b in under:
            ratio = ratio / (b + n)
        # The derivative of the ratio, where its factor a + n may be 0.
        if which is None:
            change = 0 * ratio
        elif which < len(over):
            change, ratio = ratio, ratio * (over[which] + n)
        else:
            change = -ratio / (parameters[which] + n)
        moved, term = moved * ratio + term * change, term * ratio
        total, slope = total + term, slope + moved
        going = fnp.logical_or(
            fnp.abs(term) > EPS * fnp.abs(total), fnp.abs(moved) > EPS * fnp.abs(slope)
        )
        return n + 1, term, moved, total, slope, fnp.logical_and(going, fnp.abs(total) < fnp.inf)

    one, zero = fnp.ones_like(x), fnp.zeros_like(x)
    init = (fnp.zeros((), np.float64), one, zero, one, zero, fnp.ones(x.shape, bool))
    end = while_loop(
        lambda state: fnp.logical_and(state[0] < MOST_TERMS, fnp.any(state[5])), step, init
    )
    return end[3] if which is None else end[4]


@custom_jvp
def _series(over: tuple, under: tuple, x: Any) -> Any:
    return _sum(over, under, x)


def _series_jvp(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
    over, under, x = primals
    moves = [*tangents[0], *tangents[1]]
    moved = fnp.zeros_like(x)
    if not isinstance(tangents[2], SymbolicZero):
        factor = fnp.ones_like(x)
        for a in over:
            factor = factor * a
        for b in under:
            factor = factor / b
        next_ = _series(tuple(a + 1 for a in over), tuple(b + 1 for b in under), x)
        moved = moved + factor * next_ * tangents[2]
    for i, t in enumerate(moves):
        if not isinstance(t, SymbolicZero):
            moved = moved + _sum(over, under, x, i) * t
    return _series(over, under, x), moved


_series.defjvp(_series_jvp, symbolic_zeros=True)


def _is_pole(a: Any) -> Any:
    return fnp.logical_and(a <= 0, a == fnp.floor(a))


def _gammas(over: tuple, under: tuple) -> Any:
    """Π Γ(over)/Π Γ(under), 0 at a pole of what is under."""
    log, sign, zero = 0.0, 1.0, fnp.zeros(over[0].shape, bool)
    for a in over:
        log, sign = log + special.lgamma(a), sign * special.gammasgn(a)
    for a in under:
        pole = _is_pole(a)
        safe = fnp.where(pole, 1.0, a)
        log, sign = log - special.lgamma(safe), sign * special.gammasgn(safe)
        zero = fnp.logical_or(zero, pole)
    return fnp.where(zero, 0.0, sign * fnp.exp(log))


def _asymptotic(a: Any, b: Any, u: Any) -> Any:
    """The asymptotic series Σ (a)ₙ (b)ₙ uⁿ/n!, as long as its terms get smaller."""
    total, term = fnp.ones_like(u), fnp.ones_like(u)
    for n in range(30):
        new = term * ((a + n) * (b + n) / (n + 1) * u)
        shrinks = fnp.abs(new) < fnp.abs(term)
        term = fnp.where(shrinks, new, 0.0)
        total = total + term
    return total


def hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """Kummer's confluent hypergeometric function ₁F₁(a; b; x).

    >>> from funcgrad.scipy import special
    >>> print(special.hyp1f1(1.0, 1.0, 1.0))
    2.7182817
    """
    given = real_operands("special.hyp1f1", {"a": a, "b": b, "x": x})
    a, b, x = fnp.broadcast_arrays(*(v.astype(np.float64) for v in given.values()))
    polynomial = _is_pole(a)
    far = fnp.logical_and(fnp.abs(x) > 100 + 2 * (a * a + b * b), ~polynomial)
    left = fnp.logical_and(x < 0, ~polynomial)
    near = fnp.where(far, 0.0, x)
    size = fnp.where(left, -near, near)
    series = _series((fnp.where(left, b - a, a),), (b,), size)
    value = fnp.where(left, fnp.exp(fnp.where(left, near, 0.0)) * series, series)
    apart = fnp.where(far, x, 200.0)
    up, size = apart > 0, fnp.abs(apart)
    c = fnp.where(up, b - a, a)
    tail = _asymptotic(c, fnp.where(up, 1 - a, a - b + 1), 1 / size)
    power = fnp.exp(fnp.where(up, size, 0.0) - c * fnp.log(size))
    beyond = _gammas((b,), (fnp.where(up, a, b - a),)) * power * tail
    value = fnp.where(far, beyond, value)
    value = fnp.where(_is_pole(b), fnp.inf, value)
    return fnp.where(fnp.isnan(a + b + x), fnp.nan, value).astype(given["x"].dtype)


def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Any:
    """Gauss' hypergeometric function ₂F₁(a, b; c; x) for x ≤ 1, and all x if it is a polynomial.

    >>> from funcgrad.scipy import special
    >>> print(special.hyp2f1(1.0, 1.0, 1.0, 0.5))
    2.0
    """
    given = real_operands("special.hyp2f1", {"a": a, "b": b, "c": c, "x": x})
    a, b, c, x = fnp.broadcast_arrays(*(v.astype(np.float64) for v in given.values()))
    polynomial = fnp.logical_or(_is_pole(a), _is_pole(b))
    inside = fnp.logical_and(x < 1, ~polynomial)
    left = fnp.logical_and(x < 0, inside)
    y = fnp.where(fnp.logical_or(inside, polynomial), x, 0.0)
    # Pfaff: F(a, b; c; x) = (1 - x)⁻ᵃ F(a, c - b; c; x/(x - 1)).
    rest = fnp.where(left, 1 / (1 - fnp.where(left, y, -1.0)), 1 - y)  # 1 minus the variable
    b1 = fnp.where(left, c - b, b)
    z = fnp.where(left, -y * rest, y)
    gap = c - a - b1
    joined = inside & (z > 0.9) & (gap != fnp.round(gap))
    first = _series((a, b1), (fnp.where(joined, 1 - gap, c),), fnp.where(joined, rest, z))
    second = _series(
        (fnp.where(joined, c - a, 1.0), fnp.where(joined, c - b1, 1.0)),
        (fnp.where(joined, 1 + gap, 1.0),), fnp.where(joined, rest, 0.0),
    )  # fmt: skip
    safe_gap = fnp.where(joined, gap, 0.5)
    power = fnp.exp(safe_gap * fnp.log(fnp.where(joined, rest, 0.5)))
    both = _gammas((c, safe_gap), (c - a, c - b1)) * first
    both = both + power * _gammas((c, -safe_gap), (a, b1)) * second
    value = fnp.where(joined, both, first)
    value = fnp.where(left, fnp.exp(a * fnp.log(fnp.where(left, rest, 1.0))) * value, value)
    plain = c - a - b
    at_one = fnp.where(
        plain > 0, _gammas((c, fnp.where(plain > 0, plain, 1.0)), (c - a, c - b)), fnp.inf
    )
    value = fnp.where(fnp.logical_and(x == 1, ~polynomial), at_one, value)
    value = fnp.where(fnp.logical_and(x > 1, ~polynomial), fnp.nan, value)
    value = fnp.where(fnp.logical_and(_is_pole(c), ~polynomial), fnp.inf, value)
    return fnp.where(fnp.isnan(a + b + c + x), fnp.nan, value).astype(given["x"].dtype)
