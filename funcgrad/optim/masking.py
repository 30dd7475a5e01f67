"""Steps for some of the parameters: masks of a tree, and groups of leaves with a step for each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from funcgrad import tree
from funcgrad.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    stateless,
    with_extra_args_support,
)
from funcgrad.optim.moments import zeros


class MaskedNode(NamedTuple):
    """What stands in a masked tree where a leaf is left out: a node without leaves."""


class MaskedState(NamedTuple):
    """The state of a transformation of some leaves; those left out are `MaskedNode`s in it."""

    inner_state: Any


def set_to_zero() -> GradientTransformation:
    """Updates of zeros: with `masked`, what keeps parameters as they are.

    >>> from funcgrad import optim
    >>> print(optim.set_to_zero().update(3.0, optim.EmptyState())[0])
    0.0
    """
    return stateless(lambda updates, params: zeros(updates))


def masked(
    inner: GradientTransformation, mask: Any, *, mask_compatible_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Apply `inner` to some leaves only; the others' updates pass as they are.

    mask: a pytree of bools like the parameters (or like their upper part: a bool then holds for all
    below it), or a function from the parameters to one.
    mask_compatible_extra_args: mask further arguments of update, too, where they have the structure
    of the updates

    >>> from funcgrad import optim
    >>> step = optim.masked(optim.scale(2.0), {"a": True, "b": False})
    >>> grads = {"a": 1.0, "b": 1.0}
    >>> print({k: float(v) for k, v in step.update(grads, step.init(grads))[0].items()})
    {'a': 2.0, 'b': 1.0}
    """
    inner = with_extra_args_support(inner)

    def chosen(params: Any) -> Any:
        return tree.broadcast(mask(params) if callable(mask) else mask, params)

    def part(values: Any, keep: Any) -> Any:
        return tree.map(lambda k, x: x if k else MaskedNode(), keep, values)

    def init(params: Any) -> MaskedState:
        return MaskedState(inner.init(part(params, chosen(params))))

    def update(
        updates: Any, state: MaskedState, params: Any = None, **extra: Any
    ) -> tuple[Any, MaskedState]:
        keep = chosen(updates if params is None else params)
        given = None if params is None else part(params, keep)
        if mask_compatible_extra_args:
            whole = tree.structure(updates)
            extra = {
                name: part(x, keep) if tree.structure(x) == whole else x
                for name, x in extra.items()
            }
        changed, kept = inner.update(part(updates, keep), state.inner_state, given, **extra)
        merged = tree.map(lambda k, new, old: new if k else old, keep, changed, updates)
        return merged, MaskedState(kept)

    return GradientTransformationExtraArgs(init, update)


def freeze(mask: Any) -> GradientTransformation:
    """Updates of zeros where the mask is true: those parameters stay as they are.

    >>> from funcgrad import optim
    >>> step = optim.chain(optim.sgd(1.0), optim.freeze({"a": True, "b": False}))
    >>> params = {"a": 1.0, "b": 1.0}
    >>> out, _ = step.update(params, step.init(params))
    >>> print({k: float(v) for k, v in out.items()})
    {'a': 0.0, 'b': -1.0}
    """
    return masked(set_to_zero(), mask)


class PartitionState(NamedTuple):
    """The states of a partition's transformations, by label."""

    inner_states: Any


def partition(
    transforms: Mapping[Hashable, GradientTransformation],
    param_labels: Any,
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformationExtraArgs:
    """A transformation for each group of leaves; `multi_transform` is another name of it.

    transforms: the transformations, by label
    param_labels: a pytree of labels like the parameters (or like their upper part), or a function
    from the parameters to one
    Raises ValueError for a label that has no transformation.

    >>> from funcgrad import optim
    >>> step = optim.partition(
    ...     {"slow": optim.sgd(0.1), "fast": optim.sgd(1.0)}, {"a": "slow", "b": "fast"}
    ... )
    >>> params = {"a": 1.0, "b": 1.0}
    >>> out, _ = step.update(params, step.init(params))
    >>> print({k: float(v) for k, v in out.items()})
    {'a': -0.1, 'b': -1.0}
    """

    def groups(params: Any) -> dict[Hashable, GradientTransformation]:
        labels = param_labels(params) if callable(param_labels) else param_labels
        unknown = [label for label in tree.leaves(labels) if label not in transforms]
        if unknown:
            raise ValueError(
                f"optim.partition: label {unknown[0]!r} of a parameter has no transformation; "
                f"there are some for {[*transforms]}"
            )
        return {
            group: masked(
                t,
                tree.map(lambda label, group=group: label == group, labels),
                mask_compatible_extra_args=mask_compatible_extra_args,
            )
            for group, t in transforms.items()
        }

    def init(params: Any) -> PartitionState:
        return PartitionState({group: t.init(params) for group, t in groups(params).items()})

    def update(
        updates: Any, state: PartitionState, params: Any = None, **extra: Any
    ) -> tuple[Any, PartitionState]:
        states = {}
        for group, t in groups(updates if params is None else params).items():
            updates, states[group] = t.update(updates, state.inner_states[group], params, **extra)
        return updates, PartitionState(states)

    return GradientTransformationExtraArgs(init, update)


multi_transform = partition


def selective_transform(
    optimizer: GradientTransformation, *, freeze_mask: Any
) -> GradientTransformationExtraArgs:
    """An optimizer of the leaves where the mask is false; the others stay, and have no state.

    >>> from funcgrad import optim
    >>> step = optim.selective_transform(optim.adam(0.1), freeze_mask={"a": True, "b": False})
    >>> params = {"a": 1.0, "b": 1.0}
    >>> print(step.update(params, step.init(params))[0]["a"])
    0.0
    """
    labels = tree.map(lambda frozen: "freeze" if frozen else "train", freeze_mask)
    return partition({"train": optimizer, "freeze": set_to_zero()}, labels)
