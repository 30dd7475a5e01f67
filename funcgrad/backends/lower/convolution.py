"""Elements of windows that convolutions meet, as operands of products.

`patches` has any element of a window, also in padding and in holes; `windows` is a view of memory
(`primitives`), which products read in place: holes in the operand are left out, padding is written
around it.
"""

from __future__ import annotations

import numpy as np

from funcgrad.backends.loops.builder import add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand
from funcgrad.backends.lower.primitives import patches_p
from funcgrad.backends.lower.pull import Indices, Pull, Rule
from funcgrad.backends.lower.shape import inside_or
from funcgrad.core.ir import Eqn
from funcgrad.core.primitive import Primitive


def patches_rule(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    """The element of a window: its operand's, or 0 in padding and holes."""
    b, (x,), p = pull.builder, eqn.ins, eqn.params
    rank = len(p["strides"])
    group, batch, feature = at[0], at[1], at[-1]
    positions, window = at[2 : 2 + rank], at[2 + rank : 2 + 2 * rank]
    features, batches = p["groups"]
    source: list[Index] = [Index(0)] * (rank + 2)
    n, c = eqn.outs[0].aval.shape[1], eqn.outs[0].aval.shape[-1]
    batch_axis, feature_axis, *axes = p["spec"]
    source[batch_axis] = add_indices(batch, scale_index(group, n if batches > 1 else 0))
    source[feature_axis] = add_indices(feature, scale_index(group, c if features > 1 else 0))
    conditions: list[Operand | None] = []
    for i, axis in enumerate(axes):
        place = add_indices(
            scale_index(positions[i], p["strides"][i], -p["padding"][i][0]),
            scale_index(window[i], p["dilation"][i]),
        )
        if p["holes"][i] != 1:
            place, rest = b.divide(place, p["holes"][i])
            conditions.append(b.compare("less", rest, 1))
        conditions += [b.compare("greater_equal", place, 0),
                       b.compare("less", place, x.aval.shape[axis])]  # fmt: skip
        source[axis] = place
    zero = Const(np.zeros((), x.aval.dtype), x.aval.dtype)
    return inside_or(pull, b.all_of(conditions), x, source, zero)


RULES: dict[Primitive, Rule] = {patches_p: patches_rule}
