"""Ops that call one program, such as `jit` and `checkpoint`: their rules transform the program, and
call what that gives. `run(program, args)` says how.

A program transformed takes and gives only tangents, or cotangents, that aren't zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from funcgrad.core.aval import Linear, Zero, with_zeros
from funcgrad.core.dce import dce_jaxpr
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var
from funcgrad.core.types import BatchDims, Cotangent, Cotangents, Operands, Tangents, Values
from funcgrad.transforms.autodiff.jvp import jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import PartialJaxpr, Split
from funcgrad.transforms.autodiff.transpose import transpose_jaxpr
from funcgrad.transforms.batching.batching import batch_jaxpr
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control.bodies import choose, drop

Run = Callable[[Jaxpr, list], list]


def cotangents(found: Iterable[Cotangent], nonzero: Sequence[bool], args: Operands) -> list:
    """The cotangents of arguments given as `Linear`, of which those that aren't zero are given."""
    rest, mask = iter(found), iter(nonzero)
    return [
        (next(rest) if next(mask) else Zero(a.aval)) if type(a) is Linear else None for a in args
    ]


def push_forward(jaxpr: Jaxpr, primals: Values, tangents: Tangents, run: Run) -> tuple[list, list]:
    """Results of a call, and their tangents."""
    nonzero = [type(t) is not Zero for t in tangents]
    both, mask = jvp_jaxpr(jaxpr, nonzero)
    outs, n = run(both, [*primals, *choose(tangents, nonzero)]), len(jaxpr.outs)
    return outs[:n], with_zeros(outs[n:], mask, jaxpr.out_avals)


def pull_back(
    jaxpr: Jaxpr, ct: Cotangents, args: Operands, run: Callable[[Jaxpr, list, list], list]
) -> list:
    """Cotangents of a call's linear arguments. run(program, known arguments, cotangents)"""
    linear = [type(a) is Linear for a in args]
    nonzero = [type(c) is not Zero for c in ct]
    backward, mask = transpose_jaxpr(jaxpr, linear, nonzero)
    return cotangents(run(backward, drop(args, linear), choose(ct, nonzero)), mask, args)


def over_lanes(
    jaxpr: Jaxpr, axis: BatchAxis, args: Values, dims: BatchDims, run: Run
) -> tuple[list, list]:
    """Results of a call over a batch, and where their batch axes are."""
    batched, mask = batch_jaxpr(jaxpr, axis, dims)
    return run(batched, list(args)), [0 if m else None for m in mask]


def split(unknown: Sequence[bool], eqn: Eqn, parts: PartialJaxpr) -> Split:
    """A call in two, each of a part of its program."""
    known_ins = drop(eqn.ins, unknown)
    held = [Var(v.aval) for v, f in zip(parts.residuals, parts.forwarded, strict=True) if f is None]
    fresh = iter(held)
    residuals = [next(fresh) if f is None else known_ins[f] for f in parts.forwarded]
    known = call_eqn(eqn, parts.known, known_ins, [*drop(eqn.outs, parts.out_unknown), *held])
    ins, outs = [*residuals, *choose(eqn.ins, unknown)], choose(eqn.outs, parts.out_unknown)
    later = call_eqn(eqn, parts.unknown, ins, outs)
    return Split(known if known.outs or parts.known.has_effects else None, later)


def dce(used: Sequence[bool], eqn: Eqn) -> Eqn:
    """A call without what its unused results need."""
    jaxpr, used_ins = dce_jaxpr(eqn.params["jaxpr"], used)
    return call_eqn(eqn, jaxpr, choose(eqn.ins, used_ins), choose(eqn.outs, used))


def call_eqn(like: Eqn, jaxpr: Jaxpr, ins: Sequence[Atom], outs: Sequence[Var]) -> Eqn:
    """A call of another program in place of one; nothing is donated."""
    params = {**like.params, "jaxpr": jaxpr}
    if "donated" in params:
        params["donated"] = (False,) * len(ins)
    return like.replace(ins=tuple(ins), outs=tuple(outs), params=params)
