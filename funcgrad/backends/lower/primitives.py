"""Primitives of programs on their way to loops, which no transformation meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.core.primitive import NoRule, Primitive

_NONE = NoRule("it is made when a program is lowered, after all transformations")


def lowered(
    name: str, abstract: Callable[..., Any], impl: Callable[..., Any], **more: Any
) -> Primitive:
    """A primitive without rules for transformations.

    >>> lowered("same", lambda x: x, lambda xp, x: x).name
    'same'
    """
    return Primitive(
        name=name, abstract=abstract, impl=impl, jvp=_NONE, transpose=_NONE, batch=_NONE,
        dims=_NONE, **more,
    )  # fmt: skip
