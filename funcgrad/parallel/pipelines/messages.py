"""What goes from rank to rank in a pipeline, and the slots in which it waits there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.aval import ShapedArray
from funcgrad.parallel.pipelines.ticks import Row, Ticks


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
        here = all(source == target for source, target in pairs)
        came = sent if here else [lax.ppermute(x, axis, list(pairs)) for x in sent]
        inbox = stored(inbox, came, row.arrive[route])
    return inbox


def rows_of(ticks: Ticks) -> Row:
    """The tables with ranks in front, to be cut over them."""
    return Row(*(np.moveaxis(column, 1, 0) for column in ticks.table))


def mine(rows: Row) -> Row:
    """A rank's part of `rows_of`."""
    return Row(*(column[0] for column in rows))
