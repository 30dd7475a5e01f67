"""The form of an optimizer, and how several become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import tree


class GradientTransformation(NamedTuple):
    """A step of an optimizer.

    init(params) → state; update(updates, state, params=None) → (updates, state). The first updates
    are the gradients, the last are added to the parameters by `apply_updates`.

    >>> from funcgrad import optim
    >>> optim.sgd(0.1).update(1.0, optim.sgd(0.1).init(5.0))[0]
    -0.1
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class EmptyState(NamedTuple):
    """The state of a transformation that has none."""


def _no_state(params: Any) -> EmptyState:
    return EmptyState()


def stateless(update: Callable[[Any, Any], Any]) -> GradientTransformation:
    """A transformation from update(updates, params) alone.

    >>> stateless(lambda g, params: g).init(0.0)
    EmptyState()
    """

    def step(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return update(updates, params), state

    return GradientTransformation(_no_state, step)


def identity() -> GradientTransformation:
    """Leave updates as they are.

    >>> from funcgrad import optim
    >>> optim.identity().update(2.0, optim.EmptyState())
    (2.0, EmptyState())
    """
    return stateless(lambda updates, params: updates)


def chain(*transformations: GradientTransformation) -> GradientTransformation:
    """Apply transformations one after the other; the state is a tuple of theirs.

    >>> from funcgrad import optim
    >>> step = optim.chain(optim.clip_by_global_norm(1.0), optim.scale(-0.5))
    >>> print(step.update(10.0, step.init(0.0))[0])
    -0.5
    """

    def init(params: Any) -> tuple:
        return tuple(t.init(params) for t in transformations)

    def update(updates: Any, state: tuple, params: Any = None) -> tuple[Any, tuple]:
        if not isinstance(state, tuple) or len(state) != len(transformations):
            held = f"of {len(state)}" if isinstance(state, tuple) else f"{state!r}"
            raise ValueError(
                f"optim.chain of {len(transformations)} transformations got a state {held}; "
                "make it with init(params) of the same chain"
            )
        states = []
        for t, s in zip(transformations, state, strict=True):
            updates, s = t.update(updates, s, params)
            states.append(s)
        return updates, tuple(states)

    return GradientTransformation(init, update)


def masked(inner: GradientTransformation, mask: Any) -> GradientTransformation:
    """Apply `inner` to some leaves only; the others' updates pass as they are.

    mask: a pytree of bools like the parameters (or like their upper part: a bool then holds for all
    below it), or a function from the parameters to one.

    >>> from funcgrad import optim
    >>> step = optim.masked(optim.scale(2.0), {"a": True, "b": False})
    >>> grads = {"a": 1.0, "b": 1.0}
    >>> print({k: float(v) for k, v in step.update(grads, step.init(grads))[0].items()})
    {'a': 2.0, 'b': 1.0}
    """

    def chosen(params: Any) -> list[bool]:
        return tree.leaves(tree.broadcast(mask(params) if callable(mask) else mask, params))

    def part(values: Any, keep: list[bool]) -> list:
        return [x for x, k in zip(tree.leaves(values), keep, strict=True) if k]

    def init(params: Any) -> Any:
        return inner.init(part(params, chosen(params)))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        keep = chosen(updates if params is None else params)
        leaves, treedef = tree.flatten(updates)
        given = None if params is None else part(params, keep)
        changed, state = inner.update(part(updates, keep), state, given)
        rest = iter(changed)
        merged = [next(rest) if k else u for u, k in zip(leaves, keep, strict=True)]
        return treedef.unflatten(merged), state

    return GradientTransformation(init, update)


def apply_updates(params: Any, updates: Any) -> Any:
    """params + updates, leaf by leaf, in the parameters' dtypes.

    >>> from funcgrad import optim
    >>> print(optim.apply_updates({"w": 1.0}, {"w": 0.5})["w"])
    1.5
    """
    return tree.map(lambda p, u: fnp.asarray(p + u, dtype=fnp.asarray(p).dtype), params, updates)


def global_norm(updates: Any) -> Any:
    """The Euclidean norm of all leaves together, in float32 or wider.

    >>> from funcgrad import optim
    >>> print(optim.global_norm([3.0, 4.0]))
    5.0
    """
    squares = [fnp.sum(fnp.square(fnp.abs(wide(x)))) for x in tree.leaves(updates)]
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
