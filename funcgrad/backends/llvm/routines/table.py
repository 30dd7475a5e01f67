"""Host steps that generated code runs: routines of this backend in place of a primitive's `impl`.

A routine is void(ptr call), where a call is an array of i64 words: those that describe the arrays,
then their addresses, operands first. Whatever the routines don't know stays the host's.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.backends.llvm.matrix.functions import (
    cholesky_call,
    eigh_call,
    lu_call,
    lu_parts_call,
    qr_call,
    solve_call,
)
from funcgrad.backends.llvm.routines.elements import elements_call
from funcgrad.backends.llvm.routines.fft_rows import fft_call
from funcgrad.backends.llvm.routines.rows import order_call
from funcgrad.backends.llvm.sort.functions import shuffle_call, sort_call, top_call
from funcgrad.backends.lower.primitives import key_of
from funcgrad.backends.program import HostStep
from funcgrad.core.primitive import Primitive
from funcgrad.ops.linalg.decompositions import eigh_p, qr_p
from funcgrad.ops.linalg.triangular import cholesky_p, lu_p, triangular_solve_p
from funcgrad.ops.sort import sort_p, top_k_p

# A routine's symbol, and the words of a call before the addresses.
Call = tuple[str, tuple[int, ...]]
_ROUTINES: dict[Primitive | str, Callable[[HostStep], Call | None]] = {
    cholesky_p: cholesky_call,
    eigh_p: eigh_call,
    lu_p: lu_call,
    "lu_parts": lu_parts_call,
    "on_complex": fft_call,
    qr_p: qr_call,
    "row_order": order_call,
    "scatter_elements": elements_call,
    "shuffle": shuffle_call,
    sort_p: sort_call,
    top_k_p: top_call,
    triangular_solve_p: solve_call,
}


def routine(step: HostStep) -> Call | None:
    """The routine that runs a step, compiled and bound to its symbol; None if Python runs it."""
    find = _ROUTINES.get(key_of(step.prim))
    return None if find is None else find(step)
