"""Elements of ops that read at positions known only at run time: dynamic slices and gathers."""

from __future__ import annotations

import numpy as np

from funcgrad.backends.loops.builder import ZERO, add_indices
from funcgrad.backends.loops.ir import Const, Index, Operand
from funcgrad.backends.lower.pull import Indices, Pull, Rule
from funcgrad.core.ir import Atom, Eqn
from funcgrad.core.primitive import Primitive
from funcgrad.ops.indexing.gather import default_fill, gather_p
from funcgrad.ops.indexing.windows import GatherScatterMode, Windows
from funcgrad.ops.indexing.windows_at import dynamic_slice_p

BOOL = np.dtype(bool)


def _dynamic_slice(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    x, *starts = eqn.ins
    sizes = eqn.params["slice_sizes"]
    source = [
        add_indices(i, pull.start(s, (), n - m))
        for i, s, n, m in zip(at, starts, x.aval.shape, sizes, strict=True)
    ]
    return pull.read(x, source)


def window_starts(
    pull: Pull, w: Windows, indices: Atom, vector: Indices, clip: bool
) -> tuple[dict[int, Index], Operand | None]:
    """Where a window starts in the axes in which windows differ, moved inside; and whether it had
    not to be moved (None where nobody asks, as they `clip`)."""
    b = pull.builder
    starts: dict[int, Index] = {}
    valid: list[Operand | None] = []
    for k, axis in enumerate(w.mapped):
        limit = w.shape[axis] - w.sizes[axis]
        component = [*vector, Index(k)]
        starts[axis] = pull.start(indices, component, limit)
        if not clip:
            wanted = pull.read(indices, component)
            got = b.integer(starts[axis], wanted.dtype)
            valid.append(b.op("equal", BOOL, wanted, got))
    for axis, of in w.batching.items():
        starts[axis] = vector[of]
    return starts, b.all_of(valid)


def _gather(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    b = pull.builder
    x, indices = eqn.ins
    p = eqn.params
    counts = indices.aval.shape[:-1]
    w = Windows(x.aval.shape, counts, p["dimension_numbers"], p["slice_sizes"])
    fills = p["mode"] is GatherScatterMode.FILL_OR_DROP
    starts, valid = window_starts(pull, w, indices, [at[o] for o in w.outer], not fills)
    source = [starts.get(d, ZERO) for d in range(len(w.shape))]
    for o, d in zip(w.offsets, w.inner, strict=True):
        source[d] = add_indices(source[d], at[o])
    # Starts were moved inside, so that reading is safe wherever there is anything to read.
    empty = 0 in w.shape
    with b.guarded(Const(False, BOOL) if empty else None):
        value = pull.read(x, source)
    if valid is None or not fills:
        return value
    dtype = x.aval.dtype
    fill = default_fill(dtype) if p["fill_value"] is None else p["fill_value"]
    return b.op("where", dtype, valid, value, Const(fill, dtype))


RULES: dict[Primitive, Rule] = {dynamic_slice_p: _dynamic_slice, gather_p: _gather}
