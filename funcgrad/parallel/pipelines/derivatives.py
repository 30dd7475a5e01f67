"""A stage's forward pass and the halves of its backward pass, as programs of flat values.

F is the stage linearized: it leaves residuals behind. B is the linear program transposed. Its half
I is what the cotangents of the stage's inputs need; W is the rest, and begins with what I has
computed on the way. What depends on weights alone isn't kept from F to B, but made again; so is
what is elementwise in what is kept (`residuals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, eval_jaxpr
from funcgrad.core.staging import stage, stage_closed
from funcgrad.parallel.pipelines.residuals import lean
from funcgrad.transforms.autodiff.jvp import jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import PartialJaxpr, partial_eval_jaxpr
from funcgrad.transforms.autodiff.transpose import transpose_jaxpr
from funcgrad.transforms.control.scan import scan_p


class Passes(NamedTuple):
    """The programs of a function of weights and inputs.

    Each begins with `fixed`, values that the function captured, and the weights. Cotangents are
    those of results that vary, and come out for weights and inputs that are no integers.
    """

    forward: Jaxpr  # fixed, weights, inputs → results, saved
    backward: Jaxpr  # fixed, weights, saved, cotangents → weights' cotangents, inputs'
    inputs_half: Jaxpr  # fixed, weights, saved, cotangents → soon, inputs' cotangents, kept
    weights_half: Jaxpr  # fixed, weights, saved, kept → late
    saved: tuple[ShapedArray, ...]
    kept: tuple[ShapedArray, ...]
    late: tuple[bool, ...]  # which weights' cotangents the second half makes
    results_vary: tuple[bool, ...]
    fixed: tuple[Any, ...]


def differentiable(aval: ShapedArray) -> bool:
    """Whether values of a type have cotangents."""
    return dtypes.is_inexact(aval.dtype)


def passes(
    fun: Callable[..., list], weights: Sequence[ShapedArray], inputs: Sequence[ShapedArray],
    what: str,
) -> Passes:  # fmt: skip
    """The programs of `fun`, of flat weights and flat inputs to flat results.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> vector = fg.ShapeDtypeStruct((3,), "float32").aval
    >>> passes(lambda w, x: [fnp.tanh(w * x)], [vector], [vector], "layer").saved
    (f32[3], f32[3])
    """
    program, fixed = stage(fun, [*weights, *inputs], what)
    n, n_fixed = len(program.ins), len(fixed) + len(weights)
    varies = [i >= len(fixed) and differentiable(v.aval) for i, v in enumerate(program.ins)]
    both, out_varies = jvp_jaxpr(program, varies)
    n_outs, n_cts = len(program.outs), sum(out_varies)
    unknown = [False] * n + [True] * sum(varies)
    parts = partial_eval_jaxpr(both, unknown, [False] * n_outs + [True] * n_cts)
    first, second = lean(_with_residuals(parts, n_outs), parts.unknown, n_outs)
    rebuilt, saved, source = _residuals(first, n_outs, n_fixed)
    outs = [*first.outs[:n_outs], *saved]
    forward = Jaxpr(first.ins, dce_eqns(first.eqns, outs), outs)
    linear = [i >= len(source) for i in range(len(second.ins))]
    pulled, _ = transpose_jaxpr(second, linear, [True] * n_cts, force=True)
    saved_avals = [v.aval.strong() for v in saved]

    def backward(*flat: Any) -> list:
        given = [*flat[:n_fixed], *eval_jaxpr(rebuilt, *flat[:n_fixed])]
        given += flat[n_fixed : n_fixed + len(saved)]
        return eval_jaxpr(pulled, *(given[i] for i in source), *flat[n_fixed + len(saved) :])

    cts = [v.aval for v in both.outs[n_outs:]]
    avals = [*program.in_avals[:n_fixed], *saved_avals, *cts]
    whole = stage_closed(backward, avals, f"the backward pass of {what}")
    n_weights = sum(map(differentiable, weights))
    halves = _halves(whole, n_fixed, len(saved), n_weights)
    return Passes(
        forward, whole, halves.first, halves.second, tuple(saved_avals), halves.kept, halves.late,
        tuple(out_varies), tuple(fixed),
    )  # fmt: skip


def _with_residuals(parts: PartialJaxpr, n_outs: int) -> Jaxpr:
    """The forward program, whose results are followed by all that it leaves behind."""
    known, computed = parts.known, iter(parts.known.outs[n_outs:])
    residuals = [next(computed) if f is None else known.ins[f] for f in parts.forwarded]
    return Jaxpr(known.ins, known.eqns, [*known.outs[:n_outs], *residuals])


def _residuals(known: Jaxpr, n_outs: int, n_fixed: int) -> tuple[Jaxpr, list, list[int]]:
    """The program that makes residuals of weights again; the residuals that are saved; and where
    each stands among fixed values and weights, those that are made again, those that are saved."""
    moving = set(known.ins[n_fixed:])
    for eqn in known.eqns:
        if any(a in moving for a in eqn.ins):
            moving.update(eqn.outs)
    atoms = known.outs[n_outs:]
    fixed = known.ins[:n_fixed]
    again = [a for a in atoms if a not in moving and a not in fixed]
    saved = list(dict.fromkeys(a for a in atoms if a in moving))
    position: dict[Any, int] = {}
    for i, a in enumerate([*fixed, *again, *saved]):
        position.setdefault(a, i)
    rebuilt = Jaxpr(fixed, dce_eqns(known.eqns, again), again)
    return rebuilt, saved, [position[a] for a in atoms]


# ---- halves


class _Halves(NamedTuple):
    first: Jaxpr
    second: Jaxpr
    kept: tuple[ShapedArray, ...]
    late: tuple[bool, ...]


def _halves(whole: Jaxpr, n_fixed: int, n_saved: int, n_weights: int) -> _Halves:
    """The backward pass in two.

    The saved values come twice: once for what inputs' cotangents need, once for all else. What
    depends on the latter is the second half; loops are cut likewise.
    """
    n, there = len(whole.ins), n_fixed + n_saved
    double = _with_late(
        whole,
        [i < n_weights for i in range(len(whole.outs))],
        [n_fixed <= i < there for i in range(n)],
    )
    parts = partial_eval_jaxpr(double, [i >= n for i in range(len(double.ins))])
    assert not any(parts.out_unknown[n_weights:]), "inputs' cotangents read no copies"
    # What the second half reads of the first: what that computes, and cotangents given to it.
    sent = sorted({f for f in parts.forwarded if f is not None and f >= there})
    n_computed = sum(f is None for f in parts.forwarded)
    first_outs = [*parts.known.outs, *(parts.known.ins[f] for f in sent)]
    first = Jaxpr(parts.known.ins, parts.known.eqns, first_outs)
    computed = iter(range(there, there + n_computed))
    at = [
        next(computed) if f is None else f if f < there else there + n_computed + sent.index(f)
        for f in parts.forwarded
    ]

    def second(*flat: Any) -> list:
        return eval_jaxpr(parts.unknown, *(flat[i] for i in at), *flat[n_fixed:there])

    kept = tuple(a.aval.strong() for a in first_outs[parts.out_unknown.count(False) :])
    avals = [*whole.in_avals[:there], *kept]
    weights = stage_closed(second, avals, "the weights' half of a backward pass")
    return _Halves(first, weights, kept, tuple(parts.out_unknown[:n_weights]))


def _with_late(jaxpr: Jaxpr, last: Sequence[bool], late: Sequence[bool]) -> Jaxpr:
    """The program with the inputs `late` once more at its end, which are read by what only the
    results `last` need."""
    copies = {v: Var(v.aval) for v, is_late in zip(jaxpr.ins, late, strict=True) if is_late}
    soon = [a for a, is_last in zip(jaxpr.outs, last, strict=True) if not is_last]
    early = dce_eqns(jaxpr.eqns, soon)
    needed = {a for a in [*soon, *(a for e in early for a in e.ins)] if isinstance(a, Var)}
    eqns = []
    for eqn in jaxpr.eqns:
        if needed.isdisjoint(eqn.outs):
            eqn = eqn.replace(ins=tuple(_renamed(eqn.ins, copies)))
        elif eqn.prim is scan_p:
            eqn = _scan_with_late(eqn, needed, copies)
        eqns.append(eqn)
    late_outs = _renamed(jaxpr.outs, copies)
    outs = [b if is_last else a for a, b, is_last in zip(jaxpr.outs, late_outs, last, strict=True)]
    return Jaxpr([*jaxpr.ins, *copies.values()], eqns, outs)


def _renamed(atoms: Sequence[Atom], names: dict[Var, Var]) -> list[Atom]:
    return [names.get(a, a) if isinstance(a, Var) else a for a in atoms]


def _scan_with_late(eqn: Eqn, needed: set[Var], copies: dict[Var, Var]) -> Eqn:
    """A loop whose body reads the copies of what it scans for what is not needed soon."""
    p = eqn.params
    body, n_carry = p["jaxpr"], p["n_carry"]
    start = p["n_consts"] + n_carry
    last = [i >= n_carry and v not in needed for i, v in enumerate(eqn.outs)]
    late = [i >= start and a in copies for i, a in enumerate(eqn.ins)]
    if not any(last) or not any(late):
        return eqn
    again = [a for a, is_late in zip(eqn.ins, late, strict=True) if is_late]
    params = {**p, "jaxpr": _with_late(body, last, late)}
    return eqn.replace(ins=(*eqn.ins, *_renamed(again, copies)), params=params)
