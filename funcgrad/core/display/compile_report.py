"""Where the time of a compilation went: what `Compiled.compile_report()` gives."""

from __future__ import annotations

from typing import NamedTuple

from funcgrad.core.display.jaxpr_html import program_html


class CompileStage(NamedTuple):
    """A stage of a compilation: its wall-clock seconds, and what was done in them."""

    name: str
    seconds: float
    what: str


class CompileReport(NamedTuple):
    """Stages in their order; it prints as a table, and shows as one in a notebook.

    >>> CompileReport("f", (CompileStage("trace", 0.0012, "3 operations"),))
    compilation of f: 1.2 ms
      trace            1.2 ms  3 operations
    """

    name: str
    stages: tuple[CompileStage, ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(s.seconds for s in self.stages)

    def __repr__(self) -> str:
        lines = [f"  {s.name:12}{_ms(s.seconds):>11}  {s.what}".rstrip() for s in self.stages]
        return "\n".join([f"compilation of {self.name}: {_ms(self.seconds)}", *lines])

    def _repr_html_(self) -> str:
        facts = {s.name: f"{_ms(s.seconds)} {s.what}" for s in self.stages}
        return program_html(f"compilation of {self.name}: {_ms(self.seconds)}", facts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
