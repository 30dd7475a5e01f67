"""Implicit derivatives: solutions of equations, differentiated without unrolling the solver.

A linear solve A x = b has the tangent A dx = db - dA x; its transpose solves with Aᵀ. A root
f(x) = 0 has dx = -(∂f/∂x)⁻¹ ∂f, a linear solve (implicit function theorem).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad import dtypes, tree
from funcgrad.core.aval import Zero
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.core.types import Tree, Value
from funcgrad.errors import ConcretizationError, CustomRuleError
from funcgrad.ops.arguments import check_callable
from funcgrad.ops.base import instantiate
from funcgrad.ops.elementwise.arithmetic import neg, sub
from funcgrad.ops.elementwise.convert import stop_gradient
from funcgrad.transforms.arguments import name_of
from funcgrad.transforms.control.bodies import as_type
from funcgrad.transforms.derivatives.custom import closure_convert, custom_jvp
from funcgrad.transforms.derivatives.linear import jvp, linear_transpose
from funcgrad.transforms.jit.make_jaxpr import eval_shape


def custom_linear_solve(
    matvec: Callable,
    b: Tree,
    solve: Callable,
    transpose_solve: Callable | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Tree:
    """x with matvec(x) = b, computed by `solve(matvec, b)` and differentiated implicitly.

    matvec: a linear function of pytrees like b. transpose_solve(vecmat, ct): solves with the
    transposed operator, for reverse mode; `symmetric` uses `solve` for it. has_aux: the solvers
    return (x, aux). What the solvers capture is constant for derivatives.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> def f(a, b):
    ...     return fg.lax.custom_linear_solve(
    ...         lambda x: a * x, b, lambda mv, r: r / mv(1.0), symmetric=True
    ...     )
    >>> [float(g) for g in fg.grad(f, argnums=(0, 1))(2.0, 6.0)]
    [-1.5, 0.5]
    """
    if symmetric and transpose_solve is None:
        transpose_solve = solve
    check_callable("matvec", matvec)
    check_callable("solve", solve)
    b = _promoted(matvec, b)
    mv, captured = closure_convert(matvec, b)
    transposed = _transposed(lambda *held: lambda x: mv(x, *held), b)
    traced = _any_traced(b, captured)
    forward = _solver(solve, lambda *h: lambda x: mv(x, *h), b, captured, traced)
    backward = transpose_solve and _solver(transpose_solve, transposed, b, captured, traced)

    @custom_jvp
    def solution(rhs: Tree, held: Tree) -> tuple[Tree, Tree]:
        out = forward[0](rhs, *held[0], *held[1])
        x, aux = out if has_aux else (out, None)
        tree.check_same_structure(b, x, what_a="custom_linear_solve: b", what_b="the solution")
        return x, aux

    solution.closed = True

    @solution.defjvp
    def _(primals: Tree, tangents: Tree) -> tuple:
        rhs, held = primals
        d_rhs, d_held = tangents
        x, aux = solution(rhs, held)
        if held[0]:
            _, moved = jvp(lambda *h: mv(x, *h), tuple(held[0]), tuple(d_held[0]))
            d_rhs = tree.map(sub, d_rhs, moved)
        dx, _ = solution(d_rhs, held)
        return (x, aux), (dx, tree.map(lambda a: instantiate(Zero(aval_of(a).tangent())), aux))

    solution.deftranspose(
        _transpose_rule(name_of(matvec), transposed, forward[0], backward and backward[0], has_aux)
    )
    x, aux = solution(b, (captured, forward[1], backward[1] if backward else []))
    return (x, aux) if has_aux else x


def _transposed(operator: Callable, b: Tree) -> Callable:
    """The transpose of operator(*held), a linear function of trees like b, by the same `held`."""

    def of(*held: Any) -> Callable:
        vecmat = linear_transpose(operator(*held), b)
        return lambda y: vecmat(y)[0]

    return of


def _transpose_rule(
    name: str, transposed: Callable, forward: Callable, backward: Callable | None, has_aux: bool
) -> Callable:
    """The transpose of a linear solve: a solve of the transposed system by the other solver."""

    def rule(primals: Tree, ct: Tree) -> tuple:
        if backward is None:
            raise CustomRuleError(
                f"custom_linear_solve with {name}: reverse-mode differentiation needs "
                "transpose_solve=, or symmetric=True"
            )
        _, (held, for_solve, for_transpose) = primals
        back = custom_linear_solve(
            transposed(*held),
            ct[0],
            lambda _, rhs: backward(rhs, *held, *for_transpose),
            lambda _, rhs: forward(rhs, *held, *for_solve),
            has_aux=has_aux,
        )
        return (back[0] if has_aux else back), None

    return rule


def _promoted(fun: Callable, x: Tree) -> Tree:
    """x, with Python numbers in it in the dtype that `fun` gives in their place."""
    if not any(aval_of(leaf).weak_type for leaf in tree.leaves(x)):
        return x
    out = eval_shape(fun, x)
    if tree.structure(out) != tree.structure(x):
        return x

    def leaf(given: Value, found: ShapeDtypeStruct) -> Value:
        aval = aval_of(given)
        if not aval.weak_type or not dtypes.is_inexact(found.dtype):
            return given
        return as_type(given, aval.update(dtype=found.dtype, weak_type=found.weak_type))

    return tree.map(leaf, x, out)


def _any_traced(*trees: Any) -> bool:
    return any(isinstance(x, Tracer) for x in tree.leaves(trees))


def _solver(
    solve: Callable, operator: Callable, b: Tree, captured: list, traced: bool
) -> tuple[Callable, list]:
    """solve(operator(*captured), b) as a function of b, `captured` and what `solve` captures.

    The latter is constant for derivatives, which the operator alone decides. A solver that looks
    at values as it runs (a Python loop) can't be converted; it may capture no traced values.
    """

    def plain(rhs: Tree, *held: Any) -> Tree:
        return solve(operator(*held), rhs)

    if not traced:
        return plain, []
    try:
        return closure_convert(plain, b, *captured)
    except ConcretizationError:
        return plain, []


def custom_root(
    f: Callable,
    initial_guess: Tree,
    solve: Callable,
    tangent_solve: Callable,
    has_aux: bool = False,
) -> Tree:
    """x with f(x) = 0, found by `solve(f, initial_guess)` and differentiated implicitly.

    tangent_solve(g, y): solves the linear g(x) = y. Derivatives flow to what `f` captures, none to
    the guess. has_aux: `solve` returns (x, aux).

    >>> import funcgrad as fg
    >>> def newton(f, x):
    ...     return fg.lax.fori_loop(0, 20, lambda i, x: x - f(x) / fg.grad(f)(x), x)
    >>> def sqrt(a):
    ...     return fg.lax.custom_root(lambda x: x * x - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> float(sqrt(4.0)), float(fg.grad(sqrt)(4.0))
    (2.0, 0.25)
    """
    check_callable("f", f)
    initial_guess = _promoted(f, initial_guess)
    converted, captured = closure_convert(f, initial_guess)
    traced = _any_traced(initial_guess, captured)
    solver, for_solve = _solver(
        solve, lambda *h: lambda x: converted(x, *h), initial_guess, captured, traced
    )

    def derivative(x: Tree, *held: Any) -> Callable:
        return lambda dx: jvp(lambda y: converted(y, *held), (x,), (dx,))[1]

    at_root = [initial_guess, *captured]
    transposed = _transposed(derivative, initial_guess)
    forward, for_forward = _solver(tangent_solve, derivative, initial_guess, at_root, traced)
    backward, for_backward = _solver(tangent_solve, transposed, initial_guess, at_root, traced)

    def solved(guess: Tree, held: Tree) -> tuple[Tree, Tree]:
        out = solver(guess, *held[0], *held[1])
        x, aux = out if has_aux else (out, None)
        tree.check_same_structure(
            initial_guess, x, what_a="custom_root: the initial guess", what_b="the solution"
        )
        return x, aux

    @custom_jvp
    def root(guess: Tree, held: Tree) -> tuple[Tree, Tree]:
        return solved(stop_gradient(guess), stop_gradient(held))

    root.closed = True

    @root.defjvp
    def _(primals: Tree, tangents: Tree) -> tuple:
        (guess, every), (_, d_every) = primals, tangents
        x, aux = root(guess, every)
        held, _, for_forward, for_backward = every
        _, residual = jvp(lambda *h: converted(x, *h), tuple(held), tuple(d_every[0]))
        dx = custom_linear_solve(
            derivative(x, *held),
            tree.map(neg, residual),
            lambda _, y: forward(y, x, *held, *for_forward),
            transpose_solve=lambda _, y: backward(y, x, *held, *for_backward),
        )
        return (x, aux), (dx, tree.map(lambda a: instantiate(Zero(aval_of(a).tangent())), aux))

    x, aux = root(initial_guess, (captured, for_solve, for_forward, for_backward))
    return (x, aux) if has_aux else x
