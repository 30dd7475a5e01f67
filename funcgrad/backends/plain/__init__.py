"""The plain backend: planned programs, run by an interpreter in NumPy.

It has all that a backend needs and nothing that makes programs fast: what loops can express is
computed by the loop language's interpreter, and each other op (products, convolutions, attention,
sorts, decompositions, collectives) is a step that NumPy runs. `docs/writing_a_backend.md` goes
through it.

- `interpret`: what planned programs mean
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.plain.interpret import run
from funcgrad.backends.plan import plan
from funcgrad.backends.program import Program
from funcgrad.backends.program_text import program_text
from funcgrad.backends.target import Target, stay
from funcgrad.core.backend import Call
from funcgrad.core.display.compile_report import CompileStage
from funcgrad.core.ir import Jaxpr
from funcgrad.transforms.passes.simplify import simplify

PLAIN = Target(
    "plain",
    rewrites=dict.fromkeys(("attention", "attention_tangent", "attention_backward"), stay),
)


class Planned:
    """A planned program, to be interpreted."""

    texts: tuple[str, ...] = ("loops",)

    def __init__(self, program: Program, communicators: Callable[[tuple], Any] | None = None):
        self.program = program
        self.communicators = communicators

    def __call__(self, values: Sequence[Any], began: list | None = None) -> list[np.ndarray]:
        """Run on numpy arrays."""
        if began is not None:
            began.append(self)
        with np.errstate(all="ignore"):
            return run(self.program, values, self.communicators)

    def direct(self, call: Call) -> None:
        """None: there is no way around Python."""

    def bind(self, communicators: Callable[[tuple], Any]) -> Planned:
        """The program whose collectives go through these communicators."""
        return Planned(self.program, communicators)

    def as_text(self, stage: str) -> str:
        """The planned program ("loops")."""
        if stage != "loops":
            raise ValueError(f'no stage {stage!r}: there are "jaxpr" and "loops"')
        return program_text(self.program)

    def cost_analysis(self) -> dict[str, float]:
        """Operations of kernels, and bytes that all steps read and write."""
        return {"flops": self.program.flops, "bytes accessed": self.program.bytes_moved}

    def compile_stages(self) -> list[CompileStage]:
        """None: nothing is compiled."""
        return []

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, results, aliases between them, and temporaries."""
        p = self.program
        return {
            "argument_size_in_bytes": sum(a.nbytes for a in p.ins),
            "output_size_in_bytes": sum(a.nbytes for a in p.outs),
            "alias_size_in_bytes": sum(p.outs[i].nbytes for i in p.aliases),
            "temp_size_in_bytes": p.arena_bytes,
        }


class PlainBackend:
    """Plans programs and compiles nothing."""

    name = "plain"

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Planned:
        """The program, planned."""
        return Planned(plan(simplify(jaxpr), donated, name, PLAIN))

    def caller(self, entries: Sequence[Any]) -> Callable[[tuple, dict], Any]:
        """There are no fast calls."""
        return lambda args, kwargs: NotImplemented


BACKEND = PlainBackend()
