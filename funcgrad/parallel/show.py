"""Sharded arrays for people: which device holds which part, as text and as a picture."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.core.display.array_html import array_html, size_text
from funcgrad.core.display.jaxpr_html import page
from funcgrad.core.sharding import Cuts, Mesh, NamedSharding

# Larger grids are shown by their first parts.
_MAX_PARTS = 16
_HUES = (210, 30, 140, 280, 60, 330, 180, 0, 100, 250, 45, 310, 165, 15, 230, 85)


def sharded_text(x: Any, readable: bool) -> str:
    """Values where this process can read them, else the type; then the sharding."""
    name = f"ShardedArray({x.aval}"
    if readable:
        body = np.array2string(x.value, separator=", ", prefix="ShardedArray(")
        name = f"ShardedArray({body}, dtype={x.dtype.name}"
    return f"{name}, {x.sharding.spec} on {x.sharding.mesh})"


def grid(sharding: NamedSharding, shape: Sequence[int]) -> tuple[tuple[int, int], dict]:
    """The parts along the first and the last axis that is drawn, and who holds each.

    Axes but the first two are left out: a part is shown at its place along these.
    """
    cuts = sharding.cuts(shape)
    rows, columns = _parts(cuts, sharding.mesh, 0), _parts(cuts, sharding.mesh, 1)
    holders: dict[tuple[int, int], list[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        place = [s.start // max(1, s.stop - s.start) for s in index[:2]] + [0, 0]
        holders.setdefault((place[0], place[1]), []).append(device.id)
    return (rows, columns), holders


def _parts(cuts: Cuts, mesh: Mesh, axis: int) -> int:
    return mesh.extent(cuts[axis]) if axis < len(cuts) else 1


def visualize_sharding(shape: Sequence[int], sharding: NamedSharding) -> str:
    """A drawing in text of which device holds which part of an array of `shape`.

    Of an array of more than two axes the first two are drawn.

    >>> from funcgrad.parallel import NamedSharding, P, make_mesh, visualize_sharding
    >>> mesh = make_mesh((2, 2), ("x", "y"))
    >>> print(visualize_sharding((4, 4), NamedSharding(mesh, P("x", "y"))))
    ┌───┬───┐
    │ 0 │ 1 │
    ├───┼───┤
    │ 2 │ 3 │
    └───┴───┘
    """
    (rows, columns), holders = grid(sharding, shape)
    shown_rows, shown_columns = min(rows, _MAX_PARTS), min(columns, _MAX_PARTS)
    cells = [
        [_names(holders.get((i, j), [])) for j in range(shown_columns)] for i in range(shown_rows)
    ]
    width = max(len(c) for row in cells for c in row) + 2
    bars = "─" * width

    def line(left: str, middle: str, right: str) -> str:
        return left + middle.join([bars] * shown_columns) + right

    body = [f"│{'│'.join(c.center(width) for c in row)}│" for row in cells]
    lines = [line("┌", "┬", "┐")]
    for i, row in enumerate(body):
        lines += [row, line("├", "┼", "┤") if i < shown_rows - 1 else line("└", "┴", "┘")]
    if (rows, columns) != (shown_rows, shown_columns):
        lines.append(f"… {rows} × {columns} parts in all")
    return "\n".join(lines)


def _names(ids: Sequence[int]) -> str:
    """Device numbers, abridged: "0,1", "0,2…14"."""
    if len(ids) <= 4:
        return ",".join(map(str, ids))
    return f"{ids[0]},{ids[1]}…{ids[-1]}"


def sharded_html(x: Any, readable: bool) -> str:
    """The drawing of the parts, and the values where this process can read them."""
    values = array_html(x.value, x.aval) if readable else ""
    return sharding_html(x.sharding, x.shape, x.dtype.itemsize, str(x.aval)) + values


def sharding_html(sharding: NamedSharding, shape: Sequence[int], itemsize: int, title: str) -> str:
    """Which device holds which part: a grid of tiles, a colour for each set of holders."""
    (rows, columns), holders = grid(sharding, shape)
    tiles: list[str] = []
    order: dict[tuple, int] = {}
    for i in range(min(rows, _MAX_PARTS)):
        for j in range(min(columns, _MAX_PARTS)):
            ids = tuple(holders.get((i, j), []))
            hue = _HUES[order.setdefault(ids, len(order)) % len(_HUES)]
            style = (
                f"grid-area:{i + 1}/{j + 1};background:hsla({hue},70%,50%,.3);min-width:2.6em;"
                "text-align:center;padding:.5em .4em;border-radius:3px"
            )
            tiles.append(f'<div style="{style}">{_names(ids)}</div>')
    part = sharding.shard_shape(shape)
    nbytes = int(np.prod(part, dtype=np.int64)) * itemsize
    facts = [str(sharding.spec), str(sharding.mesh), f"{list(part)} each", size_text(nbytes)]
    more = (
        "" if rows <= _MAX_PARTS and columns <= _MAX_PARTS else f"<div>… {rows} × {columns}</div>"
    )
    head = " · ".join(map(html.escape, facts))
    return page(
        f"<div><b>{html.escape(title)}</b> <span class=q>{head}</span></div>"
        f'<div style="display:inline-grid;gap:2px;margin:.4em 0">{"".join(tiles)}</div>{more}'
    )
