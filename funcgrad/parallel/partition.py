"""Partitioning: from a program of whole arrays to the one that each device runs on its parts."""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.core import context
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.sharding import Mesh, NamedSharding, local_shape
from funcgrad.core.staging import stage
from funcgrad.ops.collective import all_gather
from funcgrad.parallel.program import SpmdProgram


def partition(
    jaxpr: Jaxpr, mesh: Mesh, in_shardings: Sequence[NamedSharding | None]
) -> SpmdProgram:
    """The per-device program; inputs without a sharding are cut as suits the program."""
    in_cuts = tuple(
        s.cuts(a.shape) if s is not None else ((),) * a.ndim
        for a, s in zip(jaxpr.in_avals, in_shardings, strict=True)
    )

    def local(*args):
        whole = []
        for x, cuts in zip(args, in_cuts, strict=True):
            for i, axes in enumerate(cuts):
                for a in reversed(axes):
                    x = all_gather(x, a, axis=i, tiled=True)
            whole.append(x)
        return eval_jaxpr(jaxpr, *whole)

    avals = [
        a.update(shape=local_shape(mesh.shape, c, a.shape))
        for a, c in zip(jaxpr.in_avals, in_cuts, strict=True)
    ]
    with context.scoped(axes=mesh.shape):
        body, _ = stage(local, avals, "a device's program", jaxpr.names)
    return SpmdProgram(body, mesh, in_cuts, tuple(((),) * a.ndim for a in jaxpr.out_avals))
