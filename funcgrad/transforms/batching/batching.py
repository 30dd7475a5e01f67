"""Batching functions of flat arguments, and programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.core import context
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.staging import stage_closed
from funcgrad.core.types import BatchDims, Values
from funcgrad.ops.base import batch_front
from funcgrad.transforms.batching.replay import ReplayingBatchTrace
from funcgrad.transforms.batching.trace import BatchAxis, BatchTrace, batched_by
from funcgrad.transforms.recorded import at_root


def batch_flat(
    fun: Callable[..., Values],
    axis: BatchAxis,
    args: Values,
    dims: BatchDims,
) -> tuple[list, list]:
    """Map a function of flat arguments; results with their batch axes (None: the same for all)."""
    at_once = at_root() and axis.name is None and not axis.spmd
    trace = (ReplayingBatchTrace if at_once else BatchTrace)(context.current().trace, axis)
    return batched_by(trace, fun, args, dims)


def batch_jaxpr(
    jaxpr: Jaxpr,
    axis: BatchAxis,
    dims: BatchDims,
    force: Sequence[bool] | bool = False,
) -> tuple[Jaxpr, list[bool]]:
    """The program of batched inputs. Batched results have the batch axis first; a mask tells which
    are (those of `force` are made so)."""
    forced = (force,) * len(jaxpr.outs) if isinstance(force, bool) else tuple(force)
    key = ("batch", axis, tuple(dims), forced)
    return jaxpr.derive(key, lambda: _batch_jaxpr(jaxpr, axis, dims, forced))


def _batch_jaxpr(jaxpr: Jaxpr, axis: BatchAxis, dims: BatchDims, forced: Sequence[bool]) -> tuple:
    mask: list[bool] = []

    def fun(*args: Any) -> list:
        outs, out_dims = batch_flat(lambda *xs: eval_jaxpr(jaxpr, *xs), axis, args, dims)
        mask.extend(f or d is not None for f, d in zip(forced, out_dims, strict=True))
        return [
            batch_front(o, d, axis.size) if m else o
            for o, d, m in zip(outs, out_dims, mask, strict=True)
        ]

    avals = [
        a if d is None else a.update(shape=(*a.shape[:d], axis.size, *a.shape[d:]))
        for a, d in zip(jaxpr.in_avals, dims, strict=True)
    ]
    return stage_closed(fun, avals, "a batched program"), mask
