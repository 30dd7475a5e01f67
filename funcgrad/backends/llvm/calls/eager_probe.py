"""Which function of NumPy an operation's `impl` is, so that native code may call it itself.

Where an `impl` makes one call, of the operands as they are, NumPy's own inner loop for their dtypes
is looked up: it gives the same bits.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.llvm.calls.direct_words import HEAD
from funcgrad.core.eager.impl_calls import Constant, impl_calls


class Loop(NamedTuple):
    """The address of an inner loop of NumPy, and of the data that it is given."""

    function: int
    data: int


class Found(NamedTuple):
    """What an `impl` is: a NumPy function of some operands, or its sum over all axes."""

    function: np.ufunc
    order: tuple[int, ...]
    sums: bool


# The functions that operators of arrays are.
_UFUNCS: dict[Any, np.ufunc] = {
    operator.neg: np.negative, operator.abs: np.absolute, operator.invert: np.invert,
    operator.add: np.add, operator.sub: np.subtract, operator.mul: np.multiply,
    operator.truediv: np.true_divide, operator.and_: np.bitwise_and, operator.or_: np.bitwise_or,
    operator.xor: np.bitwise_xor, operator.lshift: np.left_shift, operator.rshift: np.right_shift,
    operator.eq: np.equal, operator.ne: np.not_equal, operator.lt: np.less,
    operator.le: np.less_equal, operator.gt: np.greater, operator.ge: np.greater_equal,
}  # fmt: skip


def probe(impl: Callable, operands: Sequence[Any], params: Mapping[str, Any]) -> Found | None:
    """What an `impl` does with operands of these dtypes and shapes, if that is one function.

    >>> x = np.ones(3)
    >>> probe(lambda xp, x, y: y - x, (x, x), {})
    Found(function=<ufunc 'subtract'>, order=(1, 0), sums=False)
    >>> probe(lambda xp, x: xp.sqrt(x) + 1, (x,), {}) is None
    True
    """
    found = impl_calls(impl, operands, params)
    if found is None or len(found[0]) != 1:
        return None
    (call,) = found[0]
    places, keywords = call.operands, call.keywords
    if any(isinstance(p, Constant) for p in places):
        return None
    function: Any = _UFUNCS.get(call.function, call.function)
    if isinstance(function, np.ufunc) and not keywords and function.nout == 1:
        return Found(function, places, False)
    if function == np.add.reduce and keywords.keys() <= {"axis", "dtype"}:
        (x,) = [operands[p] for p in places]
        if keywords.get("axis") == tuple(range(x.ndim)) and keywords.get("dtype") in (
            None, x.dtype,
        ):  # fmt: skip
            return Found(function.__self__, places, True)
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
