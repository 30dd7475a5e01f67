"""Hyperparameters as parts of the state, where a program reads and writes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.core.trace import aval_of
from funcgrad.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    with_extra_args_support,
)
from funcgrad.optim.moments import no_steps


class InjectHyperparamsState(NamedTuple):
    """Step count, the hyperparameters by name, and the inner state."""

    count: Any
    hyperparams: dict[str, Any]
    inner_state: Any


def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: Any = None,
) -> Callable[..., GradientTransformationExtraArgs]:
    """A factory of optimizers whose numbers and schedules are kept in state.hyperparams.

    Numbers can be changed there between steps without a new program; schedules show what they gave
    last. Arguments that are bools, no numbers and no functions stay as they are.

    static_args: names of further arguments to leave as they are (functions that are no schedules)
    hyperparam_dtype: dtype of floats, by default the widest one of the parameters,
    at least float32

    >>> from funcgrad import optim
    >>> opt = optim.inject_hyperparams(optim.sgd)(learning_rate=0.5)
    >>> state = opt.init(fnp.array(1.0))
    >>> state.hyperparams["learning_rate"] = fnp.array(0.25)
    >>> print(opt.update(fnp.array(1.0), state, fnp.array(1.0))[0])
    -0.25
    """
    static = {static_args} if isinstance(static_args, str) else set(static_args)
    signature = inspect.signature(inner_factory)
    unknown = sorted(static.difference(signature.parameters))
    if unknown:
        raise ValueError(
            f"inject_hyperparams: static_args names {unknown[0]!r}, which is no argument of "
            f"{getattr(inner_factory, '__name__', inner_factory)}: it has {[*signature.parameters]}"
        )

    @functools.wraps(inner_factory)
    def factory(*args: Any, **kwargs: Any) -> GradientTransformationExtraArgs:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        numbers, schedules, others = _sorted_arguments(bound.arguments, static)

        def of(params: Any, values: dict[str, Any]) -> dict[str, Any]:
            dtype = _widest(params) if hyperparam_dtype is None else hyperparam_dtype
            return {name: _as_hyperparameter(x, dtype) for name, x in values.items()}

        def inner(hyperparams: dict[str, Any]) -> GradientTransformationExtraArgs:
            return with_extra_args_support(inner_factory(**others, **hyperparams))

        def at(count: Any) -> dict[str, Any]:
            return {name: schedule(count) for name, schedule in schedules.items()}

        def init(params: Any) -> InjectHyperparamsState:
            count = no_steps()
            hyperparams = of(params, numbers | at(count))
            return InjectHyperparamsState(count, hyperparams, inner(hyperparams).init(params))

        def update(
            updates: Any, state: InjectHyperparamsState, params: Any = None, **extra: Any
        ) -> tuple[Any, InjectHyperparamsState]:
            like = updates if params is None else params
            hyperparams = of(like, state.hyperparams | at(state.count))
            step = inner(hyperparams)
            out, kept = step.update(updates, state.inner_state, params, **extra)
            # Hyperparameters are arrays here, which would widen what is narrower.
            out, kept = _cast_like(out, updates), _cast_like(kept, state.inner_state)
            return out, InjectHyperparamsState(state.count + 1, hyperparams, kept)

        return GradientTransformationExtraArgs(init, update)

    return factory


def _sorted_arguments(
    arguments: dict[str, Any], static: set[str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The arguments that are numbers, schedules, and neither."""
    numbers: dict[str, Any] = {}
    schedules: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in static or isinstance(value, bool | type):  # a dtype is no schedule
            others[name] = value
        elif callable(value):
            schedules[name] = value
        elif isinstance(value, int | float | np.ndarray | np.number | fnp.ndarray):
            numbers[name] = value
        else:
            others[name] = value
    return numbers, schedules, others


def _widest(params: Any) -> Any:
    """The widest floating dtype of the leaves, at least float32."""
    kinds = [fnp.real(x).dtype for x in tree.leaves(params)]
    floats = [np.dtype(np.float32), *(d for d in kinds if dtypes.is_float(d))]
    return max(floats, key=lambda d: d.itemsize)


def _cast_like(values: Any, like: Any) -> Any:
    return tree.map(lambda x, y: fnp.asarray(x, fnp.asarray(y).dtype), values, like)


def _as_hyperparameter(x: Any, dtype: Any) -> Any:
    """An array; floats of Python get the dtype, arrays keep theirs."""
    aval = aval_of(x)
    return fnp.asarray(x, dtype if aval.weak_type and dtypes.is_float(aval.dtype) else None)
