"""Functions of elements with the methods of NumPy's ufuncs, `add.reduce`, `add.at`; `frompyfunc`.

A method does what its reduction or update does where there is one, else it applies the function
element after element, in order.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    as_positions,
    axes_of,
    broadcast_to,
    canonical_axis,
    check_callable,
    convert,
    dtype_or,
    index_dtype,
    integer,
    mask_of,
    no_out,
)
from funcgrad.numpy.elementwise import arithmetic, logic, pairs
from funcgrad.numpy.functional import vectorize
from funcgrad.numpy.manipulation.indexing import where as choose
from funcgrad.numpy.manipulation.shape import moveaxis
from funcgrad.numpy.reductions import cumulative, reductions
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full
from funcgrad.ops.indexing.indexing import index, index_update
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.jit.make_jaxpr import eval_shape

__all__ = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "frompyfunc", "logaddexp", "logaddexp2",
    "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "subtract", "ufunc",
]  # fmt: skip


class ufunc:
    """A function of elements, with `nin` operands that broadcast and `nout` results.

    Made by `frompyfunc`; and `fnp.add`, `fnp.maximum`, … are such. `identity` is what leaves the
    other operand as it is, None if nothing does.

    >>> fnp.add
    <fnp.ufunc 'add'>
    >>> fnp.maximum.reduce(fnp.array([3, 1, 4]))
    Array(4, dtype=int32)
    """

    __slots__ = ("__name__", "_called", "_func", "_identity", "_methods", "_nin", "_nout")

    def __init__(
        self, name: str, func: Callable, called: Callable, nin: int, nout: int, identity: Any,
        methods: Mapping[str, Any] = MappingProxyType({}),
    ):  # fmt: skip
        self.__name__, self._func, self._called = name, func, called
        self._nin, self._nout, self._identity, self._methods = nin, nout, identity, methods

    nin = property(lambda self: self._nin, doc="The number of operands.")
    nout = property(lambda self: self._nout, doc="The number of results.")
    nargs = property(lambda self: self._nin, doc="The number of arguments: the operands.")
    identity = property(lambda self: self._identity, doc="What leaves the other operand as it is.")
    __signature__ = property(lambda self: inspect.signature(self._called))

    def __call__(self, *args: Any) -> Any:
        if len(args) != self._nin:
            raise TypeError(f"{self.__name__} takes {self._nin} operands, got {len(args)}")
        return self._called(*args)

    def _key(self) -> tuple:
        return self._func, self._nin, self._nout, self._identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<fnp.ufunc {self.__name__!r}>"

    def __reduce__(self) -> str | tuple:
        if type(self) is not ufunc:
            return self.__name__
        return _restored, (self._func, self._nin, self._nout, self._identity)

    # ---- over axes

    def reduce(
        self, a: Any, axis: Any = 0, dtype: Any = None, out: None = None, keepdims: bool = False,
        initial: Any = None, where: Any = None,
    ) -> Any:  # fmt: skip
        """The elements over `axis` (None: all) combined, from the first to the last.

        It begins with `initial`, and only elements where `where` holds take part.

        >>> fnp.subtract.reduce(fnp.array([10, 3, 2]))
        Array(5, dtype=int32)
        """
        name = self._binary("reduce", out)
        if where is not None and initial is None and self._identity is None:
            raise ValueError(f"{name}: where= needs initial=, as {self.__name__} has no identity")
        special = self._methods.get("reduce")
        if special is not None:
            return special(a, axis, dtype, keepdims, initial, where)
        x = self._typed(as_array(name, a, "a"), dtype)
        axes = axes_of(name, axis, x.ndim)
        shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
        order = (*axes, *(i for i in range(x.ndim) if i not in axes))
        count = math.prod(x.shape[i] for i in axes)
        lines = lambda v: ops.reshape(ops.transpose(v, order), (count, *shape))  # noqa: E731
        mask = None if where is None else lines(broadcast_to(mask_of(name, where), x.shape))
        rows = lines(x)
        begin = self._identity if initial is None else initial
        if begin is None:
            if not count:
                raise ValueError(f"{name}: nothing to reduce, and {self.__name__} has no identity")
            begin, rows = index(rows, 0), index(rows, slice(1, None))
        else:
            begin = broadcast_to(as_dtype(name, begin, x.dtype, "initial"), shape)
        result = scan(self._step(x.dtype), begin, rows if mask is None else (rows, mask))[0]
        kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        return ops.reshape(result, kept) if keepdims else result

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """The elements along an axis combined with all before them.

        >>> fnp.maximum.accumulate(fnp.array([1, 3, 2]))
        Array([1, 3, 3], dtype=int32)
        """
        name = self._binary("accumulate", out)
        x = as_array(name, a, "a")
        axis = canonical_axis(name, axis, x.ndim)
        if "accumulate" in self._methods:
            return self._methods["accumulate"](x, axis, dtype)
        x = self._typed(x, dtype)
        if not x.size:
            return x
        rows = moveaxis(x, axis, 0)
        step = self._step(x.dtype)
        twice = lambda total, row: (step(total, row)[0],) * 2  # noqa: E731
        later = scan(twice, index(rows, 0), index(rows, slice(1, None)))[1]
        return moveaxis(ops.concatenate([index(rows, slice(0, 1)), later], 0), 0, axis)

    def reduceat(
        self, a: Any, indices: Any, axis: int = 0, dtype: Any = None, out: None = None
    ) -> Any:
        """The elements of slices of an axis combined: from each index to the next, or to the end.

        Where the next index isn't greater, it is the element at the index.

        >>> fnp.add.reduceat(fnp.arange(6), fnp.array([0, 4]))
        Array([6, 9], dtype=int32)
        """
        name = self._binary("reduceat", out)
        x = as_array(name, a, "a")
        axis = canonical_axis(name, axis, x.ndim)
        starts = as_positions(name, indices, "indices")
        if starts.ndim != 1:
            raise ValueError(f"{name}: indices must be a vector, got {starts.aval}")
        rows = moveaxis(self._typed(x, dtype), axis, 0)
        count = rows.shape[0]
        ends = ops.concatenate([index(starts, slice(1, None)), full((1,), count, starts.dtype)], 0)
        wide = (starts.shape[0],) + (1,) * (rows.ndim - 1)
        starts, ends = ops.reshape(starts, wide), ops.reshape(ends, wide)

        def step(total: Any, at: Any) -> Any:
            place, row = at
            inside = logic.logical_and(place > starts, place < ends)
            return choose(inside, convert(self(total, row), total.dtype), total), None

        begin = index(rows, ops.reshape(starts, (-1,)))
        places = ops.iota(starts.dtype, count)
        return moveaxis(scan(step, begin, (places, rows))[0], 0, axis)

    # ---- elsewhere

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = True) -> Any:
        """A copy of `a` in which the elements at `indices` are combined with `b`, one by one.

        `inplace=False` must be given, as arrays never change.

        >>> fnp.add.at(fnp.zeros(3), fnp.array([0, 0, 2]), 1.0, inplace=False)
        Array([2., 0., 1.], dtype=float32)
        """
        name = f"{self.__name__}.at"
        if inplace:
            raise NotImplementedError(
                f"{name}: arrays are immutable; with inplace=False the result is the changed copy"
            )
        operands = [as_array(name, v, n) for v, n in ((a, "a"), (b, "b")) if v is not None]
        if len(operands) != self._nin:
            raise TypeError(f"{name} takes {self._nin} operands, got {len(operands)}")
        dtype = self._dtype(*operands)
        x, *given = (convert(v, dtype) for v in operands)
        special = self._methods.get("at")
        if special is not None and dtype.kind != "b":
            return index_update(x, indices, given[0], special)
        all_places = ops.iota(index_dtype(x.size), x.size)
        places = index(ops.reshape(all_places, x.shape), indices)
        values = [ops.reshape(broadcast_to(v, places.shape), (-1,)) for v in given]

        def step(flat: Any, update: tuple) -> Any:
            place, *value = update
            new = convert(self(index(flat, place), *value), dtype)
            return index_update(flat, place, new, "set"), None

        flat = ops.reshape(x, (-1,))
        return ops.reshape(scan(step, flat, (ops.reshape(places, (-1,)), *values))[0], x.shape)

    def outer(self, A: Any, B: Any, /) -> Any:
        """The function of each element of `A` with each of `B`, whose axes come last.

        >>> fnp.multiply.outer(fnp.array([1, 2]), fnp.array([3, 4]))
        Array([[3, 4],
               [6, 8]], dtype=int32)
        """
        name = self._binary("outer", None)
        x, y = as_array(name, A, "A"), as_array(name, B, "B")
        return self(ops.reshape(x, x.shape + (1,) * y.ndim), y)

    def _binary(self, method: str, out: None) -> str:
        """A method's name; ValueError unless the function takes two and gives one."""
        name = f"{self.__name__}.{method}"
        no_out(name, out)
        if (self._nin, self._nout) != (2, 1):
            raise ValueError(
                f"{name}: is for functions of two operands with one result; this one has "
                f"{self._nin} and {self._nout}"
            )
        return name

    def _dtype(self, *operands: Any) -> Any:
        return eval_shape(self, *(ShapeDtypeStruct((), x.dtype) for x in operands)).dtype

    def _typed(self, x: Any, dtype: Any) -> Any:
        """An operand in the dtype of the results."""
        return convert(x, dtype_or(dtype, x.dtype) if dtype is not None else self._dtype(x, x))

    def _step(self, dtype: Any) -> Callable:
        def step(total: Any, row: Any) -> tuple:
            row, mask = row if isinstance(row, tuple) else (row, None)
            new = convert(self(total, row), dtype)
            return new if mask is None else choose(mask, new, total), None

        return step


def frompyfunc(func: Callable, /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A ufunc of a function of `nin` scalars with `nout` results.

    >>> add = fnp.frompyfunc(lambda x, y: x + y, 2, 1, identity=0)
    >>> add.outer(fnp.arange(2), fnp.arange(3))
    Array([[0, 1, 2],
           [1, 2, 3]], dtype=int32)
    """
    check_callable("func", func)
    nin, nout = integer("nin", nin), integer("nout", nout)
    return _restored(func, nin, nout, identity)


def _restored(func: Callable, nin: int, nout: int, identity: Any) -> ufunc:
    mapped = vectorize(func)

    def called(*args: Any) -> Any:
        out = mapped(*args)
        if nout == 1:
            return as_array(func.__name__, out, "the result")
        return tuple(as_array(func.__name__, x, "a result") for x in out)

    name = getattr(func, "__name__", type(func).__name__)
    return ufunc(name, func, called, nin, nout, identity)


# ---- the functions of the library


_DOC = property(lambda self: self._func.__doc__)


def _of(function: Callable, nin: int, identity: Any, **methods: Any) -> Any:
    """A function of the library with methods, called as directly as the function itself."""
    name = function.__name__
    facts = {"__slots__": (), "__module__": "funcgrad.numpy", "__doc__": _DOC}
    kind = type("ufunc", (ufunc,), facts)
    made = kind(name, function, function, nin, 1, identity, methods)
    function.swift.follow(lambda call: setattr(kind, "__call__", staticmethod(call)))  # type: ignore[attr-defined]
    return made


def _extremum(function: Callable) -> Callable:
    def reduce(a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        x = a if dtype is None else convert(as_array(function.__name__, a, "a"), dtype)
        return function(x, axis, keepdims=keepdims, initial=initial, where=where)

    return reduce


def _sum(function: Callable) -> Callable:
    def reduce(a: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        return function(a, axis, dtype, keepdims=keepdims, initial=initial, where=where)

    return reduce


add = _of(arithmetic.add, 2, 0, reduce=_sum(reductions.sum), accumulate=cumulative.cumsum, at="add")
multiply = _of(arithmetic.multiply, 2, 1, reduce=_sum(reductions.prod),
               accumulate=cumulative.cumprod, at="mul")  # fmt: skip
subtract = _of(arithmetic.subtract, 2, None, at="subtract")
negative = _of(arithmetic.negative, 1, None)
maximum = _of(arithmetic.maximum, 2, None, reduce=_extremum(reductions.max), at="max")
minimum = _of(arithmetic.minimum, 2, None, reduce=_extremum(reductions.min), at="min")
bitwise_and = _of(logic.bitwise_and, 2, -1)
bitwise_or = _of(logic.bitwise_or, 2, 0)
bitwise_xor = _of(logic.bitwise_xor, 2, 0)
logical_and = _of(logic.logical_and, 2, True)
logical_or = _of(logic.logical_or, 2, False)
logical_xor = _of(logic.logical_xor, 2, False)
logaddexp = _of(pairs.logaddexp, 2, -math.inf)
logaddexp2 = _of(pairs.logaddexp2, 2, -math.inf)
