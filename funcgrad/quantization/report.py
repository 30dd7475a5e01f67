"""What quantization did to a tree of parameters: bytes, signal to noise, what was left alone."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.core.array import raw


@dataclass(frozen=True)
class Row:
    """A leaf: its bytes before and after, the signal to noise ratio in dB, and what it became, or
    why it was left alone."""

    name: str
    shape: tuple[int, ...]
    before: int
    after: int
    sqnr: float | None
    what: str


@dataclass(frozen=True)
class Report:
    """The leaves of a tree of parameters before and after; prints as a table."""

    rows: tuple[Row, ...]

    @property
    def before(self) -> int:
        """Bytes of all leaves before."""
        return sum(r.before for r in self.rows)

    @property
    def after(self) -> int:
        """Bytes of all leaves after."""
        return sum(r.after for r in self.rows)

    @property
    def quantized(self) -> dict[str, Row]:
        """The leaves that were quantized."""
        return {r.name: r for r in self.rows if r.sqnr is not None}

    @property
    def left_alone(self) -> dict[str, str]:
        """The others, with the reason."""
        return {r.name: r.what for r in self.rows if r.sqnr is None}

    def _cells(self) -> list[list[str]]:
        head = ["parameter", "shape", "bytes", "after", "SQNR", ""]
        lines = [
            [r.name, "×".join(map(str, r.shape)), f"{r.before:,}", f"{r.after:,}",
             "" if r.sqnr is None else f"{r.sqnr:.1f} dB", r.what]
            for r in self.rows
        ]  # fmt: skip
        ratio = self.before / max(1, self.after)
        total = ["all", "", f"{self.before:,}", f"{self.after:,}", "", f"{ratio:.2f} times smaller"]
        return [head, *lines, total]

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(len(row[i]) for row in cells) for i in range(5)]
        return "\n".join(
            "  ".join(
                c.rjust(w) if 2 <= i <= 4 else c.ljust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=False))
            )
            + f"  {row[5]}".rstrip()
            for row in cells
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *lines = self._cells()
        cell = lambda tag, c: f"<{tag} style='text-align:left'>{html.escape(c)}</{tag}>"  # noqa: E731
        rows = ["".join(cell("th", c) for c in head)]
        rows += ["".join(cell("td", c) for c in line) for line in lines]
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def sqnr(x: Any, y: Any) -> float:
    """The power of x over that of what y differs by, in dB.

    >>> sqnr(np.float32([1, 1]), np.float32([1, 0.9])) > 20
    True
    """
    x, y = (np.asarray(raw(a)).astype(np.float64) for a in (x, y))
    noise = float(((x - y) ** 2).sum())
    return math.inf if noise == 0 else 10 * math.log10(max(float((x**2).sum()), 1e-300) / noise)
