"""Branches: `cond` and `switch`. One primitive, `cond[branches]`, of an index and the operands.

All branches are traced and must agree in their results' types; one of them runs. Mapped over a
batch of indices, all run and each lane selects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core import context
from funcgrad.core.aval import Linear, ShapedArray, Zero, promote, with_zeros
from funcgrad.core.dce import dce_jaxpr
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, call_types, eval_jaxpr, interpret
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import aval_of, is_known
from funcgrad.core.types import (
    ArrayModule,
    BatchDims,
    Cotangents,
    Operand,
    PlainArray,
    Tangent,
    Tangents,
    Tree,
    Value,
    Values,
)
from funcgrad.errors import ControlFlowError, IRError, TypePromotionError
from funcgrad.ops.arguments import items_of
from funcgrad.ops.base import batch_front, broadcast_p, zeros
from funcgrad.ops.elementwise.compare import eq, ne
from funcgrad.ops.elementwise.convert import clamp, convert_element_type, select_n
from funcgrad.ops.indexing.windows_at import dynamic_slice_in_dim
from funcgrad.ops.reduce import argmax, reduce_or
from funcgrad.transforms.arguments import as_array, check_leaves, name_of
from funcgrad.transforms.autodiff.jvp import jvp_flat, jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import PartialJaxpr, Split, partial_eval_jaxpr
from funcgrad.transforms.autodiff.transpose import transpose_jaxpr
from funcgrad.transforms.batching.batching import batch_jaxpr
from funcgrad.transforms.batching.trace import BatchAxis, axis_names
from funcgrad.transforms.control.bodies import cast_outputs, check_pred, choose, drop, stage_body
from funcgrad.transforms.control.custom_call import JVPCall
from funcgrad.transforms.refs import closing_over, union

_NONE = object()


@boundary
def cond(
    pred: Value, true_fun: Callable, false_fun: Callable, *operands: Any, operand: Tree = _NONE
) -> Tree:
    """`true_fun(*operands)` where the scalar `pred` is true, else `false_fun(*operands)`.

    Both are traced, and must return the same structure, shapes and dtypes; one runs. A single
    operand may be given by its name.

    >>> from funcgrad import lax
    >>> lax.cond(True, lambda x: x + 1, lambda x: x - 1, 3)
    Array(4, dtype=int32, weak_type=True)
    """
    if not callable(true_fun) or not callable(false_fun):
        raise TypeError(
            f"cond: need two functions after the predicate, got {true_fun!r} and {false_fun!r}"
        )
    operands = _all("cond", operands, operand)
    aval = check_pred("cond", pred, "the predicate")
    if aval.dtype != dtypes.BOOL:
        pred = bool(pred) if isinstance(pred, int | float) else ne(pred, 0)
    if context.current().disable_jit and is_known(pred):
        operands = tree.map(as_array, operands)
        return true_fun(*operands) if bool(pred) else false_fun(*operands)
    index = convert_element_type(pred, np.int32)
    return _branches("cond", index, (false_fun, true_fun), operands)


def _all(what: str, operands: tuple, operand: Tree) -> tuple:
    """Operands given in a row, or one by its name."""
    if operand is _NONE:
        return operands
    if operands:
        raise TypeError(f"{what}: give operands by position, or one as operand=, not both")
    return (operand,)


@boundary
def switch(
    index: Value, branches: Sequence[Callable], *operands: Any, operand: Tree = _NONE
) -> Tree:
    """`branches[index](*operands)`, the integer index clamped into range.

    A single operand may be given by its name.

    >>> from funcgrad import lax
    >>> lax.switch(1, [lambda x: x, lambda x: -x], 3)
    Array(-3, dtype=int32, weak_type=True)
    """
    branches = tuple(items_of("branches", branches))
    if not branches or not all(map(callable, branches)):
        raise ControlFlowError(f"switch: need at least one function, got {branches!r}")
    operands = _all("switch", operands, operand)
    aval = check_pred("switch", index, "the index")
    if not dtypes.is_integer(aval.dtype):
        raise ControlFlowError(f"switch: the index must be an integer, got {aval}")
    if len(branches) == 1:
        return branches[0](*tree.map(as_array, operands))
    if context.current().disable_jit and is_known(index):
        operands = tree.map(as_array, operands)
        return branches[min(max(int(index), 0), len(branches) - 1)](*operands)
    if isinstance(index, int):
        index = min(max(index, 0), len(branches) - 1)
    # Clamped as what it is: in int32 large numbers would start again.
    dtype = aval.dtype if aval.dtype.itemsize >= 4 else np.dtype(np.int32)
    index = clamp(dtype.type(0), convert_element_type(index, dtype), dtype.type(len(branches) - 1))
    return _branches("switch", convert_element_type(index, np.int32), branches, operands)


def _branches(what: str, index: Value, funs: Sequence[Callable], operands: tuple) -> Tree:
    operands, funs = closing_over(what, operands, *funs)
    check_leaves(what, funs[-1], operands, {})
    leaves, in_tree = tree.flatten((operands, {}))
    avals = [aval_of(x) for x in leaves]
    bodies = [stage_body(what, f, in_tree, avals, "branch", leaves) for f in funs]
    # Users give cond the branch for true first.
    order = [*zip(funs, bodies, strict=True)][:: -1 if what == "cond" else 1]
    out_tree = order[0][1].out_tree
    for f, body in order:
        if body.out_tree != out_tree:
            raise ControlFlowError(
                f"{what}: all branches must return one structure, but {name_of(order[0][0])} "
                f"returns {out_tree} and {name_of(f)} returns {body.out_tree}"
            )
    # Mutable arrays that any branch writes to are operands and results of all.
    state, n_out = union(*bodies), out_tree.num_leaves
    staged = [body.with_state(state, len(leaves), n_out) for body in bodies]
    leaves = [*leaves, *(ref.read() for ref in state)]
    out_avals = _join(what, funs, [jaxpr.out_avals for jaxpr, _ in staged])
    all_consts = [c for _, consts in staged for c in consts]
    branches, start = [], 0
    for jaxpr, consts in staged:
        n = len(consts)
        before = [aval_of(c) for c in all_consts[:start]]
        after = [aval_of(c) for c in all_consts[start + n :]]
        # Inputs: all branches' captured values, then the operands.
        own, rest = jaxpr.ins[:n], jaxpr.ins[n:]
        ins = [*(Var(a) for a in before), *own, *(Var(a) for a in after), *rest]
        branches.append(cast_outputs(Jaxpr(ins, jaxpr.eqns, jaxpr.outs), out_avals))
        start += n
    outs = cond_p.bind(index, *all_consts, *leaves, branches=tuple(branches))
    for ref, value in zip(state, outs[n_out:], strict=True):
        ref.write(value)
    return out_tree.unflatten(outs[:n_out])


def _join(what: str, funs: Sequence[Callable], outs: list[list[ShapedArray]]) -> list[ShapedArray]:
    """The common types of the branches' results; only weak types may give way."""
    joined = []
    for i, avals in enumerate(zip(*outs, strict=True)):
        try:
            dtype, weak = promote(list(avals))
        except TypePromotionError as e:
            raise ControlFlowError(f"{what}: result {i} of the branches: {e}") from None
        shape = avals[0].shape
        if any(a.shape != shape or (a.dtype != dtype and not a.weak_type) for a in avals):
            each = [
                f"{a}{' (weak)' if a.weak_type else ''} from {name_of(f)}"
                for f, a in zip(funs, avals, strict=True)
            ]
            listed = " and ".join(each[::-1] if what == "cond" else each)
            raise ControlFlowError(
                f"{what}: all branches must return the same types, but result {i} is {listed}"
            )
        joined.append(ShapedArray(shape, dtype, weak))
    return joined


# ---- rules


def _abstract(index: ShapedArray, *avals: ShapedArray, branches: Sequence[Jaxpr]) -> list:
    outs, *others = [call_types("cond", b, avals) for b in branches]
    for other in others:
        if len(other) != len(outs) or not all(map(ShapedArray.matches, outs, other)):
            raise IRError(f"cond: one branch gives {outs}, another {other}")
    return outs


def _impl(
    xp: ArrayModule, index: PlainArray, *ops: PlainArray, branches: tuple[Jaxpr, ...]
) -> list:
    return interpret(branches[int(index)], xp, *ops)


def _jvp(primals: Values, tangents: Tangents, *, branches: tuple[Jaxpr, ...]) -> tuple[list, list]:
    index, *ops = primals
    nonzero = [type(t) is not Zero for t in tangents[1:]]
    masks = [jvp_jaxpr(b, nonzero)[1] for b in branches]
    union = [any(m) for m in zip(*masks, strict=True)]
    both = tuple(jvp_jaxpr(b, nonzero, instantiate_out=union)[0] for b in branches)
    outs = cond_p.bind(index, *ops, *choose(tangents[1:], nonzero), branches=both)
    n = len(branches[0].outs)
    return outs[:n], with_zeros(outs[n:], union, branches[0].out_avals)


def _transpose(ct: Cotangents, index: Operand, *ops: Operand, branches: tuple[Jaxpr, ...]) -> list:
    linear = [type(x) is Linear for x in ops]
    nonzero = [type(c) is not Zero for c in ct]
    backward = tuple(transpose_jaxpr(b, linear, nonzero, force=True)[0] for b in branches)
    outs = iter(cond_p.bind(index, *drop(ops, linear), *choose(ct, nonzero), branches=backward))
    return [None, *(next(outs) if is_linear else None for is_linear in linear)]


def _batch(axis: BatchAxis, args: Values, dims: BatchDims, *, branches: tuple[Jaxpr, ...]) -> tuple:
    index, *ops = args
    if dims[0] is None:
        masks = [batch_jaxpr(b, axis, dims[1:])[1] for b in branches]
        union = [any(m) for m in zip(*masks, strict=True)]
        batched = tuple(batch_jaxpr(b, axis, dims[1:], force=union)[0] for b in branches)
        outs = cond_p.bind(index, *ops, branches=batched)
        return outs, [0 if u else None for u in union]
    lanes = batch_front(index, dims[0], axis.size)
    results = []
    for i, b in enumerate(branches):
        taken = eq(lanes, np.int32(i))
        results.append(_in_all_lanes(b, axis, dims[1:], taken, ops))
    outs = [_select_lanes(lanes, cases) for cases in zip(*results, strict=True)]
    return outs, [0] * len(outs)


def _in_all_lanes(
    branch: Jaxpr, axis: BatchAxis, dims: BatchDims, taken: Value, ops: Sequence
) -> list:
    """A branch's results in all lanes, batched at axis 0, which count where it is taken.

    Elsewhere their cotangents are 0, and 0 times an infinite derivative is NaN. So the branch is
    differentiated as if lanes that don't take it had the operands of one that does. What lanes
    exchange inside of it depends on all of them, and stays as it is.
    """
    batched, _ = batch_jaxpr(branch, axis, dims, force=True)
    if any(e.ins and axis.name in axis_names(e.params) for e in branch.eqns):
        return eval_jaxpr(batched, *ops)

    def run(taken: Value, *ops: Value) -> list:
        return eval_jaxpr(batched, *ops)

    def jvp(primals: Values, tangents: Tangents) -> tuple[list, list]:
        taken, *ops = primals
        given = [_of_a_taker(taken, x, d) for x, d in zip(ops, dims, strict=True)]
        some = reduce_or(taken, axes=(0,))
        moves = [_if_any(some, t) for t in tangents[1:]]
        return jvp_flat(lambda *xs: eval_jaxpr(batched, *xs), given, moves)

    call = JVPCall("branch", run, jvp, symbolic_zeros=True)
    return context.current().trace.process_custom(call, (taken, *ops))


def _of_a_taker(taken: Value, x: Value, dim: int | None) -> Value:
    """An operand in which lanes that don't take the branch have what the first that does has."""
    if dim is None:
        return x
    shape, first = aval_of(x).shape, argmax(taken, 0)
    one = dynamic_slice_in_dim(x, first, 1, dim)
    one = broadcast_p.bind(one, shape=shape, broadcast_dimensions=tuple(range(len(shape))))
    return select_n(broadcast_p.bind(taken, shape=shape, broadcast_dimensions=(dim,)), one, x)


def _if_any(some: Value, tangent: Tangent) -> Tangent:
    """A tangent, or 0 where no lane takes the branch."""
    if type(tangent) is Zero:
        return tangent
    return select_n(some, np.zeros((), aval_of(tangent).dtype), tangent)


def _select_lanes(index: Value, cases: Values) -> Value:
    """For each lane the case of its index."""
    shape = aval_of(cases[0]).shape
    wide = broadcast_lanes(index, shape)
    which = ne(wide, np.int32(0)) if len(cases) == 2 else wide
    return select_n(which, *cases)


def broadcast_lanes(x: Value, shape: tuple[int, ...]) -> Value:
    """One value a lane, as an array of `shape`, whose first axis is the lanes."""
    if aval_of(x).shape == shape:
        return x
    return broadcast_p.bind(x, shape=shape, broadcast_dimensions=(0,))


def _partial(unknown: Sequence[bool], eqn: Eqn) -> Split:
    if unknown[0]:
        return Split(None, eqn)
    branches = eqn.params["branches"]
    masks = [partial_eval_jaxpr(b, unknown[1:]).out_unknown for b in branches]
    union = [any(m) for m in zip(*masks, strict=True)]
    parts = [partial_eval_jaxpr(b, unknown[1:], force_out=union) for b in branches]
    index, ops = eqn.ins[0], eqn.ins[1:]
    known_ins, unknown_ins = drop(ops, unknown[1:]), choose(ops, unknown[1:])
    slots = _residual_slots(parts)
    residuals = [Var(a) for a in slots]
    known_branches = tuple(_known_branch(p, slots) for p in parts)
    unknown_branches = tuple(_unknown_branch(p, slots, known_ins) for p in parts)
    known_outs = drop(eqn.outs, union)
    known = eqn.replace(
        ins=(index, *known_ins), outs=(*known_outs, *residuals), params={"branches": known_branches}
    )
    after = eqn.replace(
        ins=(index, *residuals, *known_ins, *unknown_ins),
        outs=tuple(choose(eqn.outs, union)),
        params={"branches": unknown_branches},
    )
    return Split(known, _dce([True] * len(after.outs), after))


def _computed(part: PartialJaxpr) -> list[Var]:
    return [r for r, f in zip(part.residuals, part.forwarded, strict=True) if f is None]


def _residual_slots(parts: Sequence[PartialJaxpr]) -> list[ShapedArray]:
    """Types of residuals that serve every branch: each branch fills the slots of its types."""
    slots: list[ShapedArray] = []
    for part in parts:
        free = list(slots)
        for r in _computed(part):
            aval = r.aval.strong()
            if aval in free:
                free.remove(aval)
            else:
                slots.append(aval)
    return slots


def _assign(part: PartialJaxpr, slots: Sequence[ShapedArray]) -> list[int]:
    """The slot of each computed residual of a branch."""
    free = list(range(len(slots)))
    found = []
    for r in _computed(part):
        i = next(i for i in free if slots[i] == r.aval.strong())
        free.remove(i)
        found.append(i)
    return found


def _known_branch(part: PartialJaxpr, slots: Sequence[ShapedArray]) -> Jaxpr:
    at = _assign(part, slots)

    def fun(*args: Any) -> list:
        outs = eval_jaxpr(part.known, *args)
        n = len(outs) - len(at)
        filled: dict[int, Any] = dict(zip(at, outs[n:], strict=True))
        given = [filled[i] if i in filled else zeros(a) for i, a in enumerate(slots)]
        return [*outs[:n], *given]

    return stage_closed(fun, part.known.in_avals, "a branch")


def _unknown_branch(
    part: PartialJaxpr, slots: Sequence[ShapedArray], known_ins: Sequence[Atom]
) -> Jaxpr:
    at = iter(_assign(part, slots))
    slot_vars = [Var(a) for a in slots]
    known_vars = [Var(a.aval) for a in known_ins]
    n = len(part.residuals)
    env = {}
    for var, forwarded in zip(part.unknown.ins[:n], part.forwarded, strict=True):
        env[var] = slot_vars[next(at)] if forwarded is None else known_vars[forwarded]

    def fun(*args: Value) -> list:
        given = dict(zip([*slot_vars, *known_vars], args, strict=False))
        rest = args[len(slot_vars) + len(known_vars) :]
        return eval_jaxpr(part.unknown, *(given[env[v]] for v in part.unknown.ins[:n]), *rest)

    avals = [*slots, *(v.aval for v in known_vars), *part.unknown.in_avals[n:]]
    return stage_closed(fun, avals, "a branch")


def _dce(used: Sequence[bool], eqn: Eqn) -> Eqn:
    branches = eqn.params["branches"]
    masks = [dce_jaxpr(b, used)[1] for b in branches]
    union = [any(m) for m in zip(*masks, strict=True)]
    slim = tuple(dce_jaxpr(b, used, keep_ins=union)[0] for b in branches)
    return eqn.replace(
        ins=(eqn.ins[0], *choose(eqn.ins[1:], union)),
        outs=tuple(choose(eqn.outs, used)),
        params={"branches": slim},
    )


cond_p = Primitive(
    name="cond",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    dims=NoRule("partitioning looks into the branches"),
    partial=_partial,
    dce=_dce,
    multiple=True,
)
