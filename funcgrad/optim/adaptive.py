"""Relatives of Adam and Adagrad: other second moments, other denominators, less memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.optim.base import GradientTransformation, abs_square
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


def scale_by_belief(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-16,
    eps_root: float = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """AdaBelief: Adam whose second moment is of g - m, how far an update is from its mean.

    Source: Zhuang et al., "AdaBelief Optimizer", 2020.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_belief(b1=0.5, b2=0.0)
    >>> print(f"{step.update(3.0, step.init(0.0))[0]:.4f}")
    2.0000
    """

    def init(params: Any) -> AdamState:
        return AdamState(no_steps(), zeros(params), real_zeros(params))

    def update(updates: Any, state: AdamState, params: Any = None) -> tuple:
        count = state.count + 1
        mu = mean(updates, state.mu, b1)
        nu = mean_square(tree.map(lambda g, m: g - m, updates, mu), state.nu, b2)
        nu = tree.map(lambda v: v + eps_root, nu)
        ahead, second = first_moment(b1, count, nesterov), debias(b2, count)

        def direction(dtype: Any, g: Any, m: Any, v: Any) -> Any:
            return ahead(g, m, dtype) / (fnp.sqrt(v * second(dtype)) + eps)

        return each_wide(direction, updates, mu, nu), AdamState(count, mu, nu)

    return GradientTransformation(init, update)


class AmsgradState(NamedTuple):
    """Step count, both moments, and the largest second moment so far."""

    count: Any
    mu: Any
    nu: Any
    nu_max: Any


def scale_by_amsgrad(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformation:
    """AMSGrad: Adam that divides by the root of the largest second moment so far.

    Source: Reddi et al., "On the Convergence of Adam and Beyond", 2018.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_amsgrad()
    >>> print(f"{step.update(3.0, step.init(0.0))[0]:.4f}")
    1.0000
    """

    def init(params: Any) -> AmsgradState:
        largest = real_zeros(params)
        return AmsgradState(no_steps(), zeros(params, mu_dtype), real_zeros(params), largest)

    def update(updates: Any, state: AmsgradState, params: Any = None) -> tuple:
        count = state.count + 1
        mu, nu = mean(updates, state.mu, b1), mean_square(updates, state.nu, b2)
        first, second = debias(b1, count), debias(b2, count)

        def larger(dtype: Any, v_max: Any, v: Any) -> Any:
            return fnp.maximum(v_max, v * second(dtype) if bias_correction_nu else v)

        def direction(dtype: Any, g: Any, m: Any, v: Any) -> Any:
            ahead = m * first(dtype) if bias_correction_mu else m
            return ahead / (fnp.sqrt(v + eps_root) + eps)

        nu_max = each_wide(larger, state.nu_max, nu)
        out = each_wide(direction, updates, mu, nu_max)
        return out, AmsgradState(count, cast(mu, mu_dtype), nu, nu_max)

    return GradientTransformation(init, update)


def scale_by_adamax(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> GradientTransformation:
    """AdaMax: the corrected mean over v ← max(b2·v, |g| + eps).

    Source: Kingma & Ba, "Adam", 2015.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_adamax()
    >>> print(f"{step.update(3.0, step.init(0.0))[0]:.4f}")
    1.0000
    """

    def init(params: Any) -> AdamState:
        return AdamState(no_steps(), zeros(params), real_zeros(params))

    def update(updates: Any, state: AdamState, params: Any = None) -> tuple:
        count = state.count + 1
        mu, first = mean(updates, state.mu, b1), debias(b1, count)
        nu = tree.map(lambda g, v: fnp.maximum(fnp.abs(g) + eps, b2 * v), updates, state.nu)
        out = each_wide(lambda dtype, g, m, v: m * first(dtype) / v, updates, mu, nu)
        return out, AdamState(count, mu, nu)

    return GradientTransformation(init, update)


def scale_by_yogi(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-3,
    eps_root: float = 0.0,
    initial_accumulator_value: float = 1e-6,
) -> GradientTransformation:
    """Yogi: Adam whose second moment goes towards g² by steps of (1 - b2)·g².

    Source: Zaheer et al., "Adaptive Methods for Nonconvex Optimization", 2018.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_yogi(eps=0.0)
    >>> print(f"{step.update(3.0, step.init(0.0))[0]:.3f}")
    1.000
    """

    def init(params: Any) -> AdamState:
        start = initial_accumulator_value
        mu = tree.map(lambda p: fnp.full_like(p, start), params)
        return AdamState(no_steps(), mu, real_zeros(params, start))

    def nearer(g: Any, v: Any) -> Any:
        size = abs_square(g)
        return v - (1 - b2) * fnp.sign(v - size) * size

    def update(updates: Any, state: AdamState, params: Any = None) -> tuple:
        count = state.count + 1
        mu, nu = mean(updates, state.mu, b1), tree.map(nearer, updates, state.nu)
        first, second = debias(b1, count), debias(b2, count)

        def direction(dtype: Any, g: Any, m: Any, v: Any) -> Any:
            return m * first(dtype) / (fnp.sqrt(v * second(dtype) + eps_root) + eps)

        return each_wide(direction, updates, mu, nu), AdamState(count, mu, nu)

    return GradientTransformation(init, update)


def scale_by_radam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Rectified Adam: Adam scaled by how well the second moment is known, the mean alone before.

    threshold: the length of the average from which on the second moment counts.
    Source: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_radam()
    >>> print(f"{step.update(3.0, step.init(0.0))[0]:.4f}")
    3.0000
    """
    most = 2.0 / (1.0 - b2) - 1.0

    def init(params: Any) -> AdamState:
        return AdamState(no_steps(), zeros(params), real_zeros(params))

    def update(updates: Any, state: AdamState, params: Any = None) -> tuple:
        count = state.count + 1
        mu, nu = mean(updates, state.mu, b1), mean_square(updates, state.nu, b2)
        ahead, second = first_moment(b1, count, nesterov), debias(b2, count)

        def direction(dtype: Any, g: Any, m: Any, v: Any) -> Any:
            t, correction = count.astype(dtype), second(dtype)
            length = most - 2 * t * (correction - 1)  # of the average that v is
            known = length >= threshold
            long = fnp.where(known, length, most)
            share = (long - 4) * (long - 2) * most / ((most - 4) * (most - 2) * long)
            plain = ahead(g, m, dtype)
            scaled = fnp.sqrt(share) * plain / (fnp.sqrt(v * correction + eps_root) + eps)
            return fnp.where(known, scaled, plain)

        return each_wide(direction, updates, mu, nu), AdamState(count, mu, nu)

    return GradientTransformation(init, update)


class AdanState(NamedTuple):
    """Means of updates, of their differences and of squares; the last update; the step count."""

    m: Any
    v: Any
    n: Any
    g: Any
    t: Any


def scale_by_adan(
    b1: float = 0.98,
    b2: float = 0.92,
    b3: float = 0.99,
    eps: float = 1e-8,
    eps_root: float = 0.0,
) -> GradientTransformation:
    """Adan: means of updates and of their differences over a root of squares of both.

    Source: Xie et al., "Adan: Adaptive Nesterov Momentum Algorithm", 2022.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_adan()
    >>> print(f"{step.update(3.0, step.init(0.0))[0]:.4f}")
    1.0000
    """

    def init(params: Any) -> AdanState:
        start = zeros(params)
        return AdanState(start, start, real_zeros(params), start, no_steps())

    def update(updates: Any, state: AdanState, params: Any = None) -> tuple:
        change = tree.map(lambda g, last: fnp.where(state.t == 0, 0, g - last), updates, state.g)
        t = state.t + 1
        m, v = mean(updates, state.m, b1), mean(change, state.v, b2)
        both = tree.map(lambda g, d: g + (1 - b2) * d, updates, change)
        n = mean_square(both, state.n, b3)
        first, second, third = debias(b1, t), debias(b2, t), debias(b3, t)

        def direction(dtype: Any, g: Any, m: Any, v: Any, n: Any) -> Any:
            ahead = m * first(dtype) + (1 - b2) * v * second(dtype)
            return ahead / (fnp.sqrt(n * third(dtype) + eps_root) + eps)

        return each_wide(direction, updates, m, v, n), AdanState(m, v, n, updates, t)

    return GradientTransformation(init, update)


class AdadeltaState(NamedTuple):
    """Decaying means of squares: of updates, and of steps."""

    e_g: Any
    e_x: Any


def scale_by_adadelta(rho: float = 0.9, eps: float = 1e-6) -> GradientTransformation:
    """Adadelta: g·√(x + eps)/√(v + eps), with the means v of g² and x of the steps' squares.

    Source: Zeiler, "ADADELTA", 2012.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_adadelta(rho=0.0, eps=1.0)
    >>> print(f"{step.update(0.0, step.init(0.0))[0]:.4f}")
    0.0000
    """

    def init(params: Any) -> AdadeltaState:
        return AdadeltaState(real_zeros(params), real_zeros(params))

    def update(updates: Any, state: AdadeltaState, params: Any = None) -> tuple:
        e_g = mean_square(updates, state.e_g, rho)
        out = each_wide(
            lambda dtype, g, v, x: fnp.sqrt(x + eps) / fnp.sqrt(v + eps) * g,
            updates, e_g, state.e_x,
        )  # fmt: skip
        return out, AdadeltaState(e_g, mean_square(out, state.e_x, rho))

    return GradientTransformation(init, update)


class StddevState(NamedTuple):
    """First and second moments; the step count where it counts."""

    mu: Any
    nu: Any
    count: Any


def scale_by_stddev(
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Centered RMSProp: g/√(v - m² + eps), an estimate of the standard deviation.

    Source: Hinton, lecture 6 of "Neural Networks for Machine Learning", 2012; arguments as those of
    `scale_by_rms`.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_stddev(decay=0.5, eps=0.0)
    >>> print(step.update(2.0, step.init(0.0))[0])
    2.0
    """

    def init(params: Any) -> StddevState:
        count = no_steps() if bias_correction else None
        return StddevState(zeros(params), real_zeros(params, initial_scale), count)

    def update(updates: Any, state: StddevState, params: Any = None) -> tuple:
        mu, nu = mean(updates, state.mu, decay), mean_square(updates, state.nu, decay)
        count = state.count + 1 if bias_correction else None
        factor = debias(decay, count) if bias_correction else lambda dtype: 1

        def scaled(dtype: Any, g: Any, m: Any, v: Any) -> Any:
            spread = v * factor(dtype) - abs_square(m * factor(dtype))
            return g / (fnp.sqrt(spread + eps) if eps_in_sqrt else fnp.sqrt(spread) + eps)

        return each_wide(scaled, updates, mu, nu), StddevState(mu, nu, count)

    return GradientTransformation(init, update)


class FactoredState(NamedTuple):
    """Step count; second moments by row and by column, or whole where a leaf isn't factored."""

    count: Any
    v_row: Any
    v_col: Any
    v: Any


def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: float = 0.8,
    step_offset: int = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: float = 1e-30,
) -> GradientTransformation:
    """Adafactor: g/√v, where a matrix's v is the product of means along its two longest axes.

    The decay of step t is 1 - t^-decay_rate. factored: False to keep v whole.
    min_dim_size_to_factor: the least length of both axes; other leaves' v is kept whole.
    Source: Shazeer & Stern, "Adafactor", 2018.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_factored_rms(min_dim_size_to_factor=2)
    >>> print(step.update(3 * fnp.ones((2, 2)), step.init(fnp.ones((2, 2))))[0])
    [[1. 1.]
     [1. 1.]]
    """

    def axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
        """The second longest axis and the longest one."""
        order = np.argsort(shape)
        if not factored or len(shape) < 2 or shape[order[-2]] < min_dim_size_to_factor:
            return None
        return int(order[-2]), int(order[-1])

    def init(params: Any) -> FactoredState:
        def start(place: int) -> Any:
            def one(p: Any) -> Any:
                shape, pair = fnp.shape(p), axes(fnp.shape(p))
                kept = _without(shape, pair)[place]
                return fnp.zeros((1,) if kept is None else kept, fnp.real(p).dtype)

            return tree.map(one, params)

        return FactoredState(no_steps(), start(0), start(1), start(2))

    def update(updates: Any, state: FactoredState, params: Any = None) -> tuple:
        t = (state.count - step_offset + 1).astype(fnp.float32)
        decay = 1 - t**-decay_rate

        def one(g: Any, row: Any, col: Any, v: Any) -> tuple:
            square = abs_square(g) + epsilon
            rate = fnp.asarray(decay, square.dtype)

            def follow(old: Any, new: Any) -> Any:
                return rate * old + (1 - rate) * new

            pair = axes(fnp.shape(g))
            if pair is None:
                v = follow(v, square)
                return g / fnp.sqrt(v), row, col, v
            short, long = pair
            row, col = follow(row, square.mean(long)), follow(col, square.mean(short))
            level = fnp.mean(row, axis=short - (short > long), keepdims=True)
            by_row = fnp.expand_dims(fnp.sqrt(level / row), long)
            return g * by_row / fnp.sqrt(fnp.expand_dims(col, short)), row, col, v

        each = tree.map(one, updates, state.v_row, state.v_col, state.v)
        out, row, col, v = (
            tree.map(lambda _, parts, i=i: parts[i], updates, each) for i in range(4)
        )
        return out, FactoredState(state.count + 1, row, col, v)

    return GradientTransformation(init, update)


def _without(shape: tuple[int, ...], pair: tuple[int, int] | None) -> tuple:
    """Shapes of a factored leaf's means by row and by column, and of a whole one's."""
    if pair is None:
        return None, None, shape
    short, long = pair
    row = tuple(n for i, n in enumerate(shape) if i != long)
    return row, tuple(n for i, n in enumerate(shape) if i != short), None
