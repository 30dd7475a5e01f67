"""Loops of known length: `scan`. One primitive of captured values, carry and scanned inputs.

`scan[jaxpr, length, reverse, unroll, n_consts, n_carry]`: the body maps (consts, carry, x) to
(carry, y). Every transformation of a scan is a scan of the transformed body; where a mask over the
carry (has a tangent, is batched, is unknown) depends on itself, it is grown to a fixed point.
Reverse mode is a scan in the other direction over stacked residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core import context
from funcgrad.core.aval import Linear, ShapedArray, Zero, with_zeros
from funcgrad.core.dce import dce_jaxpr
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Eqn, Jaxpr, Var, call_types, interpret
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.refs import Ref, check_distinct
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import aval_of
from funcgrad.core.types import (
    ArrayModule,
    BatchDims,
    Cotangents,
    Operand,
    Param,
    PlainArray,
    Tangents,
    Tree,
    Values,
)
from funcgrad.errors import ControlFlowError, DifferentiationError, IRError
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import batch_front, instantiate, move_axis, zeros
from funcgrad.ops.families import add
from funcgrad.ops.indexing.windows_at import index_in_dim
from funcgrad.ops.shape import concatenate
from funcgrad.transforms.arguments import as_array, check_leaves, name_of
from funcgrad.transforms.autodiff.jvp import jvp_jaxpr
from funcgrad.transforms.autodiff.partial_eval import Split, partial_eval_jaxpr
from funcgrad.transforms.autodiff.transpose import backward_pass
from funcgrad.transforms.batching.batching import batch_jaxpr
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control.bodies import (
    as_type,
    cast_outputs,
    check_carry,
    choose,
    drop,
    fixpoint,
    join_carry,
    split_list,
    stage_body,
)
from funcgrad.transforms.refs import refs_among
from funcgrad.tree import PyTreeDef


@boundary
def scan(
    f: Callable,
    init: Tree,
    xs: Tree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Tree, Tree]:
    """Loop over the first axis of `xs` with a carry: (carry, y) = f(carry, x), ys stacked.

    init, xs and the results are pytrees; `length` is needed where xs has no arrays. reverse: from
    the last element to the first. unroll: steps a turn of the compiled loop. The carry must keep
    its structure, shapes and dtypes; weak dtypes of `init` give way to those of the body.

    >>> import funcgrad.numpy as fnp
    >>> from funcgrad import lax
    >>> lax.scan(lambda c, x: (c + x, c * x), 0.0, fnp.array([1.0, 2.0, 3.0]))
    (Array(6., dtype=float32), Array([0., 2., 9.], dtype=float32))
    """
    if not callable(f):
        raise TypeError(f"scan: the first argument must be a function, got {f!r}")
    refs = refs_among(tree.leaves(xs))
    if refs:
        return _over_refs(f, init, xs, refs, length, reverse, unroll)
    check_leaves("scan", f, (init, xs), {})
    xs_leaves, xs_tree = tree.flatten(xs)
    n = _length(f, xs, xs_leaves, length)
    if context.current().disable_jit and n:
        init = tree.map(as_array, init)
        return _run_in_python(f, init, xs_leaves, xs_tree, n, reverse)
    init_leaves, init_tree = tree.flatten(init)
    x_avals = [_row(aval_of(x)) for x in xs_leaves]
    in_tree = tree.structure(((init, xs), {}))
    avals = [aval_of(x) for x in init_leaves]
    while True:
        operands = [*init_leaves, *xs_leaves]
        body = stage_body("scan", f, in_tree, [*avals, *x_avals], "body", operands, len(avals))
        carry_tree, y_tree = _split_result(f, body.out_tree)
        n_carry = carry_tree.num_leaves
        outs = body.out_avals[:n_carry]
        joined = join_carry("scan", init_tree, avals, carry_tree, outs, init)
        if joined == avals:
            break
        avals = joined
    # Mutable arrays that the body writes to are carried, too.
    jaxpr, consts = body.with_state(body.written, n_carry, n_carry)
    jaxpr = cast_outputs(jaxpr, [*avals, *jaxpr.out_avals[n_carry:]])
    carried = [as_type(x, a) for x, a in zip(init_leaves, avals, strict=True)]
    carried += [ref.read() for ref in body.written]
    steps = n if unroll is True else max(integer("unroll", unroll), 1)
    results = scan_p.bind(
        *consts, *carried, *xs_leaves, jaxpr=jaxpr, length=n, reverse=bool(reverse),
        unroll=steps, n_consts=len(consts), n_carry=len(carried),
    )  # fmt: skip
    for ref, value in zip(body.written, results[n_carry:], strict=False):
        ref.write(value)
    return init_tree.unflatten(results[:n_carry]), y_tree.unflatten(results[len(carried) :])


def _over_refs(f: Callable, init: Tree, xs: Tree, places: Sequence[int], *rest: Any) -> tuple:
    """A scan over the rows of mutable arrays, which the body may write to."""
    leaves, treedef = tree.flatten(xs)
    refs = [leaves[i] for i in places]
    check_distinct("scan", refs, [f"xs (leaf {i})" for i in places])

    def body(carry: Tree, rows: list) -> tuple:
        given = list(rows)
        lent = [Ref(given[i], lent=True) for i in places]
        for i, ref in zip(places, lent, strict=True):
            given[i] = ref
        result = f(carry, treedef.unflatten(given))
        _split_result(f, tree.structure(result))
        return result[0], (result[1], [ref.read() for ref in lent])

    rows = [x.read() if type(x) is Ref else x for x in leaves]
    carry, (ys, last) = scan(body, init, rows, *rest)
    for ref, value in zip(refs, last, strict=True):
        ref.write(value)
    return carry, ys


def _length(f: Callable, xs: Tree, leaves: Values, length: int | None) -> int:
    sizes: dict[str, int] = {}
    for path, x in tree.leaves_with_path(xs):
        shape = aval_of(x).shape
        if not shape:
            raise ControlFlowError(
                f"scan of {name_of(f)}: xs{tree.keystr(path)} is a scalar; scanned inputs need an "
                "axis to scan over"
            )
        sizes[f"xs{tree.keystr(path)}"] = shape[0]
    if length is not None:
        sizes["length="] = integer("length", length)
    if not sizes:
        raise ControlFlowError(f"scan of {name_of(f)}: without xs, length= must be given")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{k} has {v}" for k, v in sizes.items())
        raise ControlFlowError(f"scan of {name_of(f)}: first axes must have one size, but {listed}")
    return next(iter(sizes.values()))


def _row(aval: ShapedArray) -> ShapedArray:
    return aval.update(shape=aval.shape[1:])


def _stacked(aval: ShapedArray, length: int) -> ShapedArray:
    return aval.update(shape=(length, *aval.shape))


def _split_result(f: Callable, out_tree: PyTreeDef) -> tuple[PyTreeDef, PyTreeDef]:
    children = out_tree.children()
    node = out_tree.node_data()
    if node is None or node[0] is not tuple or len(children) != 2:
        raise ControlFlowError(
            f"scan: the body {name_of(f)} must return a pair (carry, y), got {out_tree}"
        )
    return children[0], children[1]


def _run_in_python(
    f: Callable, carry: Tree, xs: list, xs_tree: PyTreeDef, n: int, reverse: bool
) -> tuple[Tree, Tree]:
    steps = range(n - 1, -1, -1) if reverse else range(n)
    ys = []
    y_tree = None
    for i in steps:
        carry, y = f(carry, xs_tree.unflatten([index_in_dim(x, i, keepdims=False) for x in xs]))
        leaves, y_tree = tree.flatten(y)
        ys.append(leaves)
    ys = ys[::-1] if reverse else ys
    assert y_tree is not None
    columns = zip(*ys, strict=True)
    return carry, y_tree.unflatten(
        [concatenate([batch_front(y, None, 1) for y in column], 0) for column in columns]
    )


# ---- rules


def _results(jaxpr: Jaxpr, length: int, n_carry: int) -> list[ShapedArray]:
    outs = jaxpr.out_avals
    return [*outs[:n_carry], *(_stacked(a, length) for a in outs[n_carry:])]


def _abstract(
    *avals: ShapedArray, jaxpr: Jaxpr, length: int, n_consts: int, n_carry: int, **params: Param
) -> list:
    n = n_consts + n_carry
    if any(a.shape[:1] != (length,) for a in avals[n:]):
        raise IRError(f"scan: inputs {list(avals[n:])} of a scan over {length} elements")
    outs = call_types("scan", jaxpr, [*avals[:n], *map(_row, avals[n:])])
    check_carry("scan", avals[n_consts:n], outs[:n_carry])
    return _results(jaxpr, length, n_carry)


def _impl(xp: ArrayModule, *values: PlainArray, jaxpr: Jaxpr, length: int, reverse: bool,
          unroll: int, n_consts: int, n_carry: int) -> list:  # fmt: skip
    consts, carry, xs = split_list(values, n_consts, n_carry)
    ys = [xp.empty((length, *a.shape), a.dtype) for a in jaxpr.out_avals[n_carry:]]
    for i in range(length - 1, -1, -1) if reverse else range(length):
        outs = interpret(jaxpr, xp, *consts, *carry, *(x[i] for x in xs))
        carry = outs[:n_carry]
        for y, row in zip(ys, outs[n_carry:], strict=True):
            y[i] = row
    return [*carry, *ys]


def _jvp(
    primals: Values, tangents: Tangents, *, jaxpr: Jaxpr, n_consts: int, n_carry: int, **rest: Param
) -> tuple[list, list]:
    nonzero = [type(t) is not Zero for t in tangents]
    consts_nz, init_nz, xs_nz = split_list(nonzero, n_consts, n_carry)
    no_ys = [False] * (len(jaxpr.outs) - n_carry)

    def grow(carry_nz: list[bool]) -> list[bool]:
        mask = jvp_jaxpr(jaxpr, [*consts_nz, *carry_nz, *xs_nz], [*carry_nz, *no_ys])[1]
        return mask[:n_carry]

    carry_nz = fixpoint(grow, init_nz)
    in_nz = [*consts_nz, *carry_nz, *xs_nz]
    both, out_nz = jvp_jaxpr(jaxpr, in_nz, [*carry_nz, *no_ys])
    n = len(jaxpr.ins)
    c, k, x = split_list(both.ins[:n], n_consts, n_carry)
    ct, kt, xt = split_list(both.ins[n:], sum(consts_nz), sum(carry_nz))
    n_out = len(jaxpr.outs)
    ok, oy = split_list(both.outs[:n_out], n_carry)
    okt, oyt = split_list(both.outs[n_out:], sum(carry_nz))
    body = Jaxpr([*c, *ct, *k, *kt, *x, *xt], both.eqns, [*ok, *okt, *oy, *oyt])
    pc, pk, px = split_list(primals, n_consts, n_carry)
    tc, tk, tx = split_list(tangents, n_consts, n_carry)
    carried = [instantiate(t) for t in choose(tk, carry_nz)]
    outs = scan_p.bind(
        *pc, *choose(tc, consts_nz), *pk, *carried, *px, *choose(tx, xs_nz),
        jaxpr=body, n_consts=len(c) + len(ct), n_carry=len(k) + len(kt), **rest,
    )  # fmt: skip
    ok, okt, oy, oyt = split_list(outs, n_carry, sum(carry_nz), len(oy))
    avals = _results(jaxpr, rest["length"], n_carry)
    return [*ok, *oy], with_zeros([*okt, *oyt], out_nz, avals)


def _batch(axis: BatchAxis, args: Values, dims: BatchDims, **params: Param) -> tuple:
    jaxpr, n_consts, n_carry = params["jaxpr"], params["n_consts"], params["n_carry"]
    consts, init, xs = split_list(args, n_consts, n_carry)
    const_dims, init_dims, x_dims = split_list(dims, n_consts, n_carry)
    row_dims = [None if d is None else 0 for d in x_dims]
    no_ys = [False] * (len(jaxpr.outs) - n_carry)

    def lanes(mask: Sequence[bool]) -> list[int | None]:
        return [0 if m else None for m in mask]

    def grow(mask: list[bool]) -> list[bool]:
        in_dims = [*const_dims, *lanes(mask), *row_dims]
        return batch_jaxpr(jaxpr, axis, in_dims, [*mask, *no_ys])[1][:n_carry]

    mask = fixpoint(grow, [d is not None for d in init_dims])
    in_dims = [*const_dims, *lanes(mask), *row_dims]
    body, out_mask = batch_jaxpr(jaxpr, axis, in_dims, [*mask, *no_ys])
    carry = [
        batch_front(x, d, axis.size) if m else x
        for x, d, m in zip(init, init_dims, mask, strict=True)
    ]
    # A scanned array keeps the scanned axis first; the batch comes second.
    moved = [x if d is None else move_axis(x, d, 1) for x, d in zip(xs, x_dims, strict=True)]
    outs = scan_p.bind(*consts, *carry, *moved, **{**params, "jaxpr": body})
    at = [0] * n_carry + [1] * len(no_ys)
    return outs, [d if m else None for d, m in zip(at, out_mask, strict=True)]


def _partial(unknown: Sequence[bool], eqn: Eqn) -> Split:
    p = eqn.params
    jaxpr, n_consts, n_carry = p["jaxpr"], p["n_consts"], p["n_carry"]
    const_u, init_u, xs_u = split_list(unknown, n_consts, n_carry)
    no_ys = [False] * (len(jaxpr.outs) - n_carry)

    def grow(mask: list[bool]) -> list[bool]:
        in_u = [*const_u, *mask, *xs_u]
        return partial_eval_jaxpr(jaxpr, in_u, [*mask, *no_ys]).out_unknown[:n_carry]

    carry_u = fixpoint(grow, init_u)
    parts = partial_eval_jaxpr(jaxpr, [*const_u, *carry_u, *xs_u], [*carry_u, *no_ys])
    consts, init, xs = split_list(eqn.ins, n_consts, n_carry)
    known_ins = [drop(consts, const_u), drop(init, carry_u), drop(xs, xs_u)]
    n_kc, n_kk = len(known_ins[0]), len(known_ins[1])
    # Where a residual is a captured value or a scanned input, the later scan reads that itself;
    # all others (also a carry of which each step is needed) are stacked.
    stacked: list[Var] = []
    stack_outs: list[Any] = []
    const_res, x_res = [], []
    later_consts: list[Any] = []
    later_xs: list[Any] = []
    for inner, f in zip(
        zip(parts.unknown.ins, parts.residuals, strict=False), parts.forwarded, strict=True
    ):
        var, source = inner
        if f is not None and f < n_kc:
            const_res.append(var)
            later_consts.append(known_ins[0][f])
        elif f is not None and f >= n_kc + n_kk:
            x_res.append(var)
            later_xs.append(known_ins[2][f - n_kc - n_kk])
        else:
            held = Var(_stacked(source.aval, p["length"]))
            stacked.append(held)
            stack_outs.append(source)
            x_res.append(var)
            later_xs.append(held)
    n_known_outs = len(parts.out_unknown) - sum(parts.out_unknown)
    known_body = Jaxpr(
        parts.known.ins, parts.known.eqns, [*parts.known.outs[:n_known_outs], *stack_outs]
    )
    known = eqn.replace(
        ins=tuple(v for group in known_ins for v in group),
        outs=(*drop(eqn.outs, parts.out_unknown), *stacked),
        params={**p, "jaxpr": known_body, "n_consts": n_kc, "n_carry": n_kk},
    )
    n_res = len(parts.residuals)
    uc, uk, ux = split_list(parts.unknown.ins[n_res:], sum(const_u), sum(carry_u))
    later_body = Jaxpr([*const_res, *uc, *uk, *x_res, *ux], parts.unknown.eqns, parts.unknown.outs)
    later = eqn.replace(
        ins=(*later_consts, *choose(consts, const_u), *choose(init, carry_u),
             *later_xs, *choose(xs, xs_u)),
        outs=tuple(choose(eqn.outs, parts.out_unknown)),
        params={**p, "jaxpr": later_body, "n_consts": len(const_res) + len(uc), "n_carry": len(uk)},
    )  # fmt: skip
    return Split(known if known.outs or known_body.has_effects else None, later)


def _transpose(ct: Cotangents, *args: Operand, jaxpr: Jaxpr, length: int, reverse: bool,
               unroll: int, n_consts: int, n_carry: int) -> list:  # fmt: skip
    linear = [type(a) is Linear for a in args]
    const_l, init_l, xs_l = split_list(linear, n_consts, n_carry)
    _check_carry(jaxpr, const_l, init_l, xs_l)
    ct_carry, ct_ys = split_list(ct, n_carry)
    ys_nz = [type(c) is not Zero for c in ct_ys]
    consts, _, xs = split_list(args, n_consts, n_carry)
    known_consts, known_xs = drop(consts, const_l), drop(xs, xs_l)
    c_avals, k_avals, x_avals = split_list(jaxpr.in_avals, n_consts, n_carry)
    acc_avals = choose(c_avals, const_l)
    y_avals = jaxpr.out_avals[n_carry:]
    n_kc, n_acc = len(known_consts), len(acc_avals)

    def body(*flat: Any) -> list:
        kc, acc, ck, kx, cy = split_list(flat, n_kc, n_acc, n_carry, len(known_xs))
        kc_it, kx_it, cy_it = iter(kc), iter(kx), iter(cy)
        operands = [
            *(Linear(a) if m else next(kc_it) for a, m in zip(c_avals, const_l, strict=True)),
            *(Linear(a) for a in k_avals),
            *(Linear(a) if m else next(kx_it) for a, m in zip(x_avals, xs_l, strict=True)),
        ]
        cts = [*ck, *(next(cy_it) if m else Zero(a) for a, m in zip(y_avals, ys_nz, strict=True))]
        found = backward_pass(jaxpr, operands, cts)
        fc, fk, fx = split_list(found, n_consts, n_carry)
        grown = [
            a if type(c) is Zero else add.bind(a, c)
            for a, c in zip(acc, choose(fc, const_l), strict=True)
        ]
        return [*grown, *map(instantiate, fk), *map(instantiate, choose(fx, xs_l))]

    avals = [
        *drop(c_avals, const_l), *acc_avals, *k_avals, *drop(x_avals, xs_l),
        *choose(y_avals, ys_nz),
    ]  # fmt: skip
    key = ("scan_transpose", tuple(linear), tuple(ys_nz))
    backward, grows = jaxpr.derive(
        key, lambda: _growing(stage_closed(body, avals, "a transposed scan"), n_kc, n_acc)
    )
    sums = choose(acc_avals, grows)
    outs = scan_p.bind(
        *known_consts, *map(zeros, sums), *map(instantiate, ct_carry),
        *known_xs, *choose(ct_ys, ys_nz),
        jaxpr=backward, length=length, reverse=not reverse, unroll=unroll,
        n_consts=n_kc, n_carry=len(sums) + n_carry,
    )  # fmt: skip
    acc, ck, cx = split_list(outs, len(sums), n_carry)
    acc_it, cx_it = iter(with_zeros(acc, grows, acc_avals)), iter(cx)
    return [
        *(next(acc_it) if m else None for m in const_l),
        *(c if m else None for c, m in zip(ck, init_l, strict=True)),
        *(next(cx_it) if m else None for m in xs_l),
    ]


def _check_carry(jaxpr: Jaxpr, consts: list[bool], init: list[bool], xs: list[bool]) -> None:
    """Refuses a carry that is not linear in all its parts; the masks say what of a turn is."""

    def grow(mask: list[bool]) -> list[bool]:
        return partial_eval_jaxpr(jaxpr, [*consts, *mask, *xs]).out_unknown[: len(init)]

    if not all(fixpoint(grow, init)):
        raise DifferentiationError(
            "scan: a linear scan can't be transposed whose carry has a part (a counter, say) that "
            "doesn't depend on what it is linear in; pass that part as scanned inputs xs"
        )


def _growing(backward: Jaxpr, n_consts: int, n_sums: int) -> tuple[Jaxpr, list[bool]]:
    """A transposed body without the cotangents of captured values to which no turn adds, and which
    of these are left."""
    _, sums, _ = split_list(backward.ins, n_consts, n_sums)
    grows = [a is not b for a, b in zip(sums, backward.outs, strict=False)]
    idle = set(drop(sums, grows))
    ins = [v for v in backward.ins if v not in idle]
    outs = [*choose(backward.outs[:n_sums], grows), *backward.outs[n_sums:]]
    return Jaxpr(ins, backward.eqns, outs), grows


def _dce(used: Sequence[bool], eqn: Eqn) -> Eqn:
    p = eqn.params
    jaxpr, n_consts, n_carry = p["jaxpr"], p["n_consts"], p["n_carry"]
    used_ys = list(used[n_carry:])

    def grow(mask: list[bool]) -> list[bool]:
        return dce_jaxpr(jaxpr, [*mask, *used_ys])[1][n_consts : n_consts + n_carry]

    carry_used = fixpoint(grow, used[:n_carry])
    keep = [False] * n_consts + carry_used + [False] * (len(jaxpr.ins) - n_consts - n_carry)
    slim, ins_used = dce_jaxpr(jaxpr, [*carry_used, *used_ys], keep)
    outs = [
        v if u else Var(v.aval)
        for v, u, kept in zip(eqn.outs, used, [*carry_used, *used_ys], strict=True)
        if kept
    ]
    return eqn.replace(
        ins=tuple(choose(eqn.ins, ins_used)),
        outs=tuple(outs),
        params={
            **p,
            "jaxpr": slim,
            "n_consts": sum(ins_used[:n_consts]),
            "n_carry": sum(carry_used),
        },
    )


scan_p = Primitive(
    name="scan",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    dims=NoRule("partitioning looks into the body"),
    partial=_partial,
    dce=_dce,
    multiple=True,
)
