"""Host steps that generated code runs: routines of this backend in place of a primitive's `impl`.

A routine is void(ptr call), where a call is an array of i64 words: those that describe the arrays,
then their addresses, operands first. Whatever the routines don't know stays the host's.
"""

from __future__ import annotations

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.runtime.routine import Call
from funcgrad.backends.lower.primitives import key_of
from funcgrad.backends.program import HostStep
from funcgrad.core.primitive import Primitive
from funcgrad.ops.fft import fft_p
from funcgrad.ops.linalg.decompositions import eig_p, eigh_p, qr_p, svd_p
from funcgrad.ops.linalg.triangular import cholesky_p, lu_p, triangular_solve_p
from funcgrad.ops.sort import sort_p, top_k_p

_HERE = __name__.split(".routines.")[0]
# Where a step's call is found, by its primitive: a module that is loaded then, and a function.
_ROUTINES: dict[Primitive | str, tuple[str, str]] = {
    cholesky_p: ("matrix.functions", "cholesky_call"),
    "csr_matmuls": ("routines.csr", "csr_call"),
    eigh_p: ("matrix.functions", "eigh_call"),
    lu_p: ("matrix.functions", "lu_call"),
    "lu_parts": ("matrix.functions", "lu_parts_call"),
    qr_p: ("matrix.functions", "qr_call"),
    "row_order": ("routines.rows", "order_call"),
    "scatter_elements": ("routines.elements", "elements_call"),
    "shuffle": ("sort.functions", "shuffle_call"),
    sort_p: ("sort.functions", "sort_call"),
    svd_p: ("matrix.values", "svd_call"),
    top_k_p: ("sort.functions", "top_call"),
    triangular_solve_p: ("matrix.functions", "solve_call"),
}
# The same of what runs on complex views of pairs.
_ON_PAIRS: dict[Primitive, tuple[str, str]] = {
    eig_p: ("matrix.values", "eigvals_call"),
    fft_p: ("routines.fft_rows", "fft_call"),
}


def routine(step: HostStep) -> Call | None:
    """How the routine that runs a step is called; None if Python runs it."""
    key, nothing = key_of(step.prim), ("", "")
    on_pairs = key == "on_complex"
    module, find = (
        _ON_PAIRS.get(step.params["prim"], nothing) if on_pairs else _ROUTINES.get(key, nothing)
    )
    return getattr(Late(f"{_HERE}.{module}"), find)(step) if module else None
