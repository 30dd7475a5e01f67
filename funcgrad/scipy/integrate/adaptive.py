"""Ordinary differential equations by steps whose lengths an estimate of the error controls.

The state is one real vector. Between steps the solution is a polynomial; steps are constants for
derivatives. Reverse mode integrates the adjoint equation backwards from one output time to the one
before (Chen et al. 2018), which keeps the outputs alone; it is a solution itself, so derivatives of
any order are of the same kind.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.transforms.derivatives.custom import custom_vjp
from funcgrad.transforms.derivatives.jacobian import jacfwd
from funcgrad.transforms.derivatives.linear import vjp


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to step: step(fun, y, f, t, dt) gives the next y and f, the error and the polynomial's
    coefficients, highest power first; `order` is that of the error."""

    step: Callable
    order: int
    degree: int


def _sum(weights: Sequence[float], rows: Sequence[Any]) -> Any:
    terms = [k if w == 1 else w * k for w, k in zip(weights, rows, strict=False) if w]
    return sum(terms[1:], terms[0]) if terms else fnp.zeros_like(rows[0])


def _runge_kutta(
    a: Sequence[Sequence[float]], e: Sequence[float], p: Sequence[Sequence[float]], order: int
) -> Method:
    """An explicit pair whose last stage is the next step's first: stages' weights, the error's, and
    those of the powers 1, 2, … of the step's share."""
    shares = [sum(row) for row in a]

    def step(fun: Callable, y: Any, f: Any, t: Any, dt: Any) -> tuple[Any, Any, Any, Any]:
        h = dt.astype(y.dtype)
        k, new = [f], y
        for c, row in zip(shares, a, strict=True):
            new = y + h * _sum(row, k)
            k.append(fun(new, t + dt * c))
        powers = [h * _sum(column, k) for column in zip(*p, strict=True)]
        return new, k[-1], h * _sum(e, k), fnp.stack([*powers[::-1], y])

    return Method(step, order, len(p[0]))


# Bogacki and Shampine 1989; Dormand and Prince 1980, with Shampine's interpolation of 1986.
RK23 = _runge_kutta(
    [[1 / 2], [0, 3 / 4], [2 / 9, 1 / 3, 4 / 9]],
    [5 / 72, -1 / 12, -1 / 9, 1 / 8],
    [[1, -4 / 3, 5 / 9], [0, 1, -2 / 3], [0, 4 / 3, -8 / 9], [0, -1, 1]],
    order=2,
)
RK45 = _runge_kutta(
    [
        [1 / 5],
        [3 / 40, 9 / 40],
        [44 / 45, -56 / 15, 32 / 9],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    ],
    [-71 / 57600, 0, 71 / 16695, -71 / 1920, 17253 / 339200, -22 / 525, 1 / 40],
    [
        [1, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432],
        [0, 0, 0, 0],
        [0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799],
        [0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072],
        [0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632],
        [0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844],
        [0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423],
    ],
    order=4,
)


def _rosenbrock(fun: Callable, y: Any, f: Any, t: Any, dt: Any) -> tuple[Any, Any, Any, Any]:
    """The L-stable step of order 2 by Shampine and Reichelt 1997, for stiff equations: three linear
    systems with one matrix, 1 - h d ∂f/∂y."""
    h, d = dt.astype(y.dtype), 1 / (2 + 2**0.5)
    by_y = jacfwd(lambda x: fun(x, t))(y)
    by_t = jacfwd(lambda s: fun(y, s))(t).astype(y.dtype)
    inverse = fnp.linalg.inv(fnp.eye(y.shape[0], dtype=y.dtype) - h * d * by_y)
    drift = h * d * by_t
    k1 = inverse @ (f + drift)
    middle = fun(y + h / 2 * k1, t + dt / 2)
    k2 = inverse @ (middle - k1) + k1
    new = y + h * k2
    last = fun(new, t + dt)
    k3 = inverse @ (last - (6 + 2**0.5) * (k2 - middle) - 2 * (k1 - f) + drift)
    share = h / (1 - 2 * d)  # by the stages, as slopes at the ends say little of stiff solutions
    poly = fnp.stack([share * (k2 - k1), share * (k1 - 2 * d * k2), y])
    return new, last, h / 6 * (k1 - 2 * k2 + k3), poly


ROSENBROCK23 = Method(_rosenbrock, 2, 2)


class Unravel:
    """The way back from a vector to a pytree, and `flat`, the way there for others alike."""

    def __init__(self, flat: Callable, back: Callable):
        self.flat, self.back = flat, back

    def __call__(self, vector: Any) -> Any:
        return self.back(vector)


def ravel(x: Any) -> tuple[Any, Unravel]:
    """A pytree as one real vector, complex numbers as pairs of them, and the way back."""
    leaves, treedef = tree.flatten(x)
    arrays = [fnp.asarray(leaf) for leaf in leaves]
    kinds = [a.dtype for a in arrays]
    joint = fnp.result_type(*(dtypes.real_part(k) for k in kinds)) if kinds else np.float32
    sizes = [a.size * (2 if dtypes.is_complex(a.dtype) else 1) for a in arrays]
    ends = [0, *itertools.accumulate(sizes)]

    def flat(y: Any) -> Any:
        parts = []
        for leaf, kind in zip(tree.leaves(y), kinds, strict=True):
            a = fnp.asarray(leaf).astype(kind)
            pieces = [a.real, a.imag] if dtypes.is_complex(kind) else [a]
            parts += [fnp.ravel(p).astype(joint) for p in pieces]
        return fnp.concatenate(parts) if parts else fnp.zeros(0, joint)

    def back(vector: Any) -> Any:
        out = []
        for a, kind, start, stop in zip(arrays, kinds, ends, ends[1:], strict=False):
            v = vector[start:stop]
            if dtypes.is_complex(kind):
                halves = v[: a.size], v[a.size :]
                v = lax.complex(*(half.astype(dtypes.real_part(kind)) for half in halves))
            out.append(v.reshape(a.shape).astype(kind))
        return treedef.unflatten(out)

    return flat(x), Unravel(flat, back)


def _norm(x: Any) -> Any:
    """The root of the mean square, a constant for derivatives."""
    return fnp.sqrt(fnp.mean(lax.stop_gradient(x) ** 2)) if x.size else fnp.zeros((), x.dtype)


def _first_step(fun: Callable, y: Any, f: Any, t: Any, order: int, rtol: Any, atol: Any) -> Any:
    """Hairer, Nørsett and Wanner 1993, II.4."""
    y, f = lax.stop_gradient((y, f))
    scale = atol + fnp.abs(y) * rtol
    d0, d1 = _norm(y / scale), _norm(f / scale)
    h0 = fnp.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / fnp.where(d1 > 0, d1, 1))
    f1 = fun(y + h0 * f, t + h0.astype(t.dtype))
    most = fnp.maximum(d1, _norm((f1 - f) / scale) / h0)
    h1 = (0.01 / fnp.where(most > 1e-15, most, 1)) ** (1 / (order + 1))
    h1 = fnp.where(most > 1e-15, h1, fnp.maximum(1e-6, h0 * 1e-3))
    return lax.stop_gradient(fnp.minimum(100 * h0, h1)).astype(t.dtype)


def _steps(
    method: Method, fun: Callable, y0: Any, ts: Any, rtol: Any, atol: Any, mxstep: Any, hmax: Any,
    first: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The states at times that increase, the number of steps, and whether all were reached."""

    def to(carry: Any, target: Any) -> tuple[Any, Any]:
        def more(state: Any) -> Any:
            i, _, _, t, dt, _, _ = state
            return (t < target) & (i < mxstep) & (t + dt > t)

        def step(state: Any) -> Any:
            i, y, f, t, dt, last, poly = state
            new, slope, error, coefficients = method.step(fun, y, f, t, dt)
            scale = atol + rtol * fnp.maximum(fnp.abs(y), fnp.abs(new))
            ratio = _norm(error / lax.stop_gradient(scale)).astype(t.dtype)
            least = fnp.where(ratio < 1, 1.0, 0.2).astype(t.dtype)
            safe = fnp.where(ratio > 0, ratio, 1)
            factor = fnp.clip(0.9 * safe ** (-1 / (method.order + 1)), least, 10)
            factor = fnp.where(ratio > 0, factor, fnp.where(ratio == 0, 10, 0.2))  # of NaN, 0.2
            longer = fnp.minimum(dt * factor, hmax).astype(t.dtype)
            ok = ratio <= 1
            after = new, slope, t + dt, longer, t, coefficients
            before = y, f, t, longer, last, poly
            return i + 1, *(fnp.where(ok, a, b) for a, b in zip(after, before, strict=True))

        i, *carry = lax.while_loop(more, step, (fnp.zeros((), np.int32), *carry))
        _, _, t, _, last, poly = carry
        width = fnp.where(t > last, t - last, 1)
        share = ((target - last) / width).astype(poly.dtype)
        value = poly[0]
        for c in range(1, method.degree + 1):
            value = value * share + poly[c]
        return tuple(carry), (value, i, t >= target)

    f0 = fun(y0, ts[0])
    dt = _first_step(fun, y0, f0, ts[0], method.order, rtol, atol) if first is None else first
    dt = fnp.minimum(fnp.asarray(dt, ts.dtype), hmax).astype(ts.dtype)
    poly = fnp.concatenate([fnp.zeros((method.degree, *y0.shape), y0.dtype), y0[None]])
    _, (ys, counts, reached) = lax.scan(to, (y0, f0, ts[0], dt, ts[0], poly), ts[1:])
    return fnp.concatenate([y0[None], ys]), fnp.sum(counts), fnp.all(reached)


def solutions(
    method: Method, fun: Callable, y0: Any, ts: Any, operands: Any, fixed: Any, how: tuple
) -> tuple[Any, Any, Any]:
    """The states, vectors, at times that increase, of dy/dt = fun(y, t, operands, fixed); the
    number of steps; whether the last time was reached. Derivatives exist in y0, ts and operands.

    how: rtol, atol, the most steps between two times, the longest step, the first step or None.
    """

    @custom_vjp
    def solve(y0: Any, ts: Any, operands: Any, fixed: Any) -> tuple[Any, Any, Any]:
        return _steps(method, lambda y, t: fun(y, t, operands, fixed), y0, ts, *how)

    def forward(y0: Any, ts: Any, operands: Any, fixed: Any) -> tuple[Any, Any]:
        out = solve(y0, ts, operands, fixed)
        return out, (out[0], ts, operands, fixed)

    def backward(residuals: Any, cts: Any) -> tuple:
        return (*_adjoint(method, fun, residuals, cts[0], how), None)

    solve.defvjp(forward, backward)
    return solve(y0, ts, operands, fixed)


def _adjoint(method: Method, fun: Callable, residuals: Any, g: Any, how: tuple) -> tuple:
    """The cotangents of the first state, the times and the operands."""
    ys, ts, operands, fixed = residuals
    zero = fnp.zeros((), ts.dtype)
    start = ys[0], g[-1], zero, tree.map(fnp.zeros_like, operands)
    _, back = ravel(start)

    def around(v: Any, s: Any, operands: Any, fixed: Any) -> Any:
        y, y_bar, _, _ = back(v)
        f, pull = vjp(lambda y, t, p: fun(y, t, p, fixed), y, -s, operands)
        by_y, by_t, by_operands = pull(y_bar)
        return back.flat((-f, by_y, by_t, by_operands))

    def turn(carry: Any, i: Any) -> tuple[Any, Any]:
        y_bar, t0_bar, bars = carry
        t_bar = fnp.sum(fun(ys[i], ts[i], operands, fixed) * g[i]).astype(ts.dtype)
        state = back.flat((ys[i], y_bar, t0_bar - t_bar, bars))
        times = fnp.stack([-ts[i], -ts[i - 1]])
        out, _, _ = solutions(method, around, state, times, operands, fixed, (*how[:4], None))
        _, y_bar, t0_bar, bars = back(out[1])
        return (y_bar + g[i - 1], t0_bar, bars), t_bar

    order = fnp.arange(ts.shape[0] - 1, 0, -1)
    (y_bar, t0_bar, bars), t_bars = lax.scan(turn, (g[-1], zero, start[3]), order)
    return y_bar, fnp.concatenate([t0_bar[None], t_bars[::-1]]), bars
