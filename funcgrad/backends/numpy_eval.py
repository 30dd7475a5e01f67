"""The trivial backend: each op's `impl` on NumPy, one after the other. It defines what is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.core import context
from funcgrad.core.backend import Call
from funcgrad.core.display.compile_report import CompileStage
from funcgrad.core.ir import Jaxpr, interpret
from funcgrad.transforms.passes.simplify import simplify


class Interpreted:
    """A program that is run op by op."""

    texts = ()

    def __init__(self, jaxpr: Jaxpr, communicators: Callable[[tuple], Any] | None = None):
        self.jaxpr = jaxpr
        self.communicators = communicators

    def __call__(self, values: Sequence[Any], began: list | None = None) -> list[Any]:
        """Run on numpy arrays."""
        if began is not None:
            began.append(self)
        with np.errstate(all="ignore"):
            if self.communicators is None:
                return interpret(self.jaxpr, np, *values)
            with context.scoped(communicators=self.communicators):
                return interpret(self.jaxpr, np, *values)

    def direct(self, call: Call) -> None:
        """None: there is no way around Python."""

    def bind(self, communicators: Callable[[tuple], Any]) -> Interpreted:
        """The program whose collectives go through these communicators: communicators(axis names)
        gives the one over named axes."""
        return Interpreted(self.jaxpr, communicators)

    def as_text(self, stage: str) -> str:
        """The program itself: there are no other stages."""
        return repr(self.jaxpr)

    def cost_analysis(self) -> dict[str, float]:
        """Bytes moved: each op reads its operands and writes its results."""
        moved = sum(a.aval.nbytes for e in self.jaxpr.eqns for a in (*e.ins, *e.outs))
        return {"bytes accessed": float(moved)}

    def compile_stages(self) -> list[CompileStage]:
        """None: nothing is compiled."""
        return []

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments and results; results of all ops are alive until the end."""
        return {
            "argument_size_in_bytes": sum(a.nbytes for a in self.jaxpr.in_avals),
            "output_size_in_bytes": sum(a.nbytes for a in self.jaxpr.out_avals),
            "alias_size_in_bytes": 0,
            "temp_size_in_bytes": sum(v.aval.nbytes for e in self.jaxpr.eqns for v in e.outs),
        }


class NumpyBackend:
    """Compiles nothing."""

    name = "numpy"

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Interpreted:
        """The program, to be run op by op."""
        return Interpreted(simplify(jaxpr))

    def caller(self, entries: Sequence[Any]) -> Callable[[tuple, dict], Any]:
        """There are no fast calls."""
        return lambda args, kwargs: NotImplemented


BACKEND = NumpyBackend()
