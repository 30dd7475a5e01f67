"""Counters and histograms of what is served, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_HELP = {
    "inference_success": ("counter", "Requests that were answered."),
    "inference_failure": ("counter", "Requests that were not, by reason."),
    "inference_count": ("counter", "Elements of batches that were computed."),
    "inference_exec_count": ("counter", "Batches that were computed."),
    "inference_pending": ("gauge", "Requests that wait."),
    "generated_tokens": ("counter", "Tokens that were generated."),
    "slots_used": ("gauge", "Sequences that are being generated."),
    "queue_seconds": ("histogram", "How long requests waited."),
    "compute_seconds": ("histogram", "How long batches took."),
}


class Metrics:
    """What is counted, by model, version and more labels. Changed on the server's loop alone."""

    def __init__(self) -> None:
        self.values: dict[str, dict[tuple, float]] = defaultdict(lambda: defaultdict(float))
        self.seconds: dict[str, dict[tuple, list]] = defaultdict(dict)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count something."""
        self.values[name][tuple(labels.items())] += amount

    def set(self, name: str, amount: float, **labels: str) -> None:
        """Say how much there is of something."""
        self.values[name][tuple(labels.items())] = amount

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Enter a duration."""
        of, key = self.seconds[name], tuple(labels.items())
        made = of.get(key)
        if made is None:
            made = of[key] = [[0] * (len(BOUNDS) + 1), 0.0]
        made[0][bisect_left(BOUNDS, seconds)] += 1
        made[1] += seconds

    def state(self, gauges: bool = True) -> dict[str, list]:
        """All of it, as JSON has it; without `gauges`, of a process that is no more."""
        values = [
            [name, list(labels), value]
            for name, of in self.values.items() if gauges or _HELP[name][0] != "gauge"
            for labels, value in of.items()
        ]  # fmt: skip
        seconds = [
            [name, list(labels), counts, total]
            for name, of in self.seconds.items() for labels, (counts, total) in of.items()
        ]  # fmt: skip
        return {"values": values, "seconds": seconds}

    def include(self, state: dict[str, list]) -> None:
        """Add what another process counted."""
        for name, labels, value in state["values"]:
            self.values[name][tuple(map(tuple, labels))] += value
        for name, labels, counts, total in state["seconds"]:
            key = tuple(map(tuple, labels))
            own = self.seconds[name].setdefault(key, [[0] * (len(BOUNDS) + 1), 0.0])
            own[0] = [a + b for a, b in zip(own[0], counts, strict=True)]
            own[1] += total

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        lines = []
        for name, (kind, told) in _HELP.items():
            full = f"funcgrad_{name}"
            lines += [f"# HELP {full} {told}", f"# TYPE {full} {kind}"]
            for labels, value in self.values.get(name, {}).items():
                lines.append(f"{full}{_shown(labels)} {value:g}")
            for labels, (counts, total) in self.seconds.get(name, {}).items():
                so_far = 0
                for bound, n in zip((*BOUNDS, "+Inf"), counts, strict=True):
                    so_far += n
                    lines.append(f"{full}_bucket{_shown((*labels, ('le', str(bound))))} {so_far}")
                lines += [f"{full}_sum{_shown(labels)} {total:g}",
                          f"{full}_count{_shown(labels)} {so_far}"]  # fmt: skip
        return "\n".join(lines) + "\n"


def _shown(labels: tuple) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{k}="{escaped(v)}"' for k, v in labels) + "}" if labels else ""
