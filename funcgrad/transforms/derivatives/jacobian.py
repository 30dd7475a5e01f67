"""Whole Jacobians: `jacfwd` column by column, `jacrev` row by row, and the `hessian` of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree, Value, Values
from funcgrad.errors import ArgumentError, DifferentiationError
from funcgrad.ops.base import broadcast_p, instantiate, move_axis, zeros
from funcgrad.ops.indexing.windows_at import slice_in_dim
from funcgrad.ops.shape import reshape
from funcgrad.transforms.arguments import (
    FlatFunction,
    avals_of,
    check_leaves,
    leaf_names,
    name_of,
    wraps,
)
from funcgrad.transforms.autodiff.partial_eval import Linearized, linearize_flat
from funcgrad.transforms.batching.batching import batch_flat
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.transforms.control.bodies import as_weak_as
from funcgrad.transforms.derivatives.grad import pull_back


def jacfwd(
    fun: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable:
    """The function that gives the Jacobian of `fun`, by forward mode: one pass an input element.

    For each pair of a result leaf and an argument leaf there is an array of the result's shape
    followed by the argument's; the tree is the result's with the arguments' inside. Better than
    `jacrev` where there are more results than inputs.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.jacfwd(lambda x: x**2)(fnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    return _jacobian("jacfwd", _columns, fun, argnums, has_aux, holomorphic)


def jacrev(
    fun: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable:
    """The function that gives the Jacobian of `fun`, by reverse mode: one pass a result element.

    The result is as `jacfwd`'s. Better where there are fewer results than inputs.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.jacrev(lambda x: x**2)(fnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    return _jacobian("jacrev", _rows, fun, argnums, has_aux, holomorphic)


jacobian = jacrev  # JAX's other name


def hessian(
    fun: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable:
    """The function that gives the matrix of second derivatives: `jacfwd` of `jacrev`.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.hessian(lambda x: x[0] * x[1] ** 2)(fnp.array([1.0, 2.0]))
    Array([[0., 4.],
           [4., 2.]], dtype=float32)
    """
    inner = jacrev(fun, argnums, has_aux, holomorphic)
    return jacfwd(inner, argnums, has_aux, holomorphic)


def _jacobian(what: str, fill: Callable, fun: Callable, argnums: int | Sequence[int], has_aux: bool,
              holo: bool) -> Callable:  # fmt: skip
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(fun, what)
    @boundary
    def jacobian(*args: Any, **kwargs: Any) -> Tree:
        check_leaves(what, fun, args, kwargs)
        chosen = [n % len(args) for n in nums if -len(args) <= n < len(args)]
        if len(chosen) != len(nums):
            raise ArgumentError(
                f"{what} of {name_of(fun)}: argnums={argnums}, but there are {len(args)} arguments"
            )
        dynamic = tuple(args[i] for i in chosen)

        def partial(*given: Any) -> Tree:
            full = list(args)
            for i, a in zip(chosen, given, strict=True):
                full[i] = a
            return fun(*full, **kwargs)

        leaves, in_tree = tree.flatten((dynamic, {}))
        _check_inputs(what, fun, args, chosen, leaves, holo)
        flat = FlatFunction(what, partial, in_tree, has_aux)
        outs, lin = linearize_flat(flat, leaves)
        in_avals, out_avals = avals_of(leaves), avals_of(outs)
        _check_outputs(what, fun, out_avals, holo)
        blocks = fill(lin, in_avals, out_avals)
        arg_tree = tree.structure(dynamic if not isinstance(argnums, int) else dynamic[0])
        rows = [map(as_weak_as, row, in_avals) for row in blocks]
        jac = flat.unflatten([arg_tree.unflatten(row) for row in rows])
        return (jac, flat.aux) if has_aux else jac

    return jacobian


def _check_inputs(what: str, fun: Callable, args: Sequence[Tree], chosen: Sequence[int],
                  leaves: Values, holo: bool) -> None:  # fmt: skip
    names: list[str] = []
    for i in chosen:
        all_names = leaf_names(fun, args, {})
        start = sum(len(tree.leaves(a)) for a in args[:i])
        names += all_names[start : start + len(tree.leaves(args[i]))]
    for name, x in zip(names, leaves, strict=True):
        aval = aval_of(x)
        if holo and not dtypes.is_complex(aval.dtype):
            need = f"{what} with holomorphic=True requires inputs with complex dtype, but got"
        elif not dtypes.is_inexact(aval.dtype):
            need = f"convert it to float: {what} requires inputs of floats or complex numbers, got"
        elif what == "jacfwd" and dtypes.is_complex(aval.dtype) and not holo:
            need = (
                "set holomorphic=True for complex arguments: jacfwd requires real-valued inputs "
                "(input dtype that is a sub-dtype of np.floating), but got"
            )
        else:
            continue
        raise DifferentiationError(
            f"{what} of {name_of(fun)}: argument {name} is {aval}; {need} {aval.dtype}"
        )


def _check_outputs(what: str, fun: Callable, avals: Sequence[ShapedArray], holo: bool) -> None:
    for a in avals:
        if holo and not dtypes.is_complex(a.dtype):
            need = "complex results where holomorphic=True"
        elif what == "jacrev" and not holo and not dtypes.is_float(a.dtype):
            need = "real floating-point results (or holomorphic=True for complex ones)"
        else:
            continue
        raise DifferentiationError(
            f"{what} of {name_of(fun)}: the function must give {need}, got {a}"
        )


def _basis(avals: Sequence[ShapedArray]) -> list[np.ndarray]:
    """Unit vectors of the joined space of arrays: for each array a block with a row each vector."""
    sizes = [a.size for a in avals]
    total = sum(sizes)
    blocks, start = [], 0
    for a, n in zip(avals, sizes, strict=True):
        blocks.append(np.eye(total, n, -start, dtype=a.dtype).reshape(total, *a.shape))
        start += n
    return blocks


def _cut(x: Value, avals: Sequence[ShapedArray], axis: int) -> list:
    """Pieces of an array along the joined axis of `avals`, which becomes their axes."""
    shape = aval_of(x).shape
    pieces, start = [], 0
    for a in avals:
        piece = slice_in_dim(x, start, start + a.size, axis=axis)
        pieces.append(reshape(piece, (*shape[:axis], *a.shape, *shape[axis + 1 :])))
        start += a.size
    return pieces


def _columns(
    lin: Linearized, in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]
) -> list[list]:
    basis = _basis(in_avals)
    total = sum(a.size for a in in_avals)

    def push(*tangents: Any) -> list:
        return eval_jaxpr(lin.jaxpr, *lin.residuals, *tangents)

    outs, dims = batch_flat(push, BatchAxis(None, total), basis, [0] * len(basis))
    found = iter(zip(outs, dims, strict=True))
    rows = []
    for nonzero, a in zip(lin.out_nonzero, out_avals, strict=True):
        if not nonzero:
            rows.append([zeros(a.tangent().update(shape=(*a.shape, *b.shape))) for b in in_avals])
            continue
        out, d = next(found)
        last = move_axis(out, d, a.ndim) if d is not None else _repeat(out, total)
        rows.append(_cut(last, in_avals, a.ndim))
    return rows


def _repeat(x: Value, n: int) -> Value:
    shape = aval_of(x).shape
    return broadcast_p.bind(x, shape=(*shape, n), broadcast_dimensions=tuple(range(len(shape))))


def _rows(
    lin: Linearized, in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]
) -> list[list]:
    varying = [a for a, nz in zip(out_avals, lin.out_nonzero, strict=True) if nz]
    basis = _basis(varying)
    total = sum(a.size for a in varying)

    def pull(*cts: Any) -> list:
        return [instantiate(g) for g in pull_back(lin, lin.residuals, cts, in_avals)]

    grads, dims = batch_flat(pull, BatchAxis(None, total), basis, [0] * len(basis))
    by_arg = []
    for g, d, a in zip(grads, dims, in_avals, strict=True):
        first = move_axis(g, d, 0) if d is not None else zeros(a.update(shape=(total, *a.shape)))
        by_arg.append(_cut(first, varying, 0))
    rows, given = [], iter(zip(*by_arg, strict=True))
    for nonzero, a in zip(lin.out_nonzero, out_avals, strict=True):
        if nonzero:
            rows.append(list(next(given)))
        else:
            rows.append([zeros(b.tangent().update(shape=(*a.shape, *b.shape))) for b in in_avals])
    return rows
