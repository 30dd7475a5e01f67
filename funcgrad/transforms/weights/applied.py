"""`with_weights`: a function of parameters that takes weights where it took arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from funcgrad import tree
from funcgrad.core.closed import ClosedJaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.types import Tree
from funcgrad.transforms.arguments import as_array, is_arraylike, name_of, wraps
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr
from funcgrad.transforms.weights.calls import STAGED
from funcgrad.transforms.weights.follow import Enter, Follow, Seen, Watcher
from funcgrad.transforms.weights.leaves import named_leaves
from funcgrad.transforms.weights.weight import Weight, is_weight


def of_arrays(f: Callable) -> Callable:
    """The function of arrays that a function of weights came from; f itself if it is none."""
    return getattr(f, "of_arrays", f)


def with_weights(
    f: Callable,
    watcher: Watcher | None = None,
    programs: Mapping[Primitive, Enter] = STAGED,
    what: str = "with_weights",
) -> Callable:
    """f(params, *inputs), where leaves of params may be `Weight`s in place of arrays.

    f is traced with arrays of the weights' shapes and dtypes, and its program is run on the
    weights: products with them are theirs, views of them are followed, and programs within are
    entered. What else is done with a weight is done with its dense array. `watcher` is told.

    >>> import funcgrad as fg
    >>> import funcgrad.numpy as fnp
    >>> from funcgrad.transforms.weights.weight import Dense
    >>> with_weights(lambda params, x: x @ params["w"].T)({"w": Dense(fnp.eye(2))}, fnp.ones(2))
    Array([1., 1.], dtype=float32)
    """
    plain = of_arrays(f)
    watcher = watcher or Watcher()

    @wraps(plain, what)
    def call(params: Tree, *inputs: Any, **named: Any) -> Tree:
        leaves = tree.leaves(params, is_leaf=is_weight)
        closed, result, values = traced(plain, params, inputs, named)
        start = [
            Seen.whole(x, name) if isinstance(x, Weight) else as_array(x)
            for x, name in zip(leaves, named_leaves(params), strict=True)
        ]
        follow = Follow(watcher, programs)
        outs = follow.run(closed.jaxpr, [*closed.consts, *start, *values])
        return tree.unflatten(tree.structure(result), outs)

    call.of_arrays = plain  # type: ignore[attr-defined]
    return call


def traced(
    f: Callable, params: Tree, inputs: tuple, named: Mapping[str, Tree]
) -> tuple[ClosedJaxpr, Tree, list]:
    """The program of f(params, *inputs, **named) in arrays of params' shapes, the result's types,
    and those of the inputs that are the program's, after the leaves of params. Shapes will do.

    >>> import funcgrad as fg
    >>> traced(lambda params, x, of: x if of == "x" else params, 1.0, (2.0, "x"), {})[0]
    { lambda ; a:f32[] b:f32[] . let
      in (b,) }
    """
    leaves, structure = tree.flatten(params, is_leaf=is_weight)
    rest, rest_structure = tree.flatten((inputs, dict(named)))
    places = [i for i, x in enumerate(rest) if is_arraylike(x)]

    def fun(arrays: list, given: list) -> Tree:
        every = [*rest]
        for i, x in zip(places, given, strict=True):
            every[i] = x
        own, by_name = rest_structure.unflatten(every)
        return f(structure.unflatten(arrays), *own, **by_name)

    fun.__name__ = name_of(f)

    def known(x: Tree) -> Tree:
        whole = not isinstance(x, Weight | ShapeDtypeStruct)
        return as_array(x) if whole else ShapeDtypeStruct(x.shape, x.dtype)

    values = [known(rest[i]) for i in places]
    closed, result = make_jaxpr(fun, return_shape=True)([known(x) for x in leaves], values)
    return closed, result, values
