"""Arrays of random keys in functions that only move elements: the words of a key go along.

A key's words lie on a last axis of their own, so such a function of keys is itself, mapped over
that axis.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from funcgrad import tree
from funcgrad.errors import DTypeError
from funcgrad.transforms.batching.vmap import vmap

_F = TypeVar("_F", bound=Callable)


class Keys:
    """What arrays of random keys are: their words, and a way to make others of their kind."""

    __slots__ = ()

    data: Any
    dtype: Any

    def _with(self, data: Any) -> Any:
        """Keys of the same kind, of other words."""
        raise NotImplementedError


def _are_keys(x: Any) -> bool:
    return isinstance(x, Keys)


_JOINED = ("arrays", "arr", "values", "args", "x", "y")  # parameters: what comes to one array


def _check_joined(fun: Callable, args: tuple, kwargs: dict) -> None:
    """Raise where keys and others would come to one array."""
    for name, value in inspect.signature(fun).bind(*args, **kwargs).arguments.items():
        for x in tree.leaves(value, is_leaf=_are_keys) if name in _JOINED else ():
            if not _are_keys(x):
                raise TypeError(
                    f"{fun.__name__}: keys and others don't mix in one array; {name} holds {x!r}"
                )


def for_keys(fun: _F) -> _F:
    """Decorates a function that moves elements, whatever they are: it takes keys, too.

    Arrays of other dtypes beside keys stay whole: a condition, or positions.

    >>> keys = fg.random.split(fg.random.key(0), 6)
    >>> fnp.reshape(keys, (2, 3)).shape, fnp.stack([keys, keys]).shape
    ((2, 3), (2, 6))
    """

    @wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except TypeError:  # keys are no arrays; those of arrays alone pay nothing
            leaves, structure = tree.flatten((args, kwargs), is_leaf=_are_keys)
            places = [i for i, x in enumerate(leaves) if _are_keys(x)]
            if not places:
                raise
        _check_joined(fun, args, kwargs)
        kinds = {leaves[i].dtype for i in places}
        if len(kinds) > 1:
            raise DTypeError(f"{fun.__name__}: keys of {len(kinds)} kinds, {kinds}, don't mix")

        def of_words(*words: Any) -> Any:
            given = list(leaves)
            for i, x in zip(places, words, strict=True):
                given[i] = x
            again, named = structure.unflatten(given)
            return fun(*again, **named)

        words = [leaves[i].data for i in places]
        moved = vmap(of_words, in_axes=-1, out_axes=-1)(*words)
        return tree.map(leaves[places[0]]._with, moved)

    return call  # type: ignore[return-value]
