"""What tells the programs of a function apart: types of arguments and static values; and where they
are kept, so that a function that is compiled again finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from weakref import WeakKeyDictionary

from funcgrad.core import caches
from funcgrad.core.array import Array
from funcgrad.core.places.sharded import ShardedArray
from funcgrad.core.process import fork
from funcgrad.core.refs import Ref
from funcgrad.core.types import Value
from funcgrad.transforms.arguments import leaf_names
from funcgrad.transforms.jit.stages import Program, sharding_of
from funcgrad.transforms.refs import aval_or_inner

# Functions that are compiled again and again, as `jit(f)(x)` in a loop, share their programs.
_shared: WeakKeyDictionary[Callable, dict] = WeakKeyDictionary()
_lock = fork.lock()


@caches.forgotten_by
def _forget() -> None:
    with _lock:
        _shared.clear()


def programs_of(fun: Callable, options: tuple, most: int) -> caches.Latest[Program]:
    """Where the programs of a function with options are kept: a plain function is known by its
    identity, of others each object keeps its own."""
    if type(fun) is FunctionType:
        try:
            with _lock:
                kept = _shared.setdefault(fun, {})
                return kept.setdefault(options, caches.Latest(most))
        except TypeError:
            pass  # shardings in lists
    return caches.Latest(most)


def leaf_or_position(fun: Callable, i: int) -> str:
    """The name of a function's i-th parameter."""
    return leaf_names(fun, (0,) * (i + 1), {})[i]


def typed(value: object) -> tuple | type:
    """What tells equal static values apart: 1, 1.0 and True, or 0.0 and -0.0, are equal."""
    if type(value) is tuple:
        return tuple([typed(v) for v in value])
    return (float, value.hex()) if type(value) is float else type(value)


def type_key(x: Value) -> tuple:
    """An argument's type as a program is known by."""
    if type(x) is Array:
        v = x._value
        return (v.shape, v.dtype, x.weak_type)
    if type(x) is ShardedArray:
        aval = x.aval
        return (aval.shape, aval.dtype, aval.weak_type, x.sharding)
    if type(x) is Ref:
        return (*type_key(x.read()), Ref)
    aval = aval_or_inner(x)
    cut = sharding_of(x)
    if cut is not None:
        return (aval.shape, aval.dtype, aval.weak_type, cut)
    return (aval.shape, aval.dtype, aval.weak_type)


def difference(a: tuple, b: tuple, names: Sequence[str], fun: Callable) -> str:
    """What differs between the keys of two programs, in words."""
    if a[0] != b[0]:
        return f"the structure of the arguments changed from {a[0]} to {b[0]}"
    for name, x, y in zip(names, a[1], b[1], strict=True):
        if x != y:
            return f"argument {name} changed from {_type_text(x)} to {_type_text(y)}"
    for x, y in zip(a[2], b[2], strict=False):
        if x != y:
            name = x[0] if isinstance(x[0], str) else leaf_or_position(fun, x[0])
            return f"static argument {name} changed from {x[1]!r} to {y[1]!r}"
    return "a setting (default dtype, named axes) changed"


def _type_text(key: tuple) -> str:
    shape, dtype, weak, *cut = key
    return f"{dtype}{list(shape)}{' (a Python number)' if weak else ''}{cut or ''}"
