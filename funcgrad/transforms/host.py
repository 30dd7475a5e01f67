"""Values on the host: waiting for them, fetching them as NumPy arrays, and which there are."""

from __future__ import annotations

import gc

import numpy as np

from funcgrad import tree
from funcgrad.core.array import Array
from funcgrad.core.places.transfers import explicitly
from funcgrad.core.types import Tree
from funcgrad.transforms.arguments import is_arraylike


def block_until_ready(x: Tree) -> Tree:
    """x, a pytree, once all of its arrays are computed; other leaves are passed on.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.block_until_ready({"y": fnp.ones(2), "name": "a"})
    {'y': Array([1., 1.], dtype=float32), 'name': 'a'}
    """
    for leaf in tree.leaves(x):
        wait = getattr(leaf, "block_until_ready", None)
        if wait is not None:
            wait()
    return x


def device_get(x: Tree) -> Tree:
    """x, a pytree, with NumPy arrays in place of its arrays; other leaves are passed on.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.device_get({"y": fnp.ones(2), "name": "a"})
    {'name': 'a', 'y': array([1., 1.], dtype=float32)}
    """
    with explicitly():
        return tree.map(lambda leaf: np.asarray(leaf) if is_arraylike(leaf) else leaf, x)


def effects_barrier() -> None:
    """Wait for the effects of all calls: they are done when a call returns, so there is no wait.

    >>> import funcgrad as fg
    >>> fg.effects_barrier()
    """


def live_arrays(platform: str | None = None) -> list[Array]:
    """All arrays of this process that something still refers to and that weren't deleted.

    platform: only those on such devices, "cpu" or "cuda"

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> x = fnp.ones(3)
    >>> any(y is x for y in fg.live_arrays()), fg.live_arrays("cuda")
    (True, [])
    """
    if platform is not None and not isinstance(platform, str):
        raise TypeError(f"live_arrays: platform must be a text or None, got {platform!r}")
    found = [x for x in gc.get_objects() if issubclass(type(x), Array) and not x.is_deleted()]
    if platform is None:
        return found
    named = "cuda" if platform == "gpu" else platform
    return [x for x in found if named in {d.platform for d in x.devices()}]
