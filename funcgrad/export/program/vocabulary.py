"""The ops that files name: each by its name and a version, `dot_general@1`.

An op's version changes when its parameters or its meaning do. Then it stands in `CHANGED`, and
`UPGRADES` says how what older files hold is written now, so that these load for ever.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import funcgrad.core
import funcgrad.ops
import funcgrad.parallel.mapping
import funcgrad.transforms
from funcgrad.core.primitive import Primitive
from funcgrad.errors import FormatError

# The versions of ops that aren't at their first.
CHANGED: dict[str, int] = {}
# (name, version) → what makes the parameters of the next version from those of this one.
UPGRADES: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}

_HOMES = (funcgrad.core, funcgrad.ops, funcgrad.transforms, funcgrad.parallel.mapping)


@functools.cache
def primitives() -> dict[str, Primitive]:
    """Each op of the library by its name."""
    found: dict[str, Primitive] = {}
    for home in _HOMES:
        for module in pkgutil.walk_packages(home.__path__, f"{home.__name__}."):
            held = vars(importlib.import_module(module.name))
            found |= {p.name: p for p in held.values() if isinstance(p, Primitive)}
    return found


def op_name(prim: Primitive) -> str:
    """An op as files name it.

    >>> from funcgrad import lax
    >>> op_name(lax.sin_p)
    'sin@1'
    """
    return f"{prim.name}@{CHANGED.get(prim.name, 1)}"


def is_known(prim: Primitive) -> bool:
    """Whether an op is the library's own, so that a file may name it."""
    return primitives().get(prim.name) is prim


@functools.cache
def op_named(text: str) -> tuple[Primitive, int]:
    """The op that a file names, and in which version; FormatError where there is none."""
    name, _, digits = text.partition("@")
    prim = primitives().get(name)
    version = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 6 else 0
    if prim is None or not version:
        raise FormatError(f"the program uses {text[:80]!r}, which is no operation of this funcgrad")
    newest = CHANGED.get(name, 1)
    if version > newest:
        raise FormatError(
            f"the program uses {text}, this funcgrad has {name}@{newest}: it was written by a "
            "newer funcgrad"
        )
    return prim, version


def upgraded(name: str, version: int, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an op that stood in a file in this version, as they are now."""
    for old in range(version, CHANGED.get(name, 1)):
        params = UPGRADES[name, old](params)
    return params
