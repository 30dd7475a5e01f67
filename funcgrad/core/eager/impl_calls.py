"""The calls of NumPy that an op's `impl` makes for operands of certain types, to make them at once.

An `impl` is run on stand-ins that write down what is done to them, each beside an example of its
value, whose shape and dtype are those of all values. What depends on more than types isn't found.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.core.eager.large import LARGE
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.types import DTypeLike

_T = TypeVar("_T")

_MOST = 4  # calls; more than these keep alive what `impl` would have freed
# NumPy's functions written in Python, and what they call.
_INSIDE: dict[Any, Callable] = {np.transpose: np.ndarray.transpose}


class Call(NamedTuple):
    """function(*operands, **keywords); operands are numbers of values (of the operands of all
    calls, then of the results of those before), or `Constant`s."""

    function: Callable
    operands: tuple
    keywords: dict[str, object]


class Constant(NamedTuple):
    """What a call is given that depends on no operand."""

    value: object


class _NotFound(Exception):
    """It depends on more than types, or on what isn't followed here."""


def impl_calls(
    impl: Callable, avals: Sequence[ShapedArray], params: Mapping
) -> tuple[list[Call], np.ndarray | np.generic] | None:
    """The calls that `impl` makes on operands of these types and an example of the last one's
    result, which is `impl`'s; None where they aren't found out.

    >>> from funcgrad.core.aval import ShapedArray
    >>> calls, example = impl_calls(lambda xp, x: xp.sin(x * x), [ShapedArray((2,), "float32")], {})
    >>> calls[1]
    Call(function=<ufunc 'sin'>, operands=(1,), keywords={})
    """
    if not avals or any(a.nbytes >= LARGE for a in avals):
        return None
    recorder = _Recorder(len(avals))
    before = errors()
    try:
        quiet()
        given = [_StandIn(np.ones(a.shape, a.dtype), i, recorder) for i, a in enumerate(avals)]
        out = impl(_Namespace(recorder), *given, **params)
    except Exception:  # an impl may do anything with what isn't an array
        return None
    finally:
        loud(before)
    calls = recorder.calls
    last = len(avals) + len(calls) - 1
    if type(out) is not _StandIn or out._number != last or not 1 <= len(calls) <= _MOST:
        return None
    return calls, out._example


class _Recorder:
    """The calls so far."""

    def __init__(self, n: int):
        self.n = n
        self.calls: list[Call] = []

    def call(self, function: Callable, args: Sequence[object], keywords: dict) -> _StandIn:
        """What a function makes of stand-ins and constants."""
        keywords = {k: _constant(a) for k, a in keywords.items()}
        operands = tuple([a._number if type(a) is _StandIn else Constant(_constant(a))
                          for a in args])  # fmt: skip
        function = _INSIDE.get(function, function)
        example = function(*[a._example if type(a) is _StandIn else a for a in args], **keywords)
        if not isinstance(example, np.ndarray | np.generic):
            raise _NotFound
        self.calls.append(Call(function, operands, keywords))
        return _StandIn(example, self.n + len(self.calls) - 1, self)


def _constant(value: _T) -> _T:
    """A value that is no stand-in, nor holds one."""
    if isinstance(value, tuple | list):
        for v in value:
            _constant(v)
    elif isinstance(value, _StandIn | dict | set):
        raise _NotFound
    return value


class _Namespace:
    """NumPy, as an impl sees it."""

    def __init__(self, recorder: _Recorder):
        self._recorder = recorder

    def __getattr__(self, name: str) -> object:
        found = getattr(np, name)
        if isinstance(found, np.ufunc):
            return _Function(found, self._recorder)
        if found in _INSIDE:
            return lambda *args, **keywords: self._recorder.call(found, args, keywords)
        if isinstance(found, type | float):
            return found
        raise _NotFound


class _Function:
    """A function of NumPy on stand-ins."""

    def __init__(self, function: np.ufunc, recorder: _Recorder):
        self._function, self._recorder = function, recorder

    def __call__(self, *args: Any, **keywords: Any) -> _StandIn:
        return self._recorder.call(self._function, args, keywords)

    def reduce(self, *args: Any, **keywords: Any) -> _StandIn:
        return self._recorder.call(self._function.reduce, args, keywords)


class _StandIn:
    """In an operand's place: what its type says can be asked, what is done to it is recorded."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, example: np.ndarray | np.generic, number: int, recorder: _Recorder):
        self._example, self._number, self._recorder = example, number, recorder

    shape = property(lambda self: self._example.shape)
    dtype = property(lambda self: self._example.dtype)
    ndim = property(lambda self: self._example.ndim)
    size = property(lambda self: self._example.size)

    def astype(self, dtype: DTypeLike, copy: bool = True) -> _StandIn:
        if copy or self.dtype != dtype:
            raise _NotFound
        return self

    def transpose(self, *axes: Any) -> _StandIn:
        if not isinstance(self._example, np.ndarray):
            raise _NotFound
        return self._recorder.call(np.ndarray.transpose, (self, *axes), {})

    def __array__(self, *args: Any, **keywords: Any) -> np.ndarray:
        raise _NotFound

    def _refuse(self, *args: Any) -> NoReturn:
        raise _NotFound

    __bool__ = __len__ = __iter__ = __index__ = __float__ = __int__ = __getitem__ = _refuse


def _operator(function: Callable, reflected: bool = False) -> Callable:
    def method(self: _StandIn, *others: Any) -> _StandIn:
        args = (*others, self) if reflected else (self, *others)
        return self._recorder.call(function, args, {})

    return method


# Not `**`, `//` and `%`: for the first NumPy looks at values, the others are no op's meaning.
_BINARY = ("add", "sub", "mul", "truediv", "and_", "or_", "xor", "lshift", "rshift")
OPERATORS = frozenset(getattr(operator, name) for name in _BINARY)
for _name in (*_BINARY, "neg", "invert", "abs", "eq", "ne", "lt", "le", "gt", "ge"):
    _function = getattr(operator, _name)
    setattr(_StandIn, f"__{_name.rstrip('_')}__", _operator(_function))
    if _name in _BINARY:
        setattr(_StandIn, f"__r{_name.rstrip('_')}__", _operator(_function, reflected=True))
for _name in ("floordiv", "mod", "pow"):
    setattr(_StandIn, f"__{_name}__", _StandIn._refuse)
