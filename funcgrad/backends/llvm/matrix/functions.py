"""Host steps that decompose or solve with large matrices, as generated code.

One function a dtype serves all shapes; its products are `gemm`'s.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from llvmlite import ir

from funcgrad.backends.llvm.gemm import functions as gemm
from funcgrad.backends.llvm.matrix.eigen import emit_eigh, emit_eigvalsh
from funcgrad.backends.llvm.matrix.lu import emit_lu
from funcgrad.backends.llvm.matrix.lu_parts import emit_lu_parts
from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.matrix.qr import emit_qr
from funcgrad.backends.llvm.matrix.qr_blocks import emit_qr_blocks
from funcgrad.backends.llvm.matrix.solve import emit_cholesky, emit_solve
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.runtime import pool, scratch

if TYPE_CHECKING:
    from funcgrad.backends.program import HostStep

_DTYPES = ("float32", "float64")
_EMIT = {
    "lu": emit_lu, "lu_parts": emit_lu_parts, "cholesky": emit_cholesky, "qr": emit_qr,
    "qr_blocks": emit_qr_blocks, "solve": emit_solve, "eigh": emit_eigh, "eigvalsh": emit_eigvalsh,
}  # fmt: skip
_MULTIPLY = {"lu", "lu_parts", "cholesky", "qr_blocks", "solve"}
# Larger ones are faster by blocks.
_MOST_QR = 24
# The host's products of blocks are faster for larger ones.
_MOST_EIGH = {"float32": 2048, "float64": 512}


def lu_call(step: HostStep) -> tuple[str, tuple[int, ...]] | None:
    """The name of the function that runs a step of `lu`, and the words of its call before the
    arrays; None where the host is to run it."""
    *lead, m, n = step.ins[0].aval.shape
    return _call("lu", step, (math.prod(lead), m, n))


def lu_parts_call(step: HostStep) -> tuple[str, tuple[int, ...]] | None:
    """The same for a step of `lu_parts`, of complex matrices."""
    *lead, m, n = step.ins[0].aval.shape
    return _call("lu_parts", step, (math.prod(lead), m, n))


def cholesky_call(step: HostStep) -> tuple[str, tuple[int, ...]] | None:
    """The same for a step of `cholesky`."""
    *lead, n, _ = step.ins[0].aval.shape
    return _call("cholesky", step, (math.prod(lead), n))


def qr_call(step: HostStep) -> tuple[str, tuple[int, ...]] | None:
    """The same for a step of `qr`."""
    *lead, m, n = step.ins[0].aval.shape
    columns = m if step.params["full_matrices"] else min(m, n)
    what = "qr" if max(m, n) <= _MOST_QR else "qr_blocks"
    return _call(what, step, (math.prod(lead), m, n, columns))


def eigh_call(step: HostStep) -> tuple[str, tuple[int, ...]] | None:
    """The same for a step of `eigh`."""
    *lead, n, _ = step.ins[0].aval.shape
    if n > _MOST_EIGH.get(step.ins[0].aval.dtype.name, 0):
        return None
    what = "eigh" if step.params["compute_vectors"] else "eigvalsh"
    return _call(what, step, (math.prod(lead), n, int(step.params["lower"])))


def solve_call(step: HostStep) -> tuple[str, tuple[int, ...]] | None:
    """The same for a step of `triangular_solve`."""
    p, (*lead, n, _) = step.params, step.ins[0].aval.shape
    left = p["left_side"]
    columns = step.ins[1].aval.shape[-1 if left else -2]
    # x op(a) = b says the same as op(a)ᵀ xᵀ = bᵀ.
    turned = p["transpose_a"] != (not left)
    flags = left, p["lower"] == turned, turned, p["unit_diagonal"]
    return _call("solve", step, (math.prod(lead), n, columns, *map(int, flags)))


def _call(what: str, step: HostStep, words: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    dtype = step.ins[0].aval.dtype.name
    if dtype not in _DTYPES or not all(v.aval.size for v in step.ins):
        return None
    install(what, dtype)
    return f"fg_{what}_{dtype}", words


@functools.cache
def install(what: str, dtype: str, target: Engine | None = None) -> int:
    """Compile a function, bind its symbol fg_<what>_<dtype>, and return its address.

    >>> install("cholesky", "float32") == install("cholesky", "float32")
    True
    """
    target = target or engine()
    pool.bind(target)
    scratch.bind(target)
    if what in _MULTIPLY:
        gemm.install(dtype, dtype, target)
    name = f"fg_{what}_{dtype}"

    def write() -> ir.Module:
        module = ir.Module(what)
        _EMIT[what](Matrices(module, dtype, target.target), name)
        return module

    # Products are called by words whose order is that of `gemm`.
    library = target.compile(write, key=f"{name} {generator('matrix.functions')}")
    target.bind(name, library)
    return library.address(name)
