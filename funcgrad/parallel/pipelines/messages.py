"""What goes from rank to rank in a pipeline, and the slots in which it waits there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.aval import ShapedArray
from funcgrad.core.sharding import Mesh
from funcgrad.parallel.communicators.mail import Route
from funcgrad.parallel.pipelines.ticks import Row, Ticks
from funcgrad.parallel.programs.mail import mail_p


def slots(types: Sequence[ShapedArray], n: int) -> list:
    """Room for n values of these types, and one that nobody reads."""
    return [fnp.zeros((n + 1, *t.shape), t.dtype) for t in types]


def stored(rooms: Sequence[Any], values: Sequence[Any], slot: Any) -> list:
    """The slots with values in one of them."""
    return [
        lax.dynamic_update_index_in_dim(room, value.astype(room.dtype), slot, 0)
        for room, value in zip(rooms, values, strict=True)
    ]


def waiting(rooms: Sequence[Any], slot: Any) -> list:
    """The values in a slot."""
    return [lax.dynamic_index_in_dim(room, slot, keepdims=False) for room in rooms]


def exchanged(
    inbox: Sequence[Any], sent: Sequence[Any], ticks: Ticks, row: Row, axis: str
) -> Sequence[Any]:
    """The messages that wait, after what ranks have sent in a tick has arrived."""
    for route, pairs in enumerate(ticks.routes):
        if all(source == target for source, target in pairs):
            came = sent
        elif ticks.flying[route]:
            came = _mailed(sent, pairs, ticks.flying[route], route, row, axis)
        else:
            came = [lax.ppermute(x, axis, list(pairs)) for x in sent]
        inbox = stored(inbox, came, row.arrive[route])
    return inbox


def _mailed(
    sent: Sequence[Any], pairs: tuple, flying: int, route: int, row: Row, axis: str
) -> list:
    """What a rank gets by mail."""
    n = len(sent)
    return [
        mail_p.bind(
            x, row.mail[route], axis_name=(axis,), route=Route(pairs, flying, route * n + i)
        )
        for i, x in enumerate(map(fnp.asarray, sent))
    ]


def by_mail(mesh: Mesh) -> bool:
    """Whether a mesh's devices are ranks of a job, which send each other mail."""
    return mesh.devices is not None and all(d.kind == "rank" for d in mesh.devices.flat)


def rows_of(ticks: Ticks) -> Row:
    """The tables with ranks in front, to be cut over them."""
    return Row(*(np.moveaxis(column, 1, 0) for column in ticks.table))


def mine(rows: Row) -> Row:
    """A rank's part of `rows_of`."""
    return Row(*(column[0] for column in rows))
