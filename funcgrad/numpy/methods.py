"""The operators, methods and properties of arrays and tracers: the functions of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import methods
from funcgrad.core.array import Array
from funcgrad.core.source import variable_holding
from funcgrad.core.trace import Tracer
from funcgrad.errors import ShapeError
from funcgrad.numpy import array_api, contraction
from funcgrad.numpy._util import dtype_or
from funcgrad.numpy.creation import creation, diagonals
from funcgrad.numpy.elementwise import arithmetic, floats, functions, logic
from funcgrad.numpy.manipulation import choosing, indexing, joining, shape, sorting
from funcgrad.numpy.manipulation.updates import IndexUpdateHelper
from funcgrad.numpy.reductions import cumulative, reductions
from funcgrad.ops.elementwise.convert import bitcast_convert_type
from funcgrad.ops.indexing.indexing import index

_OPERANDS = (Array, Tracer, np.ndarray, np.generic, bool, int, float, complex)
_USUAL = frozenset({Array, float, int})  # which are found quicker
_REFUSED = (list, tuple, dict, set)

# ---- operators


def _is_array(other: Any) -> bool:
    """Whether another library's object says which array it is."""
    return hasattr(other, "__jax_array__")


def _refuse(symbol: str, other: Any) -> Any:
    """TypeError for a list beside an operator; other types may know what to do with an array."""
    if isinstance(other, _REFUSED):
        raise TypeError(
            f"unsupported operand for {symbol}: an array and a {type(other).__name__}; convert it "
            "with fnp.array(...)"
        )
    return NotImplemented


def _operator(symbol: str, function: Callable) -> Callable:
    def method(self: Any, other: Any) -> Any:
        if type(other) in _USUAL or isinstance(other, _OPERANDS):
            return function(self, other)
        return function(self, other) if _is_array(other) else _refuse(symbol, other)

    return method


def _reflected(symbol: str, function: Callable) -> Callable:
    def method(self: Any, other: Any) -> Any:
        if type(other) in _USUAL or isinstance(other, _OPERANDS):
            return function(other, self)
        return function(other, self) if _is_array(other) else _refuse(symbol, other)

    return method


_BINARY = {
    "add": ("+", arithmetic.add),
    "sub": ("-", arithmetic.subtract),
    "mul": ("*", arithmetic.multiply),
    "matmul": ("@", contraction.matmul),
    "truediv": ("/", arithmetic.true_divide),
    "floordiv": ("//", arithmetic.floor_divide),
    "mod": ("%", arithmetic.remainder),
    "divmod": ("divmod", arithmetic.divmod),
    "pow": ("**", arithmetic.power),
    "and": ("&", logic.bitwise_and),
    "or": ("|", logic.bitwise_or),
    "xor": ("^", logic.bitwise_xor),
    "lshift": ("<<", logic.left_shift),
    "rshift": (">>", logic.right_shift),
}
_COMPARISONS = {
    "eq": ("==", logic.equal),
    "ne": ("!=", logic.not_equal),
    "lt": ("<", logic.less),
    "le": ("<=", logic.less_equal),
    "gt": (">", logic.greater),
    "ge": (">=", logic.greater_equal),
}
_UNARY = {
    "neg": arithmetic.negative,
    "pos": arithmetic.positive,
    "abs": arithmetic.absolute,
    "invert": logic.bitwise_not,
}


def _round(self: Any, ndigits: int | None = None) -> Any:
    """Python's round(x): to integers without `ndigits`, as for its own numbers."""
    if ndigits is not None:
        return floats.round(self, ndigits)
    return creation.astype(floats.round(self), int)


# ---- items


def _shown(idx: Any) -> str:
    """An index as it is written between brackets."""
    if isinstance(idx, tuple) and idx:
        return ", ".join(map(_shown, idx))
    if isinstance(idx, slice):
        ends = [idx.start, idx.stop] + ([] if idx.step is None else [idx.step])
        return ":".join("" if e is None else _shown(e) for e in ends)
    if idx is Ellipsis:
        return "..."
    return _brief(idx)


def _brief(value: Any) -> str:
    text = variable_holding(value) if hasattr(value, "shape") else None
    text = text or " ".join(repr(value).split())
    return text if len(text) <= 40 else "..."


def _setitem(self: Any, idx: Any, value: Any) -> None:
    name = variable_holding(self) or "x"
    at, new = _shown(idx), _brief(value)
    raise TypeError(
        f"arrays are immutable: {name}[{at}] = {new} can't change one. Make an updated copy: "
        f"{name} = {name}.at[{at}].set({new}), or .add, .multiply, .min, .max, ..."
    )


def _iterate(self: Any) -> Any:
    if not self.shape:
        raise TypeError("iteration over a 0-d array")
    return (self[i] for i in range(self.shape[0]))


def _contains(self: Any, value: Any) -> Any:
    if len(self.shape) != 1:
        raise ShapeError(f"in: the array searched must have one axis, got {self.aval}")
    if np.ndim(value):
        raise ShapeError(f"in: the value looked for must be a number, got {value!r}")
    return bool(reductions.any(logic.equal(self, value)))


# ---- methods and properties


def view(x: Any, dtype: Any = None) -> Any:
    """The bits of an array read as another dtype; a change of width changes the last axis.

    >>> fnp.array([1.0, 2.0]).view("int32")
    Array([1065353216, 1073741824], dtype=int32)
    """
    new = dtype_or(dtype, x.dtype)
    old, width = x.dtype.itemsize, new.itemsize
    if x.dtype == dtypes.BOOL and width == 1:
        return creation.astype(x, new)
    if width > old:
        if not x.ndim or x.shape[-1] % (width // old):
            raise ShapeError(
                f"view: the last axis of {x.aval} must be a multiple of {width // old} to be read "
                f"as {new}"
            )
        x = shape.reshape(x, (*x.shape[:-1], x.shape[-1] // (width // old), width // old))
    out = bitcast_convert_type(x, new)
    if width < old and x.ndim:
        return shape.reshape(out, (*x.shape[:-1], x.shape[-1] * (old // width)))
    return out


def _reshape(self: Any, *sizes: Any, order: str = "C", **options: Any) -> Any:
    """`fnp.reshape`, with the sizes given as one tuple or one by one."""
    return shape.reshape(self, sizes[0] if len(sizes) == 1 else sizes, order, **options)


def _transpose(self: Any, *axes: Any) -> Any:
    """`fnp.transpose`, with the axes given as one tuple, one by one, or not at all."""
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], tuple | list)):
        return shape.transpose(self, axes[0])
    return shape.transpose(self, axes or None)


def _compress(self: Any, condition: Any, axis: int | None = None, **options: Any) -> Any:
    """`fnp.compress` of this array."""
    return indexing.compress(condition, self, axis, **options)


_METHODS = {
    "__round__": _round,
    "__getitem__": index,
    "__setitem__": _setitem,
    "__iter__": _iterate,
    "__contains__": _contains,
    "__array_namespace__": array_api.namespace_of,
    "to_device": array_api.to_device,
    "at": property(IndexUpdateHelper),
    "T": property(shape.transpose),
    "mT": property(shape.matrix_transpose),
    "real": property(functions.real),
    "imag": property(functions.imag),
    "all": reductions.all,
    "any": reductions.any,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "astype": creation.astype,
    "clip": arithmetic.clip,
    "conj": functions.conjugate,
    "conjugate": functions.conjugate,
    "copy": creation.copy,
    "cumprod": cumulative.cumprod,
    "cumsum": cumulative.cumsum,
    "diagonal": diagonals.diagonal,
    "dot": contraction.dot,
    "trace": contraction.trace,
    "choose": choosing.choose,
    "compress": _compress,
    "nonzero": indexing.nonzero,
    "take": indexing.take,
    "argpartition": sorting.argpartition,
    "argsort": sorting.argsort,
    "partition": sorting.partition,
    "searchsorted": sorting.searchsorted,
    "sort": sorting.sort,
    "max": reductions.max,
    "mean": reductions.mean,
    "min": reductions.min,
    "prod": reductions.prod,
    "ptp": reductions.ptp,
    "round": floats.round,
    "std": reductions.std,
    "sum": reductions.sum,
    "var": reductions.var,
    "view": view,
    "flatten": shape.ravel,
    "ravel": shape.ravel,
    "repeat": joining.repeat,
    "reshape": _reshape,
    "squeeze": shape.squeeze,
    "swapaxes": shape.swapaxes,
    "transpose": _transpose,
}


def _all() -> dict[str, Any]:
    table: dict[str, Any] = dict(_METHODS)
    for name, (symbol, function) in _BINARY.items():
        table[f"__{name}__"] = _operator(symbol, function)
        table[f"__r{name}__"] = _reflected(symbol, function)
    for name, (symbol, function) in _COMPARISONS.items():
        table[f"__{name}__"] = _operator(symbol, function)
    for name, unary in _UNARY.items():
        table[f"__{name}__"] = unary
    return table


methods.attach(_all())
