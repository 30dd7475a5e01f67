"""Derivatives with respect to what is stored: of a sparse argument the data, at the same indices.

A sparse array's indices are integers, which nothing is differentiated with respect to. So here its
data alone is an argument, and a gradient comes back as a sparse array on the same pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad import tree
from funcgrad.core.display.tracebacks import boundary
from funcgrad.errors import ArgumentError
from funcgrad.sparse.arrays import is_sparse
from funcgrad.sparse.elementwise import new_data
from funcgrad.transforms.arguments import name_of, wraps
from funcgrad.transforms.derivatives import grad as dense
from funcgrad.transforms.derivatives import jacobian as dense_jacobian


def grad(
    fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable:  # fmt: skip
    """As `funcgrad.grad`; the gradient of a sparse argument is sparse, of the same pattern.

    Each stored element is a variable of its own, those with equal indices, too; padding has
    gradient 0.

    >>> from funcgrad import sparse
    >>> m = sparse.eye(2) * 3.0
    >>> sparse.grad(lambda m: fnp.sum((m @ fnp.arange(2.0)) ** 2))(m).data
    Array([0., 6.], dtype=float32)
    """
    return _of_data("grad", dense.grad, fun, argnums, has_aux, holomorphic)


def value_and_grad(
    fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable:  # fmt: skip
    """As `funcgrad.value_and_grad`, with gradients as those of `sparse.grad`.

    >>> from funcgrad import sparse
    >>> value, gradient = sparse.value_and_grad(lambda m: fnp.sum(m @ fnp.ones(2)))(sparse.eye(2))
    >>> value, gradient
    (Array(2., dtype=float32), BCOO(float32[2, 2], nse=2))
    """
    return _of_data("value_and_grad", dense.value_and_grad, fun, argnums, has_aux, holomorphic)


def jacfwd(
    fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable:  # fmt: skip
    """As `funcgrad.jacfwd`; of a sparse argument an array with the result's axes as batches.

    >>> from funcgrad import sparse
    >>> sparse.jacfwd(lambda m: m @ fnp.ones(2))(sparse.eye(2))
    BCOO(float32[2, 2, 2], nse=2, n_batch=1)
    """
    return _of_data("jacfwd", dense_jacobian.jacfwd, fun, argnums, has_aux, holomorphic)


def jacrev(
    fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable:  # fmt: skip
    """As `funcgrad.jacrev`; of a sparse argument an array with the result's axes as batches.

    >>> from funcgrad import sparse
    >>> sparse.jacrev(lambda m: m @ fnp.ones(2))(sparse.eye(2)).todense()[0]
    Array([[1., 0.],
           [0., 0.]], dtype=float32)
    """
    return _of_data("jacrev", dense_jacobian.jacrev, fun, argnums, has_aux, holomorphic)


jacobian = jacrev


def _of_data(
    what: str, transform: Callable, fun: Callable, argnums: int | Sequence[int], has_aux: bool,
    holomorphic: bool,
) -> Callable:  # fmt: skip
    """A transform of derivatives, of a function whose sparse arguments are their data."""
    several = not isinstance(argnums, int)
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @boundary
    @wraps(fun, f"sparse.{what}")
    def derivative(*args: Any, **kwargs: Any) -> Any:
        if any(not -len(args) <= n < len(args) for n in nums):
            raise ArgumentError(
                f"sparse.{what} of {name_of(fun)}: argnums={argnums}, but there are {len(args)} "
                "positional arguments"
            )
        at = [n % len(args) for n in nums]
        given = [args[i] for i in at]
        results: list = []  # the structure of the function's result

        def of_data(*values: Any) -> Any:
            filled = list(args)
            for i, whole, value in zip(at, given, values, strict=True):
                filled[i] = _filled(whole, value)
            out, *aux = fun(*filled, **kwargs) if has_aux else (fun(*filled, **kwargs),)
            leaves, structure = tree.flatten(out)
            results.append(structure)
            out = leaves if what.startswith("jac") else out
            return (out, *aux) if has_aux else out

        call = transform(of_data, tuple(range(len(at))), has_aux, holomorphic)
        found = call(*map(_data, given))
        value, aux = None, None
        if what == "value_and_grad":
            value, found = found
        elif has_aux:
            found, aux = found

        def sparse(gradients: tuple) -> Any:
            own = tuple(map(_on_pattern, given, gradients))
            return own if several else own[0]

        if what.startswith("jac"):
            found = results[-1].unflatten(map(sparse, found))
        else:
            found = sparse(found)
        if what == "value_and_grad":
            return value, found
        return (found, aux) if has_aux else found

    return derivative


def _data(x: Any) -> Any:
    """An argument with data in place of its sparse arrays."""
    return tree.map(lambda v: v.data if is_sparse(v) else v, x, is_leaf=is_sparse)


def _filled(whole: Any, values: Any) -> Any:
    """An argument with other data in its sparse arrays, and other dense ones."""
    return tree.map(
        lambda v, new: new_data(v, new) if is_sparse(v) else new, whole, values, is_leaf=is_sparse
    )


def _on_pattern(whole: Any, gradient: Any) -> Any:
    """A gradient of data as one of sparse arrays; axes of a result are batch axes in front."""

    def one(v: Any, g: Any) -> Any:
        if not is_sparse(v):
            return g
        (_, *places), static = v.tree_flatten()
        lead = (1,) * (g.ndim - v.data.ndim)
        return type(v).tree_unflatten(static, (g, *(p.reshape(lead + p.shape) for p in places)))

    return tree.map(one, whole, gradient, is_leaf=is_sparse)
