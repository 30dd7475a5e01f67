"""Which function of NumPy an operation's `impl` is, so that native code may call it itself.

An `impl` runs on symbols, which note the calls of NumPy's functions. Where there is one, of the
operands as they are, NumPy's own inner loop for their dtypes is looked up: it gives the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.llvm.direct_words import HEAD


class Loop(NamedTuple):
    """The address of an inner loop of NumPy, and of the data that it is given."""

    function: int
    data: int


class Found(NamedTuple):
    """What an `impl` is: a NumPy function of some operands, or its sum over all axes."""

    function: np.ufunc
    order: tuple[int, ...]
    sums: bool


class _Symbol:
    """Stands for an operand or a result; `calls` are those of NumPy's functions."""

    def __init__(self, dtype: Any, shape: Any, calls: list):
        self.dtype, self.shape, self.ndim, self._calls = dtype, shape, len(shape), calls

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        kinds = [x.dtype if isinstance(x, _Symbol) else None for x in inputs]
        dtype = None
        if method == "__call__" and not kwargs and None not in kinds and function.nout == 1:
            dtype = function.resolve_dtypes((*kinds, None))[-1]
        out = _Symbol(dtype, (), self._calls)
        self._calls.append((function, method, inputs, kwargs, out))
        return out

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        if copy or dtype != self.dtype:
            raise TypeError("not a simple function")
        return self

    def __array_function__(self, *_: Any) -> Any:
        raise TypeError("not a simple function")

    __array__ = __bool__ = __len__ = __iter__ = __array_function__
    __hash__ = object.__hash__


def _operator(function: np.ufunc) -> Callable:
    return lambda *operands: function(*operands)


# Not `**`, for which NumPy looks at values.
for _name, _function in {
    "neg": np.negative, "abs": np.absolute, "invert": np.invert, "add": np.add,
    "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}.items():  # fmt: skip
    setattr(_Symbol, f"__{_name}__", _operator(_function))


def probe(impl: Callable, operands: Sequence[Any], params: Mapping[str, Any]) -> Found | None:
    """What an `impl` does with operands of these dtypes and shapes, if that is one function.

    >>> x = np.ones(3)
    >>> probe(lambda xp, x, y: y - x, (x, x), {})
    Found(function=<ufunc 'subtract'>, order=(1, 0), sums=False)
    >>> probe(lambda xp, x: xp.sqrt(x) + 1, (x,), {}) is None
    True
    """
    calls: list[Any] = []
    symbols = [_Symbol(x.dtype, x.shape, calls) for x in operands]
    try:
        out = impl(np, *symbols, **params)
    except Exception:  # whatever it needs beside, it is no such function
        return None
    if len(calls) != 1 or calls[0][-1] is not out:
        return None
    function, method, inputs, kwargs, _ = calls[0]
    places = [i for x in inputs for i, s in enumerate(symbols) if s is x]
    if len(places) != len(inputs):
        return None
    if method == "__call__" and not kwargs and function.nout == 1:
        return Found(function, tuple(places), False)
    if method == "reduce" and function is np.add and kwargs.keys() <= {"axis", "dtype"}:
        (x,) = inputs
        if kwargs.get("axis") == tuple(range(x.ndim)) and kwargs.get("dtype") in (None, x.dtype):
            return Found(function, tuple(places), True)
    return None


class _Function(ctypes.Structure):
    """The head of NumPy's PyUFuncObject."""

    _fields_ = (
        ("object", ctypes.c_byte * HEAD),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_size_t)),
        ("data", ctypes.POINTER(ctypes.c_size_t)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_char)),
    )


def loop(function: np.ufunc, dtypes: Sequence[np.dtype]) -> Loop | None:
    """The inner loop of a NumPy function for operands and results of just these dtypes.

    >>> loop(np.sin, [np.dtype("float32")] * 2) is None
    False
    >>> loop(np.sin, [np.dtype("int32")] * 2) is None
    True
    """
    if function.signature is not None:  # it isn't elementwise
        return None
    if any(d.isbuiltin != 1 or not d.isnative or d.kind not in "biufc" for d in dtypes):
        return None
    head = _Function.from_address(id(function))
    wanted = bytes(d.num for d in dtypes)
    n = function.nargs
    for i in range(function.ntypes):
        if bytes(head.types[i * n : (i + 1) * n]) == wanted:
            found = head.functions[i]
            return Loop(found, head.data[i] if head.data else 0) if found else None
    return None


def check_layout() -> None:
    """Raise unless NumPy's functions lie in memory as `loop` reads them."""
    for function in (np.add, np.sin, np.less):
        head = _Function.from_address(id(function))
        n, kinds = function.nargs, function.types[0].replace("->", "")
        if (head.nin, head.nout, head.nargs, head.ntypes, head.name) != (
            function.nin, function.nout, n, function.ntypes, function.__name__.encode(),
        ):  # fmt: skip
            raise ValueError("this NumPy keeps its functions in a layout that is not known")
        if bytes(head.types[:n]) != bytes(np.dtype(k).num for k in kinds):
            raise ValueError("this NumPy keeps its functions in a layout that is not known")
