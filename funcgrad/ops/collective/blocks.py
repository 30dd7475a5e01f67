"""Collectives on plain arrays: what a device does, through the communicators of the context.

A communicator joins the devices along some named axes (`parallel.communicators`). It knows five
operations on whole arrays, of the type of buffer that it takes, in which the devices' parts lie
along the first axis; a collective's `axis` and `tiled` are transposes and reshapes around them.
Where the context has no communicators, a collective has no meaning outside `vmap` and `shard_map`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.core import context
from funcgrad.errors import within
from funcgrad.ops.folds import is_away


def communicator(name: str, axis_name: tuple) -> Any:
    """The communicator over named axes; NameError where the context has none.

    >>> communicator("psum", ("i",))
    Traceback (most recent call last):
    ...
    NameError: psum over ('i',) outside vmap or shard_map
    """
    lookup = context.current().communicators
    if lookup is None:
        raise NameError(within(f"{name} over {axis_name} outside vmap or shard_map"))
    return lookup(axis_name)


def _for(name: str, axis_name: tuple, x: Any) -> tuple[Any, Any]:
    """The communicator over named axes, and an array as it takes it."""
    lookup = context.current().communicators
    takes = np.ndarray if lookup is None else lookup(axis_name).buffer
    if takes is np.ndarray and not is_away(x):
        x = np.asarray(x)
    if not isinstance(x, takes):
        those = "that lie in the host's memory" if takes is np.ndarray else f"of {takes}"
        raise TypeError(
            f"{name}: devices exchange arrays {those}, got {type(x)}; copy them there first"
        )
    return communicator(name, axis_name), x


def _reduced(name: str, op: str) -> Callable:
    def impl(xp: Any, x: Any, *, axis_name: tuple) -> Any:
        comm, x = _for(name, axis_name, x)
        return comm.all_reduce(x, op)

    return impl


def _all_gather(xp: Any, x: Any, *, axis_name: tuple, axis: int, tiled: bool) -> Any:
    comm, x = _for("all_gather", axis_name, x)
    out = xp.moveaxis(comm.all_gather(x), 0, axis)
    return _joined(out, axis) if tiled else out


def _psum_scatter(xp: Any, x: Any, *, axis_name: tuple, axis: int, tiled: bool) -> Any:
    comm, x = _for("psum_scatter", axis_name, x)
    if tiled:
        x = _cut(x, axis, comm.size)
    return comm.reduce_scatter(xp.ascontiguousarray(xp.moveaxis(x, axis, 0)))


def _cut(x: Any, axis: int, n: int) -> Any:
    return x.reshape(*x.shape[:axis], n, x.shape[axis] // n, *x.shape[axis + 1 :])


def _joined(x: Any, axis: int) -> Any:
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def _all_to_all(xp: Any, x: Any, *, axis_name: tuple, split: int, concat: int) -> Any:
    comm, x = _for("all_to_all", axis_name, x)
    blocks = xp.moveaxis(_cut(x, split, comm.size), split, 0)
    return _joined(xp.moveaxis(comm.all_to_all(xp.ascontiguousarray(blocks)), 0, concat), concat)


def _ppermute(xp: Any, x: Any, *, axis_name: tuple, perm: tuple) -> Any:
    comm, x = _for("ppermute", axis_name, x)
    return comm.permute(x, perm)


def _axis_index(xp: Any, *, axis_name: tuple) -> Any:
    return np.int32(communicator("axis_index", axis_name).rank)


_IMPLS: dict[str, Callable] = {
    "psum": _reduced("psum", "sum"),
    "psum_invariant": _reduced("psum_invariant", "sum"),
    "pmax": _reduced("pmax", "max"),
    "pmin": _reduced("pmin", "min"),
    "pvary": lambda xp, x, *, axis_name: x,
    "assume_invariant": lambda xp, x, *, axis_name: x,
    "all_gather": _all_gather,
    "psum_scatter": _psum_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "axis_index": _axis_index,
}


def impl_of(name: str) -> Callable:
    """The meaning of a collective on the arrays of one device: its rule `impl`."""
    return _IMPLS[name]
