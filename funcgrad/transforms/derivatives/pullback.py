"""Reverse mode inside of a shard_map: transposes that wait until it is known what varies.

Cotangents of a value that is the same on all devices are summed over them, and which values are is
known only when the whole body is written down. Until then a transpose is an op, `pullback`, that
holds the linear program; `parallel.mapping.varying` replaces it by the transposed program.
"""

from __future__ import annotations

from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.ir import Jaxpr, interpret
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.types import ArrayModule, BatchDims, Cotangents, PlainArray, Tangents, Values
from funcgrad.ops.base import batch_front
from funcgrad.ops.families import add
from funcgrad.transforms.autodiff.jvp import jvp_jaxpr
from funcgrad.transforms.autodiff.transpose import transpose_jaxpr
from funcgrad.transforms.batching.batching import batch_jaxpr
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control.bodies import choose


def pull_back_later(jaxpr: Jaxpr, residuals: Values, cts: Cotangents, n_linear: int) -> list:
    """Cotangents of a linear program's last inputs, which are typed like its last residuals."""
    n = len(residuals)
    likes = tuple(range(n - n_linear, n))
    return pullback_p.bind(*residuals, *cts, jaxpr=jaxpr, n_linear=n_linear, likes=likes)


def transposed(jaxpr: Jaxpr, n_linear: int) -> Jaxpr:
    """The program of the other inputs and the results' cotangents, to the last inputs'."""
    linear = [i >= len(jaxpr.ins) - n_linear for i in range(len(jaxpr.ins))]
    return transpose_jaxpr(jaxpr, linear, [True] * len(jaxpr.outs), force=True)[0]


def _abstract(
    *avals: ShapedArray, jaxpr: Jaxpr, n_linear: int, likes: tuple[int, ...]
) -> list[ShapedArray]:
    return jaxpr.in_avals[len(jaxpr.ins) - n_linear :]


def _jvp(
    primals: Values, tangents: Tangents, *, jaxpr: Jaxpr, n_linear: int, likes: tuple[int, ...]
) -> tuple:
    n = len(jaxpr.ins) - n_linear
    known, cts = primals[:n], primals[n:]
    known_t, cts_t = tangents[:n], tangents[n:]
    params = {"n_linear": n_linear, "likes": likes}
    outs = pullback_p.bind(*primals, jaxpr=jaxpr, **params)
    terms = []
    # Cotangents enter linearly.
    nonzero = [type(t) is not Zero for t in cts_t]
    if any(nonzero):
        some = Jaxpr(jaxpr.ins, jaxpr.eqns, choose(jaxpr.outs, nonzero))
        given = [t for t in cts_t if type(t) is not Zero]
        terms.append(pullback_p.bind(*known, *given, jaxpr=some, **params))
    # The derivative of the linear program with respect to its residuals is one as well.
    nonzero = [type(t) is not Zero for t in known_t]
    if any(nonzero):
        both, mask = jvp_jaxpr(jaxpr, [*nonzero, *[False] * n_linear])
        ins = both.ins
        ordered = [*ins[:n], *ins[n + n_linear :], *ins[n : n + n_linear]]
        moved = Jaxpr(ordered, both.eqns, both.outs[len(jaxpr.outs) :])
        given = [t for t in known_t if type(t) is not Zero]
        terms.append(pullback_p.bind(*known, *given, *choose(cts, mask), jaxpr=moved, **params))
    if not terms:
        return outs, [Zero(aval_of(o).tangent()) for o in outs]
    if len(terms) == 1:
        return outs, terms[0]
    return outs, [add.bind(a, b) for a, b in zip(*terms, strict=True)]


def _batch(axis: BatchAxis, args: Values, dims: BatchDims, *, jaxpr: Jaxpr, n_linear: int,
           likes: tuple[int, ...]) -> tuple:  # fmt: skip
    n = len(jaxpr.ins) - n_linear
    batched, _ = batch_jaxpr(jaxpr, axis, [*dims[:n], *[0] * n_linear], force=True)
    cts = [batch_front(c, d, axis.size) for c, d in zip(args[n:], dims[n:], strict=True)]
    outs = pullback_p.bind(*args[:n], *cts, jaxpr=batched, n_linear=n_linear, likes=likes)
    return outs, [0] * n_linear


def _transposed_impl(
    xp: ArrayModule, *values: PlainArray, jaxpr: Jaxpr, n_linear: int, likes: tuple[int, ...]
) -> list:
    return interpret(transposed(jaxpr, n_linear), xp, *values)


pullback_p: Primitive = Primitive(
    name="pullback",
    abstract=_abstract,
    impl=_transposed_impl,
    jvp=_jvp,
    transpose=NoRule("shard_map replaces it before it is differentiated itself"),
    batch=_batch,
    dims=NoRule("it is replaced before programs are partitioned"),
    multiple=True,
)
