"""Gradients of functions of pytrees: grad and value_and_grad."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.array import Array
from funcgrad.core.aval import Linear, ShapedArray, Zero
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Cotangents, Tree, Value, Values
from funcgrad.errors import DifferentiationError
from funcgrad.ops.base import instantiate
from funcgrad.transforms.arguments import (
    FlatFunction,
    as_array,
    avals_of,
    is_arraylike,
    name_of,
    note_leaves,
    parameter_names,
    wraps,
)
from funcgrad.transforms.autodiff.partial_eval import Linearized, linearize_flat
from funcgrad.transforms.autodiff.transpose import backward_pass
from funcgrad.transforms.control.bodies import as_weak_as
from funcgrad.transforms.derivatives.pullback import pull_back_later
from funcgrad.transforms.recorded import at_root
from funcgrad.transforms.tape.tape import linearize_at_root
from funcgrad.tree import PyTreeDef


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
