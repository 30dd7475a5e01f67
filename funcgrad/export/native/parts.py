"""A function's compiled code and its arrays, as a C library has them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from funcgrad.backends.llvm.build import built
from funcgrad.backends.llvm.native.target import default_target
from funcgrad.backends.llvm.standalone import standalone
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr, sub_jaxprs
from funcgrad.errors import CompileError, ExportError
from funcgrad.export.exported import Exported
from funcgrad.export.tensors import tensors_to_bytes
from funcgrad.ops.sharding import jaxpr_meshes

_BLOCK = 64
_LAPACK = {"gesdd": "svd", "geev": "eig"}  # routines, and the ops that call them


@dataclass(frozen=True)
class Parts:
    """What a library is made of.

    weights: a safetensors file with all constants and captured arrays
    constants, captured: where they begin in it
    head: bytes of it that say what it holds
    arena: bytes of temporaries of the program, without what its tasks take beside
    """

    objects: list[bytes]
    features: tuple[str, ...]
    cpu: str
    names: tuple[str, ...]
    ins: tuple[ShapedArray, ...]
    outs: tuple[ShapedArray, ...]
    weights: bytes
    head: int
    constants: tuple[int, ...]
    captured: tuple[int, ...]
    arena: int

    @property
    def takes_scratch(self) -> bool:
        """Whether tasks take memory."""
        return any(b"fg_scratch_take" in o for o in self.objects)


def parts_of(exported: Exported, prefix: str) -> Parts:
    """The parts of a function, the names of whose code have a prefix.

    Raises ExportError for what only a Python process can do: steps that NumPy computes, by the name
    of the operation and the user's line, and programs of several devices.
    """
    name, closed = exported.fun_name, exported.jaxpr
    if jaxpr_meshes(closed.jaxpr):
        raise ExportError(f"export.aot of {name}: a C library runs on one device, not on a mesh")
    made = built(closed.jaxpr, (False,) * len(closed.jaxpr.ins), name)
    if made.host_steps:
        # An op on complex numbers is one around another.
        ops = list(dict.fromkeys(s.params.get("prim", s.prim).name for s in made.host_steps))
        raise ExportError(
            f"export.aot of {name}: {', '.join(op + _place(closed.jaxpr, op) for op in ops)} would "
            "be computed by NumPy, which a C library hasn't"
        )
    try:
        code = standalone(made, prefix)
    except CompileError as e:
        op = next((op for routine, op in _LAPACK.items() if routine in str(e)), "")
        raise ExportError(
            f"export.aot of {name}: {op}{_place(closed.jaxpr, op)} can't be in a C library: {e}"
        ) from None
    arrays = {f"constant{i}": np.asarray(c) for i, c in enumerate(made.program.constants)}
    numbers: dict[int, int] = {}  # of captured arrays, some of which are several inputs
    for c in closed.consts:
        i = numbers.setdefault(id(c), len(numbers))
        arrays[f"captured{i}"] = np.asarray(c.value)
    weights = tensors_to_bytes(arrays)
    places, head = _places(weights)
    return Parts(
        objects=code.objects,
        features=code.features,
        cpu=default_target().cpu,
        names=exported.arg_names,
        ins=tuple(closed.in_avals),
        outs=tuple(closed.out_avals),
        weights=weights,
        head=head,
        constants=tuple(places[f"constant{i}"] for i in range(len(made.program.constants))),
        captured=tuple(places[f"captured{numbers[id(c)]}"] for c in closed.consts),
        arena=-(-made.program.arena_bytes // _BLOCK) * _BLOCK,
    )


def _place(jaxpr: Jaxpr, op: str) -> str:
    """Where in the user's code an operation stands; empty where planning made it."""
    for eqn in jaxpr.eqns:
        if eqn.prim.name == op and eqn.source is not None:
            return f" at {eqn.source}"
        for sub in sub_jaxprs(eqn):
            if found := _place(sub, op):
                return found
    return ""


def _places(weights: bytes) -> tuple[dict[str, int], int]:
    """Where each array begins in a safetensors file, and where all do."""
    (n,) = struct.unpack_from("<Q", weights)
    entries = json.loads(weights[8 : 8 + n])
    return {name: 8 + n + e["data_offsets"][0] for name, e in entries.items()}, 8 + n


def alignment(avals: Sequence[ShapedArray]) -> list[int]:
    """How arrays have to lie: as a number of their dtype."""
    return [max(1, a.dtype.itemsize // (2 if a.dtype.kind == "c" else 1)) for a in avals]
