"""Functions as units of a program: `composite` by a name, `platform_dependent` by the processor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from funcgrad import tree
from funcgrad.core.places.device_array import DeviceArray
from funcgrad.core.types import Tree
from funcgrad.ops.arguments import check_callable, integer
from funcgrad.transforms.jit.jit import Jitted, jit


def composite(decomposition: Callable, name: str, version: int = 0) -> Callable:
    """A function that is one call of this name in the program; what it means, `decomposition` says.

    Arguments by position are arrays (pytrees), those by keyword static attributes, hashable.
    Transformations look into it. version: a number beside the name, for whoever reads programs.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad import lax
    >>> tangent = lax.composite(lambda x: fnp.sin(x) / fnp.cos(x), name="my.tangent")
    >>> print(fg.make_jaxpr(tangent)(1.0).jaxpr.eqns[0].params["name"])
    my.tangent
    """
    check_callable("composite", decomposition)
    if not isinstance(name, str) or not name:
        raise TypeError(f"composite: name must be a text, got {name!r}")
    label = name if not integer("version", version) else f"{name}.v{version}"

    @functools.wraps(decomposition)
    def decomposed(*args: Any, **attributes: Any) -> Tree:
        return decomposition(*args, **attributes)

    decomposed.__name__ = label
    units: dict[tuple[str, ...], Jitted] = {}

    @functools.wraps(decomposition)
    def call(*args: Any, **attributes: Any) -> Tree:
        names = tuple(sorted(attributes))
        if names not in units:
            units[names] = jit(decomposed, static_argnames=names)
        return units[names](*args, **attributes)

    return call


def platform_dependent(
    *args: Any, default: Callable | None = None, **per_platform: Callable
) -> Tree:
    """The branch for the processor that the arguments are on, called with them: `cpu=`, or that of
    another kind of device, else `default`. It is chosen while the program is traced.

    Raises NotImplementedError where there is neither.

    >>> from funcgrad import lax
    >>> lax.platform_dependent(2.0, cpu=lambda x: x + 1, cuda=lambda x: x + 2)
    3.0
    """
    for branch in (*per_platform.values(), *([] if default is None else [default])):
        check_callable("platform_dependent", branch)
    there = [x.device.platform for x in tree.leaves(args) if isinstance(x, DeviceArray)]
    platform = there[0] if there else "cpu"
    chosen = per_platform.get(platform, default)
    if chosen is None:
        raise NotImplementedError(
            f"platform_dependent: there is a branch for {', '.join(per_platform) or 'nothing'}, "
            f"and no default, but the arguments are on {platform}"
        )
    return chosen(*args)
