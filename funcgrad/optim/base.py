"""The form of an optimizer, and how several become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import tree


class GradientTransformation(NamedTuple):
    """A step of an optimizer.

    init(params) → state; update(updates, state, params=None) → (updates, state). The first updates
    are the gradients, the last are added to the parameters by `apply_updates`. `optim`'s own take
    further arguments by name (`value=`, `value_fn=`) and pass them on to where they are used.

    >>> from funcgrad import optim
    >>> optim.sgd(0.1).update(1.0, optim.sgd(0.1).init(5.0))[0]
    -0.1
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class GradientTransformationExtraArgs(GradientTransformation):
    """A step whose update takes further arguments by name: update(updates, state, params, **extra).

    >>> from funcgrad import optim
    >>> isinstance(optim.chain(optim.scale(1.0)), optim.GradientTransformationExtraArgs)
    True
    """


def with_extra_args_support(
    transformation: GradientTransformation,
) -> GradientTransformationExtraArgs:
    """The same step, with an update that takes arguments by name and leaves them aside.

    >>> from funcgrad import optim
    >>> step = optim.with_extra_args_support(optim.scale(2.0))
    >>> print(step.update(1.0, step.init(0.0), value=3.0)[0])
    2.0
    """
    if isinstance(transformation, GradientTransformationExtraArgs):
        return transformation

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return transformation.update(updates, state, params)

    return GradientTransformationExtraArgs(transformation.init, update)


class EmptyState(NamedTuple):
    """The state of a transformation that has none."""


def _no_state(params: Any) -> EmptyState:
    return EmptyState()


def stateless(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """A transformation from f(updates, params) alone.

    >>> from funcgrad import optim
    >>> optim.stateless(lambda g, params: g).init(0.0)
    EmptyState()
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return f(updates, params), state

    return GradientTransformation(_no_state, update)


def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """A transformation from f(update, parameter) of each leaf; the parameter is None if not given.

    >>> from funcgrad import optim
    >>> step = optim.stateless_with_tree_map(lambda g, p: g + 0.1 * p)
    >>> print(step.update({"w": 1.0}, step.init(None), {"w": 5.0})[0])
    {'w': 1.5}
    """

    def each(updates: Any, params: Any) -> Any:
        if params is None:
            return tree.map(lambda g: f(g, None), updates)
        return tree.map(f, updates, params)

    return stateless(each)


def with_parameters(name: str, f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """`stateless` of a step that can't do without parameters, and says so."""

    def given(updates: Any, params: Any) -> Any:
        return f(updates, need_parameters(name, params))

    return stateless(given)


def need_parameters(name: str, params: Any) -> Any:
    """The parameters, or an error that says how to give them."""
    if params is None:
        raise ValueError(f"{name}: update needs the parameters: update(grads, state, params)")
    return params


def identity() -> GradientTransformation:
    """Leave updates as they are.

    >>> from funcgrad import optim
    >>> optim.identity().update(2.0, optim.EmptyState())
    (2.0, EmptyState())
    """
    return stateless(lambda updates, params: updates)


def chain(*transformations: GradientTransformation) -> GradientTransformationExtraArgs:
    """Apply transformations one after the other; the state is a tuple of theirs.

    >>> from funcgrad import optim
    >>> step = optim.chain(optim.clip_by_global_norm(1.0), optim.scale(-0.5))
    >>> print(step.update(10.0, step.init(0.0))[0])
    -0.5
    """
    parts = [with_extra_args_support(t) for t in transformations]

    def init(params: Any) -> tuple:
        return tuple(t.init(params) for t in parts)

    def update(updates: Any, state: tuple, params: Any = None, **extra: Any) -> tuple[Any, tuple]:
        if not isinstance(state, tuple) or len(state) != len(parts):
            held = f"of {len(state)}" if isinstance(state, tuple) else f"{state!r}"
            raise ValueError(
                f"optim.chain of {len(parts)} transformations got a state {held}; "
                "make it with init(params) of the same chain"
            )
        states = []
        for t, s in zip(parts, state, strict=True):
            updates, s = t.update(updates, s, params, **extra)
            states.append(s)
        return updates, tuple(states)

    return GradientTransformationExtraArgs(init, update)


def named_chain(
    *transformations: tuple[str, GradientTransformation],
) -> GradientTransformationExtraArgs:
    """`chain` of pairs (name, transformation); the state is a dictionary of theirs by name.

    >>> from funcgrad import optim
    >>> step = optim.named_chain(("clip", optim.clip(1.0)), ("moments", optim.trace(0.9)))
    >>> print(step.init(0.0)["moments"].trace)
    0.0
    """
    names = [name for name, _ in transformations]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"optim.named_chain: names must differ, but {twice[0]!r} comes twice")
    inner = chain(*(t for _, t in transformations))

    def init(params: Any) -> dict[str, Any]:
        return dict(zip(names, inner.init(params), strict=True))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if not isinstance(state, dict) or set(state) != set(names):
            raise ValueError(
                f"optim.named_chain of {names} got a state {state!r}; "
                "make it with init(params) of the same chain"
            )
        states = tuple(state[name] for name in names)
        updates, states = inner.update(updates, states, params, **extra)
        return updates, dict(zip(names, states, strict=True))

    return GradientTransformationExtraArgs(init, update)


def apply_updates(params: Any, updates: Any) -> Any:
    """params + updates, leaf by leaf, in the parameters' dtypes.

    >>> from funcgrad import optim
    >>> print(optim.apply_updates({"w": 1.0}, {"w": 0.5})["w"])
    1.5
    """
    return tree.map(lambda p, u: fnp.asarray(p + u, dtype=fnp.asarray(p).dtype), params, updates)


def incremental_update(new_tensors: Any, old_tensors: Any, step_size: Any) -> Any:
    """step_size·new + (1 - step_size)·old, leaf by leaf: a mean of parameters that follows them.

    >>> from funcgrad import optim
    >>> print(optim.incremental_update({"w": 1.0}, {"w": 0.0}, 0.25)["w"])
    0.25
    """
    return tree.map(lambda n, o: step_size * n + (1.0 - step_size) * o, new_tensors, old_tensors)


def periodic_update(new_tensors: Any, old_tensors: Any, steps: Any, update_period: int) -> Any:
    """The new tensors where `steps` is a multiple of update_period, else the old ones.

    >>> from funcgrad import optim
    >>> print(optim.periodic_update({"w": 1.0}, {"w": 0.0}, 20, 10)["w"])
    1.0
    """
    due = fnp.asarray(steps) % update_period == 0
    return tree.map(lambda n, o: fnp.where(due, n, o), new_tensors, old_tensors)


def global_norm(updates: Any) -> Any:
    """The Euclidean norm of all leaves together, in float32 or wider.

    >>> from funcgrad import optim
    >>> print(optim.global_norm([3.0, 4.0]))
    5.0
    """
    squares = [sum_of_squares(x) for x in tree.leaves(updates)]
    if not squares:
        return fnp.zeros(())
    total = squares[0]
    for s in squares[1:]:
        total = total + s
    return fnp.sqrt(total)


def wide(x: Any) -> Any:
    """x with low-precision floats in float32, for sums that need it."""
    x = fnp.asarray(x)
    return x.astype(fnp.float32) if x.dtype.itemsize < 4 else x


def sum_of_squares(x: Any) -> Any:
    """Σ |x|² of an array, in float32 or wider."""
    return fnp.sum(abs_square(wide(x)))


def abs_square(x: Any) -> Any:
    """|x|², which is real for complex numbers, too.

    >>> print(abs_square(3.0))
    9.0
    """
    x = fnp.asarray(x)
    return fnp.real(x * fnp.conj(x)) if x.dtype.kind == "c" else x * x
