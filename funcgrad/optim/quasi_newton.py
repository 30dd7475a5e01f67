"""Limited-memory BFGS as a step: gradients times an estimate of the Hessian's inverse."""

from __future__ import annotations

from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.lax import scan
from funcgrad.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    chain,
    identity,
    need_parameters,
)
from funcgrad.optim.line_search import along, real_dtype, scale_by_zoom_linesearch, tree_vdot
from funcgrad.optim.moments import no_steps, zeros
from funcgrad.optim.updates import ScalarOrSchedule, scale, scale_by_learning_rate


class LBFGSState(NamedTuple):
    """Step count, the last parameters and updates, and the last differences of both, with the
    reciprocals of their inner products."""

    count: Any
    params: Any
    updates: Any
    diff_params_memory: Any
    diff_updates_memory: Any
    weights_memory: Any


def scale_by_lbfgs(
    memory_size: int = 10, scale_init_precond: bool = True
) -> GradientTransformation:
    """Multiply updates by an estimate of the Hessian's inverse, from the last memory_size steps.

    scale_init_precond: whether the estimate starts from a multiple of the identity that fits the
    last step (at the first one, a step of at most length 1), rather than from the identity.
    Source: Nocedal & Wright, "Numerical Optimization", 2006, algorithms 7.4 and 7.5.

    >>> from funcgrad import optim
    >>> step = optim.scale_by_lbfgs()
    >>> x = fnp.array([3.0, 4.0])
    >>> print(step.update(x, step.init(x), x)[0])
    [0.6 0.8]
    """
    if memory_size < 1:
        raise ValueError(f"scale_by_lbfgs: memory_size must be at least 1, got {memory_size}")

    def init(params: Any) -> LBFGSState:
        held = tree.map(
            lambda p: fnp.zeros((memory_size, *fnp.shape(p)), fnp.asarray(p).dtype), params
        )
        weights = fnp.zeros(memory_size, real_dtype(params))
        return LBFGSState(no_steps(), zeros(params), zeros(params), held, held, weights)

    def update(updates: Any, state: LBFGSState, params: Any = None) -> tuple:
        params = need_parameters("scale_by_lbfgs", params)
        later, place = state.count > 0, (state.count - 1) % memory_size

        def change(new: Any, old: Any) -> Any:
            return tree.map(lambda a, b: fnp.where(later, a - b, 0), new, old)

        def kept(memory: Any, new: Any) -> Any:
            return tree.map(lambda m, x: m.at[place].set(x), memory, new)

        moved, turned = change(params, state.params), change(updates, state.updates)
        product = tree_vdot(turned, moved)
        weight = fnp.where(product == 0, 0, 1 / fnp.where(product == 0, 1, product))
        memory = kept(state.diff_params_memory, moved), kept(state.diff_updates_memory, turned)
        weights = state.weights_memory.at[place].set(weight.astype(state.weights_memory.dtype))
        first = _first_scale(later, product, turned, updates) if scale_init_precond else 1.0
        order = (state.count + fnp.arange(memory_size, dtype=fnp.int32)) % memory_size
        out = _multiply(updates, *memory, weights, first, order)
        return out, LBFGSState(state.count + 1, params, updates, *memory, weights)

    return GradientTransformation(init, update)


def _first_scale(later: Any, product: Any, turned: Any, updates: Any) -> Any:
    """The multiple of the identity that fits the last step; before any, at most 1/norm."""
    size, norm = tree_vdot(turned, turned), fnp.sqrt(tree_vdot(updates, updates))
    fit = fnp.where(size > 0, product / fnp.where(size > 0, size, 1), 1)
    return fnp.where(later, fit, 1 / fnp.maximum(norm, 1))


def _multiply(x: Any, moved: Any, turned: Any, weights: Any, first: Any, order: Any) -> Any:
    """The estimate times x, by two loops over the memory: from the newest pair and back."""

    def at(memory: Any, i: Any) -> Any:
        return tree.map(lambda m: m[i], memory)

    def back(x: Any, i: Any) -> tuple[Any, Any]:
        share = weights[i] * tree_vdot(at(moved, i), x)
        return along(x, -share, at(turned, i)), share

    def forth(x: Any, turn: tuple) -> tuple[Any, None]:
        i, share = turn
        return along(x, share - weights[i] * tree_vdot(at(turned, i), x), at(moved, i)), None

    x, shares = scan(back, x, order, reverse=True)
    x = tree.map(lambda v: fnp.asarray(first, v.dtype) * v, x)
    return scan(forth, x, (order, shares))[0]


def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = scale_by_zoom_linesearch(  # noqa: B008 - it has no state
        max_linesearch_steps=20, initial_guess_strategy="one"
    ),
) -> GradientTransformationExtraArgs:
    """L-BFGS with a line search, for smooth functions without noise.

    update(grad, state, params, value=f(params), grad=grad, value_fn=f); see
    `value_and_grad_from_state`. learning_rate: a factor of the direction, 1 by default.
    linesearch: a step that scales the direction, or None, with which update needs no more than
    others. Source: Liu & Nocedal, "On the limited memory BFGS method", 1989.

    >>> from funcgrad import optim
    >>> f = lambda x: fnp.sum((x - 3) ** 4)
    >>> opt, x = optim.lbfgs(), fnp.zeros(2)
    >>> state = opt.init(x)
    >>> for _ in range(20):
    ...     value, grad = optim.value_and_grad_from_state(f)(x, state=state)
    ...     out, state = opt.update(grad, state, x, value=value, grad=grad, value_fn=f)
    ...     x = optim.apply_updates(x, out)
    >>> print(fnp.round(x, 1))
    [3. 3.]
    """
    return chain(
        scale_by_lbfgs(memory_size, scale_init_precond),
        scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate),
        identity() if linesearch is None else linesearch,
    )
