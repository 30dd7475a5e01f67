"""`sparsify`: a function of dense arrays, run on sparse ones.

The function is traced with dense types of the sparse arguments' shapes, and its program interpreted
with sparse values. Rules say what each operation is of them (`rules`); where none keeps zeros, an
error says so, and nothing is made dense. Programs in loops and branches are interpreted when these
are traced anew, with sparse arrays in their carries, as these are pytrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core import context, source
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, literal_value
from funcgrad.core.rewriting import called_program
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import SparseEfficiencyError
from funcgrad.ops.barrier import name_p
from funcgrad.sparse.arrays import BCOO, is_sparse
from funcgrad.sparse.layout import full_batches
from funcgrad.sparse.rules import RULES
from funcgrad.transforms.arguments import wraps
from funcgrad.transforms.control.cond import cond_p, switch
from funcgrad.transforms.control.custom_call import custom_vjp_call_p
from funcgrad.transforms.control.scan import scan, scan_p
from funcgrad.transforms.control.while_loop import while_loop, while_p
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr

_TODENSE = "sparse.todense"


def sparsify(f: Callable, use_tracer: bool = False) -> Callable:
    """`f`, a function of dense arrays, as one of which any argument may be sparse, too.

    Within `f` these look dense. What is zero where they are stays sparse: products, sums of sparse
    arrays, reductions, functions with f(0) = 0, transposed and cut arrays, in `jit`, `scan`,
    `while_loop` and `cond` as well. What would be dense raises a SparseEfficiencyError that names
    the operation; `todense` within `f` says that it is meant. Functions with a `custom_jvp` are
    differentiated through. use_tracer has no effect.

    >>> from funcgrad import sparse
    >>> f = sparse.sparsify(lambda m, v: fnp.sum((2 * m) @ fnp.sin(v)))
    >>> f(sparse.eye(3), fnp.ones(3))
    Array(5.048826, dtype=float32)
    """

    @boundary
    @wraps(f, "sparsify")
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs), is_leaf=is_sparse)
        types = [ShapeDtypeStruct(x.shape, x.dtype) if is_sparse(x) else x for x in leaves]
        dense_args, dense_kwargs = structure.unflatten(types)
        closed, shape = make_jaxpr(f, return_shape=True)(*dense_args, **dense_kwargs)
        outs = interpret(closed.jaxpr, [*closed.consts, *leaves])
        return tree.unflatten(tree.structure(shape), outs)

    return call


def todense(x: Any) -> Any:
    """A sparse array as a dense one, a dense one as it is; also of what is sparse in `sparsify`.

    >>> from funcgrad import sparse
    >>> sparse.sparsify(lambda m: fnp.cos(sparse.todense(m)))(sparse.empty((1, 1)))
    Array([[1.]], dtype=float32)
    """
    return x.todense() if is_sparse(x) else name_p.bind(x, name=_TODENSE)


def interpret(jaxpr: Jaxpr, args: Sequence[Any]) -> list:
    """Run a program on values of which some are sparse."""
    env: dict[Atom, Any] = dict(zip(jaxpr.ins, args, strict=True))
    place = source.placed()

    def read(atom: Atom) -> Any:
        return env[atom] if type(atom) is Var else literal_value(atom)  # type: ignore[arg-type]

    try:
        for eqn in jaxpr.eqns:
            source.set_place(eqn.source or place)
            with context.scoped(scopes=context.current().scopes + eqn.scopes):
                out = _evaluated(eqn, [read(a) for a in eqn.ins])
            env.update(zip(eqn.outs, out if eqn.prim.multiple else [out], strict=True))
    finally:
        source.set_place(place)
    return [read(a) for a in jaxpr.outs]


def _evaluated(eqn: Eqn, ins: list) -> Any:
    prim, params = eqn.prim, eqn.params
    if prim is name_p and params["name"] == _TODENSE:
        return todense(ins[0])
    if not any(map(is_sparse, ins)):
        return prim.bind(*ins, **params)
    if prim is custom_vjp_call_p:
        raise SparseEfficiencyError(
            f"sparsify: {params['call']} has a custom_vjp rule, which is one of dense arrays; call "
            "it with .data, outside of sparsify"
        )
    if prim in _LOOPS:
        return _LOOPS[prim](eqn, ins)
    if prim.call:
        return interpret(called_program(eqn), ins)
    if prim.identity:
        return ins if prim.multiple else ins[0]
    rule = RULES.get(prim)
    if rule is None:
        shown = ", ".join(map(repr, (x for x in ins if is_sparse(x))))
        raise SparseEfficiencyError(
            f"sparsify: {prim} of {shown} would be dense, or there is no rule for it; call "
            "sparse.todense on what may be dense"
        )
    return rule(eqn, *ins, **params)


# ---- programs in loops and branches


def _scan(eqn: Eqn, ins: list) -> list:
    p = eqn.params
    first = p["n_consts"] + p["n_carry"]
    consts, carry, xs = ins[: p["n_consts"]], ins[p["n_consts"] : first], ins[first:]
    for x in xs:
        if is_sparse(x) and not x.n_batch:
            raise SparseEfficiencyError(
                f"sparsify: scan goes over the first axis of {x}, which must be a batch axis; see "
                "update_layout(n_batch=1)"
            )
    xs = [full_batches(x) if isinstance(x, BCOO) else x for x in xs]

    def body(carry: Any, x: Any) -> tuple[list, list]:
        outs = interpret(p["jaxpr"], [*consts, *carry, *x])
        return outs[: p["n_carry"]], outs[p["n_carry"] :]

    last, ys = scan(body, carry, xs, p["length"], p["reverse"], p["unroll"])
    return [*last, *ys]


def _while(eqn: Eqn, ins: list) -> list:
    p = eqn.params
    first = p["n_cond"] + p["n_body"]
    of_cond, of_body = ins[: p["n_cond"]], ins[p["n_cond"] : first]
    return while_loop(
        lambda carry: interpret(p["cond_jaxpr"], [*of_cond, *carry])[0],
        lambda carry: interpret(p["body_jaxpr"], [*of_body, *carry]),
        ins[first:],
    )


def _cond(eqn: Eqn, ins: list) -> list:
    which, *rest = ins
    branches = [lambda *xs, j=j: interpret(j, xs) for j in eqn.params["branches"]]
    return switch(which, branches, *rest)


_LOOPS: dict[Any, Callable] = {scan_p: _scan, while_p: _while, cond_p: _cond}
