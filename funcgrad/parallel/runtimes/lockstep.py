"""Virtual devices: the per-device program, batched over the mesh, as one program in one process.

Devices run in lockstep, so nothing waits and nothing can deadlock. An array lives whole, in one
piece of memory: a device's part is a view of it, and what is equal on all devices exists once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.core.array import raw
from funcgrad.core.backend import Executable
from funcgrad.core.backend import backend as load
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.sharding import Cuts, Device, Mesh, NamedSharding, local_index
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import batch_front, transpose_p
from funcgrad.ops.indexing.windows_at import index_in_dim
from funcgrad.ops.shape import reshape
from funcgrad.parallel.programs.program import SpmdProgram
from funcgrad.transforms.batching.batching import batch_flat
from funcgrad.transforms.batching.trace import BatchAxis


def lockstep(program: SpmdProgram) -> Jaxpr:
    """The program of whole arrays that does what all devices do together."""
    mesh = program.mesh
    in_axes = [{a for axes in cuts for a in axes} for cuts in program.in_cuts]
    out_axes = [{a for axes in cuts for a in axes} for cuts in program.out_cuts]

    def run(level: int, args: Sequence[Any]) -> list:
        if level == len(mesh.axis_names):
            return eval_jaxpr(program.jaxpr, *args)
        name, size = mesh.axis_names[level], mesh.axis_sizes[level]
        dims = [0 if name in axes else None for axes in in_axes]
        axis = BatchAxis(name, size)
        outs, out_dims = batch_flat(lambda *xs: run(level + 1, xs), axis, args, dims)
        return [
            _settled(o, d, size, name in axes)
            for o, d, axes in zip(outs, out_dims, out_axes, strict=True)
        ]

    def whole(*args: Any) -> list:
        lanes = [to_lanes(x, c, mesh) for x, c in zip(args, program.in_cuts, strict=True)]
        outs = run(0, lanes)
        return [from_lanes(o, c, mesh) for o, c in zip(outs, program.out_cuts, strict=True)]

    jaxpr, consts = stage(whole, program.in_avals, f"devices of {mesh}", program.jaxpr.names)
    assert not consts, "a per-device program captures nothing"
    return jaxpr


def _settled(value: Any, dim: int | None, size: int, cut: bool) -> Any:
    """A result with the lanes of one mesh axis in front where it is cut over it, else of lane 0."""
    if cut:
        return batch_front(value, dim, size)
    return value if dim is None else index_in_dim(value, 0, dim, keepdims=False)


def _lane_order(cuts: Cuts, mesh: Mesh) -> tuple[list[int], list[int]]:
    """Where the parts' numbers stand once each axis is split into (parts…, block), by mesh axis,
    and where the blocks stand."""
    place: dict[str, int] = {}
    blocks, at = [], 0
    for axes in cuts:
        for a in axes:
            place[a] = at
            at += 1
        blocks.append(at)
        at += 1
    return [place[a] for a in mesh.axis_names if a in place], blocks


def to_lanes(x: Any, cuts: Cuts, mesh: Mesh) -> Any:
    """A whole array as parts: the mesh axes that cut it in front, in the mesh's order."""
    if not any(cuts):
        return x
    sizes = mesh.shape
    split: list[int] = []
    for n, axes in zip(aval_of(x).shape, cuts, strict=True):
        split += [sizes[a] for a in axes] + [n // mesh.extent(axes)]
    lanes, blocks = _lane_order(cuts, mesh)
    return transpose_p.bind(reshape(x, tuple(split)), permutation=(*lanes, *blocks))


def from_lanes(x: Any, cuts: Cuts, mesh: Mesh) -> Any:
    """The inverse of `to_lanes`."""
    if not any(cuts):
        return x
    lanes, blocks = _lane_order(cuts, mesh)
    order = [*lanes, *blocks]
    back = tuple(order.index(i) for i in range(len(order)))
    split = transpose_p.bind(x, permutation=back)
    shape = aval_of(x).shape[len(lanes) :]
    return reshape(split, tuple(n * mesh.extent(axes) for n, axes in zip(shape, cuts, strict=True)))


class Lockstep:
    """The runtime of virtual devices; it keeps arrays whole, in NumPy's memory."""

    buffer, addressable = np.ndarray, True

    def compile(
        self, program: SpmdProgram, donated: Sequence[bool], name: str, using: str
    ) -> Executable:
        """The program for all devices at once."""
        return load(using).compile(lockstep(program), tuple(donated), name)

    def put(self, value: Any, sharding: NamedSharding) -> np.ndarray:
        """What is kept of a whole array: all of it."""
        return raw(value)

    def make(
        self, shape: tuple[int, ...], sharding: NamedSharding, part: Callable[[tuple], np.ndarray]
    ) -> np.ndarray:
        """An array of which `part` gives the piece at an index."""
        mesh, cuts = sharding.mesh, sharding.cuts(shape)
        whole: np.ndarray | None = None
        done = set()
        for _, place in mesh.coordinates():
            index = local_index(mesh.shape, cuts, shape, place)
            key = tuple((s.start, s.stop) for s in index)
            if key in done:
                continue
            done.add(key)
            piece = part(index)
            if whole is None:
                whole = np.empty(shape, piece.dtype)
            whole[index] = piece
        assert whole is not None
        return whole

    def fetch(self, kept: np.ndarray, sharding: NamedSharding, shape: tuple) -> np.ndarray:
        """The whole array."""
        return kept

    def parts(
        self, kept: np.ndarray, sharding: NamedSharding, shape: tuple
    ) -> list[tuple[Device, tuple[slice, ...], np.ndarray]]:
        """Each device of this process with the index and the values of its part."""
        where = sharding.devices_indices_map(shape)
        return [(device, index, kept[index]) for device, index in where.items()]
