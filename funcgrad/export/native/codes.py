"""A function's compiled code for a processor, made here or by a process of its own.

A process plans code for one target. So code for another is made by a process that is told that
target, reads the function from a file, and writes objects and arrays to files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from funcgrad.backends.llvm.build import built
from funcgrad.backends.llvm.native.target import Target, default_target
from funcgrad.backends.llvm.rewrites.constants import Panels
from funcgrad.backends.llvm.standalone import standalone
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr, sub_jaxprs
from funcgrad.errors import CompileError, ExportError
from funcgrad.export.constants import common_panels, panelled
from funcgrad.export.exported import Exported, load
from funcgrad.export.program.values import type_from_json, type_to_json
from funcgrad.export.tensors import tensors_from_bytes, tensors_to_bytes
from funcgrad.ops.sharding import jaxpr_meshes
from funcgrad.transforms.passes.simplify import simplify

_LAPACK = {"gesdd": "svd", "geev": "eig"}  # routines, and the ops that call them


class Piece(NamedTuple):
    """What is compiled by itself.

    prefix: how the names of its code begin
    rows: how many it computes of those that a size counts; 0: no size has a name
    """

    prefix: str
    rows: int


@dataclass(frozen=True)
class Code:
    """A program for one processor.

    prefix, rows: of its `Piece`
    constants: arrays that it reads beside those that the function captured
    arena: bytes of temporaries, without what its tasks take beside
    panels: which captured arrays it reads laid out, by number, and how: all codes that are made
        together, the same
    """

    prefix: str
    rows: int
    objects: Sequence[bytes]
    features: Sequence[str]
    cpu: str
    constants: Sequence[np.ndarray]
    arena: int
    panels: Mapping[int, Panels]


def codes_of(exported: Exported, pieces: Sequence[Piece], runtime: str, target: str,
             lays_out: bool) -> list[Code]:  # fmt: skip
    """The code of a function's pieces for a target.

    runtime: how the names of functions begin that code calls and whoever links it has to provide
    lays_out: whether captured arrays may lie as this target reads them

    Raises ExportError for what only a Python process can do: steps that NumPy computes, by the name
    of the operation and the user's line, and programs of several devices.
    """
    if target == (os.environ.get("FUNCGRAD_TARGET") or "host"):
        return _codes_here(exported, pieces, runtime, lays_out)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        exported.save(folder / "exported.fg")
        asked = {"pieces": pieces, "runtime": runtime, "lays_out": lays_out}
        (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, temporary],
            env=os.environ | {"FUNCGRAD_TARGET": target, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ExportError(f"export.aot for {target}: {done.stderr.strip()[-2000:]}")
        return [_read(folder / str(i), piece) for i, piece in enumerate(pieces)]


_ELSEWHERE = """
import pathlib, sys
from funcgrad import errors
from funcgrad.export.native import codes
try:
    codes.answer(pathlib.Path(sys.argv[1]))
except (errors.ExportError, ValueError) as e:
    raise SystemExit(str(e))
"""


def answer(folder: Path) -> None:
    """Compile what a file in a folder asks for, for this process's target, into the folder."""
    asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    exported = load(folder / "exported.fg")
    pieces = [Piece(*piece) for piece in asked["pieces"]]
    for i, code in enumerate(_codes_here(exported, pieces, asked["runtime"], asked["lays_out"])):
        _write(code, folder / str(i))


def _write(code: Code, folder: Path) -> None:
    folder.mkdir()
    arrays = {str(i): c for i, c in enumerate(code.constants)}
    types = [type_to_json(ShapedArray(c.shape, c.dtype)) for c in code.constants]
    facts = {"features": code.features, "cpu": code.cpu, "arena": code.arena, "types": types,
             "objects": len(code.objects), "panels": list(code.panels.items())}  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "constants.safetensors").write_bytes(tensors_to_bytes(arrays))
    for i, data in enumerate(code.objects):
        (folder / f"{i}.o").write_bytes(data)


def _read(folder: Path, piece: Piece) -> Code:
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    types = {str(i): type_from_json(t) for i, t in enumerate(facts["types"])}
    arrays = tensors_from_bytes((folder / "constants.safetensors").read_bytes(), types)
    return Code(
        prefix=piece.prefix,
        rows=piece.rows,
        objects=[(folder / f"{i}.o").read_bytes() for i in range(facts["objects"])],
        features=facts["features"],
        cpu=facts["cpu"],
        constants=list(arrays.values()),
        arena=facts["arena"],
        panels={i: Panels(*p) for i, p in facts["panels"]},
    )


def runs_here(target: str) -> bool:
    """Whether the code of a target, as `codes_of` takes it, may be run by this machine."""
    return Target.named(target).runs_here


def _codes_here(exported: Exported, pieces: Sequence[Piece], runtime: str,
                lays_out: bool) -> list[Code]:  # fmt: skip
    """The code for this process's target."""
    programs = [(exported.rows(p.rows) if p.rows else exported).jaxpr for p in pieces]
    panels: dict[int, Panels] = {}
    if lays_out:
        slim = [simplify(closed.jaxpr) for closed in programs]
        panels = common_panels(slim, len(programs[0].consts))
    pairs = zip(programs, pieces, strict=True)
    return [_code_of(exported.fun_name, c.jaxpr, p, runtime, panels) for c, p in pairs]


def _code_of(name: str, jaxpr: Jaxpr, piece: Piece, runtime: str,
             panels: Mapping[int, Panels]) -> Code:  # fmt: skip
    if jaxpr_meshes(jaxpr):
        raise ExportError(f"export.aot of {name}: a C library runs on one device, not on a mesh")
    compiled = panelled(simplify(jaxpr), panels) if panels else jaxpr
    made = built(compiled, (False,) * len(compiled.ins), name)
    if made.host_steps:
        # An op on complex numbers is one around another.
        ops = list(dict.fromkeys(s.params.get("prim", s.prim).name for s in made.host_steps))
        raise ExportError(
            f"export.aot of {name}: {', '.join(op + _place(jaxpr, op) for op in ops)} would "
            "be computed by NumPy, which a C library hasn't"
        )
    try:
        code = standalone(made, piece.prefix, runtime)
    except CompileError as e:
        op = next((op for routine, op in _LAPACK.items() if routine in str(e)), "")
        raise ExportError(
            f"export.aot of {name}: {op}{_place(jaxpr, op)} can't be in a C library: {e}"
        ) from None
    constants = [np.asarray(c) for c in made.program.constants]
    return Code(*piece, code.objects, code.features, default_target().cpu, constants,
                made.program.arena_bytes, panels)  # fmt: skip


def _place(jaxpr: Jaxpr, op: str) -> str:
    """Where in the user's code an operation stands; empty where planning made it."""
    for eqn in jaxpr.eqns:
        if eqn.prim.name == op and eqn.source is not None:
            return f" at {eqn.source}"
        for sub in sub_jaxprs(eqn):
            if found := _place(sub, op):
                return found
    return ""
