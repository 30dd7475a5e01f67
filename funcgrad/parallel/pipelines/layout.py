"""How a pipeline's arguments lie on ranks: which of the stages are whose, and who sees which rows.

A microbatch takes every so-manieth row of the batch, so that a batch that is cut over other mesh
axes stays cut as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core import context
from funcgrad.core.sharding import Mesh
from funcgrad.core.trace import aval_of
from funcgrad.errors import ScheduleError, ShapeError, ShardingError, TreeError
from funcgrad.parallel.pipelines.moves import moved
from funcgrad.parallel.pipelines.schedules import Schedule, make_schedule
from funcgrad.parallel.pipelines.simulate import simulate
from funcgrad.transforms.arguments import is_arraylike, name_of


class Layout(NamedTuple):
    """A schedule that was checked, on a mesh axis; a stage is `group` of the leaves' rows."""

    what: str
    mesh: Mesh
    axis: str
    schedule: Schedule
    group: int

    def arranged(self, params: Any) -> Any:
        """Leaves in the order of ranks: the stages of the first one, of the second one, …"""
        return self._moved(params, [s for own in self.schedule.placement for s in own])

    def restored(self, params: Any) -> Any:
        """The inverse of `arranged`."""
        order = [s for own in self.schedule.placement for s in own]
        return self._moved(params, np.argsort(order).tolist())

    def _moved(self, params: Any, order: list[int]) -> Any:
        if order == sorted(order):
            return params

        def grouped(x: Any) -> Any:
            return fnp.reshape(x, (len(order), self.group, *x.shape[1:]))

        def flat(x: Any) -> Any:
            return fnp.reshape(x, (len(order) * self.group, *x.shape[2:]))

        found = moved(tree.map(grouped, params), order, self.mesh, self.axis)
        return tree.map(flat, found)

    def chunk(self, leaves: Sequence[Any], index: Any) -> list:
        """The weights of a rank's stage, of leaves that hold all of the rank's."""
        chunks = len(self.schedule.placement[0])
        if chunks == 1:
            return [x if self.group > 1 else fnp.squeeze(x, 0) for x in leaves]
        if self.group == 1:
            return [lax.dynamic_index_in_dim(x, index, keepdims=False) for x in leaves]
        at = index * self.group
        return [lax.dynamic_slice_in_dim(x, at, self.group) for x in leaves]

    def added(self, leaves: Sequence[Any], index: Any, more: Sequence[Any]) -> list:
        """Leaves as `chunk` reads them, with `more` added to a stage's."""
        chunks = len(self.schedule.placement[0])
        rows = [m if self.group > 1 else fnp.expand_dims(m, 0) for m in more]
        if chunks == 1:
            return [x + m.astype(x.dtype) for x, m in zip(leaves, rows, strict=True)]
        at, size = index * self.group, self.group
        found = []
        for x, m in zip(leaves, rows, strict=True):
            total = lax.dynamic_slice_in_dim(x, at, size) + m.astype(x.dtype)
            found.append(lax.dynamic_update_slice_in_dim(x, total, at, 0))
        return found

    def stage(self, stage: Callable) -> Callable:
        """The function of a rank's stage: of a group of rows, one after the other."""
        if self.group == 1:
            return stage

        def stages(weights: Any, activations: Any) -> Any:
            return lax.scan(lambda a, w: (stage(w, a), None), activations, weights)[0]

        return stages


def lay_out(
    what: str,
    params: Any,
    mesh: Mesh,
    axis: str,
    microbatches: int,
    schedule: str | Schedule,
) -> Layout:
    """The layout of stages whose parameters are `params`, after checks of all that are given."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"{what}: mesh must be a Mesh, got {mesh!r}")
    if axis not in mesh.axis_names:
        raise ShardingError(f"{what}: axis={axis!r} is no axis of {mesh}")
    if axis in context.current().manual:
        raise ShardingError(
            f"{what}: axis={axis!r} is that of a shard_map around it; call it outside of that"
        )
    if type(microbatches) is not int or microbatches < 1:
        raise ScheduleError(
            f"{what}: microbatches must be an integer ≥ 1, got microbatches={microbatches!r}"
        )
    ranks, rows = mesh.shape[axis], _rows(what, params)
    if rows % ranks:
        raise ShapeError(
            f"{what}: the first axis of params counts {rows} stages, which {ranks} ranks of the "
            f"mesh axis {axis!r} can't share evenly: {mesh}"
        )
    chunks = rows // ranks if schedule == "interleaved" else 1
    found = make_schedule(schedule, ranks, microbatches, chunks)
    if rows % found.stages:
        raise ShapeError(
            f"{what}: the first axis of params counts {rows} stages, no multiple of the "
            f"{found.stages} of the schedule {found.name!r}"
        )
    simulate(found)
    return Layout(what, mesh, axis, found, rows // found.stages)


def _rows(what: str, params: Any) -> int:
    """The size that the first axes of all leaves have."""
    found: dict[int, str] = {}
    for path, leaf in tree.leaves_with_path(params):
        name = f"params{tree.keystr(path)}"
        if not is_arraylike(leaf):
            raise TypeError(f"{what}: {name} must be an array, got {leaf!r} of {type(leaf)}")
        shape = aval_of(leaf).shape
        if not shape:
            raise ShapeError(f"{what}: {name} is a scalar: its first axis must count the stages")
        found.setdefault(shape[0], name)
    if not found:
        raise TreeError(f"{what}: params has no leaves: their first axis counts the stages")
    if len(found) > 1:
        (n, name), (other, second) = list(found.items())[:2]
        raise ShapeError(
            f"{what}: the first axes of params must all count the stages, but {name} has {n} and "
            f"{second} {other}"
        )
    return next(iter(found))


# ---- batches


def into_microbatches(what: str, name: str, batch: Any, microbatches: int) -> Any:
    """A batch as microbatches, along a new first axis: row i is of microbatch i % microbatches."""

    def cut(path: Any, leaf: Any) -> Any:
        where = f"{what}: {name}{tree.keystr(path)}"
        if not is_arraylike(leaf):
            raise TypeError(f"{where} must be an array, got {leaf!r} of {type(leaf)}")
        shape = aval_of(leaf).shape
        if not shape or shape[0] % microbatches or not shape[0]:
            raise ShapeError(
                f"{where} of shape {shape} can't be cut into microbatches={microbatches} of equal "
                "size along its first axis"
            )
        rows = fnp.reshape(leaf, (shape[0] // microbatches, microbatches, *shape[1:]))
        return fnp.moveaxis(rows, 1, 0)

    if not tree.leaves(batch):
        raise TreeError(f"{what}: {name} has no leaves")
    return tree.map_with_path(cut, batch)


def from_microbatches(microbatches: Any) -> Any:
    """The inverse of `into_microbatches`."""

    def join(x: Any) -> Any:
        rows = fnp.moveaxis(x, 0, 1)
        return fnp.reshape(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:]))

    return tree.map(join, microbatches)


def check_stage(what: str, stage: Callable, got: Any, activations: Any) -> None:
    """Raise unless a stage gives the types that it takes: pytrees of arrays."""
    if tree.structure(got) != tree.structure(activations):
        raise TreeError(
            f"{what}: a stage must give what it takes, but {name_of(stage)} takes "
            f"{tree.structure(activations)} and gives {tree.structure(got)}"
        )
    for (path, g), a in zip(tree.leaves_with_path(got), tree.leaves(activations), strict=True):
        gives, takes = aval_of(g), aval_of(a)
        if (gives.shape, gives.dtype) != (takes.shape, takes.dtype):
            raise ShapeError(
                f"{what}: a stage must give what it takes, but {name_of(stage)} takes {takes} and "
                f"gives {gives} for activations{tree.keystr(path)}; embeddings and heads go "
                "before and after the pipeline"
            )
