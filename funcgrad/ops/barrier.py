"""Identities that mean something to transformations: a name on a value, a barrier to sharing."""

from __future__ import annotations

from typing import Any

from funcgrad import tree
from funcgrad.core import dims as dims_
from funcgrad.core.aval import Zero
from funcgrad.core.primitive import Primitive
from funcgrad.core.views import in_order
from funcgrad.ops.base import instantiate


def _barrier_jvp(primals: Any, tangents: Any) -> tuple[list, list]:
    given = [t for t in tangents if type(t) is not Zero]
    outs = iter(barrier_p.bind(*given))
    out_tangents = [t if type(t) is Zero else next(outs) for t in tangents]
    return barrier_p.bind(*primals), out_tangents


def _barrier_dims(*avals: Any) -> str:
    names, start = [], 0
    for a in avals:
        names.append(" ".join(dims_.letters(a.ndim, start)))
        start += a.ndim
    return f"{', '.join(names)} -> {', '.join(names)}"


# What reads a barrier's results is never merged with what reads its operands: this keeps a
# rematerialized computation apart from the first one. Backends see no trace of it.
barrier_p: Primitive = Primitive(
    name="optimization_barrier",
    abstract=lambda *avals: list(avals),
    impl=lambda xp, *values: list(values),
    jvp=_barrier_jvp,
    transpose=lambda ct, *args: barrier_p.bind(*map(instantiate, ct)),
    batch=lambda axis, args, dims: (barrier_p.bind(*args), list(dims)),
    dims=_barrier_dims,
    multiple=True,
    identity=True,
)

name_p: Primitive = Primitive(
    name="name",
    abstract=lambda x, *, name: x,
    impl=lambda xp, x, *, name: x,
    jvp=lambda primals, tangents, *, name: (
        name_p.bind(*primals, name=name),
        name_p.bind(*tangents, name=name),
    ),
    transpose=lambda ct, x, *, name: [ct],
    batch=lambda axis, args, dims, *, name: (name_p.bind(*args, name=name), dims[0]),
    dims=lambda x, *, name: dims_.pointwise(x),
    identity=True,
    view=in_order,
)


def optimization_barrier(operand: Any, /) -> Any:
    """A pytree of arrays, unchanged, but not merged with equal computations on the other side.

    >>> from funcgrad import lax
    >>> lax.optimization_barrier(1.0)
    Array(1., dtype=float32, weak_type=True)
    """
    leaves, structure = tree.flatten(operand)
    return structure.unflatten(barrier_p.bind(*leaves))
