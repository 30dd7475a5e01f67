"""What a file of a program holds: its signature, its programs as JSON, and its arrays."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from funcgrad.core.sharding import NamedSharding
from funcgrad.errors import FormatError
from funcgrad.export.program.decode import Decoder
from funcgrad.export.program.encode import Encoder
from funcgrad.export.program.trees import tree_to_json
from funcgrad.export.program.values import Json, short, to_json, type_from_json, type_to_json
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.transforms.jit.stages import Program, Traced


@dataclass(frozen=True)
class Signature:
    """What is known of a function without its programs.

    captured: the names of arrays that are the main program's first inputs
    names: of the arguments, flat
    shardings: of the arguments, as JSON
    main: the number of the main program
    """

    name: str
    in_tree: Json
    out_tree: Json
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    names: tuple[str, ...]
    donated: tuple[bool, ...]
    shardings: tuple[Json, ...]
    captured: tuple[str, ...]
    platforms: tuple[str, ...]
    main: int

    def to_json(self) -> dict:
        """The signature as JSON's types."""
        inputs = [
            {"name": n, "type": type_to_json(a), "donated": d, "sharding": s}
            for n, a, d, s in zip(self.names, self.in_avals, self.donated, self.shardings,
                                  strict=True)
        ]  # fmt: skip
        return {
            "name": self.name, "platforms": list(self.platforms), "main": self.main,
            "captured": list(self.captured), "in_tree": self.in_tree, "out_tree": self.out_tree,
            "inputs": inputs, "outputs": [type_to_json(a) for a in self.out_avals],
        }  # fmt: skip

    @staticmethod
    def parse(found: Json) -> Signature:
        """The signature from JSON's types."""
        inputs, outputs = found["inputs"], found["outputs"]
        return Signature(
            name=_text(found["name"]),
            in_tree=found["in_tree"],
            out_tree=found["out_tree"],
            in_avals=tuple(type_from_json(x["type"]) for x in inputs),
            out_avals=tuple(map(type_from_json, outputs)),
            names=tuple(_text(x["name"]) for x in inputs),
            donated=tuple(x["donated"] is True for x in inputs),
            shardings=tuple(x["sharding"] for x in inputs),
            captured=tuple(map(_text, found["captured"])),
            platforms=tuple(map(_text, found["platforms"])),
            main=found["main"],
        )


def _text(found: Json) -> str:
    if not isinstance(found, str):
        raise FormatError(f"{short(found)} is no text")
    return found


class Content:
    """A function as its file has it; `program` makes what can be called."""

    def __init__(self, signature: Signature, tables: Json, weights: dict[str, np.ndarray]):
        self.signature = signature
        self.tables = tables
        self.weights = weights

    def to_bytes(self, samples: int) -> bytes:
        """`program.json`: a line for each equation, so that two can be compared."""
        types = {name: type_to_json(_type_of(x)) for name, x in self.weights.items()}
        found = {
            "signature": self.signature.to_json(), "samples": samples, "weights": types,
            "tables": self.tables,
        }  # fmt: skip
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode()

    @staticmethod
    def weight_types(found: Json) -> dict[str, ShapedArray]:
        """The types of arrays by their names, of what `to_bytes` wrote."""
        return {name: type_from_json(t) for name, t in found["weights"].items()}

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
        closed, signature = self.program(), self.signature
        _check_types("takes", closed.in_avals, signature.in_avals)
        _check_types("gives", closed.out_avals, signature.out_avals)
        given = [c.aval for c in closed.consts]
        _check_types("captured", given, closed.jaxpr.in_avals[: len(given)])
        self.in_shardings()
        self._decoder.check(closed.jaxpr)

    def in_shardings(self) -> tuple[NamedSharding | None, ...]:
        """How arguments are cut over a mesh."""
        found = tuple(map(self._decoder.value, self.signature.shardings))
        for s in found:
            if not isinstance(s, NamedSharding | None):
                raise FormatError(f"{short(s)} is no sharding")
        return found

    def nr_devices(self) -> int:
        """The number of devices of the largest mesh."""
        return max((m.size for m in self._decoder.meshes), default=1)


def _type_of(x: np.ndarray) -> ShapedArray:
    return ShapedArray(x.shape, x.dtype)


def _check_types(verb: str, got: Sequence[ShapedArray], want: Sequence[ShapedArray]) -> None:
    if len(got) != len(want) or not all(g.matches(w) for g, w in zip(got, want, strict=True)):
        raise FormatError(f"the program {verb} {list(got)}, its signature says {list(want)}")


def content_of(traced: Traced, platforms: tuple[str, ...], order: int) -> Content:
    """What the file of a traced function holds."""
    program, name = traced.program, traced.fun_name
    encoder = Encoder(name, order)
    n = len(program.consts)
    cuts = (program.shardings or (None,) * len(program.donated))[n:]
    captured = tuple(encoder.weight(c) for c in program.consts)
    main = encoder.program(_constrained(program, cuts))
    signature = Signature(
        name=name,
        in_tree=tree_to_json(program.in_tree, f"the arguments of {name}"),
        out_tree=tree_to_json(program.out_tree, f"the result of {name}"),
        in_avals=tuple(program.jaxpr.in_avals[n:]),
        out_avals=tuple(program.jaxpr.out_avals),
        names=tuple(program.names[n:]),
        donated=program.donated[n:],
        shardings=tuple(to_json(cut, encoder) for cut in cuts),
        captured=captured,
        platforms=platforms,
        main=main,
    )
    return Content(signature, encoder.tables(), encoder.weights)


def _constrained(program: Program, cuts: Sequence[Any]) -> Jaxpr:
    """The program, which says itself how its arguments are cut."""
    jaxpr, n = program.jaxpr, len(program.consts)
    if not any(cuts):
        return jaxpr
    ins, eqns = list(jaxpr.ins), []
    for i, cut in enumerate(cuts, n):
        if cut is not None:
            ins[i] = Var(jaxpr.ins[i].aval)
            eqns.append(Eqn(sharding_constraint_p, [ins[i]], [jaxpr.ins[i]], {"sharding": cut}))
    return Jaxpr(ins, [*eqns, *jaxpr.eqns], jaxpr.outs, jaxpr.names)
