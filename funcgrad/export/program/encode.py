"""Programs as JSON: variables are numbered, and what occurs often is written once.

A file's programs stand in a list, each after those that it calls. Inputs are variables 0, 1, …; the
results of equations follow in order, so that only their types are written. A program that is equal
to another one is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal
from funcgrad.core.primitive import Primitive
from funcgrad.core.sharding import Mesh
from funcgrad.core.source import Source
from funcgrad.errors import ExportError
from funcgrad.export.program import rules
from funcgrad.export.program.values import Json, Unknown, scalar_to_json, to_json, type_to_json
from funcgrad.export.program.vocabulary import is_known, op_name
from funcgrad.transforms.control.custom_call import (
    custom_jvp_call_p,
    custom_vjp_call_p,
    custom_vjp_tangent_p,
)
from funcgrad.transforms.control.custom_vmap import custom_vmap_call_p
from funcgrad.transforms.derivatives.checkpoint import checkpoint_p

# Ops whose parameters hold rules: how these are written.
_SPECIAL: dict[Primitive, Callable[[Eqn, rules.RuleTables], Json]] = {
    custom_jvp_call_p: rules.jvp_call_to_json,
    custom_vjp_call_p: rules.vjp_call_to_json,
    custom_vjp_tangent_p: rules.vjp_tangent_to_json,
    custom_vmap_call_p: rules.vmap_call_to_json,
}


class Encoder:
    """Writes programs; afterwards `tables()` and `weights` are what a file holds.

    name: of the function, for messages
    order: how often loaded programs can be differentiated by rules of the user's
    """

    def __init__(self, name: str, order: int):
        self.name = name
        self.order = self.turns = order
        self.weights: dict[str, np.ndarray] = {}
        self._programs: list[dict] = []
        self._sources: list[list] = []
        self._meshes: list[dict] = []
        self._numbers: dict[Any, int] = {}  # of what was written
        self._names: dict[int, str] = {}
        self._contents: dict[tuple, str] = {}
        self._held: list[Any] = []  # so that no id becomes another object's

    def tables(self) -> dict[str, list]:
        """The lists that numbers refer to."""
        return {"sources": self._sources, "meshes": self._meshes, "programs": self._programs}

    @contextmanager
    def lower(self, what: str) -> Iterator[None]:
        """What is written inside can be differentiated ("order") or transposed ("turns") once less
        by rules."""
        setattr(self, what, getattr(self, what) - 1)
        try:
            yield
        finally:
            setattr(self, what, getattr(self, what) + 1)

    # ---- what values refer to

    def program(self, jaxpr: Jaxpr) -> int:
        """The number of a program, which is written if it wasn't."""
        key = ("program", id(jaxpr), self.order, self.turns)
        if key not in self._numbers:
            self._held.append(jaxpr)
            self._numbers[key] = self._interned(self._programs, self._written(jaxpr))
        return self._numbers[key]

    def mesh(self, mesh: Mesh) -> int:
        """The number of a mesh: names, sizes and types of its axes, not its devices."""
        axes = [list(axis) for axis in mesh.shape.items()]
        found = {"axes": axes, "abstract": mesh.is_abstract}
        if mesh.auto_axes != mesh.axis_names:
            found["types"] = [kind.value for kind in mesh.axis_types]
        return self._interned(self._meshes, found)

    def weight(self, array: Any) -> str:
        """The name of an array, the same for equal ones."""
        if id(array) not in self._names:
            held = array.value if type(array) is Array else np.asarray(array)
            if held.dtype not in dtypes.CANONICAL:
                raise ExportError(f"export of {self.name}: {array!r} is no array for a file")
            self._held.append(array)
            # Functions that NumPy's arrays are given to hold a copy at each use.
            data = np.ascontiguousarray(held).tobytes()
            content = held.dtype.name, held.shape, hashlib.sha256(data).digest()
            name = self._contents.setdefault(content, f"w{len(self.weights)}")
            self._names[id(array)] = name
            self.weights.setdefault(name, held)
        return self._names[id(array)]

    def _interned(self, table: list, found: Json) -> int:
        key = (id(table), json.dumps(found))
        if key not in self._numbers:
            self._numbers[key] = len(table)
            table.append(found)
        return self._numbers[key]

    # ---- programs

    def _written(self, jaxpr: Jaxpr) -> dict:
        numbers: dict[Atom, int] = {v: i for i, v in enumerate(jaxpr.ins)}
        eqns = []
        for eqn in jaxpr.eqns:
            eqns.append(self._equation(eqn, numbers))
            for v in eqn.outs:
                numbers[v] = len(numbers)
        found: dict[str, Json] = {"in": [type_to_json(v.aval) for v in jaxpr.ins]}
        if jaxpr.names is not None:
            found["names"] = list(jaxpr.names)
        return found | {"eqns": eqns, "out": [_atom(a, numbers) for a in jaxpr.outs]}

    def _equation(self, eqn: Eqn, numbers: dict[Atom, int]) -> dict:
        if not is_known(eqn.prim):
            raise self._error(eqn, "it is no operation of the library's, which files could name")
        found: dict[str, Json] = {
            "op": op_name(eqn.prim),
            "in": [_atom(a, numbers) for a in eqn.ins],
            "out": [type_to_json(v.aval) for v in eqn.outs],
        }
        params = self._params(eqn)
        if params:
            found["params"] = params
        if eqn.source is not None:
            found["at"] = self._source(eqn.source)
        if eqn.scopes:
            found["scopes"] = list(eqn.scopes)
        return found

    def _params(self, eqn: Eqn) -> dict[str, Json]:
        special = _SPECIAL.get(eqn.prim)
        if special is not None:
            return special(eqn, self)
        found = {}
        for name, x in eqn.params.items():
            try:
                policy = eqn.prim is checkpoint_p and name == "policy"
                found[name] = rules.policy_to_json(x) if policy else to_json(x, self)
            except Unknown:
                what = f"the Python function {x!r}" if callable(x) else f"a {type(x).__name__}"
                raise self._error(eqn, f"its {name} is {what}, which a file can't hold") from None
        return found

    def _error(self, eqn: Eqn, why: str) -> ExportError:
        at = "" if eqn.source is None else f" at {eqn.source}"
        return ExportError(f"export of {self.name}: {eqn.prim}{at} can't be exported: {why}")

    def _source(self, source: Source) -> int:
        """A line by its file's name alone, which is the same on all machines."""
        file = os.path.basename(source.file)
        return self._interned(self._sources, [file, source.line, source.code.co_name])


def _atom(atom: Atom, numbers: dict[Atom, int]) -> Json:
    if isinstance(atom, Literal):
        return {"type": type_to_json(atom.aval), "bits": scalar_to_json(atom.value)}
    return numbers[atom]
