"""Steps of which most optimizers are made: moments, decay, learning rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.optim.base import (
    EmptyState,
    GradientTransformation,
    abs_square,
    identity,
    need_parameters,
    stateless,
)
from funcgrad.optim.masking import masked
from funcgrad.optim.moments import (
    AdamState,
    cast,
    debias,
    each_wide,
    first_moment,
    mean,
    mean_square,
    no_steps,
    real_zeros,
    zeros,
)

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
        return ScheduleState(no_steps())

    def update(updates: Any, state: ScheduleState, params: Any = None) -> tuple:
        factor = schedule(state.count)
        scaled = tree.map(lambda u: u * fnp.asarray(factor, fnp.asarray(u).dtype), updates)
        return scaled, ScheduleState(state.count + 1)

    return GradientTransformation(init, update)


def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> GradientTransformation:
    """Multiply updates by minus the learning rate, a number or a schedule: descent.

    learning_rate: None leaves updates as they are. flip_sign: False for ascent.

    >>> from funcgrad import optim
    >>> print(optim.scale_by_learning_rate(0.1).update(1.0, optim.EmptyState())[0])
    -0.1
    """
    if learning_rate is None:
        return identity()
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


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
        return TraceState(zeros(params, accumulator_dtype))

    def update(updates: Any, state: TraceState, params: Any = None) -> tuple:
        held = tree.map(lambda g, t: g + decay * t, updates, state.trace)
        out = tree.map(lambda g, t: g + decay * t, updates, held) if nesterov else held
        return out, TraceState(cast(held, accumulator_dtype))

    return GradientTransformation(init, update)


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
        return AdamState(no_steps(), zeros(params, mu_dtype), real_zeros(params))

    def update(updates: Any, state: AdamState, params: Any = None) -> tuple:
        count = state.count + 1
        mu, nu = mean(updates, state.mu, b1), mean_square(updates, state.nu, b2)
        ahead, second = first_moment(b1, count, nesterov), debias(b2, count)

        def direction(dtype: Any, g: Any, m: Any, v: Any) -> Any:
            return ahead(g, m, dtype) / (fnp.sqrt(v * second(dtype) + eps_root) + eps)

        out = each_wide(direction, updates, mu, nu)
        return out, AdamState(count, cast(mu, mu_dtype), nu)

    return GradientTransformation(init, update)


class LionState(NamedTuple):
    """The momentum of Lion."""

    mu: Any


def scale_by_lion(
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: Any = None,
    *,
    mode: str = "hard",
    smooth_beta: float = 1.0,
) -> GradientTransformation:
    """Lion: the sign of x = b1·m + (1-b1)·g, with m ← b2·m + (1-b2)·g.

    mu_dtype: dtype of m. mode: "smooth" for tanh(smooth_beta·x) in place of the sign, "refined" for
    x where |x| < 1.
    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_lion()
    >>> print(step.update(-3.0, step.init(0.0))[0])
    -1.0
    """
    signs = {
        "hard": fnp.sign,
        "smooth": lambda x: fnp.tanh(smooth_beta * x),
        "refined": lambda x: fnp.where(fnp.abs(x) < 1, x, fnp.sign(x)),
    }
    if mode not in signs:
        raise ValueError(f"scale_by_lion: mode must be one of {[*signs]}, got {mode!r}")
    sign = signs[mode]

    def init(params: Any) -> LionState:
        return LionState(zeros(params, mu_dtype))

    def update(updates: Any, state: LionState, params: Any = None) -> tuple:
        out = tree.map(lambda g, m: sign(b1 * m + (1 - b1) * g), updates, state.mu)
        return out, LionState(cast(mean(updates, state.mu, b2), mu_dtype))

    return GradientTransformation(init, update)


class EmaState(NamedTuple):
    """Step count, and the decaying mean of past updates."""

    count: Any
    ema: Any


def ema(decay: float, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformation:
    """The decaying mean m ← (1 - decay)·g + decay·m of the updates, in their place.

    debias: divide by 1 - decayᵗ, as m begins at 0. accumulator_dtype: dtype of m, that of the
    parameters by default.

    >>> from funcgrad import optim
    >>> step = optim.ema(0.5)
    >>> _, state = step.update(1.0, step.init(0.0))
    >>> print(f"{step.update(4.0, state)[0]:.4f}")
    3.0000
    """

    def init(params: Any) -> EmaState:
        return EmaState(no_steps(), zeros(params, accumulator_dtype))

    def update(updates: Any, state: EmaState, params: Any = None) -> tuple:
        count = state.count + 1
        held = mean(updates, state.ema, decay)
        out = held
        if debias:
            now = first_moment(decay, count, nesterov=False)
            out = each_wide(lambda dtype, g, m: now(g, m, dtype), updates, held)
        return out, EmaState(count, cast(held, accumulator_dtype))

    return GradientTransformation(init, update)


class SecondMomentState(NamedTuple):
    """Second moments (a decaying mean, or a sum) of past updates; a step count if it counts."""

    nu: Any
    count: Any


def scale_by_rms(
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """RMSProp: g/√(v + eps) with the decaying mean v of g², which begins at initial_scale.

    eps_in_sqrt: False for g/(√v + eps). bias_correction: divide v by 1 - decayᵗ.
    Source: Tieleman & Hinton, lecture 6.5 of "Neural Networks for Machine Learning", 2012.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_rms(decay=0.0)
    >>> print(step.update(-3.0, step.init(0.0))[0])
    -1.0
    """

    def init(params: Any) -> SecondMomentState:
        count = no_steps() if bias_correction else None
        return SecondMomentState(real_zeros(params, initial_scale), count)

    def update(updates: Any, state: SecondMomentState, params: Any = None) -> tuple:
        nu, count = mean_square(updates, state.nu, decay), None
        if bias_correction:
            count = state.count + 1
        factor = debias(decay, count) if bias_correction else None

        def scaled(dtype: Any, g: Any, v: Any) -> Any:
            v = v if factor is None else v * factor(dtype)
            return g / (fnp.sqrt(v + eps) if eps_in_sqrt else fnp.sqrt(v) + eps)

        return each_wide(scaled, updates, nu), SecondMomentState(nu, count)

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
        return SecondMomentState(real_zeros(params, initial_accumulator_value), None)

    def update(updates: Any, state: SecondMomentState, params: Any = None) -> tuple:
        sums = tree.map(lambda g, s: s + abs_square(g), updates, state.nu)

        def scaled(dtype: Any, g: Any, s: Any) -> Any:
            seen = s > 0
            return fnp.where(seen, g / fnp.sqrt(fnp.where(seen, s, 1.0) + eps), 0.0)

        return each_wide(scaled, updates, sums), SecondMomentState(sums, None)

    return GradientTransformation(init, update)


def add_decayed_weights(
    weight_decay: ScalarOrSchedule = 0.0, mask: Any = None
) -> GradientTransformation:
    """Add weight_decay·parameter to each update (decoupled weight decay, before the learning rate).

    weight_decay: a number, or a schedule of the step number
    mask: a pytree of bools, or a function from parameters to one, of the leaves that decay

    >>> from funcgrad import optim
    >>> print(optim.add_decayed_weights(0.1).update(0.0, optim.EmptyState(), 2.0)[0])
    0.2
    """

    def init(params: Any) -> ScheduleState | EmptyState:
        return ScheduleState(no_steps()) if callable(weight_decay) else EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple:
        params = need_parameters("add_decayed_weights", params)
        if not callable(weight_decay):
            return tree.map(lambda u, p: u + weight_decay * p, updates, params), state
        rate = weight_decay(state.count)

        def decayed(u: Any, p: Any) -> Any:
            return u + fnp.asarray(rate, fnp.asarray(p).dtype) * p

        return tree.map(decayed, updates, params), ScheduleState(state.count + 1)

    step = GradientTransformation(init, update)
    return step if mask is None else masked(step, mask)
