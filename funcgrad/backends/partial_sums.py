"""Many updates added to few elements: in parts that run in parallel, each of sums of its own.

Who may be added to whom is known only at run time, so that one sum takes its updates one after the
other. The parts depend on shapes alone, so the result doesn't depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.backends.scalars import HALVES, LOOP_DTYPES
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal
from funcgrad.ops.base import sum_p
from funcgrad.ops.families import add
from funcgrad.ops.gather import scatter_add_p
from funcgrad.ops.windows import ScatterDimensionNumbers

# So many updates, that are so many to each element, are added in up to so many parts; where they
# are FEW, in two, unless these take more bytes than caches hold. Of one to each element two threads
# gain a quarter, and a single one loses more.
MANY, EACH, MOST_PARTS, FEW, CACHED_BYTES = 1 << 16, 16, 8, 2, 1 << 23


def partial_sums(flat: Any, e: Eqn, ins: list[Atom]) -> Atom | None:
    """A scatter_add of single elements in parts; None where it is to stay as it is."""
    x, indices, updates = ins
    p, numbers = e.params, e.params["dimension_numbers"]
    *counts, depth = indices.aval.shape
    n, dtype = math.prod(counts), x.aval.dtype
    single = updates.aval.size == n and not numbers.operand_batching_dims
    if not single or p["unique_indices"] or dtype not in LOOP_DTYPES or dtype in HALVES:
        return None
    most = MOST_PARTS if x.aval.size * EACH <= n else 2 if x.aval.size * FEW <= n else 1
    parts = max((d for d in range(1, most + 1) if n % d == 0), default=1)
    if n < MANY or parts == 1 or not x.aval.size:
        return None
    if most < MOST_PARTS and parts * x.aval.nbytes > CACHED_BYTES:
        return None
    shape, size = x.aval.shape, n // parts
    none = Literal(np.zeros((), dtype), ShapedArray((), dtype))
    sums = flat.broadcast(none, (parts, *shape), ())
    axes = tuple(d + 1 for d in range(len(shape)))
    to = tuple(d + 1 for d in numbers.scatter_dims_to_operand_dims)
    changed = {
        "dimension_numbers": ScatterDimensionNumbers((), axes, to, (0,), (0,)),
        "indices_are_sorted": False,
    }
    operands = [
        sums,
        flat.reshape(indices, (parts, size, depth)),
        flat.reshape(updates, (parts, size)),
    ]
    sums = flat.add(scatter_add_p, operands, sums.aval, **{**p, **changed})
    total = flat.reduce(sum_p, sums, [0])
    return flat.add(add, [x, total], x.aval.strong())
