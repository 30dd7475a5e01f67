"""Functions of few axes applied along the others: vectorize, apply_along_axis, apply_over_axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.errors import ShapeError
from funcgrad.numpy._util import (
    as_array,
    axes_of,
    broadcast_shapes,
    canonical_axis,
    check_callable,
    items_of,
)
from funcgrad.ops.shape import expand_dims, reshape
from funcgrad.transforms.arguments import name_of, wraps
from funcgrad.transforms.batching.vmap import vmap

_CORE = r"\(\s*(?:\w+\s*(?:,\s*\w+\s*)*)?,?\s*\)"
_SIGNATURE = re.compile(rf"\s*{_CORE}(?:\s*,\s*{_CORE})*\s*->\s*{_CORE}(?:\s*,\s*{_CORE})*\s*")

_Dims = tuple[str, ...]


def _parsed(signature: str) -> tuple[list[_Dims], list[_Dims]]:
    """The names of the core axes of each argument and each result."""
    if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature):
        raise ValueError(
            f"vectorize: signature must read like '(n,k),(k,m)->(n,m)', got {signature!r}"
        )
    left, right = signature.split("->")

    def side(text: str) -> list[_Dims]:
        return [tuple(re.findall(r"\w+", core)) for core in re.findall(_CORE, text)]

    return side(left), side(right)


def _core_sizes(name: str, shape: Sequence[int], core: _Dims, sizes: dict[str, int]) -> None:
    """Check the last axes of a shape against known core axes, and note their sizes."""
    if len(shape) < len(core):
        raise ShapeError(f"{name}: an array of shape {tuple(shape)} lacks the core axes {core}")
    for dim, n in zip(core, shape[len(shape) - len(core) :], strict=True):
        if sizes.setdefault(dim, n) != n:
            raise ShapeError(f"{name}: core axis {dim} has sizes {sizes[dim]} and {n}")


def vectorize(
    pyfunc: Callable, *, excluded: Any = frozenset(), signature: str | None = None
) -> Callable:
    """A function of scalars (or of the core axes of `signature`) that broadcasts over all others.

    `excluded` are positions or names of arguments that are passed as they are. The result
    differentiates, batches and compiles like any function.

    >>> fnp.vectorize(lambda x, y: x if y is None else x + y)(fnp.arange(2), fnp.array([[1], [2]]))
    Array([[1, 2],
           [2, 3]], dtype=int32)
    >>> norm = fnp.vectorize(lambda v: fnp.sqrt(v @ v), signature="(n)->()")
    >>> norm(fnp.array([[3.0, 4.0], [6.0, 8.0]]))
    Array([ 5., 10.], dtype=float32)
    """
    if any(not isinstance(e, str | int) for e in items_of("excluded", excluded)):
        raise TypeError(f"vectorize: excluded must be integers and strings, got {excluded}")
    name = f"vectorize({name_of(pyfunc)})"
    cores = _parsed(signature) if signature is not None else None

    @wraps(pyfunc, "vectorize")
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        fixed = {i: a for i, a in enumerate(args) if i in excluded or a is None}
        fixed_kwargs = {k: v for k, v in kwargs.items() if k in excluded}
        names = [k for k in kwargs if k not in excluded]
        given = [a for i, a in enumerate(args) if i not in fixed] + [kwargs[k] for k in names]
        arrays = [as_array(name, a, f"argument {i}") for i, a in enumerate(given)]
        ins = cores[0] if cores else [()] * len(arrays)
        if len(ins) != len(arrays):
            raise TypeError(f"{name}: {signature} has {len(ins)} arguments, got {len(arrays)}")
        n_positional = len(arrays) - len(names)

        def call(*values: Any) -> Any:
            positional = iter(values[:n_positional])
            full = [fixed[i] if i in fixed else next(positional) for i in range(len(args))]
            named = dict(zip(names, values[n_positional:], strict=True))
            out = pyfunc(*full, **named, **fixed_kwargs)
            _check_results(name, out, cores)
            return out

        return _over_leading_axes(name, call, arrays, ins)

    return wrapped


def _check_results(name: str, out: Any, cores: Any) -> None:
    if cores is None:
        return
    outs = out if isinstance(out, tuple) else (out,)
    if len(outs) != len(cores[1]):
        raise TypeError(f"{name}: the signature has {len(cores[1])} results, got {len(outs)}")
    for o, core in zip(outs, cores[1], strict=True):
        x = as_array(name, o, "a result")
        if x.ndim != len(core):
            raise ShapeError(f"{name}: a result must have the core axes {core}, got {x.aval}")


def _over_leading_axes(name: str, call: Callable, arrays: list, cores: Sequence[_Dims]) -> Any:
    """`call` mapped over the broadcast leading axes, from the last to the first."""
    sizes: dict[str, int] = {}
    for x, core in zip(arrays, cores, strict=True):
        _core_sizes(name, x.shape, core, sizes)
    leads = [x.shape[: x.ndim - len(core)] for x, core in zip(arrays, cores, strict=True)]
    shape = broadcast_shapes(name, *leads)
    padded = [(1,) * (len(shape) - len(lead)) + lead for lead in leads]
    # An axis of size 1 that others stretch is not mapped: it is dropped.
    kept = [tuple(n for n, full in zip(lead, shape, strict=True) if n == full) for lead in padded]
    arrays = [reshape(x, keep + x.shape[x.ndim - len(core) :])
              for x, keep, core in zip(arrays, kept, cores, strict=True)]  # fmt: skip
    for axis in reversed(range(len(shape))):
        mapped = [0 if lead[axis] == shape[axis] else None for lead in padded]
        call = vmap(call, in_axes=tuple(mapped), axis_size=shape[axis])
    return call(*arrays)


def apply_along_axis(func1d: Callable, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """func1d(vector, *args, **kwargs) of each vector along an axis; its axes take that one's place.

    >>> fnp.apply_along_axis(lambda v: v / fnp.sum(v), 1, fnp.array([[1.0, 1.0], [1.0, 3.0]]))
    Array([[0.5 , 0.5 ],
           [0.25, 0.75]], dtype=float32)
    """
    check_callable("func1d", func1d)
    x = as_array("apply_along_axis", arr, "arr")
    axis = canonical_axis("apply_along_axis", axis, x.ndim)

    def function(v: Any) -> Any:
        return func1d(v, *args, **kwargs)

    for i in range(1, x.ndim - axis):
        function = vmap(function, in_axes=i, out_axes=-1)
    for _ in range(axis):
        function = vmap(function)
    return function(x)


def apply_over_axes(func: Callable, a: Any, axes: Any) -> Any:
    """func(array, axis) for one axis after the other; axes that it drops are kept in size 1.

    >>> fnp.apply_over_axes(fnp.sum, fnp.ones((2, 3, 4)), (0, 2)).shape
    (1, 3, 1)
    """
    check_callable("func", func)
    x = as_array("apply_over_axes", a, "a")
    for axis in axes_of("apply_over_axes", axes, x.ndim):
        out = func(x, axis)
        if out.ndim == x.ndim - 1:
            out = expand_dims(out, (axis,))
        if out.ndim != x.ndim:
            raise ShapeError(
                f"apply_over_axes: {name_of(func)} must keep or drop one axis of {x.aval}, got "
                f"{out.aval}"
            )
        x = out
    return x
