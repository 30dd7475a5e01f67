"""Pictures of a run: a bar a family for a README, a dot a case for those who look closer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.runner import Outcome

OURS, JAX, GRID = "#1f6feb", "#e8871e", "0.88"


def save(outcomes: Sequence[Outcome], folder: Path, title: str) -> list[Path]:
    """Write families.* and cases.*, as PNG and SVG. ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for name, draw in {"families": _families, "cases": _cases}.items():
        figure = draw(pyplot, outcomes, title)
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            figure.savefig(path, dpi=120, bbox_inches="tight", facecolor="white")
            written.append(path)
        pyplot.close(figure)
    return written


def _families(pyplot: Any, outcomes: Sequence[Outcome], title: str) -> Any:
    rows = [row for row in report.summary(outcomes) if row[2] is not None]
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.34 * len(rows)))
    for y, (_, _, best, against_jax) in enumerate(rows):
        assert best is not None
        axes.barh(y - 0.18, best - 1, 0.36, left=1, color=OURS)
        axes.text(max(best, 1) * 1.04, y - 0.18, f"{best:.1f}", va="center", fontsize=8)
        if against_jax is not None:
            axes.barh(y + 0.18, against_jax - 1, 0.36, left=1, color=JAX)
    _finish(axes, [f"{name} ({count})" for name, count, _, _ in rows], title)
    axes.barh(0, 0, color=OURS, label=f"against the best of {report.compared(outcomes)}")
    axes.barh(0, 0, color=JAX, label="against JAX")
    _legend(axes)
    return figure


def _cases(pyplot: Any, outcomes: Sequence[Outcome], title: str) -> Any:
    rows = [outcome for outcome in outcomes if report.ratio(outcome) is not None]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.17 * len(rows)))
    for y, outcome in enumerate(rows):
        best = report.ratio(outcome)
        against_jax = report.ratio(outcome, ("jax",))
        axes.plot([1, best], [y, y], color=OURS, linewidth=1.2)
        axes.plot(best, y, "o", color=OURS, markersize=4)
        if against_jax is not None:
            axes.plot(against_jax, y, "|", color=JAX, markersize=6, markeredgewidth=1.6)
    _finish(axes, [outcome.case.key for outcome in rows], title)
    axes.tick_params(axis="y", labelsize=6)
    axes.plot([], [], "o", color=OURS, label=f"against the best of {report.compared(outcomes)}")
    axes.plot([], [], "|", color=JAX, markeredgewidth=1.6, label="against JAX")
    _legend(axes)
    return figure


def _finish(axes: Any, names: Sequence[str], title: str) -> None:
    axes.set_xscale("log")
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_xlabel("peer's time / funcgrad's: right of 1×, funcgrad is faster")
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(axis="x", which="both", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _legend(axes: Any) -> None:
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.4, -0.5 / axes.figure.get_figheight() - 0.02),
        ncols=2,
        fontsize=8,
        frameon=False,
    )
