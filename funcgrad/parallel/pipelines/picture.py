"""Schedules for people: a grid of ranks and times, as text and as an SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from funcgrad.core.display.jaxpr_html import page

# Fills that are told apart on light and on dark pages.
_FILLS = {"F": "#4f8ef7", "B": "#3fae7c", "I": "#3fae7c", "W": "#e0a030"}
_WIDTH, _HEIGHT, _MARGIN = 22, 22, 54
# Later chunks of a rank are paler.
_FADE = 0.35


def text(rows: Sequence[Sequence[Any]]) -> str:
    """A line a rank, a column a unit of time: for times that are whole numbers.

    rows: for each rank ((kind, stage, microbatch), start, end)

    >>> print(text([[(("F", 0, 0), 0.0, 1.0), (("B", 0, 0), 2.0, 4.0)]]))
    rank 0: F0 .  B0 B0
    """
    length = round(max(end for row in rows for _, _, end in row))
    width = max(len(f"{a[0]}{a[2]}") for row in rows for a, _, _ in row) + 1
    lines = []
    for rank, row in enumerate(rows):
        cells = ["."] * length
        for (kind, _, i), start, end in row:
            for t in range(round(start), round(end)):
                cells[t] = f"{kind}{i}"
        lines.append(f"rank {rank}: {''.join(c.ljust(width) for c in cells)}".rstrip())
    return "\n".join(lines)


def drawing(title: str, rows: Sequence[Sequence[Any]], ranks: int) -> str:
    """The schedule as an SVG: a row a rank, a box an action with its microbatch's number.

    rows: as of `text`
    """
    length = max(end for row in rows for _, _, end in row)
    boxes = []
    for rank, row in enumerate(rows):
        y = rank * (_HEIGHT + 4)
        boxes.append(f'<text x="0" y="{y + 15}" fill="currentColor">rank {rank}</text>')
        own = sorted({a[1] for a, _, _ in row})
        for (kind, stage, i), start, end in row:
            x, w = _MARGIN + start * _WIDTH, (end - start) * _WIDTH - 1
            opacity = 1 - _FADE * own.index(stage) / max(1, len(own) - 1)
            boxes.append(
                f"<g><title>{kind}{i} of stage {stage}: {start:g} to {end:g}</title>"
                f'<rect x="{x:g}" y="{y}" width="{w:g}" height="{_HEIGHT}" rx="2" '
                f'fill="{_FILLS[kind]}" fill-opacity="{opacity:g}"/>'
                f'<text x="{x + w / 2:g}" y="{y + 15}" text-anchor="middle" '
                f'fill="#fff">{i}</text></g>'
            )
    legend = "".join(
        f'<tspan fill="{_FILLS[k]}" dx="8">■</tspan><tspan fill="currentColor"> {k}</tspan>'
        for k in sorted({a[0] for row in rows for a, _, _ in row}, key="FBIW".index)
    )
    height = ranks * (_HEIGHT + 4)
    width = _MARGIN + length * _WIDTH
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height + 20}" '
        f'font-size="11" font-family="ui-monospace,monospace">{"".join(boxes)}'
        f'<text x="{_MARGIN - 8}" y="{height + 14}">{legend}</text></svg>'
    )
    return page(f"<div><b>{html.escape(title)}</b></div>{svg}")
