"""What a file of a program holds: its signature, its programs as JSON, and its arrays.

Where sizes are symbols, signature and programs hold `{"dim": "2*b"}` in place of integers, and a
program is made for each size that is asked for.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from funcgrad import tree
from funcgrad.core.aval import ShapedArray, ShapeDtypeStruct
from funcgrad.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from funcgrad.core.sharding import NamedSharding
from funcgrad.errors import ArgumentError, ExportError, FormatError
from funcgrad.export.program.decode import Decoder
from funcgrad.export.program.encode import Encoder
from funcgrad.export.program.trees import tree_to_json
from funcgrad.export.program.values import Json, short, to_json, type_from_json, type_to_json
from funcgrad.export.symbolic import Dim, Sizes, SymbolicScope, parse_stored, solve
from funcgrad.export.unify import Differ, Unifier, monomials, points, specialized
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.transforms.jit.stages import Program, Traced


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


def symbolic_content(
    trace: Callable[..., Traced], args: tuple, kwargs: dict, write: Callable[[Traced], Content]
) -> Content:
    """What the file of a function of symbolic sizes holds: traced at some sizes, and unified.

    Raises ExportError where a symbol doesn't follow from a call's shapes, or where the function has
    no one program for all sizes.
    """
    leaves, treedef = tree.flatten((args, kwargs))
    dims = [n for x in leaves if isinstance(x, ShapeDtypeStruct) for n in x.shape
            if isinstance(n, Dim)]  # fmt: skip
    scopes = {id(d.scope): d.scope for d in dims}
    if len(scopes) > 1:
        raise ExportError(
            f"export: the sizes {dims} are of different scopes: give symbolic_shape the same scope="
        )
    scope = next(iter(scopes.values())) or SymbolicScope()
    symbols = sorted({name for d in dims for name in d.symbols})
    tried = points(symbols, scope, dims)
    if len(tried) < len(monomials(symbols)):
        raise ExportError(
            f"export: too few sizes of {', '.join(symbols)} meet the constraints {scope}: at least "
            f"{len(monomials(symbols))} that depend on each other by no equation are traced"
        )
    unknown = set(symbols) - solve([(d, d.at(tried[0])) for d in dims]).keys()
    if unknown:
        raise ExportError(
            f"export: {', '.join(sorted(unknown))} doesn't follow from the sizes {dims}: each "
            "symbol needs a size in which it alone is unknown, and of degree one"
        )
    contents = []
    for sizes in tried:
        given, named = treedef.unflatten([_at_sizes(x, sizes) for x in leaves])
        contents.append(write(trace(*given, **named)))
    return _unified(contents, symbols, tried, scope)


def _at_sizes(x: Any, sizes: Sizes) -> Any:
    if not isinstance(x, ShapeDtypeStruct):
        return x
    shape = [n.at(sizes) if isinstance(n, Dim) else n for n in x.shape]
    return ShapeDtypeStruct(shape, x.dtype, weak_type=x.weak_type, sharding=x.sharding)


def _unified(
    contents: Sequence[Content], symbols: Sequence[str], tried: Sequence[Sizes],
    scope: SymbolicScope,
) -> Content:  # fmt: skip
    first = contents[0]
    name = first.signature.name
    for c in contents[1:]:
        same = c.weights.keys() == first.weights.keys() and all(
            x.dtype == first.weights[k].dtype and np.array_equal(x, first.weights[k])
            for k, x in c.weights.items()
        )
        if not same:
            raise ExportError(
                f"export of {name}: it captures arrays that depend on the sizes of its arguments: "
                "compute them inside, with funcgrad.numpy"
            )
    unifier = Unifier(symbols, tried)
    try:
        signature = unifier.join([c.signature.to_json() for c in contents])
        tables = unifier.join([c.tables for c in contents])
    except Differ as e:
        at = f" in {e.where}" if e.where else ""
        raise ExportError(
            f"export of {name}: there is no one program for all sizes{at}: {e.what}. Programs were "
            f"traced at {', '.join(map(str, tried[:3]))}, …; export it for each size that is needed"
        ) from None
    parsed = Signature.parse(signature | {"constraints": list(scope.constraints)})
    return Content(replace(parsed, example=tuple(tried[0].items())), tables, first.weights)
