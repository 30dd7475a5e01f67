"""Steps of which optimizers are made: moments, clipping, decay, learning rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.optim.base import GradientTransformation, global_norm, stateless

ScalarOrSchedule = float | Callable[[Any], Any]


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


def trace(decay: float, nesterov: bool = False) -> GradientTransformation:
    """Momentum: t ← g + decay·t; the update is t, or g + decay·t once more with `nesterov`.

    Source: Sutskever et al., "On the importance of initialization and momentum", 2013.

    >>> from funcgrad import optim
    >>> step = optim.trace(0.9)
    >>> _, state = step.update(1.0, step.init(0.0))
    >>> print(step.update(1.0, state)[0])
    1.9
    """

    def init(params: Any) -> TraceState:
        return TraceState(tree.map(fnp.zeros_like, params))

    def update(updates: Any, state: TraceState, params: Any = None) -> tuple:
        held = tree.map(lambda g, t: g + decay * t, updates, state.trace)
        out = tree.map(lambda g, t: g + decay * t, updates, held) if nesterov else held
        return out, TraceState(held)

    return GradientTransformation(init, update)


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
        mu = tree.map(lambda p: fnp.zeros_like(p, dtype=mu_dtype), params)
        return AdamState(fnp.zeros((), np.int32), mu, tree.map(fnp.zeros_like, params))

    def update(updates: Any, state: AdamState, params: Any = None) -> tuple:
        count = state.count + 1
        mu = tree.map(lambda g, m: (1 - b1) * g + b1 * m, updates, state.mu)
        nu = tree.map(lambda g, v: (1 - b2) * (g * g) + b2 * v, updates, state.nu)
        steps = count.astype(fnp.float32)
        mean_scale = 1 / (1 - b1**steps)
        variance_scale = 1 / (1 - b2**steps)

        def direction(g: Any, m: Any, v: Any) -> Any:
            dtype = fnp.asarray(v).dtype
            first = m * fnp.asarray(mean_scale, dtype)
            if nesterov:
                later = 1 / (1 - b1 ** (steps + 1))
                now = (1 - b1) * g * fnp.asarray(mean_scale, dtype)
                first = b1 * m * fnp.asarray(later, dtype) + now
            return first / (fnp.sqrt(v * fnp.asarray(variance_scale, dtype) + eps_root) + eps)

        out = tree.map(direction, updates, mu, nu)
        if mu_dtype is not None:
            mu = tree.map(lambda m: m.astype(mu_dtype), mu)
        return out, AdamState(count, mu, nu)

    return GradientTransformation(init, update)


class LionState(NamedTuple):
    """The momentum of Lion."""

    mu: Any


def scale_by_lion(b1: float = 0.9, b2: float = 0.99) -> GradientTransformation:
    """Lion: the sign of b1·m + (1-b1)·g, with m ← b2·m + (1-b2)·g.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_lion()
    >>> print(step.update(-3.0, step.init(0.0))[0])
    -1.0
    """

    def init(params: Any) -> LionState:
        return LionState(tree.map(fnp.zeros_like, params))

    def update(updates: Any, state: LionState, params: Any = None) -> tuple:
        out = tree.map(lambda g, m: fnp.sign(b1 * m + (1 - b1) * g), updates, state.mu)
        mu = tree.map(lambda g, m: b2 * m + (1 - b2) * g, updates, state.mu)
        return out, LionState(mu)

    return GradientTransformation(init, update)


class SecondMomentState(NamedTuple):
    """Second moments (a decaying mean, or a sum) of past updates."""

    nu: Any


def scale_by_rms(
    decay: float = 0.9, eps: float = 1e-8, initial_scale: float = 0.0
) -> GradientTransformation:
    """RMSProp: g/√(v + eps) with the decaying mean v of g².

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
        return tree.map(lambda g, v: g / fnp.sqrt(v + eps), updates, nu), SecondMomentState(nu)

    return GradientTransformation(init, update)


def scale_by_rss(
    initial_accumulator_value: float = 0.1, eps: float = 1e-7
) -> GradientTransformation:
    """Adagrad: g/√(s + eps) with the sum s of all g² so far.

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
        return tree.map(lambda g, s: g / fnp.sqrt(s + eps), updates, sums), SecondMomentState(sums)

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
