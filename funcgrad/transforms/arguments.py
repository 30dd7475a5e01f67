"""From a user's arguments to flat arrays and back, with names for errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from funcgrad import dtypes, tree
from funcgrad.core import context
from funcgrad.core.array import Array, raw
from funcgrad.core.buffers import memory_of
from funcgrad.core.places.device_array import DeviceArray
from funcgrad.core.places.transfers import crosses, taken_in
from funcgrad.core.refs import Ref
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree, Value, Values
from funcgrad.errors import RefError, within
from funcgrad.tree import PyTreeDef

_F = TypeVar("_F", bound=Callable)


def rule_setter(wrapper: object, name: str) -> Callable:
    """What sets a rule (`defjvp`, `def_vmap`, …) of a wrapped function that has one of another kind
    than its wrapper."""
    found = getattr(vars(wrapper).get("_fun"), name, None) if name.startswith("def") else None
    if found is None:
        raise AttributeError(f"{type(wrapper).__name__!r} object has no attribute {name!r}")
    return found


def name_of(fun: Callable) -> str:
    """What to call a function in messages and printed programs.

    >>> name_of(len)
    'len'
    """
    if type(fun) is FunctionType:
        return fun.__name__
    inner = getattr(fun, "func", None)
    if inner is not None and not hasattr(fun, "__name__"):
        return name_of(inner)
    return getattr(fun, "__name__", type(fun).__name__)


def parameter_names(fun: Callable, n_args: int) -> list[str]:
    """The names of a function's first n positional parameters, as far as they can be known."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}[{i}]" for i in range(n_args - len(names))]
            break
    return [*names, *(f"args[{i}]" for i in range(len(names), n_args))][:n_args]


def leaf_names(
    fun: Callable, args: Sequence[Tree], kwargs: dict[str, Tree], fixed: Collection[int] = ()
) -> list[str]:
    """A name for each leaf of a call's arguments, but those at positions `fixed`: `params['w']`.

    >>> leaf_names(lambda params, x: 0, ({"w": 1, "b": 2}, 3), {})
    ["params['b']", "params['w']", 'x']
    """
    names: list[str] = []
    for i, (name, arg) in enumerate(zip(parameter_names(fun, len(args)), args, strict=True)):
        if i not in fixed:
            names += [name + tree.keystr(path) for path, _ in tree.leaves_with_path(arg)]
    for key in sorted(kwargs):
        names += [key + tree.keystr(path) for path, _ in tree.leaves_with_path(kwargs[key])]
    return names


def split_static(
    what: str, fun: Callable, argnums: int | Sequence[int], args: tuple
) -> tuple[Callable, tuple, set[int]]:
    """`fun` as a function of its other arguments, these, and the static ones' positions.

    >>> f, rest, fixed = split_static("grad", pow, 1, (2.0, 3))
    >>> f(*rest), fixed
    (8.0, {1})
    """
    nums = (argnums,) if isinstance(argnums, int) else argnums
    for n in nums:
        if not -len(args) <= n < len(args):
            raise ValueError(
                f"{what} of {name_of(fun)}: static_argnums={n} needs at least "
                f"{n + 1 if n >= 0 else -n} positional arguments, got {len(args)}"
            )
    fixed = {n % len(args) for n in nums}

    def of_rest(*rest: Any, **kwargs: Any) -> Tree:
        given = iter(rest)
        return fun(*(a if i in fixed else next(given) for i, a in enumerate(args)), **kwargs)

    of_rest.__name__ = name_of(fun)
    return of_rest, tuple(a for i, a in enumerate(args) if i not in fixed), fixed


def is_arraylike(x: object) -> bool:
    """Whether x may be a leaf of a transformed function's arguments.

    >>> is_arraylike(1.0), is_arraylike("a")
    (True, False)
    """
    return hasattr(x, "aval") or isinstance(
        x, np.ndarray | np.generic | bool | int | float | complex
    )


def as_array(x: Value) -> Value:
    """A number or a buffer as an array: what users get, and functions that aren't traced.

    >>> as_array(1.0)
    Array(1., dtype=float32, weak_type=True)
    """
    if type(x) is Array or hasattr(x, "aval"):
        return x
    if memory_of(x) is not None:
        return DeviceArray(x)
    if not is_arraylike(x) or getattr(x, "dtype", None) == dtypes.float0:
        return x
    if type(x) is np.ndarray:
        taken_in(x, aval_of(x))
    return Array(np.array(raw(x)), aval_of(x).weak_type)


def check_leaves(
    what: str,
    fun: Callable,
    args: Sequence[Tree],
    kwargs: dict[str, Tree],
    fixed: Collection[int] = (),
) -> None:
    """Raise where a leaf of the arguments, but at positions `fixed`, is no array, naming it."""
    leaves, _ = tree.flatten((tuple(a for i, a in enumerate(args) if i not in fixed), kwargs))
    if all(map(is_arraylike, leaves)):
        note_leaves(leaves)
        return
    for name, leaf in zip(leaf_names(fun, args, kwargs, fixed), leaves, strict=True):
        if not is_arraylike(leaf):
            message = (
                f"{what} of {name_of(fun)}: argument {name} must be an array or a number, got "
            )
            message += f"{leaf!r} of {type(leaf)}; pass it as a static argument, or close over it"
            raise TypeError(within(message))


def note_leaves(leaves: Values) -> None:
    """Tell who guards transfers of arguments that come from NumPy."""
    if context.current().checks is not None:
        for x in leaves:
            if type(x) is np.ndarray:
                crosses("host_to_device", aval_of(x))


def flatten_outputs(what: str, fun: Callable, out: Tree) -> tuple[list, PyTreeDef]:
    """The leaves of a function's result, checked to be arrays."""
    leaves, treedef = tree.flatten(out)
    if not all(map(is_arraylike, leaves)):
        for path, leaf in tree.leaves_with_path(out):
            if type(leaf) is Ref:
                raise RefError(
                    f"{what} of {name_of(fun)}: the result{tree.keystr(path)} is a Ref of "
                    f"{leaf.inner_aval}; a Ref can't be returned, return its value, ref[...]"
                )
            if not is_arraylike(leaf):
                raise TypeError(
                    f"{what} of {name_of(fun)}: the result{tree.keystr(path)} must be an array or "
                    f"a number, got {leaf!r} of {type(leaf)}"
                )
    return leaves, treedef


class FlatFunction:
    """A function of pytrees as one of flat leaves; keeps the structure of the last result."""

    out_tree: PyTreeDef

    def __init__(self, what: str, fun: Callable, in_tree: PyTreeDef, has_aux: bool = False):
        self.what = what
        self.fun = fun
        self.in_tree = in_tree
        self.has_aux = has_aux
        self.aux: Any = None

    def __call__(self, *leaves: Any) -> list:
        args, kwargs = self.in_tree.unflatten(leaves)
        return self.flattened(self.fun(*args, **kwargs))

    def flattened(self, out: Tree) -> list:
        """The leaves of the function's result; its structure, and what is auxiliary, are kept."""
        if self.has_aux:
            if not (isinstance(out, tuple) and len(out) == 2):
                raise TypeError(
                    f"{self.what} of {name_of(self.fun)} with has_aux=True: the function must "
                    f"return a pair (value, aux), got {type(out)}"
                )
            out, self.aux = out
        flat, self.out_tree = flatten_outputs(self.what, self.fun, out)
        return flat

    def lower_aux(self, lower: Callable) -> None:
        """Give aux, which isn't transformed, as the world outside the transformation sees it."""
        if self.has_aux:
            self.aux = tree.map(lower, self.aux)

    def unflatten(self, leaves: Values) -> Tree:
        """Results in the function's own structure, as arrays."""
        return self.out_tree.unflatten(map(as_array, leaves))


class PositionalFunction(FlatFunction):
    """A function as `FlatFunction` has it, of positional arguments alone."""

    def __call__(self, *leaves: Any) -> list:
        return self.flattened(self.fun(*self.in_tree.unflatten(leaves)))


def avals_of(leaves: Values) -> list:
    """The abstract values of flat arguments."""
    return [aval_of(x) for x in leaves]


def wraps(fun: Callable, what: str) -> Callable[[_F], _F]:
    """functools.wraps that also works for partials and callables, and says what was done."""

    def decorate(wrapper: _F) -> _F:
        wrapper.__name__ = f"{what}({name_of(fun)})"
        wrapper.__doc__ = getattr(fun, "__doc__", None)
        wrapper.__module__ = getattr(fun, "__module__", wrapper.__module__)
        wrapper.__wrapped__ = fun  # type: ignore[attr-defined]
        return wrapper

    return decorate
