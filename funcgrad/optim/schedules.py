"""Learning rates as functions of the step number (an int32 scalar, traced or not)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import funcgrad.numpy as fnp

Schedule = Callable[[Any], Any]


def constant_schedule(value: float) -> Schedule:
    """The same value at every step.

    >>> from funcgrad import optim
    >>> optim.constant_schedule(0.1)(7)
    0.1
    """
    return lambda count: value


def _fraction(count: Any, steps: int, begin: int = 0) -> Any:
    """How far `count` is on the way of `steps` steps from `begin`, within [0, 1]."""
    done = fnp.clip(fnp.asarray(count) - begin, 0, steps)
    return done.astype(fnp.float32) / max(steps, 1)


def polynomial_schedule(
    init_value: float,
    end_value: float,
    power: float,
    transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:
    """(init_value - end_value)·(1 - t)^power + end_value, t from 0 to 1 over transition_steps.

    >>> from funcgrad import optim
    >>> print(optim.polynomial_schedule(1.0, 0.0, 2, 10)(5))
    0.25
    """
    return lambda count: (
        (init_value - end_value)
        * (1 - _fraction(count, transition_steps, transition_begin)) ** power
        + end_value
    )


def linear_schedule(
    init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """A straight line from init_value to end_value over transition_steps, then constant.

    >>> from funcgrad import optim
    >>> print(optim.linear_schedule(1.0, 0.0, 10)(5))
    0.5
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def warmup_constant_schedule(init_value: float, peak_value: float, warmup_steps: int) -> Schedule:
    """Linear from init_value to peak_value over warmup_steps, then constant.

    >>> from funcgrad import optim
    >>> print(optim.warmup_constant_schedule(0.0, 1.0, 10)(5))
    0.5
    """
    return linear_schedule(init_value, peak_value, warmup_steps)


def cosine_decay_schedule(
    init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0
) -> Schedule:
    """init_value · ((1-alpha)·((1 + cos πt)/2)^exponent + alpha), t from 0 to 1 in decay_steps.

    Source: Loshchilov & Hutter, "SGDR", 2017.

    >>> from funcgrad import optim
    >>> print(optim.cosine_decay_schedule(1.0, 10)(10))
    0.0
    """
    if decay_steps <= 0:
        raise ValueError(f"cosine_decay_schedule: decay_steps must be positive, got {decay_steps}")

    def schedule(count: Any) -> Any:
        wave = 0.5 * (1 + fnp.cos(math.pi * _fraction(count, decay_steps)))
        return init_value * ((1 - alpha) * wave**exponent + alpha)

    return schedule


def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """Linear from init_value to peak_value over warmup_steps, then a cosine down to end_value at
    step decay_steps.

    >>> from funcgrad import optim
    >>> f = optim.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100)
    >>> print(f(5), f(10), f(100))
    0.5 1.0 0.0
    """
    alpha = 0.0 if peak_value == 0.0 else end_value / peak_value
    return join_schedules(
        [
            linear_schedule(init_value, peak_value, warmup_steps),
            cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent),
        ],
        [warmup_steps],
    )


def exponential_decay(
    init_value: float,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """init_value · decay_rate^((count - begin)/transition_steps), in steps if `staircase`.

    >>> from funcgrad import optim
    >>> print(optim.exponential_decay(1.0, 10, 0.5)(20))
    0.25
    """

    def schedule(count: Any) -> Any:
        done = fnp.maximum(fnp.asarray(count) - transition_begin, 0).astype(fnp.float32)
        power = done / transition_steps
        value = init_value * decay_rate ** (fnp.floor(power) if staircase else power)
        if end_value is None:
            return value
        bound = fnp.maximum if decay_rate < 1 else fnp.minimum
        return bound(value, end_value)

    return schedule


def warmup_exponential_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """Linear from init_value to peak_value over warmup_steps, then `exponential_decay`.

    >>> from funcgrad import optim
    >>> f = optim.warmup_exponential_decay_schedule(0.0, 1.0, 10, 10, 0.5)
    >>> print(f(5), f(20))
    0.5 0.5
    """
    decay = exponential_decay(
        peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value
    )
    return join_schedules(
        [linear_schedule(init_value, peak_value, warmup_steps), decay], [warmup_steps]
    )


def sgdr_schedule(cosine_kwargs: Sequence[Mapping[str, Any]]) -> Schedule:
    """Warmups with cosines one after the other: restarts.

    cosine_kwargs: the arguments of a `warmup_cosine_decay_schedule` for each.
    Source: Loshchilov & Hutter, "SGDR", 2017.

    >>> from funcgrad import optim
    >>> one = {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 5, "decay_steps": 10}
    >>> f = optim.sgdr_schedule([one, one])
    >>> print(f(5), f(15))
    1.0 1.0
    """
    ends = [*itertools.accumulate(kwargs["decay_steps"] for kwargs in cosine_kwargs)]
    return join_schedules([warmup_cosine_decay_schedule(**k) for k in cosine_kwargs], ends[:-1])


def piecewise_constant_schedule(
    init_value: float, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """init_value, multiplied by a scale from each boundary step on.

    >>> from funcgrad import optim
    >>> print(optim.piecewise_constant_schedule(1.0, {10: 0.1})(10))
    0.1
    """
    pieces = sorted((boundaries_and_scales or {}).items())

    def schedule(count: Any) -> Any:
        value: Any = fnp.asarray(init_value, fnp.float32)
        for boundary, factor in pieces:
            value = fnp.where(fnp.asarray(count) >= boundary, value * factor, value)
        return value

    return schedule


def piecewise_interpolate_schedule(
    interpolate_type: str,
    init_value: float,
    boundaries_and_scales: Mapping[int, float] | None = None,
) -> Schedule:
    """init_value, multiplied by a scale up to each boundary step, with lines or cosines between.

    interpolate_type: "linear" or "cosine"

    >>> from funcgrad import optim
    >>> f = optim.piecewise_interpolate_schedule("linear", 1.0, {10: 2.0, 20: 0.5})
    >>> print(f(5), f(10), f(15), f(99))
    1.5 2.0 1.5 1.0
    """
    between = {
        "linear": lambda a, b, t: a + (b - a) * t,
        "cosine": lambda a, b, t: b + (a - b) / 2 * (fnp.cos(math.pi * t) + 1),
    }.get(interpolate_type)
    if between is None:
        raise ValueError(
            'piecewise_interpolate_schedule: interpolate_type must be "linear" or "cosine", got '
            f"{interpolate_type!r}"
        )
    pieces = sorted((boundaries_and_scales or {}).items())
    if any(factor < 0 for _, factor in pieces):
        raise ValueError(
            "piecewise_interpolate_schedule: scales must not be negative, got "
            f"{min(factor for _, factor in pieces)}"
        )

    def schedule(count: Any) -> Any:
        count = fnp.asarray(count)
        begin, start = 0, init_value
        value: Any = fnp.asarray(init_value, fnp.float32)
        for boundary, factor in pieces:
            end = start * factor
            inside = between(start, end, _fraction(count, boundary - begin, begin))
            value = fnp.where(count >= begin, fnp.where(count >= boundary, end, inside), value)
            begin, start = boundary, end
        return value

    return schedule


def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: float,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Up from peak_value/div_factor in a line, down to it, and down by final_div_factor at the end.

    pct_start, pct_final: the shares of transition_steps at which the way down begins, and ends.
    Source: Smith & Topin, "Super-Convergence", 2017.

    >>> from funcgrad import optim
    >>> print(f"{optim.linear_onecycle_schedule(100, 1.0)(30):.2f}")
    1.00
    """
    _check_steps("linear_onecycle_schedule", transition_steps)
    scales = {
        int(pct_start * transition_steps): div_factor,
        int(pct_final * transition_steps): 1.0 / div_factor,
        transition_steps: 1.0 / final_div_factor,
    }
    return piecewise_interpolate_schedule("linear", peak_value / div_factor, scales)


def cosine_onecycle_schedule(
    transition_steps: int,
    peak_value: float,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Up from peak_value/div_factor by a cosine, and down to that over final_div_factor.

    Source: Smith & Topin, "Super-Convergence", 2017.

    >>> from funcgrad import optim
    >>> print(f"{optim.cosine_onecycle_schedule(100, 1.0)(30):.2f}")
    1.00
    """
    _check_steps("cosine_onecycle_schedule", transition_steps)
    scales = {
        int(pct_start * transition_steps): div_factor,
        transition_steps: 1.0 / (div_factor * final_div_factor),
    }
    return piecewise_interpolate_schedule("cosine", peak_value / div_factor, scales)


def _check_steps(name: str, steps: int) -> None:
    if steps <= 0:
        raise ValueError(f"{name}: transition_steps must be positive, got {steps}")


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Schedules one after the other; each begins to count at its boundary.

    >>> from funcgrad import optim
    >>> f = optim.join_schedules([lambda n: 1.0, lambda n: 2.0], [10])
    >>> print(f(9), f(10))
    1.0 2.0
    """
    if len(boundaries) != len(schedules) - 1:
        raise ValueError(
            f"join_schedules: {len(schedules)} schedules need {len(schedules) - 1} boundaries, "
            f"got {len(boundaries)}"
        )

    def schedule(count: Any) -> Any:
        count = fnp.asarray(count)
        value = fnp.asarray(schedules[0](count), fnp.float32)
        for boundary, later in zip(boundaries, schedules[1:], strict=True):
            value = fnp.where(count < boundary, value, later(count - boundary))
        return value

    return schedule
