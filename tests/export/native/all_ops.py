"""The first samples of all ops, in all dtypes: which a C library has, and what they have to give.

What NumPy computes for compiled programs isn't in a library: of float8 and of numbers of four bits
what isn't casts, moves and products, of complex numbers what isn't made of their parts, and rare
decompositions.
"""

import numpy as np

from funcgrad.dtypes import COMPLEX, FLOAT8, int4, uint4
from tests.export.golden_files import PYTHON, golden
from tests.op_samples import ROWS

NARROW = (*FLOAT8, np.dtype(int4), np.dtype(uint4))

# Refused one by one: they say so when their code is linked, or at once.
ALONE = {"eig", "sharding_constraint", "svd"}
_ANY = ALONE | {
    "column_order", "hessenberg", "lu_pivots_to_permutation", "pullback", "schur",
    "select_and_gather_add", "tridiagonal",
}  # fmt: skip
_OF_COMPLEX = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cholesky", "csr_matmul", "cumprod",
    "eigh", "exp2", "max", "min", "pow", "qr", "ragged_dot", "ragged_outer",
    "reduce_max", "reduce_min", "reduce_prod", "scatter_mul",
}  # fmt: skip
# Of 64 bits.
_OF_SOME = {"top_k": ("int64", "uint64", "float64")}
# What of narrow numbers is the same array, or moves bytes; and what floats of 8 bits have as bytes.
_MOVES = {
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "dynamic_slice",
    "dynamic_update_slice", "name", "optimization_barrier", "pad", "reshape", "rev", "select_n",
    "slice", "stop_gradient", "transpose",
}  # fmt: skip
_OF_FLOAT8 = {"bitcast to uint8", "dot_general to float32", "ragged_outer"}


def is_refused(row, dtype):
    name = row.prim.name
    if name in _ANY or f"{dtype}" in _OF_SOME.get(f"{row}", ()):
        return True
    if dtype in NARROW:
        return name not in _MOVES and not (dtype in FLOAT8 and f"{row}" in _OF_FLOAT8)
    return dtype in COMPLEX and name in _OF_COMPLEX


_ALL = [(row, d) for row in ROWS if row.prim.name not in PYTHON for d in row.dtypes]
HELD = [pair for pair in _ALL if not is_refused(*pair)]
REFUSED = [pair for pair in _ALL if is_refused(*pair)]


def unlike(chosen, results):
    """What of a library's results isn't what the ops give one by one, within their bounds."""
    fun, args = golden(chosen)
    left, found = iter(results), []
    for (row, dtype), ins, outs in zip(chosen, args, fun(*args), strict=True):
        wanted = [np.asarray(y) for y in outs]
        got = [np.frombuffer(next(left), w.dtype).reshape(w.shape) for w in wanted]
        try:
            if row.check:
                row.check([np.asarray(x) for x in ins], got, **row.cases[0].params)
            else:
                for g, w in zip(got, wanted, strict=True):
                    row.close(g, w, f"{row} of {dtype}", row.jit_ulps, row.jit_atol)
        except AssertionError as error:
            found.append(f"{row} of {dtype}: {error}")
    return found
