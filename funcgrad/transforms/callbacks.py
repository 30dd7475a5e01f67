"""Calls of Python from programs: `pure_callback`, `io_callback`, `debug.callback`, `debug.print`.

Python gets and gives numpy arrays, wherever the program runs. A pure callback may be dropped or
repeated; the others run once, in program order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn, Jaxpr, sub_jaxprs
from funcgrad.core.primitive import NoRule, Primitive, Rule
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.types import ArrayModule, BatchDims, PlainArray, Tree, Values
from funcgrad.errors import ShapeError
from funcgrad.ops.base import batch_front, move_axis
from funcgrad.ops.folds import is_away
from funcgrad.transforms.arguments import check_leaves, name_of
from funcgrad.transforms.batching.trace import BatchAxis
from funcgrad.tree import PyTreeDef

VMAP_METHODS = ("sequential", "expand_dims", "broadcast_all")


class _Host:
    """A Python function of pytrees as one from flat numpy arrays to flat, checked numpy arrays."""

    def __init__(self, what: str, fun: Callable, in_tree: PyTreeDef, out_tree: PyTreeDef | None,
                 avals: Sequence):  # fmt: skip
        self.what = what
        self.fun = fun
        self.in_tree = in_tree
        self.out_tree = out_tree
        self.avals = tuple(avals)

    def __call__(self, *values: np.ndarray) -> list[np.ndarray]:
        args, kwargs = self.in_tree.unflatten(values)
        out = self.fun(*args, **kwargs)
        if self.out_tree is None:
            return []
        leaves, got = tree.flatten(out)
        if got != self.out_tree:
            raise TypeError(
                f"{self.what} {name_of(self.fun)}: the callback must return the structure of "
                f"result_shape_dtypes, {self.out_tree}, got {got}"
            )
        arrays = [np.asarray(x) for x in leaves]
        for a, want in zip(arrays, self.avals, strict=True):
            if a.shape != want.shape or not np.can_cast(a.dtype, want.dtype, "same_kind"):
                raise ShapeError(
                    f"{self.what} {name_of(self.fun)}: the callback must return {want}, got "
                    f"{a.dtype}{list(a.shape)}"
                )
        return [a.astype(want.dtype) for a, want in zip(arrays, self.avals, strict=True)]

    def giving(self, avals: Sequence) -> _Host:
        """The same function, whose results are of other types."""
        return _Host(self.what, self.fun, self.in_tree, self.out_tree, avals)

    def __repr__(self) -> str:
        return name_of(self.fun)


def pure_callback(
    callback: Callable,
    result_shape_dtypes: Tree,
    *args: Any,
    vmap_method: str = "sequential",
    **kwargs: Any,
) -> Tree:
    """`callback(*args, **kwargs)`, a pure Python function on numpy arrays, also inside jit.

    result_shape_dtypes: a pytree of `ShapeDtypeStruct` (or arrays) with the result's types.
    vmap_method: how it is mapped: "sequential" calls it for each lane; "expand_dims" calls it once,
    with a leading axis of the batch size on mapped arguments and of size 1 on others;
    "broadcast_all" with the batch size on all. It has no derivative: wrap it in `custom_jvp`.

    >>> import numpy as np, funcgrad as fg
    >>> f = lambda x: fg.pure_callback(np.sin, fg.ShapeDtypeStruct((), "float32"), x)
    >>> print(fg.jit(f)(1.0))
    0.84147...
    """
    if vmap_method not in VMAP_METHODS:
        raise ValueError(f"pure_callback: vmap_method must be one of {VMAP_METHODS}")
    return _call(pure_callback_p, "pure_callback", callback, result_shape_dtypes, args, kwargs,
                 vmap_method)  # fmt: skip


def io_callback(
    callback: Callable, result_shape_dtypes: Tree, *args: Any, ordered: bool = False, **kwargs: Any
) -> Tree:
    """`callback(*args, **kwargs)`, a Python function with effects, also inside jit.

    It runs once a call of the program, in program order (so `ordered` needs nothing more).

    >>> import funcgrad as fg
    >>> log = []
    >>> _ = fg.jit(lambda x: fg.io_callback(lambda v: log.append(float(v)), None, x))(2.0)
    >>> log
    [2.0]
    """
    return _call(io_callback_p, "io_callback", callback, result_shape_dtypes, args, kwargs,
                 "sequential")  # fmt: skip


def debug_callback(callback: Callable, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call `callback(*args, **kwargs)` for its effect; derivatives pass it by.

    >>> import funcgrad as fg
    >>> seen = []
    >>> fg.debug.callback(lambda x: seen.append(float(x)), 1.5)
    >>> seen
    [1.5]
    """
    host = lambda *a, **k: callback(*a, **k) and None  # noqa: E731 - the result is ignored
    host.__name__ = name_of(callback)
    _call(debug_callback_p, "debug.callback", host, None, args, kwargs, "sequential")


def debug_print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print `fmt.format(*args, **kwargs)` with the values of a run, also inside jit, vmap, grad.

    >>> import funcgrad as fg
    >>> _ = fg.jit(lambda x: fg.debug.print("x = {}", x) or x)(3.0)
    x = 3.0
    """
    if not isinstance(fmt, str):
        raise TypeError(f"debug.print: the first argument must be a format string, got {fmt!r}")

    def show(*values: Any, **named: Any) -> None:
        print(fmt.format(*values, **named))

    debug_callback(show, *args, **kwargs)


def _call(prim: Primitive, what: str, fun: Callable, results: Tree, args: tuple, kwargs: dict,
          vmap_method: str) -> Tree:  # fmt: skip
    if not callable(fun):
        raise TypeError(f"{what}: the first argument must be a function, got {fun!r}")
    check_leaves(what, fun, args, kwargs)
    leaves, in_tree = tree.flatten((args, kwargs))
    out_leaves, out_tree = tree.flatten(results)
    avals = tuple(
        x.aval if isinstance(x, ShapeDtypeStruct) else ShapedArray(tuple(x.shape), x.dtype)
        for x in out_leaves
    )
    host = _Host(what, fun, in_tree, None if results is None else out_tree, avals)
    outs = prim.bind(*leaves, callback=host, out_avals=avals, vmap_method=vmap_method)
    return out_tree.unflatten(outs)


def _impl(xp: ArrayModule, *values: PlainArray, callback: Callable,
          out_avals: Sequence[ShapedArray], vmap_method: str) -> list:  # fmt: skip
    shown = []
    for v in values:
        view = (v.get() if is_away(v) else np.asarray(v)).view()
        view.flags.writeable = False
        shown.append(view)
    return [xp.asarray(x) for x in callback(*shown)]


def _batch(prim: Callable[[], Primitive]) -> Callable:
    def rule(axis: BatchAxis, args: Values, dims: BatchDims, *, callback: _Host | _Lanes,
             out_avals: Sequence[ShapedArray], vmap_method: str) -> tuple:  # fmt: skip
        wide = tuple(a.update(shape=(axis.size, *a.shape)) for a in out_avals)
        if vmap_method == "sequential":
            given = [
                a if d is None else move_axis(a, d, 0) for a, d in zip(args, dims, strict=True)
            ]
            callback = _Lanes(callback, [d is not None for d in dims], axis.size, wide)
        else:
            size = axis.size if vmap_method == "broadcast_all" else 1
            given = [
                batch_front(a, d, size if d is None else axis.size)
                for a, d in zip(args, dims, strict=True)
            ]
            callback = callback.giving(wide)  # type: ignore[union-attr]
        outs = prim().bind(*given, callback=callback, out_avals=wide, vmap_method=vmap_method)
        return outs, [0] * len(outs)

    return rule


class _Lanes:
    """A callback of one lane as one of a batch."""

    def __init__(self, inner: _Host | _Lanes, mapped: list, size: int, avals: tuple):
        self.inner = inner
        self.mapped = mapped
        self.size = size
        self.avals = avals

    def __call__(self, *values: np.ndarray) -> list[np.ndarray]:
        rows = [
            self.inner(*(v[i] if m else v for v, m in zip(values, self.mapped, strict=True)))
            for i in range(self.size)
        ]
        return [
            np.stack([r[k] for r in rows]) if rows else np.empty(a.shape, a.dtype)
            for k, a in enumerate(self.avals)
        ]

    def __repr__(self) -> str:
        return repr(self.inner)


def _callback(name: str, jvp: Rule | NoRule, effect: bool) -> Primitive:
    def this() -> Primitive:
        return made

    made = Primitive(
        name=name,
        abstract=lambda *avals, callback, out_avals, vmap_method: list(out_avals),
        impl=_impl,
        jvp=jvp,
        transpose=NoRule("Python code can't be transposed"),
        batch=_batch(this),
        dims=NoRule("Python code gets whole arrays"),
        multiple=True,
        effect=effect,
    )
    return made


_NO_DERIVATIVE = NoRule(
    "Python code can't be differentiated; wrap the call in a custom_jvp or custom_vjp function"
)
pure_callback_p: Primitive = _callback("pure_callback", _NO_DERIVATIVE, effect=False)
io_callback_p: Primitive = _callback("io_callback", _NO_DERIVATIVE, effect=True)
debug_callback_p: Primitive = _callback(
    "debug_callback",
    lambda primals, tangents, **params: (debug_callback_p.bind(*primals, **params), []),
    effect=True,
)


def calls_users(jaxpr: Jaxpr) -> bool:
    """Whether a program calls Python functions of the user's.

    >>> shape = fg.ShapeDtypeStruct((), "float32")
    >>> calls_users(fg.make_jaxpr(lambda x: fg.pure_callback(abs, shape, x))(1.0).jaxpr)
    True
    """
    return jaxpr.derive("calls users", lambda: any(map(_calls_users, jaxpr.eqns)))


def _calls_users(eqn: Eqn) -> bool:
    return "callback" in eqn.params or any(map(calls_users, sub_jaxprs(eqn)))
