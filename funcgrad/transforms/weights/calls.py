"""Weights on their way into the programs of loops, branches, calls and custom rules.

`STAGED` keeps these as they are: a weight goes in as its arrays, and is put together inside.
`UNROLLED` performs them, operation by operation, for who wants to see the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from funcgrad import dtypes, tree
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.ir import Eqn, Jaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.rewriting import called_program
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Cotangents, Rewritten, Tangents, Value, Values
from funcgrad.ops.base import instantiate
from funcgrad.ops.indexing.windows_at import index_in_dim
from funcgrad.ops.shape import expand_dims
from funcgrad.ops.slicing import concatenate
from funcgrad.transforms.autodiff.jvp import jvp_flat
from funcgrad.transforms.control.bodies import choose, split_list
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.custom_call import (
    JVPCall,
    VJPCall,
    custom_jvp_call_p,
    custom_vjp_call_p,
)
from funcgrad.transforms.control.jit_primitive import call_jaxpr, jit_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p
from funcgrad.transforms.derivatives.checkpoint import checkpoint_p
from funcgrad.transforms.derivatives.linear import vjp
from funcgrad.transforms.weights.follow import Enter, Follow, Seen, performed

Pack = Callable[[Values], list]


def _flat(values: Sequence[Rewritten]) -> tuple[list, Pack]:
    """Arrays of which values and weights are made, and what makes them of such arrays."""
    counts, structures = [], []
    flat: list = []
    for x in values:
        leaves, structure = tree.flatten(x.weight) if isinstance(x, Seen) else ([x], None)
        flat += leaves
        counts.append(len(leaves))
        structures.append(structure)

    def pack(arrays: Values) -> list:
        *pieces, _ = split_list(arrays, *counts)
        return [
            Seen(s.unflatten(piece), x.view, x.name) if s is not None else piece[0]
            for x, s, piece in zip(values, structures, pieces, strict=True)
        ]

    return flat, pack


def _staged(
    follow: Follow, jaxpr: Jaxpr, pack: Pack, avals: Sequence[ShapedArray], what: str
) -> Jaxpr:
    """A program that takes the arrays of weights in place of dense arrays."""
    return stage_closed(lambda *flat: follow.run(jaxpr, pack(flat)), avals, what)


def _avals(flat: Values) -> list[ShapedArray]:
    return [aval_of(x) for x in flat]


def _call(follow: Follow, eqn: Eqn, values: list) -> list:
    flat, pack = _flat(values)
    program = _staged(follow, called_program(eqn), pack, _avals(flat), "a call with weights")
    if eqn.prim is jit_p:
        return call_jaxpr(program, flat, eqn.params["name"], eqn.params["backend"])
    return eqn.prim.bind(*flat, **{**eqn.params, "jaxpr": program})


def _cond(follow: Follow, eqn: Eqn, values: list) -> list:
    index, *operands = values
    flat, pack = _flat(operands)
    branches = tuple(
        _staged(follow, b, pack, _avals(flat), "a branch with weights")
        for b in eqn.params["branches"]
    )
    return cond_p.bind(index, *flat, **{**eqn.params, "branches": branches})


def _row_of(seen: Rewritten) -> Seen | None:
    """An element of a weight that a loop runs over; None where elements are no weights."""
    view = seen.view.row() if isinstance(seen, Seen) and seen.weight.stacked() else None
    return None if view is None else Seen(seen.weight, view, seen.name)


def _scan(follow: Follow, eqn: Eqn, values: list) -> list:
    p = eqn.params
    consts, carry, xs = split_list(values, p["n_consts"], p["n_carry"])
    carry = [follow.dense(x, eqn) for x in carry]
    rows = [_row_of(x) or follow.dense(x, eqn) for x in xs]
    flat_consts, pack_consts = _flat(consts)
    flat_xs, pack_xs = _flat(rows)

    def pack(flat: Values) -> list:
        c, k, x = split_list(flat, len(flat_consts), len(carry))
        return [*pack_consts(c), *k, *pack_xs(x)]

    turns = [a.update(shape=a.shape[1:]) for a in _avals(flat_xs)]
    carried = p["jaxpr"].in_avals[p["n_consts"] : p["n_consts"] + p["n_carry"]]
    avals = [*_avals(flat_consts), *carried, *turns]
    body = _staged(follow, p["jaxpr"], pack, avals, "a loop body with weights")
    params = {**p, "jaxpr": body, "n_consts": len(flat_consts)}
    return scan_p.bind(*flat_consts, *carry, *flat_xs, **params)


def _while(follow: Follow, eqn: Eqn, values: list) -> list:
    p = eqn.params
    tests, consts, carry = split_list(values, p["n_cond"], p["n_body"])
    carry = [follow.dense(x, eqn) for x in carry]
    flat_tests, pack_tests = _flat(tests)
    flat_consts, pack_consts = _flat(consts)
    carried = p["body_jaxpr"].in_avals[p["n_body"] :]

    def program(jaxpr: Jaxpr, flat: list, pack: Pack) -> Jaxpr:
        n = len(flat)
        avals = [*_avals(flat), *carried]
        both = lambda given: [*pack(given[:n]), *given[n:]]  # noqa: E731
        return _staged(follow, jaxpr, both, avals, "a loop with weights")

    return while_p.bind(
        *flat_tests, *flat_consts, *carry,
        cond_jaxpr=program(p["cond_jaxpr"], flat_tests, pack_tests),
        body_jaxpr=program(p["body_jaxpr"], flat_consts, pack_consts),
        n_cond=len(flat_tests), n_body=len(flat_consts),
    )  # fmt: skip


# ---- functions with rules of their own: a rule is for the dense array, so what is differentiated
# goes through it, and from it on to the weight's arrays


def _custom(follow: Follow, eqn: Eqn, values: list) -> list:
    call, n_consts = eqn.params["call"], eqn.params["n_consts"]
    captured, n = _flat(values[:n_consts])[0], n_consts
    flat, pack = _flat(values[n:])
    every, pack_every = _flat(values)
    program = _staged(follow, eqn.params["jaxpr"], pack_every, _avals(every), f"{call.name}")

    def fun(*args: Value) -> list:
        return call_jaxpr(program, [*captured, *args], call.name)

    def dense(*args: Value) -> list:
        return [x.dense() if isinstance(x, Seen) else x for x in pack(args)]

    renewed = _with_jvp if eqn.prim is custom_jvp_call_p else _with_vjp
    params = {"jaxpr": program, "call": renewed(call, fun, dense), "n_consts": len(captured)}
    return eqn.prim.bind(*captured, *flat, **params)


def _with_jvp(call: JVPCall, fun: Callable, dense: Callable) -> JVPCall:
    def jvp(primals: Values, tangents: Tangents) -> tuple[list, list]:
        return call.differentiate(*jvp_flat(dense, primals, tangents))

    return JVPCall(call.name, fun, jvp, True)


def _with_vjp(call: VJPCall, fun: Callable, dense: Callable) -> VJPCall:
    n = 0

    def fwd(primals: Values, perturbed: Sequence[bool]) -> tuple[list, list]:
        nonlocal n
        n = len(primals)
        arrays = dense(*primals)
        outs, residuals = call.fwd(arrays, [True] * len(arrays))
        return outs, [*primals, *residuals]

    def bwd(residuals: Values, cts: Cotangents) -> list:
        primals, rest = split_list(residuals, n)
        floats = [dtypes.is_inexact(aval_of(x).dtype) for x in primals]

        def of_floats(*given: Value) -> list:
            rest = iter(given)
            return dense(*(next(rest) if m else x for m, x in zip(floats, primals, strict=True)))

        _, pull = vjp(of_floats, *choose(primals, floats))
        found = iter(pull([instantiate(c) for c in call.bwd(rest, cts)]))
        return [
            next(found) if m else Zero(aval_of(x).tangent())
            for m, x in zip(floats, primals, strict=True)
        ]

    return VJPCall(call.name, fun, fwd, bwd, call.forward, call.refs)


# ---- performed at once


def _through(follow: Follow, eqn: Eqn, values: list) -> list:
    return follow.run(called_program(eqn), values)


def _chosen(follow: Follow, eqn: Eqn, values: list) -> list:
    branches = eqn.params["branches"]
    return follow.run(branches[min(max(int(values[0]), 0), len(branches) - 1)], values[1:])


def _turns(follow: Follow, eqn: Eqn, values: list) -> list:
    p = eqn.params
    consts, carry, xs = split_list(values, p["n_consts"], p["n_carry"])
    carry = [follow.dense(x, eqn) for x in carry]
    rows = [_row_of(x) or follow.dense(x, eqn) for x in xs]
    flat, pack = _flat(rows)
    ys: list = []
    order = range(p["length"])
    for i in reversed(order) if p["reverse"] else order:
        turn = pack([index_in_dim(x, i, keepdims=False) for x in flat])
        outs = follow.run(p["jaxpr"], [*consts, *carry, *turn])
        carry, y = outs[: p["n_carry"]], outs[p["n_carry"] :]
        ys.append(y)
    if not ys:
        return performed(eqn, [follow.dense(x, eqn) for x in values])
    ys = ys[::-1] if p["reverse"] else ys
    stacks = zip(*ys, strict=True)
    return [*carry, *(concatenate([expand_dims(y, (0,)) for y in c], 0) for c in stacks)]


def _loops(follow: Follow, eqn: Eqn, values: list) -> list:
    p = eqn.params
    tests, consts, carry = split_list(values, p["n_cond"], p["n_body"])
    while bool(follow.run(p["cond_jaxpr"], [*tests, *carry])[0]):
        carry = follow.run(p["body_jaxpr"], [*consts, *carry])
    return carry


STAGED: dict[Primitive, Enter] = {
    jit_p: _call,
    checkpoint_p: _call,
    cond_p: _cond,
    scan_p: _scan,
    while_p: _while,
    custom_jvp_call_p: _custom,
    custom_vjp_call_p: _custom,
}
UNROLLED: dict[Primitive, Enter] = {
    jit_p: _through,
    checkpoint_p: _through,
    cond_p: _chosen,
    scan_p: _turns,
    while_p: _loops,
    custom_jvp_call_p: _through,
    custom_vjp_call_p: _through,
}
