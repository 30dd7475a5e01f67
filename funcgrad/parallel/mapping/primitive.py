"""The `shard_map` primitive: a program that each device runs on its parts, transformed as a
program.

`shard_map[jaxpr, mesh, in_cuts, out_cuts, manual]`: operands and results are whole, the body's
inputs and results are parts, cut over the `manual` axes of the mesh. The body is annotated with
what varies (`parallel.mapping.varying`), so that its transpose is that of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.core import context
from funcgrad.core.aval import Linear, ShapedArray, Zero, with_zeros
from funcgrad.core.backend import spmd
from funcgrad.core.dce import dce_jaxpr
from funcgrad.core.ir import Eqn, Jaxpr, Var, call_types
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.rewriting import Each
from funcgrad.core.sharding import Cuts, Mesh
from funcgrad.errors import IRError, ShardingError
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.collective.varying import psum_invariant_p, pvary_p
from funcgrad.ops.shape import reshape_p
from funcgrad.parallel.mapping.varying import annotate
from funcgrad.parallel.mapping.varying_pass import NONE, Axes, listed, with_excess
from funcgrad.transforms.autodiff.jvp import jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import PartialJaxpr, Split, partial_eval_jaxpr
from funcgrad.transforms.autodiff.transpose import transpose_jaxpr
from funcgrad.transforms.batching.batching import batch_jaxpr
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control.bodies import choose, drop
from funcgrad.transforms.control.calls import cotangents

AllCuts = tuple[Cuts, ...]


def cut_axes(cuts: Cuts) -> Axes:
    """The mesh axes that cut an array."""
    return frozenset(a for axes in cuts for a in axes)


def inside(mesh: Mesh, manual: Sequence[str], followed: bool = True) -> Any:
    """The context of a body: its mesh axes are named, and what varies over them is followed."""
    ctx = context.current()
    axes = {**ctx.axes, **{a: mesh.shape[a] for a in manual}}
    return context.scoped(axes=axes, manual=(*ctx.manual, *manual) if followed else ())


def local_aval(aval: ShapedArray, mesh: Mesh, cuts: Cuts) -> ShapedArray:
    """The type of a part."""
    parts = (mesh.extent(axes) for axes in cuts)
    return aval.update(shape=tuple(n // k for n, k in zip(aval.shape, parts, strict=True)))


def whole_aval(aval: ShapedArray, mesh: Mesh, cuts: Cuts) -> ShapedArray:
    """The type of the array whose parts have a type."""
    parts = (mesh.extent(axes) for axes in cuts)
    return aval.update(shape=tuple(n * k for n, k in zip(aval.shape, parts, strict=True)))


def fit(
    jaxpr: Jaxpr, in_cuts: Sequence[Cuts], out_cuts: Sequence[Cuts], manual: Sequence[str],
    excess: Primitive | None = None,
) -> Jaxpr:  # fmt: skip
    """The body annotated, its results varying over the axes that cut them.

    excess: what is done with results that vary over more (None: an error).
    """
    ins = [cut_axes(c) for c in in_cuts]
    outs = [cut_axes(c) for c in out_cuts]
    found = annotate(jaxpr, ins, manual, outs)
    over = [v - o for v, o in zip(found.varying, outs, strict=True)]
    if not any(over):
        return found.jaxpr
    if excess is None:
        raise ShardingError(
            "shard_map: a result's derivative varies over more mesh axes than the result itself: "
            f"over {listed(frozenset().union(*over))} too. A custom derivative rule inside gives a "
            "tangent per device where the value is the same on all of them; psum it in the rule"
        )
    return annotate(with_excess(jaxpr, over, manual, excess), ins, manual, outs).jaxpr


# ---- rules


def _local_avals(avals: Sequence[ShapedArray], mesh: Mesh, cuts: AllCuts) -> list[ShapedArray]:
    return [local_aval(a, mesh, c) for a, c in zip(avals, cuts, strict=True)]


def _abstract(*avals: ShapedArray, jaxpr, mesh, in_cuts, out_cuts, manual) -> list[ShapedArray]:
    if [len(c) for c in in_cuts] != [a.ndim for a in avals]:
        raise IRError(f"shard_map: operands {list(avals)} don't fit cuts {in_cuts}")
    outs = call_types("shard_map", jaxpr, _local_avals(avals, mesh, in_cuts))
    return [whole_aval(a, mesh, c) for a, c in zip(outs, out_cuts, strict=True)]


def alone(avals: Sequence[ShapedArray], params: dict) -> Jaxpr:
    """The program of whole arrays that is this one call."""

    def make() -> Jaxpr:
        ins = [Var(a) for a in avals]
        outs = [Var(a) for a in _abstract(*avals, **params)]
        return Jaxpr(ins, [Eqn(shard_map_p, ins, outs, params)], outs)

    key = ("alone", *(v for k, v in params.items() if k != "jaxpr"))
    return params["jaxpr"].derive(key, make)


def _impl(xp: Any, *values: Any, **params: Any) -> list:
    avals = [
        whole_aval(a, params["mesh"], c)
        for a, c in zip(params["jaxpr"].in_avals, params["in_cuts"], strict=True)
    ]
    return spmd().run_global(alone(avals, params), values, "shard_map")


def _bind(args: Sequence[Any], jaxpr: Jaxpr, ins: Any, outs: Any, mesh: Mesh, manual: Any) -> list:
    return shard_map_p.bind(*args, jaxpr=jaxpr, mesh=mesh, in_cuts=tuple(ins),
                            out_cuts=tuple(outs), manual=manual)  # fmt: skip


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr, mesh, in_cuts, out_cuts, manual
) -> tuple:
    nonzero = [type(t) is not Zero for t in tangents]

    def make() -> tuple:
        with inside(mesh, manual):
            both, out_nz = jvp_jaxpr(jaxpr, nonzero)
            ins = (*in_cuts, *choose(in_cuts, nonzero))
            outs = (*out_cuts, *choose(out_cuts, out_nz))
            return fit(both, ins, outs, manual), ins, outs, out_nz

    key = ("shard_map_jvp", tuple(nonzero), in_cuts, out_cuts, mesh, manual)
    both, ins, outs, out_nz = jaxpr.derive(key, make)
    given = [t for t in tangents if type(t) is not Zero]
    results = _bind([*primals, *given], both, ins, outs, mesh, manual)
    n = len(jaxpr.outs)
    avals = [whole_aval(a, mesh, c) for a, c in zip(jaxpr.out_avals, out_cuts, strict=True)]
    return results[:n], with_zeros(results[n:], out_nz, avals)


def _transpose(ct: Sequence[Any], *args: Any, jaxpr, mesh, in_cuts, out_cuts, manual) -> list:
    linear = [type(a) is Linear for a in args]
    nonzero = [type(c) is not Zero for c in ct]

    def make() -> tuple:
        with inside(mesh, manual):
            backward, mask = transpose_jaxpr(jaxpr, linear, nonzero)
            ins = (*drop(in_cuts, linear), *choose(out_cuts, nonzero))
            outs = tuple(choose(choose(in_cuts, linear), mask))
            return fit(backward, ins, outs, manual, psum_invariant_p), ins, outs, mask

    key = ("shard_map_transpose", tuple(linear), tuple(nonzero), in_cuts, out_cuts, mesh, manual)
    backward, ins, outs, mask = jaxpr.derive(key, make)
    given = [*drop(args, linear), *choose(ct, nonzero)]
    return cotangents(_bind(given, backward, ins, outs, mesh, manual), mask, args)


def _batch(
    axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], *,
    jaxpr, mesh, in_cuts, out_cuts, manual,
) -> tuple:  # fmt: skip
    over = tuple(a for a in axis.spmd if a in manual)
    size = axis.size // mesh.extent(over)
    if size * mesh.extent(over) != axis.size:
        raise ShardingError(
            f"vmap of shard_map: {axis.size} lanes can't be cut into {mesh.extent(over)} equal "
            f"parts over the mesh axis {listed(over)} that spmd_axis_name names"
        )
    # A mesh axis of the same name hides the axis that is mapped here.
    name = None if axis.name in manual else axis.name

    def wide(cuts: Cuts, d: int | None) -> Cuts:
        return cuts if d is None else (*cuts[:d], over, *cuts[d:])

    def make() -> tuple:
        for cuts in (*in_cuts, *out_cuts) if over else ():
            if cut_axes(cuts) & frozenset(over):
                raise ShardingError(
                    f"vmap of shard_map: spmd_axis_name={over} cuts the mapped axis, but a spec "
                    f"inside names the same mesh axis: {cuts}"
                )
        with inside(mesh, manual):
            batched, mask = batch_jaxpr(jaxpr, BatchAxis(name, size, axis.spmd), dims)
            ins = tuple(wide(c, d) for c, d in zip(in_cuts, dims, strict=True))
            outs = tuple(wide(c, 0 if m else None) for c, m in zip(out_cuts, mask, strict=True))
            return fit(batched, ins, outs, manual), ins, outs, mask

    key = ("shard_map_batch", name, size, axis.spmd, tuple(dims), in_cuts, out_cuts, mesh, manual)
    batched, ins, outs, mask = jaxpr.derive(key, make)
    return _bind(args, batched, ins, outs, mesh, manual), [0 if m else None for m in mask]


def _partial(unknown: Sequence[bool], eqn: Eqn) -> Split:
    p = eqn.params
    mesh, manual = p["mesh"], p["manual"]

    def make() -> tuple:
        with inside(mesh, manual):
            # What is the same on all devices isn't kept once a device: it is marked again later.
            parts = partial_eval_jaxpr(
                p["jaxpr"], unknown, saveable=lambda e: e.prim is not pvary_p
            )
            return parts, *_halves(parts, unknown, p)

    key = ("shard_map_partial", tuple(unknown), p["in_cuts"], p["out_cuts"], mesh, manual)
    parts, known_body, later_body, res_cuts = p["jaxpr"].derive(key, make)
    known_ins, unknown_ins = drop(eqn.ins, unknown), choose(eqn.ins, unknown)
    known_cuts, unknown_cuts = drop(p["in_cuts"], unknown), choose(p["in_cuts"], unknown)
    local = known_body.out_avals[len(known_body.outs) - len(res_cuts) :]
    held = [Var(whole_aval(a, mesh, c)) for a, c in zip(local, res_cuts, strict=True)]
    fresh = iter(zip(held, res_cuts, strict=True))
    residuals = [
        next(fresh) if f is None else (known_ins[f], known_cuts[f]) for f in parts.forwarded
    ]
    outs, cuts = eqn.outs, p["out_cuts"]
    known = eqn.replace(
        ins=tuple(known_ins),
        outs=(*drop(outs, parts.out_unknown), *held),
        params={**p, "jaxpr": known_body, "in_cuts": tuple(known_cuts),
                "out_cuts": (*drop(cuts, parts.out_unknown), *res_cuts)},
    )  # fmt: skip
    later = eqn.replace(
        ins=(*(v for v, _ in residuals), *unknown_ins),
        outs=tuple(choose(outs, parts.out_unknown)),
        params={**p, "jaxpr": later_body, "in_cuts": (*(c for _, c in residuals), *unknown_cuts),
                "out_cuts": tuple(choose(cuts, parts.out_unknown))},
    )  # fmt: skip
    return Split(known if known.outs or known_body.has_effects else None, later)


def _halves(parts: PartialJaxpr, unknown: Sequence[bool], p: dict) -> tuple:
    """Both halves of a body, and the cuts of computed residuals: those that vary get a new leading
    axis, cut over the axes they vary over."""
    manual = p["manual"]
    ins = [cut_axes(c) for c in drop(p["in_cuts"], unknown)]
    n_res = sum(f is None for f in parts.forwarded)
    outs = [cut_axes(c) for c in drop(p["out_cuts"], parts.out_unknown)] + [NONE] * n_res
    known, varying, *_ = annotate(parts.known, ins, manual, outs)
    axes = varying[len(varying) - n_res :]
    known_eqns, known_outs = list(known.eqns), list(known.outs)
    later_eqns, later_ins, res_cuts = [], list(parts.unknown.ins), []
    computed = [i for i, f in enumerate(parts.forwarded) if f is None]
    for k, (i, over) in enumerate(zip(computed, axes, strict=True)):
        j = len(known_outs) - n_res + k
        shape = parts.residuals[i].aval.shape
        names = tuple(a for a in manual if a in over)
        res_cuts.append(((names,) if over else ()) + ((),) * len(shape))
        if not over:
            continue
        wide = Var(known_outs[j].aval.update(shape=(1, *shape)))
        stack = {"shape": (1, *shape), "broadcast_dimensions": tuple(range(1, len(shape) + 1))}
        known_eqns.append(Eqn(broadcast_p, [known_outs[j]], [wide], stack))
        known_outs[j] = wide
        given = Var(wide.aval)
        later_eqns.append(Eqn(reshape_p, [given], [later_ins[i]], {"new_sizes": shape}))
        later_ins[i] = given
    known_body = Jaxpr(known.ins, known_eqns, known_outs, known.names)
    later = Jaxpr(later_ins, [*later_eqns, *parts.unknown.eqns], parts.unknown.outs)
    return known_body, later, tuple(res_cuts)


def _dce(used: Sequence[bool], eqn: Eqn) -> Eqn:
    p = eqn.params
    jaxpr, used_ins = dce_jaxpr(p["jaxpr"], used)
    return eqn.replace(
        ins=tuple(choose(eqn.ins, used_ins)),
        outs=tuple(choose(eqn.outs, used)),
        params={**p, "jaxpr": jaxpr, "in_cuts": tuple(choose(p["in_cuts"], used_ins)),
                "out_cuts": tuple(choose(p["out_cuts"], used))},
    )  # fmt: skip


def _programs(each: Each, *, jaxpr: Jaxpr, **rest: Any) -> dict[str, Any]:
    with inside(rest["mesh"], rest["manual"]):
        return {"jaxpr": each(jaxpr), **rest}


shard_map_p: Primitive = Primitive(
    name="shard_map",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    dims=NoRule("partitioning looks into the body"),
    partial=_partial,
    dce=_dce,
    programs=_programs,
    multiple=True,
)
