"""The `jit` primitive: a call of a program, run as one compiled unit, transformed as a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.core import context
from funcgrad.core.array import raw
from funcgrad.core.aval import Linear, Zero
from funcgrad.core.backend import DEFAULT, Executable, spmd
from funcgrad.core.backend import backend as load
from funcgrad.core.dce import dce_jaxpr
from funcgrad.core.ir import Eqn, Jaxpr, Var, call_types, eval_jaxpr, interpret
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.process.gc_pause import no_collections
from funcgrad.ops.sharding import jaxpr_meshes
from funcgrad.transforms.autodiff.jvp import jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import Split, partial_eval_jaxpr
from funcgrad.transforms.autodiff.transpose import transpose_jaxpr
from funcgrad.transforms.batching.batching import batch_jaxpr


def executable(
    jaxpr: Jaxpr, donated: tuple[bool, ...], name: str, using: str = DEFAULT
) -> Executable:
    """The compiled program, compiled once for each backend and donation."""

    def compiled() -> Executable:
        with no_collections():
            return load(using).compile(jaxpr, donated, name)

    return jaxpr.derive(("executable", using, donated), compiled)


def _impl(xp: Any, *values: Any, jaxpr: Jaxpr, name: str, donated: Any, backend: str) -> list:
    if context.current().debug_nans:
        # Op by op, so that the operation that makes a NaN is found.
        return [raw(x) for x in eval_jaxpr(jaxpr, *values)]
    if xp is not np:
        return interpret(jaxpr, xp, *values)
    if jaxpr_meshes(jaxpr):
        return spmd().run_global(jaxpr, values, name, backend)
    return executable(jaxpr, (False,) * len(values), name, backend)(values)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr, name, donated, backend
) -> tuple:
    nonzero = [type(t) is not Zero for t in tangents]
    both, out_nonzero = jvp_jaxpr(jaxpr, nonzero)
    given = [t for t in tangents if type(t) is not Zero]
    outs = call_jaxpr(both, [*primals, *given], f"jvp({name})", backend)
    n = len(jaxpr.outs)
    rest = iter(outs[n:])
    out_tangents = [
        next(rest) if nz else Zero(a.tangent())
        for nz, a in zip(out_nonzero, jaxpr.out_avals, strict=True)
    ]
    return outs[:n], out_tangents


def _transpose(ct: Sequence[Any], *args: Any, jaxpr, name, backend, **rest: Any) -> list:
    linear = [type(a) is Linear for a in args]
    nonzero = [type(c) is not Zero for c in ct]
    backward, mask = transpose_jaxpr(jaxpr, linear, nonzero)
    values = [a for a in args if type(a) is not Linear]
    cts = [c for c in ct if type(c) is not Zero]
    found = iter(call_jaxpr(backward, [*values, *cts], f"transpose({name})", backend))
    nonzero_in = iter(mask)
    return [
        (next(found) if next(nonzero_in) else Zero(a.aval)) if type(a) is Linear else None
        for a in args
    ]


def _batch(
    axis: Any, args: Sequence[Any], dims: Sequence[Any], *, jaxpr, name, donated, backend
) -> tuple:
    batched, mask = batch_jaxpr(jaxpr, axis, dims)
    outs = call_jaxpr(batched, args, f"vmap({name})", backend)
    return outs, [0 if m else None for m in mask]


def _partial(unknown: Sequence[bool], eqn: Eqn) -> Split:
    name = eqn.params["name"]
    parts = partial_eval_jaxpr(eqn.params["jaxpr"], unknown)
    known_ins = [a for a, u in zip(eqn.ins, unknown, strict=True) if not u]
    unknown_ins = [a for a, u in zip(eqn.ins, unknown, strict=True) if u]
    known_outs = [v for v, u in zip(eqn.outs, parts.out_unknown, strict=True) if not u]
    unknown_outs = [v for v, u in zip(eqn.outs, parts.out_unknown, strict=True) if u]
    computed = [
        Var(v.aval) for v, f in zip(parts.residuals, parts.forwarded, strict=True) if f is None
    ]
    fresh = iter(computed)
    residuals = [next(fresh) if f is None else known_ins[f] for f in parts.forwarded]
    known = call_eqn(eqn, parts.known, known_ins, [*known_outs, *computed], name)
    after = call_eqn(eqn, parts.unknown, [*residuals, *unknown_ins], unknown_outs, name)
    return Split(known if known.outs or parts.known.has_effects else None, after)


def _dce(used: Sequence[bool], eqn: Eqn) -> Eqn:
    jaxpr, used_ins = dce_jaxpr(eqn.params["jaxpr"], used)
    ins = [a for a, u in zip(eqn.ins, used_ins, strict=True) if u]
    outs = [v for v, u in zip(eqn.outs, used, strict=True) if u]
    return call_eqn(eqn, jaxpr, ins, outs, eqn.params["name"])


jit_p = Primitive(
    name="jit",
    abstract=lambda *avals, jaxpr, **rest: call_types("jit", jaxpr, avals),
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    dims=NoRule("partitioning looks into the program"),
    partial=_partial,
    dce=_dce,
    multiple=True,
    call=True,
)


def call_jaxpr(jaxpr: Jaxpr, args: Sequence[Any], name: str, using: str = DEFAULT) -> list:
    """Call a program as a unit, under the current trace."""
    donated = (False,) * len(args)
    return jit_p.bind(*args, jaxpr=jaxpr, name=name, donated=donated, backend=using)


def call_eqn(like: Eqn, jaxpr: Jaxpr, ins: Sequence[Any], outs: Sequence[Any], name: str) -> Eqn:
    """The equation that calls a program, at the place of another call."""
    donated = (False,) * len(ins)
    params = {**like.params, "jaxpr": jaxpr, "name": name, "donated": donated}
    return Eqn(jit_p, ins, outs, params, like.source, like.scopes)
