"""`pipeline`: the stages of a model on the ranks of a mesh axis, as a function.

All ranks run one program, a loop over ticks: in each, a rank whose turn it is applies a stage to a
microbatch, and what it made goes to its neighbour. The derivative of that is the same loop
backwards, so `grad` goes through it; all forward passes are then done before the first backward
pass. `pipeline_value_and_grad` runs a schedule as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.sharding import Mesh, P
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShapeError
from funcgrad.parallel.mapping.shard_map import shard_map
from funcgrad.parallel.pipelines.layout import Layout, from_microbatches, into_microbatches
from funcgrad.parallel.pipelines.messages import by_mail, exchanged, mine, rows_of, slots, waiting
from funcgrad.parallel.pipelines.schedules import Schedule
from funcgrad.parallel.pipelines.stages import (
    Kind,
    Stages,
    Unlike,
    checked_stages,
    laid_out,
    packed_params,
    stages_of,
)
from funcgrad.parallel.pipelines.ticks import FORWARD, Row, Ticks, make_ticks
from funcgrad.transforms.arguments import name_of
from funcgrad.transforms.batching.vmap import vmap


@boundary
def pipeline(
    stage: Stages,
    params: Any,
    x: Any,
    *,
    mesh: Mesh,
    axis: str = "pp",
    microbatches: int,
    schedule: str | Schedule = "1f1b",
) -> Any:
    """All stages applied to x, one after the other, each on its rank of a mesh axis.

    stage: stage(stage_params, activations) → activations of the same types; pytrees of arrays. Or
        a list of such functions, one for each stage of the schedule, which may give something else
        than they take.
    params: the parameters of all stages, a pytree whose leaves' first axis counts them. Where there
        are more stages than ranks, a rank has neighbours, or for "interleaved" and "zb-v" those
        that the schedule gives it. For a list of stages, a list of pytrees of any shapes, or what
        `pack_stages` makes of it, so that a rank has its own stages' alone.
    x: a batch: a pytree of arrays whose first axis is cut into `microbatches`
    schedule: the order of forward passes, and which stages a rank has; see `make_schedule`
    mesh, axis: other axes of the mesh are free for what a stage does: parameters and x may be cut
        over them

    The result is on all ranks. It equals that of the stages in a row, as do its derivatives. The
    rows of x must not depend on each other.

    Raises ShardingError where `axis` is no axis of the mesh; ShapeError for numbers of stages or
    rows that don't divide; ScheduleError for schedules that can't run.

    >>> from funcgrad.parallel import make_mesh, pipeline
    >>> def layer(w, h):
    ...     return fnp.tanh(h @ w)
    >>> mesh = make_mesh(2, "pp")
    >>> w, x = fnp.ones((4, 3, 3)) / 3, fnp.ones((8, 3))
    >>> y = pipeline(layer, w, x, mesh=mesh, microbatches=4)
    >>> bool(fnp.allclose(y, lax.scan(lambda h, w: (layer(w, h), None), x, w)[0]))
    True

    Huang et al., GPipe, 2019.
    """
    checked_stages("pipeline", stage)
    params = packed_params("pipeline", stage, params)
    layout = laid_out("pipeline", stage, params, mesh, axis, microbatches, schedule)
    ticks = make_ticks(layout.schedule.forwards(), by_mail(mesh))
    batch = into_microbatches("pipeline", "x", x, microbatches)

    def body(weights: Any, batch: Any, rows: Row) -> Any:
        return _forward(layout, ticks, stage, weights, batch, mine(rows))

    mapped = shard_map(
        body, mesh=mesh, in_specs=(P(axis), P(), P(axis)), out_specs=P(), axis_names={axis}
    )
    return from_microbatches(mapped(layout.arranged(params), batch, rows_of(ticks)))


def _forward(
    layout: Layout, ticks: Ticks, stage: Stages, weights: Any, batch: Any, rows: Row
) -> Any:
    """A rank's part: the last stage's results of all microbatches, on all ranks."""
    leaves, weights_tree = tree.flatten(weights)
    inputs, batch_tree = tree.flatten(batch)
    own = Kind(weights_tree, [aval_of(w) for w in layout.chunk(leaves, np.int32(0))])
    takes = Kind(batch_tree, [aval_of(b).update(shape=aval_of(b).shape[1:]) for b in inputs])
    stages = stages_of("pipeline", layout, stage, weights, own, takes)
    if isinstance(stages, Unlike):
        _check_rows(stages)
    types = stages.types

    def work(inbox: list, row: Row) -> list:
        given, came = stages.enter(waiting(inputs, row.microbatch)), waiting(inbox, row.read)
        here = [fnp.where(row.first > 0, g, c) for g, c in zip(given, came, strict=True)]
        number = [row.stage] if stages.numbered else []
        return stages.apply(*number, *layout.chunk(leaves, row.chunk), *here)

    def tick(inbox: list, row: Row) -> tuple:
        nothing = [fnp.zeros(t.shape, t.dtype) for t in types]
        made = lax.cond(row.kind == FORWARD, lambda: work(inbox, row), lambda: nothing)
        return exchanged(inbox, made, ticks, row, layout.axis), made

    _, made = lax.scan(tick, slots(types, ticks.messages), rows)
    ends = _of_last(layout, ticks, made)
    return vmap(stages.result)(ends)


def _check_rows(stages: Unlike) -> None:
    """Raise where the last stage's result has no rows of the batch."""
    given = stages.kinds[-1].placeholder
    for path, leaf in tree.leaves_with_path(given):
        if not leaf.shape:
            raise ShapeError(
                "pipeline: the last stage must give arrays whose first axis has the rows of a "
                f"microbatch, but {name_of(stages.functions[-1])} gives {aval_of(leaf)} for "
                f"result{tree.keystr(path)}"
            )


def _of_last(layout: Layout, ticks: Ticks, made: list) -> list:
    """Of what a rank made in all ticks, what the rank of the last stage did as such."""
    table = ticks.table
    when, rank = np.nonzero((table.kind == FORWARD) & (table.last > 0))
    order = np.argsort(table.microbatch[when, rank])
    is_last = lax.axis_index(layout.axis) == int(rank[0])
    found = []
    for x in made:
        ends = fnp.take(x, when[order], axis=0)
        found.append(lax.psum(fnp.where(is_last, ends, fnp.zeros_like(ends)), layout.axis))
    return found
