"""What a file of a program holds: its signature, its programs as JSON, and its arrays.

Where sizes are symbols, signature and programs hold `{"dim": "2*b"}` in place of integers, and a
program is made for each size that is asked for.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import ClosedJaxpr
from funcgrad.core.sharding import NamedSharding
from funcgrad.errors import ArgumentError, FormatError
from funcgrad.export.program.decode import Decoder
from funcgrad.export.program.values import Json, short, type_from_json, type_to_json
from funcgrad.export.signature import Signature
from funcgrad.export.symbolic import Sizes
from funcgrad.export.unify import specialized


class Content:
    """A function as its file has it; `program` makes what can be called."""

    def __init__(self, signature: Signature, tables: Json, weights: dict[str, np.ndarray]):
        self.signature = signature
        self.tables = tables
        self.weights = weights

    @property
    def is_symbolic(self) -> bool:
        """Whether sizes are symbols."""
        return self.signature.constraints is not None

    def to_bytes(self, samples: Sequence[Sizes]) -> bytes:
        """`program.json`; samples: the sizes of each."""
        types = {name: type_to_json(_type_of(x)) for name, x in self.weights.items()}
        found = {
            "signature": self.signature.to_json(), "samples": list(samples), "weights": types,
            "tables": self.tables,
        }  # fmt: skip
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode()

    @staticmethod
    def weight_types(found: Json) -> dict[str, ShapedArray]:
        """The types of arrays by their names, of what `to_bytes` wrote."""
        return {name: type_from_json(t) for name, t in found["weights"].items()}

    def at(self, sizes: Sizes) -> Content:
        """The content where symbols have these values."""
        signature = self.signature
        if sizes.keys() != signature.symbols():
            raise ArgumentError(
                f"{signature.name} was exported for the symbols {sorted(signature.symbols())}, got "
                f"values of {sorted(sizes)}"
            )
        if any(type(n) is not int or not 1 <= n < 1 << 40 for n in sizes.values()):
            raise ArgumentError(f"{signature.name}: sizes are integers from 1 on, got {sizes}")
        signature.check_sizes(sizes)
        plain = replace(signature, constraints=None, example=()).to_json()
        concrete = Signature.parse(specialized(plain, sizes))
        return Content(concrete, specialized(self.tables, sizes), self.weights)

    @functools.cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.tables, self.weights)

    def program(self) -> ClosedJaxpr:
        """The main program with the arrays that it captured."""
        jaxpr = self._decoder.program(self.signature.main)
        consts = [self._decoder.weight(name).array for name in self.signature.captured]
        return ClosedJaxpr(jaxpr, consts)

    def check(self) -> None:
        """Raise FormatError where the program isn't one, or isn't of the signature's types."""
        if self.is_symbolic:
            self.at(dict(self.signature.example)).check()
            return
        closed, signature = self.program(), self.signature
        _check_types("takes", closed.in_avals, signature.in_avals)
        _check_types("gives", closed.out_avals, signature.out_avals)
        given = [c.aval for c in closed.consts]
        _check_types("captured", given, closed.jaxpr.in_avals[: len(given)])
        self.in_shardings()
        self._decoder.check(closed.jaxpr)

    def in_shardings(self) -> tuple[NamedSharding | None, ...]:
        """How arguments are cut over a mesh."""
        if self.is_symbolic:
            return self.at(dict(self.signature.example)).in_shardings()
        found = tuple(map(self._decoder.value, self.signature.shardings))
        for s in found:
            if not isinstance(s, NamedSharding | None):
                raise FormatError(f"{short(s)} is no sharding")
        return found

    def nr_devices(self) -> int:
        """The number of devices of the largest mesh."""
        return max((math.prod(n for _, n in m["axes"]) for m in self.tables["meshes"]), default=1)


def _type_of(x: np.ndarray) -> ShapedArray:
    return ShapedArray(x.shape, x.dtype)


def _check_types(verb: str, got: Sequence[ShapedArray], want: Sequence[ShapedArray]) -> None:
    if len(got) != len(want) or not all(g.matches(w) for g, w in zip(got, want, strict=True)):
        raise FormatError(f"the program {verb} {list(got)}, its signature says {list(want)}")
