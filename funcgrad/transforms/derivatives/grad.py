"""Derivatives of functions of pytrees: jvp, linearize, vjp, grad, linear_transpose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.array import Array
from funcgrad.core.aval import Linear, ShapedArray, Zero, promote, with_zeros
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Cotangents, Tangent, Tree, Value, Values
from funcgrad.errors import DifferentiationError, RefError
from funcgrad.ops.base import instantiate
from funcgrad.transforms.arguments import (
    FlatFunction,
    as_array,
    avals_of,
    check_leaves,
    is_arraylike,
    leaf_names,
    name_of,
    note_leaves,
    parameter_names,
    wraps,
)
from funcgrad.transforms.autodiff.jvp import jvp_flat
from funcgrad.transforms.autodiff.partial_eval import Linearized, linearize_flat, partial_eval_jaxpr
from funcgrad.transforms.autodiff.transpose import backward_pass
from funcgrad.transforms.control.bodies import as_type, as_weak_as
from funcgrad.transforms.derivatives.pullback import pull_back_later
from funcgrad.transforms.recorded import at_root
from funcgrad.transforms.refs import check_ref
from funcgrad.transforms.tape.tape import linearize_at_root
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


def pull_back(
    lin: Linearized, residuals: Values, cts: Cotangents, avals: Sequence[ShapedArray]
) -> list:
    """Cotangents (or `Zero`) of all flat primals, from those of the results that vary."""
    n = len(residuals)
    if lin.manual:
        found = iter(pull_back_later(lin.jaxpr, residuals, cts, len(lin.jaxpr.ins) - n))
    else:
        args = [*residuals, *(Linear(v.aval) for v in lin.jaxpr.ins[n:])]
        found = iter(backward_pass(lin.jaxpr, args, cts)[n:])
    return [
        as_array(next(found)) if v else Zero(a.tangent())
        for a, v in zip(avals, lin.in_nonzero, strict=True)
    ]


def grad(
    fun: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable:
    """The function that gives the gradient of a scalar function.

    argnums: which positional arguments to differentiate (an int gives one gradient, a sequence a
    tuple); each may be a pytree. has_aux: `fun` returns (value, aux), the result is (gradient,
    aux). holomorphic: `fun` is complex and holomorphic. allow_int: integer arguments are allowed,
    their gradients are of dtype float0. Gradients of complex arguments follow JAX's convention:
    for real f, grad f = ∂f/∂x − i ∂f/∂y.

    >>> import funcgrad as fg
    >>> fg.grad(lambda x: x**3)(2.0)
    Array(12., dtype=float32, weak_type=True)
    """
    gradients = _Gradients("grad", fun, argnums, has_aux, holomorphic, allow_int)

    @wraps(fun, "grad")
    @boundary
    def gradient(*args: Any, **kwargs: Any) -> Tree:
        _, found, flat = gradients(args, kwargs)
        return (found, flat.aux) if has_aux else found

    return gradient


def value_and_grad(
    fun: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable:
    """As `grad`, but the function gives (value, gradient), evaluating `fun` once.

    >>> import funcgrad as fg
    >>> fg.value_and_grad(lambda x: x * x)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    gradients = _Gradients("value_and_grad", fun, argnums, has_aux, holomorphic, allow_int)

    @wraps(fun, "value_and_grad")
    @boundary
    def both(*args: Any, **kwargs: Any) -> tuple:
        value, found, flat = gradients(args, kwargs)
        value = as_array(value)
        return ((value, flat.aux), found) if has_aux else (value, found)

    return both


class _Gradients:
    """A function's gradients in some of its arguments: what `grad` and `value_and_grad` share."""

    __slots__ = ("allow_int", "fun", "has_aux", "holomorphic", "nums", "single", "what")

    def __init__(self, what: str, fun: Callable, argnums: int | Sequence[int], has_aux: bool,
                 holomorphic: bool, allow_int: bool):  # fmt: skip
        if not callable(fun):
            raise TypeError(f"{what}: the first argument must be a function, got {fun!r}")
        self.single = isinstance(argnums, int)
        self.nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        if not self.single and not all(isinstance(n, int) for n in self.nums):
            raise TypeError(
                f"{what} of {name_of(fun)}: argnums must be positions (integers), got {argnums!r}"
            )
        self.what, self.fun, self.has_aux = what, fun, has_aux
        self.holomorphic, self.allow_int = holomorphic, allow_int

    def __call__(self, args: tuple, kwargs: dict) -> tuple[Value, Tree, FlatFunction]:
        """The value, the gradients, and what holds the auxiliary result."""
        what, fun, holomorphic = self.what, self.fun, self.holomorphic
        chosen = _positions(what, fun, self.nums, args)
        # What isn't differentiated is passed as it is, whatever it is.
        leaves, in_tree = tree.flatten(args[chosen[0]] if self.single else
                                       tuple([args[i] for i in chosen]))  # fmt: skip
        _check_inputs(what, fun, args, chosen, leaves, holomorphic, self.allow_int)
        flat = _Chosen(self, in_tree, args, kwargs, chosen)
        outs, pull = _linearized(flat, leaves)
        _check_scalar(what, fun, flat, outs, holomorphic)
        value = outs[0]
        aval = aval_of(value)
        cts = pull([Array(_one(aval.dtype), aval.weak_type, aval)])
        found = [
            c if type(c) is Array and c.weak_type is aval_of(x).weak_type
            else as_weak_as(instantiate(c), aval_of(x))
            for c, x in zip(cts, leaves, strict=True)
        ]  # fmt: skip
        return value, in_tree.unflatten(found), flat


@functools.cache
def _one(dtype: np.dtype) -> np.ndarray:
    """The cotangent of a function's result, which may become a gradient."""
    one = np.ones((), dtype)
    one.flags.writeable = False
    return one


class _Chosen(FlatFunction):
    """A function of the leaves of some of its arguments, given the others."""

    def __init__(
        self, of: _Gradients, in_tree: PyTreeDef, args: tuple, kwargs: dict, chosen: Sequence
    ):
        super().__init__(of.what, of.fun, in_tree, of.has_aux)
        self.single, self.chosen = of.single, chosen
        self.args, self.kwargs = args, kwargs

    @property
    def __name__(self) -> str:
        return f"{self.what}({name_of(self.fun)})"

    def __call__(self, *leaves: Any) -> list:
        given = self.in_tree.unflatten(leaves)
        whole = list(self.args)
        for i, a in enumerate((given,) if self.single else given):
            whole[self.chosen[i]] = a
        return self.flattened(self.fun(*whole, **self.kwargs))


def _linearized(flat: FlatFunction, leaves: list) -> tuple[list, Callable[[list], list]]:
    """Results, and the function from their cotangents to those of the leaves (or `Zero`)."""
    if at_root():
        return linearize_at_root(flat, leaves)
    outs, lin = linearize_flat(flat, leaves)

    def pull(cts: list) -> list:
        given = [c for c, nz in zip(cts, lin.out_nonzero, strict=True) if nz]
        return pull_back(lin, lin.residuals, given, avals_of(leaves))

    return outs, pull


def _positions(
    what: str, fun: Callable, nums: Sequence[int], args: Sequence[Tree]
) -> Sequence[int]:
    if len(nums) == 1 and 0 <= nums[0] < len(args):
        return nums
    chosen = [n if n >= 0 else n + len(args) for n in nums]
    for n, i in zip(nums, chosen, strict=True):
        if not 0 <= i < len(args):
            raise TypeError(
                f"{what} of {name_of(fun)}: differentiating with respect to argnums={n} requires "
                f"at least {n + 1 if n >= 0 else -n} positional arguments to be passed by the "
                f"caller, but got only {len(args)} positional arguments."
            )
    return chosen


def _check_inputs(what: str, fun: Callable, args: tuple, chosen: Sequence[int], leaves: Values,
                  holomorphic: bool, allow_int: bool) -> None:  # fmt: skip
    note_leaves(leaves)
    for i, leaf in enumerate(leaves):
        if type(leaf) is Array and leaf.aval.dtype.kind == "f" and not holomorphic:
            continue
        if not is_arraylike(leaf):
            need = "gradients are of arrays and numbers; choose others by argnums="
            got: Any = f"{leaf!r} of {type(leaf)}"
        else:
            got = aval_of(leaf)
            if holomorphic and not dtypes.is_complex(got.dtype):
                need = (
                    f"{what} with holomorphic=True requires inputs with complex dtype, but got "
                    f"{got.dtype}"
                )
            elif not dtypes.is_inexact(got.dtype) and not allow_int:
                need = (
                    f"{what} requires real- or complex-valued inputs (input dtype that is a "
                    f"sub-dtype of np.inexact), but got {got.dtype}; convert it to float, choose "
                    "others by argnums=, or set allow_int=True for a float0 gradient"
                )
            else:
                continue
        names = parameter_names(fun, len(args))
        paths = [
            names[k] + tree.keystr(path)
            for k in chosen
            for path, _ in tree.leaves_with_path(args[k])
        ]
        raise DifferentiationError(
            f"{what} of {name_of(fun)}: argument {paths[i]} is {got}; {need}"
        )


_LEAF = tree.structure(0)


def _check_scalar(
    what: str, fun: Callable, flat: FlatFunction, outs: list, holomorphic: bool
) -> None:
    avals = avals_of(outs)
    if (
        flat.out_tree is _LEAF
        and not (avals[0].shape or holomorphic)
        and avals[0].dtype.kind == "f"
    ):
        return
    if len(outs) != 1 or flat.out_tree != _LEAF or avals[0].shape:
        got = ", ".join(map(str, avals))
        shown = got if flat.out_tree == _LEAF else f"{flat.out_tree} of ({got})"
        hint = "return (value, aux) with has_aux=True, " if len(outs) > 1 else "sum or average it, "
        raise DifferentiationError(
            "Gradient only defined for scalar-output functions. "
            f"{what} of {name_of(fun)}: the function must return one scalar, got {shown}; {hint}"
            "or use jacrev, jacfwd or vjp for other results"
        )
    dtype = avals[0].dtype
    if holomorphic and not dtypes.is_complex(dtype):
        need = "a complex scalar"
        why = f"{what} with holomorphic=True requires outputs with complex dtype, but got {dtype}"
    elif not holomorphic and not dtypes.is_float(dtype):
        need = "a real floating-point scalar (or set holomorphic=True for a complex one)"
        why = (
            f"{what} requires real-valued outputs (output dtype that is a sub-dtype of "
            f"np.floating), but got {dtype}"
        )
    else:
        return
    raise DifferentiationError(
        f"{what} of {name_of(fun)}: the function must return {need}, got {avals[0]}; {why}"
    )


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
