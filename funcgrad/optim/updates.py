"""Steps of which optimizers are made: moments, clipping, decay, learning rates.

Moments are kept in the parameters' dtype; the steps are computed in float32 where that is less
precise, so that a small eps doesn't vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.optim.base import GradientTransformation, global_norm, stateless, wide

ScalarOrSchedule = float | Callable[[Any], Any]


def set_to_zero() -> GradientTransformation:
    """Updates of zeros: with `masked`, what keeps parameters as they are.

    >>> from funcgrad import optim
    >>> print(optim.set_to_zero().update(3.0, optim.EmptyState())[0])
    0.0
    """
    return stateless(lambda updates, params: tree.map(fnp.zeros_like, updates))


def scale(step_size: float) -> GradientTransformation:
    """Multiply updates by a constant.

    >>> from funcgrad import optim
    >>> print(optim.scale(2.0).update(3.0, optim.EmptyState())[0])
    6.0
    """
    return stateless(lambda updates, params: tree.map(lambda u: u * step_size, updates))


class ScheduleState(NamedTuple):
    """How many steps a schedule has made."""

    count: Any


def scale_by_schedule(schedule: Callable[[Any], Any]) -> GradientTransformation:
    """Multiply updates by `schedule(step)`, step = 0, 1, …

    >>> from funcgrad import optim
    >>> step = optim.scale_by_schedule(lambda n: 1.0 / (n + 1))
    >>> state = step.init(None)
    >>> _, state = step.update(1.0, state)
    >>> print(step.update(1.0, state)[0])
    0.5
    """

    def init(params: Any) -> ScheduleState:
        return ScheduleState(fnp.zeros((), np.int32))

    def update(updates: Any, state: ScheduleState, params: Any = None) -> tuple:
        factor = schedule(state.count)
        scaled = tree.map(lambda u: u * fnp.asarray(factor, fnp.asarray(u).dtype), updates)
        return scaled, ScheduleState(state.count + 1)

    return GradientTransformation(init, update)


def scale_by_learning_rate(learning_rate: ScalarOrSchedule) -> GradientTransformation:
    """Multiply updates by minus the learning rate, a number or a schedule: descent.

    >>> from funcgrad import optim
    >>> print(optim.scale_by_learning_rate(0.1).update(1.0, optim.EmptyState())[0])
    -0.1
    """
    if callable(learning_rate):
        return scale_by_schedule(lambda count: -learning_rate(count))
    return scale(-learning_rate)


class TraceState(NamedTuple):
    """The decaying sum of past updates."""

    trace: Any


def trace(
    decay: float, nesterov: bool = False, accumulator_dtype: Any = None
) -> GradientTransformation:
    """Momentum: t ← g + decay·t; the update is t, or g + decay·t once more with `nesterov`.

    accumulator_dtype: dtype of t, that of the parameters by default.
    Source: Sutskever et al., "On the importance of initialization and momentum", 2013.

    >>> from funcgrad import optim
    >>> step = optim.trace(0.9)
    >>> _, state = step.update(1.0, step.init(0.0))
    >>> print(step.update(1.0, state)[0])
    1.9
    """

    def init(params: Any) -> TraceState:
        return TraceState(_zeros(params, accumulator_dtype))

    def update(updates: Any, state: TraceState, params: Any = None) -> tuple:
        held = tree.map(lambda g, t: g + decay * t, updates, state.trace)
        out = tree.map(lambda g, t: g + decay * t, updates, held) if nesterov else held
        return out, TraceState(_cast(held, accumulator_dtype))

    return GradientTransformation(init, update)


def _zeros(params: Any, dtype: Any) -> Any:
    return tree.map(lambda p: fnp.zeros_like(p, dtype=dtype), params)


def _cast(values: Any, dtype: Any) -> Any:
    return values if dtype is None else tree.map(lambda x: x.astype(dtype), values)


def _unbias(decay: Any, count: Any, dtype: np.dtype) -> Any:
    """1/(1 - decay^count): makes a decaying mean that began at 0 one of the steps so far."""
    # Not by subtraction from 1: with decay 0.999 that would lose three digits.
    if isinstance(decay, int | float):
        rate = math.log(decay) if decay > 0 else -math.inf
    else:
        rate = fnp.log(decay)
    return -1 / fnp.expm1(count.astype(dtype) * rate)


class AdamState(NamedTuple):
    """Step count, first and second moments."""

    count: Any
    mu: Any
    nu: Any


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam: m/(1-b1ᵗ) / (√(v/(1-b2ᵗ) + eps_root) + eps) with moments m, v of the updates.

    mu_dtype: dtype of the first moment. Source: Kingma & Ba, "Adam", 2015; with `nesterov` Dozat,
    "Incorporating Nesterov momentum into Adam", 2016.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_adam()
    >>> print(f"{step.update(3.0, step.init(0.0))[0]:.4f}")
    1.0000
    """

    def init(params: Any) -> AdamState:
        mu, nu = _zeros(params, mu_dtype), _zeros(params, None)
        return AdamState(fnp.zeros((), np.int32), mu, nu)

    def update(updates: Any, state: AdamState, params: Any = None) -> tuple:
        count = state.count + 1
        mu = tree.map(lambda g, m: (1 - b1) * g + b1 * m, updates, state.mu)
        nu = tree.map(lambda g, v: (1 - b2) * (g * g) + b2 * v, updates, state.nu)

        @cache  # once for all leaves of a dtype
        def scales(dtype: np.dtype) -> tuple:
            later = _unbias(b1, count + 1, dtype) if nesterov else None
            return _unbias(b1, count, dtype), later, _unbias(b2, count, dtype)

        def direction(g: Any, m: Any, v: Any) -> Any:
            dtype, g, m, v = fnp.asarray(g).dtype, wide(g), wide(m), wide(v)
            first, later, second = scales(v.dtype)
            mean = b1 * m * later + (1 - b1) * g * first if nesterov else m * first
            return fnp.asarray(mean / (fnp.sqrt(v * second + eps_root) + eps), dtype)

        out = tree.map(direction, updates, mu, nu)
        return out, AdamState(count, _cast(mu, mu_dtype), nu)

    return GradientTransformation(init, update)


class LionState(NamedTuple):
    """The momentum of Lion."""

    mu: Any


def scale_by_lion(
    b1: float = 0.9, b2: float = 0.99, mu_dtype: Any = None
) -> GradientTransformation:
    """Lion: the sign of b1·m + (1-b1)·g, with m ← b2·m + (1-b2)·g.

    mu_dtype: dtype of m.
    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_lion()
    >>> print(step.update(-3.0, step.init(0.0))[0])
    -1.0
    """

    def init(params: Any) -> LionState:
        return LionState(_zeros(params, mu_dtype))

    def update(updates: Any, state: LionState, params: Any = None) -> tuple:
        out = tree.map(lambda g, m: fnp.sign(b1 * m + (1 - b1) * g), updates, state.mu)
        mu = tree.map(lambda g, m: b2 * m + (1 - b2) * g, updates, state.mu)
        return out, LionState(_cast(mu, mu_dtype))

    return GradientTransformation(init, update)


class SecondMomentState(NamedTuple):
    """Second moments (a decaying mean, or a sum) of past updates."""

    nu: Any


def scale_by_rms(
    decay: float = 0.9, eps: float = 1e-8, initial_scale: float = 0.0, eps_in_sqrt: bool = True
) -> GradientTransformation:
    """RMSProp: g/√(v + eps) with the decaying mean v of g², which begins at initial_scale.

    eps_in_sqrt: False for g/(√v + eps).
    Source: Tieleman & Hinton, lecture 6.5 of "Neural Networks for Machine Learning", 2012.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_rms(decay=0.0)
    >>> print(step.update(-3.0, step.init(0.0))[0])
    -1.0
    """

    def init(params: Any) -> SecondMomentState:
        return SecondMomentState(tree.map(lambda p: fnp.full_like(p, initial_scale), params))

    def update(updates: Any, state: SecondMomentState, params: Any = None) -> tuple:
        nu = tree.map(lambda g, v: (1 - decay) * (g * g) + decay * v, updates, state.nu)

        def scaled(g: Any, v: Any) -> Any:
            v = wide(v)
            scaled = wide(g) / (fnp.sqrt(v + eps) if eps_in_sqrt else fnp.sqrt(v) + eps)
            return fnp.asarray(scaled, fnp.asarray(g).dtype)

        return tree.map(scaled, updates, nu), SecondMomentState(nu)

    return GradientTransformation(init, update)


def scale_by_rss(
    initial_accumulator_value: float = 0.1, eps: float = 1e-7
) -> GradientTransformation:
    """Adagrad: g/√(s + eps) with the sum s of all g² so far, 0 where that is 0.

    Source: Duchi et al., "Adaptive Subgradient Methods", 2011.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_rss(0.0, 0.0)
    >>> print(step.update(-3.0, step.init(0.0))[0])
    -1.0
    """

    def init(params: Any) -> SecondMomentState:
        start = initial_accumulator_value
        return SecondMomentState(tree.map(lambda p: fnp.full_like(p, start), params))

    def update(updates: Any, state: SecondMomentState, params: Any = None) -> tuple:
        sums = tree.map(lambda g, s: s + g * g, updates, state.nu)

        def scaled(g: Any, s: Any) -> Any:
            seen = s > 0
            scaled = fnp.where(seen, wide(g) / fnp.sqrt(fnp.where(seen, wide(s), 1.0) + eps), 0.0)
            return fnp.asarray(scaled, fnp.asarray(g).dtype)

        return tree.map(scaled, updates, sums), SecondMomentState(sums)

    return GradientTransformation(init, update)


def add_decayed_weights(weight_decay: float = 0.0) -> GradientTransformation:
    """Add weight_decay·parameter to each update (decoupled weight decay, before the learning rate).

    >>> from funcgrad import optim
    >>> print(optim.add_decayed_weights(0.1).update(0.0, optim.EmptyState(), 2.0)[0])
    0.2
    """

    def decayed(updates: Any, params: Any) -> Any:
        if params is None:
            raise ValueError(
                "add_decayed_weights: update needs the parameters: update(grads, state, params)"
            )
        return tree.map(lambda u, p: u + weight_decay * p, updates, params)

    return stateless(decayed)


def clip(max_delta: float) -> GradientTransformation:
    """Clip each element of the updates to [-max_delta, max_delta].

    >>> from funcgrad import optim
    >>> print(optim.clip(1.0).update(5.0, optim.EmptyState())[0])
    1.0
    """
    return stateless(
        lambda updates, params: tree.map(lambda u: fnp.clip(u, -max_delta, max_delta), updates)
    )


def clip_by_global_norm(max_norm: float) -> GradientTransformation:
    """Scale all updates down together where their joint norm exceeds max_norm.

    Source: Pascanu et al., "On the difficulty of training recurrent neural networks", 2013.

    >>> from funcgrad import optim
    >>> out, _ = optim.clip_by_global_norm(1.0).update([3.0, 4.0], optim.EmptyState())
    >>> print(out[0], out[1])
    0.6 0.8
    """

    def clipped(updates: Any, params: Any) -> Any:
        norm = global_norm(updates)
        # max_norm / max_norm = 1 leaves small updates exactly as they are.
        factor = max_norm / fnp.maximum(norm, max_norm)
        return tree.map(lambda u: u * fnp.asarray(factor, fnp.asarray(u).dtype), updates)

    return stateless(clipped)
