"""Programs from JSON, each field checked and each program typechecked.

Nothing that is read is run, imported or evaluated: operations are looked up by name among the
library's. Whatever is wrong is a FormatError, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import Constant
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var, typecheck
from funcgrad.core.primitive import Primitive
from funcgrad.core.sharding import AbstractMesh, AxisType, Mesh
from funcgrad.core.source import Source
from funcgrad.errors import FormatError, ShardingError
from funcgrad.export.program.rules import Rules, policy_from_json, vmap_rule_from_json
from funcgrad.export.program.values import (
    Json,
    from_json,
    scalar_from_json,
    short,
    type_from_json,
)
from funcgrad.export.program.vocabulary import op_named, upgraded
from funcgrad.parallel.meshes import make_mesh
from funcgrad.transforms.control.custom_call import (
    custom_jvp_call_p,
    custom_vjp_call_p,
    custom_vjp_tangent_p,
)
from funcgrad.transforms.control.custom_vmap import custom_vmap_call_p
from funcgrad.transforms.derivatives.checkpoint import checkpoint_p

_MOST_DEVICES = 1 << 16
_AXIS_TYPES = {kind.value: kind for kind in AxisType}


class Decoder:
    """Reads the programs of a file.

    tables: what `Encoder.tables` gave, as JSON
    weights: the file's arrays
    """

    def __init__(self, tables: Json, weights: dict[str, np.ndarray]):
        self.weights = weights
        self._rules = Rules(self)
        self._types: dict[Any, ShapedArray] = {}
        self._constants: dict[str, Constant] = {}
        self._sources = [_source(s) for s in _list(tables, "sources")]
        self.meshes = [_mesh(m) for m in _list(tables, "meshes")]
        self._programs: list[Jaxpr] = []
        for found in _list(tables, "programs"):
            self._programs.append(self._program(found))

    def check(self, main: Jaxpr) -> None:
        """Raise FormatError where a program that can be reached doesn't typecheck."""
        axes = {name: n for mesh in self.meshes for name, n in mesh.shape.items()}
        typecheck(main)
        with context.scoped(axes={**context.current().axes, **axes}):
            for jaxpr in {id(p): p for p in self._rules.programs}.values():
                typecheck(jaxpr)

    # ---- what values refer to

    def program(self, number: Json) -> Jaxpr:
        """The program of a number: one that was read before."""
        return _at(self._programs, number, "program")

    def mesh(self, number: Json) -> Mesh:
        """The mesh of a number."""
        return _at(self.meshes, number, "mesh")

    def weight(self, name: Json) -> Constant:
        """The array of a name."""
        if not isinstance(name, str) or name not in self.weights:
            raise FormatError(f"the program reads an array {short(name)}, which the file lacks")
        if name not in self._constants:
            self._constants[name] = Constant(Array(self.weights[name]))
        return self._constants[name]

    def value(self, found: Json) -> Any:
        """A parameter."""
        return from_json(found, self)

    # ---- programs

    def type(self, found: Json) -> ShapedArray:
        """A type, made once."""
        key = tuple(found) if type(found) is list else found
        if key not in self._types:
            self._types[key] = type_from_json(found)
        return self._types[key]

    def _program(self, found: Json) -> Jaxpr:
        ins = [Var(self.type(t)) for t in _list(found, "in")]
        variables = list(ins)
        eqns = [self._equation(e, variables) for e in _list(found, "eqns")]
        outs = [self._atom(a, variables) for a in _list(found, "out")]
        names = found.get("names")
        if names is not None:
            names = list(map(str, _list(found, "names")))
            if len(names) != len(ins):
                raise FormatError(f"{len(ins)} inputs have {len(names)} names")
        return Jaxpr(ins, eqns, outs, names)

    def _equation(self, found: Json, variables: list[Var]) -> Eqn:
        text = found["op"]
        prim, version = op_named(text if isinstance(text, str) else "")
        ins = [self._atom(a, variables) for a in _list(found, "in")]
        outs = [Var(self.type(t)) for t in _list(found, "out")]
        special = _SPECIAL.get(prim)
        given = found.get("params", {})
        if special is None:
            params = {str(name): self.value(x) for name, x in given.items()}
        else:
            params = special(self, given, [a.aval for a in ins], [v.aval for v in outs])
        params = upgraded(prim.name, version, params)
        place = found.get("at")
        source = None if place is None else _at(self._sources, place, "line")
        scopes = tuple(map(str, found.get("scopes", ())))
        variables += outs
        return Eqn(prim, ins, outs, params, source, scopes)

    def _atom(self, found: Json, variables: Sequence[Var]) -> Atom:
        if type(found) is int:
            return _at(variables, found, "variable")
        aval = self.type(found["type"])
        if aval.shape:
            raise FormatError(f"a literal can't be {aval}")
        return Literal(scalar_from_json(found["bits"], aval.dtype), aval)

    # ---- operations whose parameters hold rules

    def _jvp_call(self, p: Json, ins: list, outs: list) -> dict:
        return self._call(p, ins, outs, self._rules.jvp_call)

    def _vjp_call(self, p: Json, ins: list, outs: list) -> dict:
        return self._call(p, ins, outs, self._rules.vjp_call)

    def _call(self, p: Json, ins: list, outs: list, read: Callable) -> dict:
        n = p["n_consts"]
        if type(n) is not int or not 0 <= n <= len(ins):
            raise FormatError(f"a call of {len(ins)} operands has {short(n)} constants")
        call = read(p["call"], ins[n:], outs)
        return {"jaxpr": self.value(p["jaxpr"]), "call": call, "n_consts": n}

    def _vjp_tangent(self, p: Json, ins: list, outs: list) -> dict:
        return self._rules.vjp_tangent(p, ins)

    def _vmap_call(self, p: Json, ins: list, outs: list) -> dict:
        return {"jaxpr": self.value(p["jaxpr"]), "rule": vmap_rule_from_json(p["rule"])}

    def _checkpoint(self, p: Json, ins: list, outs: list) -> dict:
        read = {"policy": policy_from_json}
        return {name: read.get(name, self.value)(x) for name, x in p.items()}


_SPECIAL: dict[Primitive, Callable[[Decoder, Json, list, list], dict]] = {
    custom_jvp_call_p: Decoder._jvp_call,
    custom_vjp_call_p: Decoder._vjp_call,
    custom_vjp_tangent_p: Decoder._vjp_tangent,
    custom_vmap_call_p: Decoder._vmap_call,
    checkpoint_p: Decoder._checkpoint,
}


def _list(found: Json, name: str) -> list:
    inner = found.get(name) if type(found) is dict else None
    if type(inner) is not list:
        raise FormatError(f"{short(found)} has no list {name!r}")
    return inner


def _at(table: Sequence, number: Json, what: str) -> Any:
    if type(number) is not int or not 0 <= number < len(table):
        raise FormatError(f"there is no {what} {short(number)} at that place")
    return table[number]


def _stub() -> None:
    """Its code stands for the places of loaded equations; it is never run."""


def _source(found: Json) -> Source:
    """A line of a file that isn't here, as programs hold lines."""
    file, line, function = found
    ok = isinstance(file, str) and isinstance(function, str) and type(line) is int
    if not ok or not 0 <= line < 1 << 30:
        raise FormatError(f"{short(found)} is no line of a file")
    code = _stub.__code__.replace(co_filename=file, co_firstlineno=line, co_name=function)
    return Source(code, -1)  # an instruction that isn't there: the line is the first one


def _mesh(found: Json) -> Mesh:
    """A mesh of the devices that there are; without devices where a job has too few."""
    names = tuple(str(name) for name, _ in found["axes"])
    sizes = tuple(n for _, n in found["axes"])
    if not all(type(n) is int and 1 <= n < 1 << 30 for n in sizes):
        raise FormatError(f"{short(found)} is no mesh")
    kinds = found.get("types", [AxisType.Auto.value] * len(names))
    types = [_AXIS_TYPES[kind] for kind in kinds]
    abstract = AbstractMesh(sizes, names, types)
    if found["abstract"] is not False or abstract.size > _MOST_DEVICES:
        return abstract
    try:
        return make_mesh(sizes, names, types)
    except ShardingError:  # the job has another number of ranks
        return abstract
