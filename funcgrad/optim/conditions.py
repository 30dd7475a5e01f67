"""Steps around a step: made only where a condition holds, every so often, on one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import random, tree
from funcgrad.flatten_util import ravel_pytree
from funcgrad.lax import cond
from funcgrad.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    with_extra_args_support,
)
from funcgrad.optim.moments import no_steps, zeros


class ApplyIfFiniteState(NamedTuple):
    """How many updates in a row had a number that isn't finite, whether the last had none, how many
    had one at all; the inner state."""

    notfinite_count: Any
    last_finite: Any
    total_notfinite: Any
    inner_state: Any


def all_finite(updates: Any) -> Any:
    """Whether all elements of all leaves are finite.

    >>> print(all_finite([1.0, fnp.array([2.0, fnp.inf])]))
    False
    """
    finite = fnp.ones((), bool)
    for x in tree.leaves(updates):
        finite = finite & fnp.all(fnp.isfinite(x))
    return finite


def apply_if_finite(
    inner: GradientTransformation, max_consecutive_errors: int
) -> GradientTransformationExtraArgs:
    """Updates of zeros, and the inner state as it was, where an update isn't finite.

    max_consecutive_errors: after so many in a row such an update is made all the same.

    >>> from funcgrad import optim
    >>> step = optim.apply_if_finite(optim.sgd(0.1), 5)
    >>> out, state = step.update(fnp.array(fnp.nan), step.init(fnp.array(1.0)))
    >>> print(out, state.total_notfinite)
    0.0 1
    """
    inner = with_extra_args_support(inner)

    def init(params: Any) -> ApplyIfFiniteState:
        return ApplyIfFiniteState(no_steps(), fnp.ones((), bool), no_steps(), inner.init(params))

    def update(
        updates: Any, state: ApplyIfFiniteState, params: Any = None, **extra: Any
    ) -> tuple[Any, ApplyIfFiniteState]:
        finite = all_finite(updates)
        row = fnp.where(finite, 0, state.notfinite_count + 1)
        total = state.total_notfinite + ~finite
        out, kept = cond(
            finite | (row > max_consecutive_errors),
            lambda: inner.update(updates, state.inner_state, params, **extra),
            lambda: (zeros(updates), state.inner_state),
        )
        return out, ApplyIfFiniteState(row, finite, total, kept)

    return GradientTransformationExtraArgs(init, update)


class ConditionalState(NamedTuple):
    """The inner state, and how many steps there were, made or not."""

    inner_state: Any
    step: Any


def conditionally_transform(
    inner: GradientTransformation,
    should_transform_fn: Callable[..., Any],
    forward_extra_args: bool = False,
) -> GradientTransformationExtraArgs:
    """Apply `inner` at steps where should_transform_fn(step) holds; others pass as they are.

    forward_extra_args: whether should_transform_fn gets update's further arguments, too.

    >>> from funcgrad import optim
    >>> step = optim.conditionally_transform(optim.scale(2.0), lambda step: step >= 1)
    >>> out, state = step.update(1.0, step.init(0.0))
    >>> print(out, step.update(1.0, state)[0])
    1.0 2.0
    """
    return _conditional(inner, should_transform_fn, forward_extra_args, lambda updates: updates)


def conditionally_mask(
    inner: GradientTransformation,
    should_transform_fn: Callable[..., Any],
    forward_extra_args: bool = False,
) -> GradientTransformationExtraArgs:
    """As `conditionally_transform`, with updates of zeros at the other steps.

    >>> from funcgrad import optim
    >>> step = optim.conditionally_mask(optim.scale(2.0), lambda step: step >= 1)
    >>> print(step.update(1.0, step.init(0.0))[0])
    0.0
    """
    return _conditional(inner, should_transform_fn, forward_extra_args, zeros)


def _conditional(
    inner: GradientTransformation,
    test: Callable[..., Any],
    forward: bool,
    otherwise: Callable[[Any], Any],
) -> GradientTransformationExtraArgs:
    inner = with_extra_args_support(inner)

    def init(params: Any) -> ConditionalState:
        return ConditionalState(inner.init(params), no_steps())

    def update(
        updates: Any, state: ConditionalState, params: Any = None, **extra: Any
    ) -> tuple[Any, ConditionalState]:
        out, kept = cond(
            test(state.step, **(extra if forward else {})),
            lambda: inner.update(updates, state.inner_state, params, **extra),
            lambda: (otherwise(updates), state.inner_state),
        )
        return out, ConditionalState(kept, state.step + 1)

    return GradientTransformationExtraArgs(init, update)


def flatten(inner: GradientTransformation) -> GradientTransformationExtraArgs:
    """Apply `inner` to all leaves as one vector: few large operations in place of many small ones.

    The state is that of a vector. Leaves are promoted to one dtype; updates have their own again.

    >>> from funcgrad import optim
    >>> step = optim.flatten(optim.scale(2.0))
    >>> out, _ = step.update({"a": fnp.ones(2), "b": 1.0}, step.init({"a": fnp.ones(2), "b": 1.0}))
    >>> print(out["a"], out["b"])
    [2. 2.] 2.0
    """
    inner = with_extra_args_support(inner)

    def init(params: Any) -> Any:
        return inner.init(ravel_pytree(params)[0])

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        flat, unravel = ravel_pytree(updates)
        given = None if params is None else ravel_pytree(params)[0]
        flat, state = inner.update(flat, state, given, **extra)
        return unravel(flat), state

    return GradientTransformationExtraArgs(init, update)


class AddNoiseState(NamedTuple):
    """Step count, and the key that the next step splits."""

    count: Any
    rng_key: Any


def add_noise(eta: float, gamma: float, key: Any) -> GradientTransformation:
    """Add normal noise of variance eta/tᵞ to the updates of step t.

    key: a key, or an integer to make one of.
    Source: Neelakantan et al., "Adding Gradient Noise Improves Learning", 2015.

    >>> from funcgrad import optim
    >>> step = optim.add_noise(0.0, 0.55, 0)
    >>> print(step.update(fnp.ones(2), step.init(fnp.ones(2)))[0])
    [1. 1.]
    """

    def init(params: Any) -> AddNoiseState:
        start = random.key(key) if isinstance(key, int) else key
        return AddNoiseState(no_steps(), start)

    def update(updates: Any, state: AddNoiseState, params: Any = None) -> tuple:
        count = state.count + 1
        deviation = fnp.sqrt(eta / count.astype(fnp.float32) ** gamma)
        left, used = random.split(state.rng_key)
        leaves, treedef = tree.flatten(updates)
        noisy = []
        for x, k in zip(leaves, random.split(used, max(len(leaves), 1)), strict=False):
            x = fnp.asarray(x)
            noisy.append(x + fnp.asarray(deviation, x.dtype) * random.normal(k, x.shape, x.dtype))
        return treedef.unflatten(noisy), AddNoiseState(count, left)

    return GradientTransformation(init, update)
