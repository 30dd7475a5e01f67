"""Gradients of several batches for one step; parameters that follow others slowly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.lax import cond
from funcgrad.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    sum_of_squares,
    wide,
    with_extra_args_support,
)
from funcgrad.optim.moments import no_steps, zeros


class ApplyEveryState(NamedTuple):
    """How many updates were added up, and their sum."""

    count: Any
    grad_acc: Any


def apply_every(k: int = 1) -> GradientTransformation:
    """The sum of k updates at every k-th step, and zeros at the others.

    >>> from funcgrad import optim
    >>> step = optim.apply_every(2)
    >>> out, state = step.update(1.0, step.init(0.0))
    >>> print(out, step.update(2.0, state)[0])
    0.0 3.0
    """

    def init(params: Any) -> ApplyEveryState:
        return ApplyEveryState(no_steps(), zeros(params))

    def update(updates: Any, state: ApplyEveryState, params: Any = None) -> tuple:
        first, last = state.count == 0, state.count == k - 1
        held = tree.map(lambda g, a: fnp.where(first, g, a + g), updates, state.grad_acc)
        out = tree.map(lambda a: fnp.where(last, a, 0), held)
        return out, ApplyEveryState((state.count + 1) % k, held)

    return GradientTransformation(init, update)


def skip_not_finite(updates: Any, gradient_step: Any, params: Any) -> tuple[Any, dict[str, Any]]:
    """Whether some element isn't finite, and how many: for `MultiSteps`, to leave a batch out.

    >>> from funcgrad import optim
    >>> skip, counts = optim.skip_not_finite([fnp.inf, 1.0], 0, None)
    >>> print(skip, counts["num_not_finite"])
    True 1
    """
    bad = [fnp.sum(~fnp.isfinite(x), dtype=np.int32) for x in tree.leaves(updates)]
    count = fnp.sum(fnp.stack(bad)) if bad else no_steps()
    skip = count > 0
    return skip, {"should_skip": skip, "num_not_finite": count}


def skip_large_updates(
    updates: Any, gradient_step: Any, params: Any, max_squared_norm: float
) -> tuple[Any, dict[str, Any]]:
    """Whether the joint norm squared isn't below max_squared_norm, also where it is NaN, and it.

    Give `MultiSteps` functools.partial(skip_large_updates, max_squared_norm=…).

    >>> from funcgrad import optim
    >>> print(optim.skip_large_updates([3.0, 4.0], 0, None, max_squared_norm=16.0)[0])
    True
    """
    total = fnp.zeros(())
    for x in tree.leaves(updates):
        total = total + sum_of_squares(x)
    skip = ~(total < max_squared_norm)
    return skip, {"should_skip": skip, "norm_squared": total}


class MultiStepsState(NamedTuple):
    """Batches since the last step, steps made, the inner state, the gradients so far, and what the
    function that leaves batches out said last."""

    mini_step: Any
    gradient_step: Any
    inner_opt_state: Any
    acc_grads: Any
    skip_state: Any


def _never_skip(updates: Any, gradient_step: Any, params: Any) -> tuple[Any, tuple]:
    return fnp.zeros((), bool), ()


class MultiSteps:
    """An optimizer whose every step takes the mean (or sum) of k batches' gradients.

    Between steps, updates are zeros, and the inner optimizer isn't run.

    opt: the inner optimizer
    every_k_schedule: k, or a function from the number of steps made to k
    use_grad_mean: False for the sum
    should_skip_update_fn: from (updates, gradient_step, params) to (whether to leave a batch out,
    what to keep of that in the state), as `skip_not_finite`
    accumulator_dtype: dtype of the gradients that are kept, by default float32 or theirs if wider

    >>> from funcgrad import optim
    >>> opt = optim.MultiSteps(optim.sgd(1.0), every_k_schedule=2)
    >>> out, state = opt.update(fnp.array(1.0), opt.init(fnp.array(0.0)))
    >>> print(out, opt.update(fnp.array(2.0), state)[0])
    0.0 -1.5
    """

    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: int | Callable[[Any], Any],
        use_grad_mean: bool = True,
        should_skip_update_fn: Callable[..., tuple[Any, Any]] | None = None,
        accumulator_dtype: Any = None,
    ):
        self.inner_opt = with_extra_args_support(opt)
        self._every_k = every_k_schedule
        self._mean = use_grad_mean
        self._skips = should_skip_update_fn
        self._dtype = accumulator_dtype

    def init(self, params: Any) -> MultiStepsState:
        """The state before the first batch."""
        test = self._skips or _never_skip
        said = test(zeros(params), no_steps(), params)[1]
        kept = zeros(params, self._dtype)
        if self._dtype is None:
            kept = tree.map(wide, kept)
        return MultiStepsState(no_steps(), no_steps(), self.inner_opt.init(params), kept, said)

    def update(
        self, updates: Any, state: MultiStepsState, params: Any = None, **extra: Any
    ) -> tuple[Any, MultiStepsState]:
        """One more batch's gradients: the updates, which are zeros but for the k-th, and state."""
        if self._skips is None:
            return self._add(updates, state, params, extra)
        skip, said = self._skips(updates, state.gradient_step, params)
        if fnp.shape(skip) != () or fnp.asarray(skip).dtype != np.bool_:
            raise ValueError(
                "MultiSteps: should_skip_update_fn must give a bool first, got "
                f"{fnp.asarray(skip).dtype.name} of shape {fnp.shape(skip)}"
            )
        state = state._replace(skip_state=said)
        return cond(
            skip,
            lambda: (zeros(updates), state),
            lambda: self._add(updates, state, params, extra),
        )

    def _add(self, updates: Any, state: MultiStepsState, params: Any, extra: dict) -> tuple:
        every = self._every_k
        k = every(state.gradient_step) if callable(every) else every
        n = state.mini_step

        def follow(g: Any, a: Any) -> Any:
            return a + ((g - a) / (n + 1) if self._mean else g)

        held = tree.map(lambda g, a: follow(g, a).astype(a.dtype), updates, state.acc_grads)
        last = n == k - 1

        def step() -> tuple:
            mean = tree.map(lambda a, g: a.astype(fnp.asarray(g).dtype), held, updates)
            return self.inner_opt.update(mean, state.inner_opt_state, params, **extra)

        out, inner = cond(last, step, lambda: (zeros(updates), state.inner_opt_state))
        held = tree.map(lambda a: fnp.where(last, 0, a), held)
        counts = (n + 1) % k, state.gradient_step + last
        return out, MultiStepsState(*counts, inner, held, state.skip_state)

    def has_updated(self, state: MultiStepsState) -> Any:
        """Whether the last batch made a step.

        >>> from funcgrad import optim
        >>> opt = optim.MultiSteps(optim.sgd(1.0), 2)
        >>> print(opt.has_updated(opt.init(fnp.array(0.0))))
        False
        """
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> GradientTransformationExtraArgs:
        """The same as a pair (init, update), for `chain` and others.

        >>> from funcgrad import optim
        >>> step = optim.MultiSteps(optim.sgd(1.0), 2).gradient_transformation()
        >>> print(step.update(fnp.array(1.0), step.init(fnp.array(0.0)))[0])
        0.0
        """
        return GradientTransformationExtraArgs(self.init, self.update)


class LookaheadState(NamedTuple):
    """The fast optimizer's state, and how many steps it made since both were made equal."""

    fast_state: Any
    steps_since_sync: Any


class LookaheadParams(NamedTuple):
    """Parameters that an optimizer moves, and slow ones that follow them."""

    fast: Any
    slow: Any

    @classmethod
    def init_synced(cls, params: Any) -> LookaheadParams:
        """Both equal, to begin with.

        >>> from funcgrad import optim
        >>> optim.LookaheadParams.init_synced(1.0).slow
        1.0
        """
        return cls(fast=params, slow=params)


def lookahead(
    fast_optimizer: GradientTransformation,
    sync_period: int,
    slow_step_size: float,
    reset_state: bool = False,
) -> GradientTransformation:
    """Every sync_period steps slow parameters go slow_step_size of the way to the fast ones, which
    come to where they are.

    Parameters are `LookaheadParams`, gradients those of the fast ones. reset_state: begin the fast
    optimizer's state anew then. Source: Zhang et al., "Lookahead Optimizer", 2019.

    >>> from funcgrad import optim
    >>> step = optim.lookahead(optim.sgd(1.0), 1, 0.5)
    >>> params = optim.LookaheadParams.init_synced(fnp.array(3.0))
    >>> out, _ = step.update(fnp.array(1.0), step.init(params), params)
    >>> print(out.fast, out.slow)
    -0.5 -0.5
    """
    if sync_period < 1:
        raise ValueError(f"lookahead: sync_period must be at least 1, got {sync_period}")

    def init(params: LookaheadParams) -> LookaheadState:
        return LookaheadState(fast_optimizer.init(params.fast), no_steps())

    def update(updates: Any, state: LookaheadState, params: LookaheadParams) -> tuple:
        if not isinstance(params, LookaheadParams):
            raise ValueError(
                "lookahead: update needs the parameters as optim.LookaheadParams, got "
                f"{type(params).__name__}; make them by LookaheadParams.init_synced(params)"
            )
        updates, fast_state = fast_optimizer.update(updates, state.fast_state, params.fast)
        sync = state.steps_since_sync == sync_period - 1
        gap = tree.map(lambda f, u, s: f + u - s, params.fast, updates, params.slow)
        slow = tree.map(lambda d: fnp.where(sync, slow_step_size * d, 0), gap)
        fast = tree.map(lambda u, d: u - fnp.where(sync, (1 - slow_step_size) * d, 0), updates, gap)
        if reset_state:
            start = fast_optimizer.init(params.fast)
            fast_state = tree.map(lambda now, new: fnp.where(sync, new, now), fast_state, start)
        count = (state.steps_since_sync + 1) % sync_period
        return LookaheadParams(fast, slow), LookaheadState(fast_state, count)

    return GradientTransformation(init, update)
