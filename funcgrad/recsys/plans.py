"""Plans: the sharding of each table and what it costs each device, to be kept and looked at."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from funcgrad.errors import ArgumentError
from funcgrad.recsys.layouts import TableSharding

VERSION = 2


@dataclass(frozen=True)
class Plan:
    """Shardings by table, for `layout`, and what they cost.

    devices: (nodes, devices of each); memory: bytes that a device may take; seconds, bytes: of a
    step and of memory, as predicted for each device; exact: whether no plan can be better, by
    the same prediction; kernels: by table, how it is trained (see `plan`).
    """

    shardings: Mapping[str, TableSharding]
    devices: tuple[int, int]
    memory: float
    seconds: tuple[float, ...]
    bytes: tuple[float, ...]
    exact: bool
    kernels: Mapping[str, str]

    @property
    def step(self) -> float:
        """Predicted seconds of a step: those of the slowest device."""
        return max(self.seconds, default=0.0)

    def to_json(self) -> str:
        """As text that `plan_from_json` reads.

        >>> from funcgrad import recsys
        >>> plan = recsys.plan({"ad": (100, 8)}, 2, memory=1e6)
        >>> recsys.plan_from_json(plan.to_json()) == plan
        True
        """
        shardings = {
            k: {"kind": s.kind, "places": s.places, "columns": s.columns}
            for k, s in self.shardings.items()
        }
        return json.dumps(
            {
                "version": VERSION, "shardings": shardings, "devices": self.devices,
                "memory": self.memory, "seconds": self.seconds, "bytes": self.bytes,
                "exact": self.exact, "kernels": self.kernels,
            },
            indent=1,
        )  # fmt: skip

    def __str__(self) -> str:
        """A line for each table, and for each of the first devices."""
        nodes, local = self.devices
        best = ", none is better" if self.exact else ""
        lines = [f"{nodes} × {local} devices, {self.step * 1e3:.3f} ms a step{best}"]
        for name, s in self.shardings.items():
            places = "" if s.places is None else f" on {', '.join(map(str, s.places))}"
            kernel = "" if self.kernels[name] == "fused" else f", {self.kernels[name]}"
            lines.append(f"  {name:<16} {s.kind}{places}{kernel}")
        for i, (t, b) in enumerate(zip(self.seconds[:16], self.bytes[:16], strict=True)):
            lines.append(f"  device {i:<9} {t * 1e3:9.3f} ms {b / 1e6:12.3f} MB")
        if len(self.seconds) > 16:
            lines.append(f"  and {len(self.seconds) - 16} devices more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Bars of the bytes and seconds of each device; a table of the shardings."""
        most = max(self.step, 1e-12)
        bars = []
        for i, (t, b) in enumerate(zip(self.seconds[:64], self.bytes[:64], strict=True)):
            y = 20 * i
            bars.append(
                f'<text x="0" y="{y + 13}" font-size="11">{i}</text>'
                f'<rect x="30" y="{y + 3}" width="{240 * b / self.memory:.1f}" height="12" '
                f'fill="#4c78a8"><title>{b / 1e6:.3f} MB</title></rect>'
                f'<rect x="30" y="{y + 3}" width="240" height="12" fill="none" stroke="#999"/>'
                f'<rect x="290" y="{y + 3}" width="{240 * t / most:.1f}" height="12" '
                f'fill="#f58518"><title>{t * 1e3:.3f} ms</title></rect>'
            )
        rows = "".join(
            f"<tr><td>{html.escape(k)}</td><td>{s.kind}</td><td>{s.places or ''}</td>"
            f"<td>{html.escape(self.kernels[k])}</td></tr>"
            for k, s in self.shardings.items()
        )
        height = 20 * len(bars) + 4
        return (
            f"<div><b>bytes (of {self.memory / 1e6:.1f} MB) and time of each device</b>, "
            f"{self.step * 1e3:.3f} ms a step<br>"
            f'<svg width="540" height="{height}">{"".join(bars)}</svg>'
            f"<table><tr><th>table</th><th>sharding</th><th>on</th><th>kernel</th></tr>{rows}</table></div>"
        )


def plan_from_json(text: str) -> Plan:
    """A plan from its `to_json`; ArgumentError for other text.

    >>> from funcgrad import recsys
    >>> recsys.plan_from_json("{}")
    Traceback (most recent call last):
    funcgrad.errors.ArgumentError: recsys.plan_from_json: the text is no plan: version is None, ...
    """
    where = "recsys.plan_from_json: the text is no plan"
    try:
        read = json.loads(text)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: {error}") from None
    version = read.get("version") if isinstance(read, dict) else None
    if version != VERSION:
        raise ArgumentError(f"{where}: version is {version}, need {VERSION}")
    try:
        return Plan(
            {k: _sharding(s) for k, s in read["shardings"].items()},
            tuple(read["devices"]), float(read["memory"]), tuple(read["seconds"]),
            tuple(read["bytes"]), bool(read["exact"]),
            {k: str(read["kernels"][k]) for k in read["shardings"]},
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: {error!r}") from None


def _sharding(read: Mapping[str, Any]) -> TableSharding:
    places = read["places"]
    return TableSharding(
        str(read["kind"]), None if places is None else tuple(map(int, places)), int(read["columns"])
    )
