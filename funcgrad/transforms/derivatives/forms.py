"""Other forms of what derivatives are given by: a value with its pullback, a pair of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree
from funcgrad.errors import ArgumentError, CustomRuleError
from funcgrad.ops.arguments import check_callable
from funcgrad.transforms.arguments import PositionalFunction, name_of, wraps
from funcgrad.transforms.derivatives.custom import custom_vjp
from funcgrad.transforms.derivatives.linear import vjp
from funcgrad.transforms.jit.jit import jit


def custom_gradient(fun: Callable) -> Callable:
    """A function whose derivative it gives itself: `fun` returns a pair of its value and a function
    from a cotangent of that to the cotangents of the arguments (one, or a tuple of several).

    What the second function closes over is what is kept for the backward pass.

    >>> import funcgrad as fg
    >>> @fg.custom_gradient
    ... def f(x):
    ...     return x**2, lambda g: g * x  # half of the derivative, to see it
    >>> f(3.0), fg.grad(f)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    check_callable("custom_gradient", fun)

    def both(args: tuple, kwargs: dict) -> tuple[Tree, Callable]:
        found = fun(*args, **kwargs)
        if not (isinstance(found, tuple) and len(found) == 2 and callable(found[1])):
            raise CustomRuleError(
                f"custom_gradient of {name_of(fun)}: the function must return a pair (value, "
                f"function of the cotangent), got {found!r}"
            )
        return found

    def wrapped(*args: Any, **kwargs: Any) -> Tree:
        @custom_vjp
        def flat(*args: Any) -> Tree:
            return both(args, kwargs)[0]

        def fwd(*args: Any) -> tuple[Tree, Tree]:
            value, pull = both(args, kwargs)
            back = PositionalFunction("custom_gradient", pull, tree.structure((value,)))
            avals = [aval_of(x).tangent() for x in tree.leaves(value)]
            jaxpr, kept = stage(back, avals, f"the gradient of {name_of(fun)}")
            return value, tree.Partial(_Backward(name_of(fun), jaxpr, back.out_tree), *kept)

        def bwd(back: Callable, ct: Tree) -> tuple:
            return back(ct, len(args))

        flat.defvjp(fwd, bwd)
        return flat(*args)

    return wraps(fun, "custom_gradient")(wrapped)


class _Backward:
    """A staged pullback; what it closes over comes before the cotangent."""

    def __init__(self, name: str, jaxpr: Jaxpr, out_tree: tree.PyTreeDef):
        self.name = name
        self.jaxpr = jaxpr
        self.out_tree = out_tree

    def __call__(self, *given: Any) -> tuple:
        *kept, ct, count = given
        found = self.out_tree.unflatten(eval_jaxpr(self.jaxpr, *kept, *tree.leaves(ct)))
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != count:
            raise CustomRuleError(
                f"custom_gradient of {self.name}: there are {count} arguments, the function of the "
                f"cotangent returned {len(found)} cotangents"
            )
        return found


def fwd_and_bwd(
    fun: Callable, argnums: int | Sequence[int], has_aux: bool = False, jitted: bool = True
) -> tuple[Callable, Callable]:
    """Two functions, `fwd(*args)` → (value, residuals) and `bwd(residuals, cotangent)` → the
    cotangents of the arguments `argnums`, a tuple: `vjp` in two parts, each compiled once.

    has_aux: fun returns a pair (value, aux), and fwd returns (value, residuals, aux).
    jitted: whether both are compiled by `jit`.

    >>> import funcgrad as fg
    >>> fwd, bwd = fg.fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
    >>> value, residuals = fwd(3.0, 4.0)
    >>> bwd(residuals, 1.0)
    (Array(4., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    check_callable("fwd_and_bwd", fun)
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def fwd(*args: Any) -> tuple:
        chosen = [n % len(args) for n in nums if -len(args) <= n < len(args)]
        if len(chosen) != len(nums):
            raise ArgumentError(
                f"fwd_and_bwd of {name_of(fun)}: argnums={argnums}, but there are {len(args)} "
                "arguments"
            )

        def of_chosen(*given: Any) -> Tree:
            full = list(args)
            for n, x in zip(chosen, given, strict=True):
                full[n] = x
            return fun(*full)

        return vjp(of_chosen, *(args[n] for n in chosen), has_aux=has_aux)

    def bwd(residuals: Callable, cotangent: Tree) -> tuple:
        return residuals(cotangent)

    forward, backward = wraps(fun, "fwd")(fwd), wraps(fun, "bwd")(bwd)
    return (jit(forward), jit(backward)) if jitted else (forward, backward)
