"""What a run says: ratios, geometric means, and the tables and files that show them."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.libraries import LABELS, OURS
from benchmarks.limits import Limits
from benchmarks.runner import Outcome, Settings

PEERS = ("jax", "torch", "compile")  # NumPy is shown, but it is not what we are measured against
LEAST_SHARE = 0.005  # of the limit: below, it is not the limit that matters


def medians(outcome: Outcome) -> dict[str, float]:
    """Each library's median, in the case's unit."""
    return {name: statistics.median(times) for name, times in outcome.samples.items()}


def ratio(outcome: Outcome, peers: Sequence[str] = PEERS) -> float | None:
    """The best peer's median by ours: above 1, ours is the smaller. None without both."""
    middle = medians(outcome)
    theirs = [middle[name] for name in peers if name in middle]
    return min(theirs) / middle[OURS] if theirs and OURS in middle else None


def compared(outcomes: Sequence[Outcome]) -> str:
    """The names of the peers that something was measured on: "JAX, PyTorch"."""
    seen = {name for outcome in outcomes for name in outcome.samples}
    return ", ".join(LABELS[name] for name in PEERS if name in seen)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are numbers; None if there are none."""
    logs = [math.log(value) for value in values if value]
    return math.exp(statistics.fmean(logs)) if logs else None


def share_of_limit(outcome: Outcome, limits: Limits | None) -> float | None:
    """Which part of our time the machine needs at least; None where the limit says nothing.

    More than 1 is possible where data stay in a cache, which is faster than memory.
    """
    middle = medians(outcome)
    if limits is None or outcome.case.measure != "call" or OURS not in middle:
        return None
    case = outcome.case
    least = limits.seconds(case.flops, outcome.read, outcome.written, case.kind, case.gathers)
    share = least / middle[OURS]
    return share if share >= LEAST_SHARE else None


def summary(outcomes: Sequence[Outcome]) -> list[tuple[str, int, float | None, float | None]]:
    """For each family and for all: cases with a ratio, geometric means against all and JAX.

    All means all times: memory has a line of its own.
    """
    families = list(dict.fromkeys(outcome.case.family for outcome in outcomes))
    groups = {name: [o for o in outcomes if o.case.family == name] for name in families}
    groups["all times"] = [o for o in outcomes if o.case.unit == "s"]
    return [(name, *_means(group)) for name, group in groups.items()]


def _means(group: Sequence[Outcome]) -> tuple[int, float | None, float | None]:
    best = [ratio(outcome) for outcome in group]
    against_jax = [ratio(outcome, ("jax",)) for outcome in group]
    counted = sum(value is not None for value in best)
    return counted, geometric_mean(best), geometric_mean(against_jax)


# ---- words


def quantity(value: float, unit: str) -> str:
    """A time or a number of bytes with three digits, as people write them."""
    steps = {
        "s": ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s")),
        "B": ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB")),
    }[unit]
    scale, name = next((s for s in reversed(steps) if value >= s[0]), steps[0])
    amount = value / scale
    return f"{amount:.{max(0, 2 - int(math.log10(max(amount, 1))))}f} {name}"


def times(value: float | None) -> str:
    """A ratio."""
    return "" if value is None else f"{value:.2f}"


def line(outcome: Outcome, limits: Limits | None) -> str:
    """One case, for the terminal."""
    middle = medians(outcome)
    parts = [
        f"{LABELS[name]} {quantity(value, outcome.case.unit)}" for name, value in middle.items()
    ]
    best, share = ratio(outcome), share_of_limit(outcome, limits)
    if best is not None:
        parts.append(f"ratio {best:.2f}")
    if share is not None:
        parts.append(f"{share:.0%} of the limit")
    parts += [f"{LABELS[name]} FAILED: {reason}" for name, reason in outcome.failures.items()]
    return f"{outcome.case.key:58} " + ", ".join(parts)


def about(settings: Settings, libraries: Sequence[str], limits: Limits | None) -> dict[str, Any]:
    """The machine, the versions, and how it was measured."""
    packages = ["torch" if name == "compile" else name for name in libraries]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in dict.fromkeys(packages)},
        "threads": settings.threads,
        "seconds": settings.seconds,
        "rounds": settings.rounds,
        "load_before": load,
        "limits": limits and limits._asdict(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for text in info.read_text().splitlines() if info.exists() else ():
        if text.startswith("model name"):
            return text.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


# ---- files


def to_json(outcomes: Sequence[Outcome], facts: dict[str, Any], limits: Limits | None) -> str:
    """Everything, for programs."""
    rows = []
    for outcome in outcomes:
        results = {
            name: {
                "median": statistics.median(samples),
                "low": _quantile(samples, 0.1),
                "high": _quantile(samples, 0.9),
                "samples": len(samples),
            }
            for name, samples in outcome.samples.items()
        }
        rows.append(
            {
                "family": outcome.case.family,
                "name": outcome.case.name,
                "unit": outcome.case.unit,
                "measure": outcome.case.measure,
                "flops": outcome.case.flops,
                "bytes_read": outcome.read,
                "bytes_written": outcome.written,
                "results": results,
                "failures": outcome.failures,
                "ratio": ratio(outcome),
                "ratio_to_jax": ratio(outcome, ("jax",)),
                "share_of_limit": share_of_limit(outcome, limits),
            }
        )
    means = [
        {"family": name, "cases": cases, "ratio": best, "ratio_to_jax": against_jax}
        for name, cases, best, against_jax in summary(outcomes)
    ]
    return json.dumps({"about": facts, "summary": means, "cases": rows}, indent=1, default=float)


def _quantile(samples: Sequence[float], part: float) -> float:
    return sorted(samples)[round(part * (len(samples) - 1))]


def to_markdown(
    outcomes: Sequence[Outcome],
    facts: dict[str, Any],
    limits: Limits | None,
    libraries: Sequence[str],
) -> str:
    """The tables, for people."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    text = [
        f"Measured on {facts['processor']} with {facts['threads']} threads for each library: "
        f"{versions}, Python {facts['python']}."
    ]
    if limits is not None:
        text.append(
            f"The machine reads {limits.reads / 1e9:.1f} GB/s, copies "
            f"{limits.copies / 1e9:.1f} GB/s (read and written) and does "
            f"{limits.flops / 1e9:.0f} GFLOP/s in float32, {limits.int8 / 1e9:.0f} GOP/s in int8; "
            f"it gathers {limits.lines / 1e9:.1f} GB/s, in lines of 256 bytes out of a cache."
        )
    text += [
        "Times are medians over bursts in which the libraries take turns. The ratio is the "
        f"best peer's time (of {compared(outcomes)}) by funcgrad's: above 1, funcgrad is ahead. "
        "The limit is the time in which the machine reads the inputs once, writes the results and "
        "does the arithmetic; more than 100 % means that caches helped.",
        "",
        *_table(
            ("Family", "Cases", "Best peer / funcgrad", "JAX / funcgrad"),
            [
                (name, str(cases), times(best), times(against_jax))
                for name, cases, best, against_jax in summary(outcomes)
            ],
        ),
    ]
    shown = [name for name in LABELS if name in libraries]
    for family in dict.fromkeys(outcome.case.family for outcome in outcomes):
        rows = [_row(o, shown, limits) for o in outcomes if o.case.family == family]
        heads = (family, *(LABELS[name] for name in shown), "Ratio", "To JAX", "Of the limit")
        text += ["", *_table(heads, rows)]
    failed = [
        (o.case.key, LABELS[name], reason) for o in outcomes for name, reason in o.failures.items()
    ]
    if failed:
        text += ["", *_table(("Failed", "Library", "Reason"), failed)]
    return "\n".join(text) + "\n"


def _row(outcome: Outcome, shown: Sequence[str], limits: Limits | None) -> tuple[str, ...]:
    middle, share = medians(outcome), share_of_limit(outcome, limits)
    cells = [
        quantity(middle[name], outcome.case.unit)
        if name in middle
        else "failed"
        if name in outcome.failures
        else ""
        for name in shown
    ]
    return (
        outcome.case.name,
        *cells,
        times(ratio(outcome)),
        times(ratio(outcome, ("jax",))),
        "" if share is None else f"{share:.0%}",
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [list(heads), ["---", *["---:"] * (len(heads) - 1)], *cells]
    return ["| " + " | ".join(row) + " |" for row in lines]
