"""Whether a function of a symbolic size computes row by row, so that one program does for all.

The partitioner proves it: with as many devices as rows, each device has one row of what has rows,
and all of everything else. Where what devices run has no collectives, is the same for all numbers
of rows, and gives results that are cut in rows, each row of a result follows from the same row of
the arguments. Then the program of some rows, run on one part after the other, computes any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr, sub_jaxprs
from funcgrad.core.sharding import AbstractMesh, NamedSharding, P
from funcgrad.errors import ExportError, FuncgradError
from funcgrad.export.content import Content
from funcgrad.export.symbolic import Dim
from funcgrad.parallel.partitioner.partition import partition
from funcgrad.parallel.programs.program import SpmdProgram

# Rows at a time of the programs that compute any number: of each as many as fit in what is left.
BLOCKS = (64, 8, 1)
_AXIS = "rows"


def row_symbol(content: Content) -> str:
    """The symbol that counts the rows. Raises ExportError where rows aren't independent, which says
    why."""
    signature = content.signature
    symbols = sorted(signature.symbols())
    if len(symbols) != 1:
        raise ExportError(f"its sizes have {len(symbols)} names, {symbols}")
    if content.nr_devices() > 1:
        raise ExportError("it is a program of several devices")
    for name, aval in zip(signature.names, signature.in_avals, strict=True):
        if not _fits(aval, symbols[0]):
            raise ExportError(f"{symbols[0]} isn't the first size of argument {name}, {aval}")
    for i, aval in enumerate(signature.out_avals):
        if not _fits(aval, symbols[0]):
            raise ExportError(f"{symbols[0]} isn't the first size of result {i}, {aval}")
    # Integers are polynomials of the size, of degree two: what three sizes share, all do.
    try:
        first, *others = [_per_row(content, n) for n in sorted({1, 2, 3, *BLOCKS})]
    except FuncgradError as e:
        raise ExportError(f"it computes no single rows: {e}") from None
    for program in others:
        if (op := _collective(program.jaxpr)) or _cut(program, signature.out_avals):
            raise ExportError(op or "its results aren't computed row by row")
        if repr(program.jaxpr) != repr(first.jaxpr):
            raise ExportError(f"what it computes in a row depends on the size {symbols[0]}")
    return symbols[0]


def at_any(content: Content, rows: int) -> Content:
    """The content at a number of rows, whatever the constraints are."""
    free = replace(content.signature, constraints=())
    symbol = next(iter(free.symbols()))
    return Content(free, content.tables, content.weights).at({symbol: rows})


def has_rows(aval: ShapedArray) -> bool:
    """Whether an array's first size is a symbol."""
    return any(isinstance(n, Dim) for n in aval.shape[:1])


def _fits(aval: ShapedArray, symbol: str) -> bool:
    """Whether an array has rows, or no symbols."""
    first, others = aval.shape[:1], aval.shape[1:]
    ok = all(repr(n) == symbol for n in first if isinstance(n, Dim))
    return ok and not any(isinstance(n, Dim) for n in others)


def _per_row(content: Content, rows: int) -> SpmdProgram:
    """What each of as many devices as rows runs."""
    closed = at_any(content, rows).program()
    mesh = AbstractMesh(rows, _AXIS)
    whole, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P(_AXIS))
    cuts = [cut if has_rows(aval) else whole for aval in content.signature.in_avals]
    return partition(closed.jaxpr, mesh, [*[whole] * len(closed.consts), *cuts])


def _cut(program: SpmdProgram, outs: Sequence[ShapedArray]) -> bool:
    """Whether a result with rows isn't cut in these, or one without is cut."""
    wanted = [((_AXIS,),) * has_rows(a) + ((),) * (a.ndim - has_rows(a)) for a in outs]
    return list(program.out_cuts) != wanted


def _collective(jaxpr: Jaxpr) -> str:
    """What connects devices, and so rows; empty where nothing does."""
    for eqn in jaxpr.eqns:
        if any(_AXIS in p for p in eqn.params.values() if isinstance(p, tuple)):
            at = f" at {eqn.source}" if eqn.source is not None else ""
            return f"its rows depend on each other, or on their numbers{at} ({eqn.prim.name})"
        for sub in sub_jaxprs(eqn):
            if found := _collective(sub):
                return found
    return ""
