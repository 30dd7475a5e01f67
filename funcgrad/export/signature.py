"""What is known of an exported function without its programs: names, types, structures, symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from funcgrad.core.aval import ShapedArray
from funcgrad.errors import ArgumentError, FormatError
from funcgrad.export.program.values import Json, short, type_from_json, type_to_json
from funcgrad.export.symbolic import Dim, Sizes, SymbolicScope, parse_stored, solve


@dataclass(frozen=True)
class Signature:
    """What is known of a function without its programs.

    captured: the names of arrays that are the main program's first inputs
    names: of the arguments, flat
    shardings: of the arguments, as JSON
    main: the number of the main program
    constraints: on the symbols in the types; None for a signature of integers
    example: sizes that meet them
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
    constraints: tuple[str, ...] | None = None
    example: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict:
        """The signature as JSON's types."""
        inputs = [
            {"name": n, "type": type_to_json(a), "donated": d, "sharding": s}
            for n, a, d, s in zip(self.names, self.in_avals, self.donated, self.shardings,
                                  strict=True)
        ]  # fmt: skip
        scope = self.constraints
        symbols = {} if scope is None else {
            "constraints": list(scope), "example": [list(pair) for pair in self.example],
        }  # fmt: skip
        return symbols | {
            "name": self.name, "platforms": list(self.platforms), "main": self.main,
            "captured": list(self.captured), "in_tree": self.in_tree, "out_tree": self.out_tree,
            "inputs": inputs, "outputs": [type_to_json(a) for a in self.out_avals],
        }  # fmt: skip

    @staticmethod
    def parse(found: Json) -> Signature:
        """The signature from JSON's types."""
        inputs, outputs, scope = found["inputs"], found["outputs"], found.get("constraints")
        return Signature(
            name=_text(found["name"]),
            in_tree=found["in_tree"],
            out_tree=found["out_tree"],
            in_avals=tuple(_type(x["type"]) for x in inputs),
            out_avals=tuple(map(_type, outputs)),
            names=tuple(_text(x["name"]) for x in inputs),
            donated=tuple(x["donated"] is True for x in inputs),
            shardings=tuple(x["sharding"] for x in inputs),
            captured=tuple(map(_text, found["captured"])),
            platforms=tuple(map(_text, found["platforms"])),
            main=found["main"],
            constraints=None if scope is None else tuple(map(_text, scope)),
            example=tuple((_text(name), n) for name, n in found.get("example", [])),
        )

    def sizes_of(self, got: Sequence[ShapedArray]) -> dict[str, int]:
        """The values of symbols that arguments of these types say.

        Raises ArgumentError, which names the argument, where they don't fit.
        """
        triples = list(zip(self.names, self.in_avals, got, strict=True))
        for name, want, g in triples:
            if g.dtype != want.dtype or g.ndim != want.ndim:
                raise self._unfit(name, want, g)
        pairs = [
            (n if isinstance(n, Dim) else Dim({(): n}), m)
            for _, want, g in triples
            for n, m in zip(want.shape, g.shape, strict=True)
        ]
        sizes = solve(pairs)
        for name, want, g in triples:
            shape: tuple[Any, ...] = want.shape
            for n, m in zip(shape, g.shape, strict=True):
                symbols = n.symbols if isinstance(n, Dim) else set()
                if any(sizes.get(s, 0) < 1 for s in symbols):
                    raise self._unfit(name, want, g)
                if m != (n.at(sizes) if symbols else n):
                    raise self._unfit(name, want, g, sizes)
        self.check_sizes(sizes)
        return sizes

    def check_sizes(self, sizes: Sizes) -> None:
        """Raise ArgumentError where sizes break a constraint."""
        broken = SymbolicScope(self.constraints or ()).broken(sizes)
        if broken is not None:
            raise ArgumentError(
                f"{self.name} was exported with the constraint {broken}, the arguments have "
                + ", ".join(f"{k} = {v}" for k, v in sizes.items())
            )

    def _unfit(self, name: str, want: ShapedArray, got: ShapedArray,
               sizes: Sizes | None = None) -> ArgumentError:  # fmt: skip
        symbols = _symbols([want])
        known = ", ".join(f"{k} = {v}" for k, v in (sizes or {}).items() if k in symbols)
        return ArgumentError(
            f"{self.name} was exported for argument {name} of type {want}, got {got}"
            + (f" where {known}" if known else "")
        )

    def symbols(self) -> set[str]:
        """The symbols in the arguments' types."""
        return _symbols(self.in_avals)


def _symbols(avals: Sequence[ShapedArray]) -> set[str]:
    sizes: list[Any] = [n for a in avals for n in a.shape]
    return {s for n in sizes if isinstance(n, Dim) for s in n.symbols}


def _type(found: Json) -> ShapedArray:
    """A type, whose sizes may be symbols."""
    if type(found) is not list:
        return type_from_json(found)
    dims = {i: parse_stored(n["dim"]) for i, n in enumerate(found) if type(n) is dict and i}
    plain = type_from_json([1 if i in dims else n for i, n in enumerate(found)])
    shape = tuple(dims.get(i, n) for i, n in enumerate(plain.shape, 1))
    return plain.update(shape=shape)


def _text(found: Json) -> str:
    if not isinstance(found, str):
        raise FormatError(f"{short(found)} is no text")
    return found
