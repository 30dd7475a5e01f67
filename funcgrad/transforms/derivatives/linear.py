"""Derivatives as linear functions: jvp, linearize, vjp, and transposes of linear functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import dtypes, tree
from funcgrad.core.aval import Linear, ShapedArray, Zero, promote, with_zeros
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tangent, Tree, Value
from funcgrad.errors import DifferentiationError, RefError
from funcgrad.ops.base import instantiate
from funcgrad.transforms.arguments import (
    FlatFunction,
    as_array,
    avals_of,
    check_leaves,
    leaf_names,
    name_of,
)
from funcgrad.transforms.autodiff.jvp import jvp_flat
from funcgrad.transforms.autodiff.partial_eval import Linearized, linearize_flat, partial_eval_jaxpr
from funcgrad.transforms.autodiff.transpose import backward_pass
from funcgrad.transforms.control.bodies import as_type, as_weak_as
from funcgrad.transforms.derivatives.grad import pull_back
from funcgrad.transforms.refs import check_ref
from funcgrad.tree import PyTreeDef


@boundary
def jvp(
    fun: Callable, primals: Sequence[Tree], tangents: Sequence[Tree], has_aux: bool = False
) -> tuple:
    """The value of `fun` at `primals` and its derivative in the direction `tangents`.

    `tangents` has the structure, shapes and dtypes of `primals` (float0 for integers). Returns
    (value, tangent), and aux third where `fun` returns (value, aux) and `has_aux` is set.

    >>> import funcgrad as fg
    >>> fg.jvp(lambda x: x * x, (3.0,), (1.0,))
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise TypeError(
            f"jvp: primals and tangents must be tuples, one entry an argument of {name_of(fun)}; "
            f"got {type(primals)} and {type(tangents)}"
        )
    check_leaves("jvp", fun, primals, {})
    tree.check_same_structure(
        tuple(primals), tuple(tangents), what_a="jvp: primals", what_b="tangents"
    )
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    given = tree.leaves(tuple(tangents))
    names = leaf_names(fun, primals, {})
    varying = [
        _zero_if_float0(as_tangent(f"jvp: the tangent of {name}", aval_of(p), t), p)
        for name, p, t in zip(names, leaves, given, strict=True)
    ]
    flat = FlatFunction("jvp", fun, in_tree, has_aux)
    # Rules see arrays, which have a dtype, for numbers.
    outs, outs_t = jvp_flat(flat, [*map(_typed, leaves)], [*map(_typed, varying)])
    value, tangent = flat.unflatten(outs), flat.unflatten([instantiate(t) for t in outs_t])
    return (value, tangent, flat.aux) if has_aux else (value, tangent)


def _typed(x: Tangent) -> Tangent:
    return x if hasattr(x, "dtype") or type(x) is Zero else as_array(x)


def _zero_if_float0(tangent: Tangent, primal: Value) -> Tangent:
    aval = aval_of(primal).tangent()
    return Zero(aval) if aval.dtype == dtypes.float0 else tangent


def as_tangent(what: str, primal: ShapedArray, tangent: Value) -> Value:
    """A tangent or cotangent, checked to have the type that its primal's asks for.

    A weak scalar takes that dtype, if it is of no higher kind.
    """
    want = primal.tangent()
    got = aval_of(tangent)
    if got.shape == want.shape:
        if got.dtype == want.dtype:
            return tangent
        strong = want.strong()
        if (
            got.weak_type
            and want.dtype != dtypes.float0
            and promote([got, strong])[0] == want.dtype
        ):
            return as_type(tangent, strong)
    raise DifferentiationError(f"{what} must have type {want}, got {got}")


@boundary
def linearize(fun: Callable, *primals: Any, has_aux: bool = False) -> tuple:
    """The value of `fun` at `primals`, and its derivative there as a linear function.

    The function is evaluated once; applying the derivative repeats none of its work.

    >>> import funcgrad as fg
    >>> y, f_lin = fg.linearize(lambda x: x * x, 3.0)
    >>> f_lin(1.0)
    Array(6., dtype=float32, weak_type=True)
    """
    check_leaves("linearize", fun, primals, {})
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    flat = FlatFunction("linearize", fun, in_tree, has_aux)
    outs, lin = linearize_flat(flat, leaves)
    held = lin._replace(residuals=[])
    push = Pushforward(in_tree, flat.out_tree, avals_of(leaves), avals_of(outs), held)
    f_lin = tree.Partial(push, lin.residuals)
    value = flat.unflatten(outs)
    return (value, f_lin, flat.aux) if has_aux else (value, f_lin)


class _LinearFunction:
    """A linear program, and the types and trees of the function that it is of."""

    def __init__(
        self, in_tree: PyTreeDef, out_tree: PyTreeDef, avals: list, out_avals: list, lin: Linearized
    ):
        self.in_tree = in_tree
        self.out_tree = out_tree
        self.avals = avals
        self.out_avals = out_avals
        self.lin = lin


class Pushforward(_LinearFunction):
    """A linear program applied to tangents; what `linearize` returns, but for its residuals."""

    def __call__(self, residuals: list, *tangents: Any) -> Tree:
        leaves, given_tree = tree.flatten((tangents, {}))
        if given_tree != self.in_tree:
            primals = self.in_tree.unflatten(self.avals)[0]
            tree.check_same_structure(
                primals, tangents, what_a="linearize: primals", what_b="tangents"
            )
        leaves = [
            as_tangent(f"linearize: tangent {i}", a, t)
            for i, (a, t) in enumerate(zip(self.avals, leaves, strict=True))
        ]
        varying = [t for t, v in zip(leaves, self.lin.in_nonzero, strict=True) if v]
        results = eval_jaxpr(self.lin.jaxpr, *residuals, *varying)
        moves = with_zeros(map(as_array, results), self.lin.out_nonzero, self.out_avals)
        return self.out_tree.unflatten(map(instantiate, moves))


@boundary
def vjp(fun: Callable, *primals: Any, has_aux: bool = False) -> tuple:
    """The value of `fun` at `primals`, and the function from a cotangent of the value to the
    cotangents of the primals (a tuple).

    >>> import funcgrad as fg
    >>> y, f_vjp = fg.vjp(lambda x, y: x * y, 3.0, 4.0)
    >>> f_vjp(1.0)
    (Array(4., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    check_leaves("vjp", fun, primals, {})
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    flat = FlatFunction("vjp", fun, in_tree, has_aux)
    outs, lin = linearize_flat(flat, leaves)
    pull = Pullback(
        in_tree, flat.out_tree, avals_of(leaves), avals_of(outs), lin._replace(residuals=[])
    )
    f_vjp = VJP(pull, lin.residuals)
    value = flat.unflatten(outs)
    return (value, f_vjp, flat.aux) if has_aux else (value, f_vjp)


class VJP(tree.Partial):
    """What `vjp` returns: a function from a cotangent to those of the primals, and a pytree of its
    residuals."""

    def with_refs(self, *refs: Any) -> Callable[..., tuple]:
        """The function that adds cotangents to mutable arrays: for each primal a pytree of them
        (None: the cotangent is returned), whose structure is a prefix of the primal's. In the place
        of those that were added its result has None.

        >>> total = fg.new_ref(1.0)
        >>> _, f_vjp = fg.vjp(lambda x, y: x * y, 3.0, 4.0)
        >>> f_vjp.with_refs(total, None)(1.0)
        (None, Array(3., dtype=float32, weak_type=True))
        >>> total[...]
        Array(5., dtype=float32)
        """
        pull: Pullback = self.func  # type: ignore[assignment]
        primals = pull.in_tree.unflatten(pull.avals)[0]
        if len(refs) != len(primals):
            raise TypeError(f"with_refs: need an entry a primal, {len(primals)}, got {len(refs)}")
        into = tree.flatten_axes("with_refs", tree.structure(primals), refs)
        for ref, aval in zip(into, pull.avals, strict=True):
            if ref is not None:
                check_ref("with_refs", ref)
                if (ref.shape, ref.dtype) != (aval.shape, aval.dtype):
                    raise RefError(
                        f"with_refs: a Ref of {ref.inner_aval} can't hold the cotangent of a "
                        f"primal that is {aval}"
                    )

        def pull_into(*cotangents: Any) -> tuple:
            leaves = tree.leaves(self(*cotangents))
            for ref, leaf in zip(into, leaves, strict=True):
                if ref is not None:
                    ref[...] += leaf
            rest = [x if ref is None else None for ref, x in zip(into, leaves, strict=True)]
            return pull.in_tree.unflatten(rest)[0]

        return pull_into


tree.register_pytree_node(
    VJP, lambda f: ((f.args, f.keywords), f.func), lambda func, xs: VJP(func, *xs[0], **xs[1])
)


class Pullback(_LinearFunction):
    """A linear program applied backwards; what `vjp` returns, but for its residuals."""

    def __call__(self, residuals: list, *cotangents: Any) -> tuple:
        if len(cotangents) != 1:
            raise TypeError(
                "vjp: the function that it returned takes one argument, the cotangent, with the "
                f"structure of the function's result, {self.out_tree}; got {len(cotangents)}"
            )
        ct = cotangents[0]
        leaves, given_tree = tree.flatten(ct)
        if given_tree != self.out_tree:
            tree.check_same_structure(
                self.out_tree.unflatten(self.out_avals), ct,
                what_a="vjp: the function's result", what_b="the cotangent",
            )  # fmt: skip
        leaves = [
            as_tangent(f"vjp: cotangent {i}", a, c)
            for i, (a, c) in enumerate(zip(self.out_avals, leaves, strict=True))
        ]
        cts = [c for c, nz in zip(leaves, self.lin.out_nonzero, strict=True) if nz]
        grads = pull_back(self.lin, residuals, cts, self.avals)
        grads = [as_weak_as(instantiate(g), a) for g, a in zip(grads, self.avals, strict=True)]
        return self.in_tree.unflatten(grads)[0]


@boundary
def linear_transpose(fun: Callable, *primals: Any) -> Callable:
    """The transpose of a linear function, as a function from cotangents to a tuple of cotangents.

    `primals` give shapes and dtypes only (arrays or `ShapeDtypeStruct`). Raises
    `DifferentiationError` where `fun` isn't linear in them.

    >>> import funcgrad as fg
    >>> fg.linear_transpose(lambda x: 3.0 * x, 1.0)(2.0)
    (Array(6., dtype=float32),)
    """
    check_leaves("linear_transpose", fun, primals, {})
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    flat = FlatFunction("linear_transpose", fun, in_tree)
    avals = [aval_of(x).strong() for x in leaves]
    jaxpr, consts = stage(flat, avals, name_of(fun))
    # What doesn't depend on the primals (a loop's counter) is computed once, and apart.
    n = len(consts)
    parts = partial_eval_jaxpr(jaxpr, [i >= n for i in range(len(jaxpr.ins))])
    found = eval_jaxpr(parts.known, *consts)
    computed = iter(found[len(parts.out_unknown) - sum(parts.out_unknown) :])
    residuals = [next(computed) if f is None else consts[f] for f in parts.forwarded]

    def transposed(ct: Tree) -> Tree:
        tree.check_same_structure(
            flat.unflatten(jaxpr.out_avals), ct,
            what_a="linear_transpose: the function's result", what_b="the cotangent",
        )  # fmt: skip
        cts = [
            as_tangent(f"linear_transpose: cotangent {i}", a, c)
            for i, (a, c) in enumerate(zip(jaxpr.out_avals, tree.leaves(ct), strict=True))
        ]
        args = [*residuals, *(Linear(a) for a in avals)]
        varying = [c for c, u in zip(cts, parts.out_unknown, strict=True) if u]
        found = backward_pass(parts.unknown, args, varying)[len(residuals) :]
        return in_tree.unflatten([as_array(instantiate(c)) for c in found])[0]

    return transposed
