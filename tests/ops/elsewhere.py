"""A stand-in for CuPy where there is no GPU: NumPy, on arrays that NumPy itself can't take.

It has CuPy's strictness, not its results: mixing in NumPy's arrays or functions is an error, and
so is what CuPy's functions don't take.
"""

import operator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

import numpy as np

# What takes host memory, to move it.
_MOVES = {"array", "asarray", "full"}
_PLAIN = {"shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides", "flags"}
# CuPy's ufuncs have these methods, but for few operations.
_METHODS = {"reduce": ("add", "multiply"), "accumulate": ("add", "multiply"), "at": ()}


_place = ContextVar("place", default=0)
READ: list = []  # the shapes of what was copied to the host


@contextmanager
def at(place):
    """The device, by its number, on which what is made is, and whose arrays alone are taken."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


class Away:
    """An array of a device: its memory is reached by `get` alone."""

    __slots__ = ("_x", "place")
    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, x):
        self._x = np.asarray(x)
        self.place = _place.get()

    def get(self):
        READ.append(self.shape)
        return self._x.copy()

    def __array_namespace__(self, api_version=None):
        return namespace

    def __deepcopy__(self, memo):
        with at(self.place):
            return Away(self._x.copy())

    def __array__(self, *args, **keywords):
        raise TypeError("an array of a device isn't turned into NumPy's without being asked to")

    def __getattr__(self, name):
        found = getattr(self._x if name in _PLAIN else _inside(self), name)
        if name in _PLAIN:
            return found
        return _function(found, name) if callable(found) else _wrapped(found)

    def __getitem__(self, at):
        return _wrapped(_inside(self)[_inside(at)])

    def __setitem__(self, at, value):
        self._x[_inside(at)] = _inside(value)

    def __iter__(self):
        return map(Away, self._x)

    def __len__(self):
        return len(self._x)

    def __bool__(self):
        return bool(self._x)

    def __int__(self):
        return int(self._x)

    __index__ = __int__

    def __float__(self):
        return float(self._x)


def _inside(value, moves=False):
    """What is in stand-ins; NumPy's arrays are refused unless they are to be moved."""
    if type(value) is Away:
        if value.place != _place.get():
            raise TypeError(f"an array of device {value.place} used on device {_place.get()}")
        return value._x
    if isinstance(value, tuple | list):
        return type(value)(_inside(v, moves) for v in value)
    if isinstance(value, np.ndarray) and not moves:
        raise TypeError(f"an array of NumPy's among those of a device: {value!r}")
    return value


def _wrapped(value):
    if isinstance(value, np.ndarray | np.generic):
        return Away(value)
    if isinstance(value, tuple | list):
        return [_wrapped(v) for v in value]
    return value


def _function(function, name):
    def called(*args, **keywords):
        if "initial" in keywords:
            raise TypeError(f"{name}() got an unexpected keyword argument 'initial'")
        args = [_inside(a, name in _MOVES) for a in args]
        out = keywords.get("out")
        found = function(*args, **{k: _inside(v) for k, v in keywords.items()})
        return _wrapped(found) if out is None else out

    return called


class _Ufunc:
    def __init__(self, ufunc):
        self.ufunc = ufunc

    def __call__(self, *args, **keywords):
        return _function(self.ufunc, self.ufunc.__name__)(*args, **keywords)

    def __getattr__(self, name):
        if self.ufunc.__name__ in _METHODS.get(name, (self.ufunc.__name__,)):
            return _function(getattr(self.ufunc, name), name)

        def missing(*args, **keywords):
            raise NotImplementedError(f"`{self.ufunc.__name__}.{name}` is not supported yet")

        return missing


class _Names:
    """The names of a module of NumPy's."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        found = getattr(self._module, name)
        if isinstance(found, ModuleType):
            return _Names(found)
        if isinstance(found, np.ufunc):
            return _Ufunc(found)
        return _function(found, name) if callable(found) and type(found) is not type else found


def _operator(name, reflected=False):
    function = getattr(operator, name)

    def method(self, other):
        x, y = _inside(self), _inside(other)
        return _wrapped(function(y, x) if reflected else function(x, y))

    return method


def _in_place(name):
    function = getattr(operator, name)

    def method(self, other):
        function(self._x, _inside(other))
        return self

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor",
              "lshift", "rshift"):  # fmt: skip
    _plain = _name.rstrip("_")
    setattr(Away, f"__{_plain}__", _operator(_name))
    setattr(Away, f"__r{_plain}__", _operator(_name, reflected=True))
    setattr(Away, f"__i{_plain}__", _in_place(f"i{_plain}"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Away, f"__{_name}__", _operator(_name))
for _function_of_one in (operator.neg, operator.invert, operator.abs):
    _method = lambda self, f=_function_of_one: _wrapped(f(self._x))
    setattr(Away, f"__{_function_of_one.__name__}__", _method)

namespace = _Names(np)
