"""Host steps that decompose or solve with large matrices, as generated code.

A function a dtype serves many shapes: there is one for small matrices, in little code, one whose
products are those of `product`, and one whose products are `gemm`'s, on all threads.
"""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import TYPE_CHECKING

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile
from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.runtime.routine import Call, compiled

if TYPE_CHECKING:
    from funcgrad.backends.llvm.gemm import functions as gemm
    from funcgrad.backends.program import HostStep
else:
    gemm = Late("funcgrad.backends.llvm.gemm.functions")

_DTYPES = ("float32", "float64")
# Which module writes a function.
WRITERS = {
    "lu": "lu", "lu_parts": "lu_parts", "cholesky": "solve", "qr": "qr", "qr_blocks": "qr_blocks",
    "solve": "solve", "eigh": "eigen", "eigvalsh": "eigen", "lu_small": "small",
    "cholesky_small": "small", "solve_small": "small", "solve_few": "small", "product": "product",
}  # fmt: skip
_MULTIPLY = {"lu", "lu_parts", "cholesky", "qr_blocks", "solve"}
# Rows and columns to which there is a function in little code, and its own products do.
_MOST_SMALL, _MOST_OWN = 64, 512
# Multiply-adds, about, of a step that takes less time than to compile more, or more carefully.
_SMALL_WORK, _BRIEF_WORK = 1 << 20, 1 << 21
# Larger ones are faster by blocks.
_MOST_QR = 24
# The host's products of blocks are faster for larger ones.
_MOST_EIGH = {"float32": 2048, "float64": 512}


def lu_call(step: HostStep) -> Call | None:
    """How the function that runs a step of `lu` is called; None where the host is to run it."""
    *lead, m, n = step.ins[0].aval.shape
    return _call("lu", step, (math.prod(lead), m, n), "lu_small")


def lu_parts_call(step: HostStep) -> Call | None:
    """The same for a step of `lu_parts`, of complex matrices."""
    *lead, m, n = step.ins[0].aval.shape
    return _call("lu_parts", step, (math.prod(lead), m, n))


def cholesky_call(step: HostStep) -> Call | None:
    """The same for a step of `cholesky`."""
    *lead, n, _ = step.ins[0].aval.shape
    return _call("cholesky", step, (math.prod(lead), n), "cholesky_small")


def qr_call(step: HostStep) -> Call | None:
    """The same for a step of `qr`."""
    *lead, m, n = step.ins[0].aval.shape
    columns = m if step.params["full_matrices"] else min(m, n)
    what = "qr" if max(m, n) <= _MOST_QR else "qr_blocks"
    return _call(what, step, (math.prod(lead), m, n, columns))


def eigh_call(step: HostStep) -> Call | None:
    """The same for a step of `eigh`."""
    *lead, n, _ = step.ins[0].aval.shape
    if n > _MOST_EIGH.get(step.ins[0].aval.dtype.name, 0):
        return None
    what = "eigh" if step.params["compute_vectors"] else "eigvalsh"
    return _call(what, step, (math.prod(lead), n, int(step.params["lower"])))


def solve_call(step: HostStep) -> Call | None:
    """The same for a step of `triangular_solve`."""
    p, (*lead, n, _) = step.params, step.ins[0].aval.shape
    left = p["left_side"]
    columns = step.ins[1].aval.shape[-1 if left else -2]
    # x op(a) = b says the same as op(a)ᵀ xᵀ = bᵀ.
    turned = p["transpose_a"] != (not left)
    flags = left, p["lower"] == turned, turned, p["unit_diagonal"]
    lanes = engine().target.vector_bits // (8 * step.ins[0].aval.dtype.itemsize)
    small = "solve_few" if columns <= lanes else "solve_small"
    return _call("solve", step, (math.prod(lead), n, columns, *map(int, flags)), small)


def _call(what: str, step: HostStep, words: tuple[int, ...], small: str = "") -> Call | None:
    """The call of a function for matrices of these sizes: of *small*, if they and their work are.

    A thread's own products and masks for what is left of vectors go together: see `Tile.masks`.
    """
    dtype = step.ins[0].aval.dtype.name
    if dtype not in _DTYPES or not all(v.aval.size for v in step.ins):
        return None
    most = max(max(v.aval.shape[-2:]) for v in step.ins)
    work = words[0] * most**3
    masks = Tile.of(engine().target, FORMATS[dtype]).masks
    if small and most <= _MOST_SMALL and work <= _SMALL_WORK and masks:
        what = small
    own = what in _MULTIPLY and most <= _MOST_OWN and masks
    form = what, dtype, own, work <= _BRIEF_WORK
    needs = [partial(install, *form), *([partial(install, "product", dtype)] if own else [])]
    return Call(name_of(*form), words, tuple(needs))


def name_of(what: str, dtype: str, own: bool = False, brief: bool = False) -> str:
    """The symbol that `install` binds.

    >>> name_of("lu", "float32", own=True)
    'fg_lu_own_float32'
    """
    return "_".join(["fg", what, *["own"] * own, *["brief"] * brief, dtype])


@functools.cache
def install(
    what: str, dtype: str, own: bool = False, brief: bool = False, target: Engine | None = None
) -> int:
    """Compile a function, bind its symbol, and return its address.

    own: whether its products are those of `product`, not `gemm`'s
    brief: whether it is compiled quickly, as what runs for less time may be

    >>> install("cholesky_small", "float32") == install("cholesky_small", "float32")
    True
    """
    target = target or engine()
    if own:
        target.provide(name_of("product", dtype), partial(install, "product", dtype, target=target))
    elif what in _MULTIPLY:
        gemm.install(dtype, dtype, target)
    name, file = name_of(what, dtype, own, brief), f"matrix.{WRITERS[what]}"

    def write() -> ir.Module:
        module = ir.Module(what)
        emit = getattr(Late(f"funcgrad.backends.llvm.{file}"), f"emit_{what}")
        emit(Matrices(module, dtype, target.target, own), name)
        return module

    level = 1 if brief or WRITERS[what] in ("small", "product") else 3
    return compiled(name, write, level, ("matrix.functions", file), target)
