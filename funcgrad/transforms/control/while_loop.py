"""Loops whose length depends on values: `while_loop`, and `fori_loop` on top of it or of `scan`.

One primitive, `while[cond_jaxpr, body_jaxpr, n_cond, n_body]`: operands are what the condition
captured, what the body captured, and the carry. Forward mode carries tangents along; reverse mode
needs a trip count known while tracing, which turns the loop into a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core import backend, context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray, Zero, with_zeros
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Eqn, Jaxpr, Var, call_types, eval_jaxpr, interpret
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.core.types import (
    ArrayModule,
    BatchDims,
    Param,
    PlainArray,
    Tangents,
    Tree,
    Value,
    Values,
)
from funcgrad.errors import ControlFlowError, TracerBoolConversionError
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import batch_front, instantiate, position_dtype
from funcgrad.ops.elementwise.compare import lt
from funcgrad.ops.elementwise.convert import select_n
from funcgrad.ops.families import add
from funcgrad.ops.reduce import reduce_or
from funcgrad.transforms.arguments import (
    as_array,
    avals_of,
    check_leaves,
    flatten_outputs,
    name_of,
)
from funcgrad.transforms.autodiff.jvp import jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import Split, partial_eval_jaxpr
from funcgrad.transforms.batching.batching import batch_jaxpr
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control.bodies import (
    as_type,
    cast_outputs,
    check_carry,
    check_pred,
    choose,
    drop,
    fixpoint,
    has_explicit_axes,
    join_carry,
    split_list,
    stage_body,
)
from funcgrad.transforms.control.cond import broadcast_lanes, cond
from funcgrad.transforms.control.scan import scan


@boundary
def while_loop(
    cond_fun: Callable, body_fun: Callable, init_val: Tree, *, max_steps: int | None = None
) -> Tree:
    """The first of init, body(init), body(body(init)), … for which `cond_fun` is false.

    The carry keeps its structure, shapes and dtypes. With `max_steps`, the loop ends after that
    many turns at the latest and reverse-mode differentiation works, at the cost of `max_steps`
    turns of which the surplus do nothing.

    >>> from funcgrad import lax
    >>> lax.while_loop(lambda x: x < 100, lambda x: x * 2, 3)
    Array(192, dtype=int32, weak_type=True)
    """
    if not callable(cond_fun) or not callable(body_fun):
        raise TypeError(f"while_loop: need two functions, got {cond_fun!r} and {body_fun!r}")
    check_leaves("while_loop", body_fun, (init_val,), {})
    if context.current().disable_jit:
        # Lanes of a vmap end at different times: there the loop stays traced.
        with suppress(TracerBoolConversionError):
            return _run_in_python(cond_fun, body_fun, init_val, max_steps)
    if max_steps is not None:
        return _bounded(cond_fun, body_fun, init_val, max_steps)
    leaves, carry_tree = tree.flatten(init_val)
    in_tree = tree.structure(((init_val,), {}))
    avals = [aval_of(x) for x in leaves]
    while True:
        turn = stage_body("while_loop", body_fun, in_tree, avals, "body", leaves, len(avals))
        joined = join_carry(
            "while_loop", carry_tree, avals, turn.out_tree, turn.out_avals, init_val
        )
        if joined == avals:
            break
        avals = joined
    ask = stage_body("while_loop", cond_fun, in_tree, avals, "condition", leaves)
    if ask.out_tree != tree.structure(0):
        raise ControlFlowError(
            f"while_loop: the condition {name_of(cond_fun)} must return one boolean, got "
            f"{ask.out_tree}"
        )
    if ask.written:
        raise ControlFlowError(
            f"while_loop: the condition {name_of(cond_fun)} writes to a Ref of "
            f"{ask.written[0].inner_aval}; only the body may"
        )
    # Mutable arrays that the body writes to are carried, too.
    state, n = turn.written, len(avals)
    body, body_consts = turn.with_state(state, n, n)
    body = cast_outputs(body, [*avals, *body.out_avals[n:]])
    test, cond_consts = ask.with_state(state, n, 1)
    test = Jaxpr(test.ins, test.eqns, test.outs[:1])
    pred = check_pred("while_loop", test.outs[0], f"the result of {name_of(cond_fun)}")
    if pred.dtype != dtypes.BOOL:
        raise ControlFlowError(
            f"while_loop: the condition {name_of(cond_fun)} must return a boolean, got {pred}"
        )
    outs = while_p.bind(
        *cond_consts, *body_consts, *(as_type(x, a) for x, a in zip(leaves, avals, strict=True)),
        *(ref.read() for ref in state),
        cond_jaxpr=test, body_jaxpr=body, n_cond=len(cond_consts), n_body=len(body_consts),
    )  # fmt: skip
    for ref, value in zip(state, outs[n:], strict=True):
        ref.write(value)
    return carry_tree.unflatten(outs[:n])


def _run_in_python(
    cond_fun: Callable, body_fun: Callable, value: Tree, max_steps: int | None
) -> Tree:
    steps, value = 0, tree.map(as_array, value)
    while bool(cond_fun(value)) and (max_steps is None or steps < max_steps):
        value = body_fun(value)
        steps += 1
    return value


def _bounded(cond_fun: Callable, body_fun: Callable, init_val: Tree, max_steps: int) -> Tree:
    def turn(carry: Tree, _: None) -> tuple:
        return cond(cond_fun(carry), body_fun, lambda c: c, carry), None

    return scan(turn, init_val, None, length=max_steps)[0]


@boundary
def fori_loop(
    lower: Value, upper: Value, body_fun: Callable, init_val: Tree, *, unroll: int = 1
) -> Tree:
    """`init_val` after `val = body_fun(i, val)` for i = lower … upper - 1.

    With Python integers as bounds it is a scan and reverse mode works; with traced bounds it is a
    while loop.

    >>> from funcgrad import lax
    >>> lax.fori_loop(0, 4, lambda i, x: x + i, 0)
    Array(6, dtype=int32, weak_type=True)
    """
    if not callable(body_fun):
        raise TypeError(f"fori_loop: the third argument must be a function, got {body_fun!r}")
    known = not isinstance(lower, Tracer) and not isinstance(upper, Tracer)
    # Like Python's own integers, an index between such takes the dtype of what it meets.
    dtype, weak = np.dtype(np.int32), True
    for bound in (lower, upper):
        aval = check_pred("fori_loop", bound, "a bound")
        if not dtypes.is_integer(aval.dtype):
            raise ControlFlowError(f"fori_loop: the bounds must be integers, got {aval}")
        weak = weak and aval.weak_type
        dtype = dtype if aval.weak_type else np.promote_types(dtype, aval.dtype)
    if known:
        start, end = integer("lower", lower), integer("upper", upper)
        length = max(end - start, 0)
        if weak:
            dtype = position_dtype(max(end, -start))

        def turn(carry: Tree, _: None) -> tuple:
            i, val = carry
            return (add(i, 1), _turn(body_fun, i, val)), None

        start_at = Array(np.asarray(start, dtype), weak)
        (_, value), _ = scan(turn, (start_at, init_val), None, length=length, unroll=unroll)
        return value

    def test(carry: Tree) -> Value:
        return lt(carry[0], carry[1])

    def body(carry: Tree) -> tuple:
        i, end, val = carry
        return add(i, 1), end, _turn(body_fun, i, val)

    bounds = [as_type(b, ShapedArray((), dtype, weak)) for b in (lower, upper)]
    return while_loop(test, body, (*bounds, init_val))[2]


def _turn(body_fun: Callable, i: Value, val: Tree) -> Tree:
    """body_fun(i, val), checked here so that errors name fori_loop and the user's value alone."""
    out = body_fun(i, val)
    leaves, in_tree = tree.flatten(val)
    out_leaves, out_tree = flatten_outputs("fori_loop", body_fun, out)
    join_carry("fori_loop", in_tree, avals_of(leaves), out_tree, avals_of(out_leaves), val)
    if has_explicit_axes():
        place = f"the body {name_of(body_fun)} of fori_loop"
        backend.explicit().check_carry(place, leaves, out_leaves)
    return out


# ---- rules


def _abstract(
    *avals: ShapedArray, cond_jaxpr: Jaxpr, body_jaxpr: Jaxpr, n_cond: int, n_body: int
) -> list[ShapedArray]:
    cond_consts, body_consts, carry = split_list(avals, n_cond, n_body)
    call_types("while", cond_jaxpr, [*cond_consts, *carry])
    outs = call_types("while", body_jaxpr, [*body_consts, *carry])
    check_carry("while", carry, outs)
    return outs


def _impl(xp: ArrayModule, *values: PlainArray, cond_jaxpr: Jaxpr, body_jaxpr: Jaxpr, n_cond: int,
          n_body: int) -> list:  # fmt: skip
    cond_consts, body_consts, carry = split_list(values, n_cond, n_body)
    while bool(interpret(cond_jaxpr, xp, *cond_consts, *carry)[0]):
        carry = interpret(body_jaxpr, xp, *body_consts, *carry)
    return carry


def _jvp(primals: Values, tangents: Tangents, *, cond_jaxpr: Jaxpr, body_jaxpr: Jaxpr, n_cond: int,
         n_body: int) -> tuple[list, list]:  # fmt: skip
    cond_consts, body_consts, init = split_list(primals, n_cond, n_body)
    _, body_t, init_t = split_list(tangents, n_cond, n_body)
    consts_nz = [type(t) is not Zero for t in body_t]

    def grow(carry_nz: list[bool]) -> list[bool]:
        return jvp_jaxpr(body_jaxpr, [*consts_nz, *carry_nz], carry_nz)[1]

    carry_nz = fixpoint(grow, [type(t) is not Zero for t in init_t])
    both, _ = jvp_jaxpr(body_jaxpr, [*consts_nz, *carry_nz], carry_nz)
    n_c, n_ct, n = n_body, sum(consts_nz), len(init)
    # Of the program's inputs (consts, carry, const tangents, carry tangents): consts come first.
    ins = list(both.ins)
    order = [
        *ins[:n_c],
        *ins[n_c + n : n_c + n + n_ct],
        *ins[n_c : n_c + n],
        *ins[n_c + n + n_ct :],
    ]
    body = Jaxpr(order, both.eqns, both.outs)
    carried = [instantiate(t) for t in choose(init_t, carry_nz)]
    test = Jaxpr(
        [*cond_jaxpr.ins, *(Var(aval_of(t)) for t in carried)], cond_jaxpr.eqns, cond_jaxpr.outs
    )
    outs = while_p.bind(
        *cond_consts, *body_consts, *choose(body_t, consts_nz), *init, *carried,
        cond_jaxpr=test, body_jaxpr=body, n_cond=n_cond, n_body=n_c + n_ct,
    )  # fmt: skip
    return outs[:n], with_zeros(outs[n:], carry_nz, body_jaxpr.out_avals)


def _batch(axis: BatchAxis, args: Values, dims: BatchDims, **params: Param) -> tuple:
    cond_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    n_cond, n_body = params["n_cond"], params["n_body"]
    cond_consts, body_consts, init = split_list(args, n_cond, n_body)
    cond_dims, body_dims, init_dims = split_list(dims, n_cond, n_body)

    def lanes(mask: Sequence[bool]) -> list[int | None]:
        return [0 if m else None for m in mask]

    def pred_batched(mask: Sequence[bool]) -> bool:
        return batch_jaxpr(cond_jaxpr, axis, [*cond_dims, *lanes(mask)])[1][0]

    def grow(mask: list[bool]) -> list[bool]:
        # Where lanes end at different times, each element of the carry depends on its lane.
        if pred_batched(mask):
            return [True] * len(mask)
        return batch_jaxpr(body_jaxpr, axis, [*body_dims, *lanes(mask)], mask)[1]

    mask = fixpoint(grow, [d is not None for d in init_dims])
    body, _ = batch_jaxpr(body_jaxpr, axis, [*body_dims, *lanes(mask)], mask)
    test, (by_lane,) = batch_jaxpr(cond_jaxpr, axis, [*cond_dims, *lanes(mask)])
    if by_lane:
        n_extra = n_cond
        test, body = _until_all_done(test, body, n_cond, n_body)
        body_consts = [*cond_consts, *body_consts]
    else:
        n_extra = 0
    carry = [
        batch_front(x, d, axis.size) if m else x
        for x, d, m in zip(init, init_dims, mask, strict=True)
    ]
    outs = while_p.bind(*cond_consts, *body_consts, *carry, cond_jaxpr=test, body_jaxpr=body,
                        n_cond=n_cond, n_body=n_body + n_extra)  # fmt: skip
    return outs, lanes(mask)


def _until_all_done(test: Jaxpr, body: Jaxpr, n_cond: int, n_body: int) -> tuple[Jaxpr, Jaxpr]:
    """The loop that goes on while any lane does, and leaves the lanes that are done as they are."""

    def any_lane(*args: Any) -> list:
        return [reduce_or(eval_jaxpr(test, *args)[0], axes=(0,))]

    def active_lanes(*args: Any) -> list:
        cond_consts, body_consts, carry = split_list(args, n_cond, n_body)
        active = eval_jaxpr(test, *cond_consts, *carry)[0]
        new = eval_jaxpr(body, *body_consts, *carry)
        return [
            select_n(broadcast_lanes(active, aval_of(n).shape), o, n)
            for o, n in zip(carry, new, strict=True)
        ]

    avals = [*test.in_avals[:n_cond], *body.in_avals]
    return (
        stage_closed(any_lane, test.in_avals, "a condition"),
        stage_closed(active_lanes, avals, "a loop body"),
    )


def _partial(unknown: Sequence[bool], eqn: Eqn) -> Split:
    """The part of the carry that depends on nothing unknown runs now, if the condition does; the
    whole loop, of primals and tangents together, is what remains."""
    p = eqn.params
    n_cond, n_body = p["n_cond"], p["n_body"]
    cond_u, body_u, init_u = split_list(unknown, n_cond, n_body)

    def grow(mask: list[bool]) -> list[bool]:
        return partial_eval_jaxpr(p["body_jaxpr"], [*body_u, *mask], mask).out_unknown

    carry_u = fixpoint(grow, init_u)
    parts = partial_eval_jaxpr(p["cond_jaxpr"], [*cond_u, *carry_u])
    if parts.out_unknown[0]:
        return Split(None, eqn)
    body = partial_eval_jaxpr(p["body_jaxpr"], [*body_u, *carry_u], carry_u)
    n = len(carry_u) - sum(carry_u)
    known_body = Jaxpr(body.known.ins, body.known.eqns, body.known.outs[:n])
    cond_consts, body_consts, init = split_list(eqn.ins, n_cond, n_body)
    known = eqn.replace(
        ins=(*cond_consts, *drop(body_consts, body_u), *drop(init, carry_u)),
        outs=tuple(drop(eqn.outs, carry_u)),
        params={
            "cond_jaxpr": parts.known,
            "body_jaxpr": known_body,
            "n_cond": n_cond,
            "n_body": n_body - sum(body_u),
        },
    )
    # The remaining loop computes everything again; only its unknown results are new.
    again = [Var(v.aval) if not u else v for v, u in zip(eqn.outs, carry_u, strict=True)]
    return Split(known, eqn.replace(outs=tuple(again)))


while_p = Primitive(
    name="while",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=NoRule(
        "reverse-mode differentiation needs the number of turns of a loop while tracing: use "
        "fori_loop with Python integers as bounds, scan, or while_loop(..., max_steps=n)"
    ),
    batch=_batch,
    dims=NoRule("partitioning looks into the body"),
    partial=_partial,
    multiple=True,
)
