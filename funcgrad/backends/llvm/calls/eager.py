"""Eager calls by native code: it looks up what calls of these types do, computes, makes the Array.

Each `EagerFunction` gets a table, from the types of a call's arguments to an entry that says what
is to be done on NumPy arrays. Calls that no entry knows go to Python; those that come again and
again, at the root, and whose meaning Python knows by then, become entries. Results have NumPy's
bits: its own inner loops run, or its functions are called.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from funcgrad.backends.late import Late, late
from funcgrad.backends.llvm.calls import eager_words as w
from funcgrad.backends.llvm.calls.direct_layout import (
    FASTCALL,
    KEYWORDS,
    NEW_FROM_DESCR,
    NO_GIL,
    SCALARS,
    MethodDef,
    array_slots,
    builtin,
    check_layouts,
    numpy_function,
    offset,
)
from funcgrad.backends.llvm.calls.direct_words import HEAD
from funcgrad.backends.llvm.calls.eager_probe import Loop, check_layout, loop, probe
from funcgrad.backends.llvm.native.engine import here
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.native.target import needs_llvm
from funcgrad.core import caches, context
from funcgrad.core.array import Array
from funcgrad.core.eager.functions import EagerFunction, Recipe
from funcgrad.core.eager.large import LargeImpl
from funcgrad.core.places.device_array import wrap
from funcgrad.core.process import float_errors, fork

eager_code = Late("funcgrad.backends.llvm.calls.eager_code")
libllvm, together = late("funcgrad.backends.llvm.native", "libllvm", "together")

# Calls by way of Python of arguments of the same types: writing an entry takes as long as some 20.
LEARNED_AFTER = 16
MAX_BUCKET = 8  # entries for types that happen to have one hash
# Elements, up to which NumPy's inner loops are run here, and others wait for Python so long: of
# elementwise functions, some microseconds mostly, and of sums.
MAX_LOOP, MAX_SUM = 1 << 15, 1 << 12
_LEVEL = 0  # made in a tenth of the time of level 1; calls take some 4 % longer
_MASK = (1 << 64) - 1
_KINDS = {"f": w.FLOAT, "i": w.SIGNED, "u": w.UNSIGNED}
# Arguments whose content may change, or that are mostly made anew for each call.
_CHANGING = frozenset({np.ndarray, list, *SCALARS})

_lock = fork.lock()
_method: MethodDef | None = None
_failed = NO_GIL
_tables: list[_Table] = []


def ready(compiling: bool) -> bool:
    """Whether the native code is there; it is loaded if it is on disk, or compiled if asked for."""
    global _failed, _method
    with _lock:
        if _method is None and not _failed:
            try:
                if compiling or _is_on_disk():
                    _method = _load()
            except (AttributeError, RuntimeError, LookupError, ValueError, OSError, ImportError):
                # Another layout of objects, or a Python or NumPy that hides what is needed, or LLVM
                # isn't there, without which eager calls are what they were.
                _failed = True
        return _method is not None


def function(of: EagerFunction) -> Callable:
    """The builtin function that does its calls."""
    assert _method is not None
    table = _Table(of)
    _tables.append(table)
    return builtin(_method, (table.buckets, table.by_python, of.general))


@caches.forgotten_by
def _forget() -> None:
    for table in _tables:
        table.buckets[:] = [None] * w.BUCKETS


def _key() -> str:
    return f"eager {HEAD} {generator('calls.eager_code')}"


def _is_on_disk() -> bool:
    """Whether the code is there, which is found out without loading LLVM."""
    return not needs_llvm() and here().compiled(_key(), _LEVEL)


def _module() -> Any:
    return eager_code.module()


def _load() -> MethodDef:
    source: Any = _module
    if not _is_on_disk():
        with together.Together() as work:
            work.add(libllvm.load)
            source = str(_module())
    library = here().compile(source, _LEVEL, _key())
    slots = array_slots()
    check_layouts()
    check_layout()
    probing = context.ROOT.replace(trace=object())
    probing.types = {}
    size = type(probing).__basicsize__
    facts = {
        "Array": id(Array), "ndarray": id(np.ndarray), "float": id(float), "int": id(int),
        "tuple": id(tuple), "None": id(None),
        "variable": id(context.variable), "root": id(context.ROOT.trace),
        "trace": offset(probing, probing.trace, size),
        "types": offset(probing, probing.types, size),
        "new_array": numpy_function(NEW_FROM_DESCR),
        "errors": id(float_errors.state), "silent": id(float_errors.silent), **slots,
    }  # fmt: skip
    env = (ctypes.c_int64 * len(w.ENV)).from_address(library.address("fg_env"))
    env[:] = [facts[name] for name in w.ENV]
    return MethodDef(b"eager", library.address("fg_eager"), FASTCALL | KEYWORDS, None)


# ---- tables


class _Table:
    """The entries of one function, in buckets by the hash of arguments' types."""

    def __init__(self, of: EagerFunction):
        self.of = of
        self.buckets: list[tuple | None] = [None] * w.BUCKETS

    def by_python(self, *args: Any, **kwargs: Any) -> Any:
        """A call that no entry knows."""
        out = self.of.general(*args, **kwargs)
        if type(out) is Array:
            self.learn(args, kwargs)
        return out

    def learn(self, args: tuple, kwargs: dict) -> None:
        """Make an entry of a call that Python did, if such calls came before."""
        given = (*args, *kwargs.values()) if kwargs else args
        kinds = [*map(type, given)]
        if Array not in kinds or not _CHANGING.isdisjoint(kinds):
            return
        ctx = context.current()
        if ctx.trace is not context.ROOT.trace or ctx.checks:
            return
        key = (self, *kwargs, *[_type(x, self.of.numbers) for x in given])
        times = ctx.types.get(key, 0)
        if times < LEARNED_AFTER:
            ctx.keep(key, times + 1)
        if times != LEARNED_AFTER - 1:
            return
        recipe = self.of.recipe(ctx, args, kwargs)
        if recipe is None or len(given) > w.MAX_ARGS:
            return
        if not 0 < len(recipe.operands) <= w.MAX_OPERANDS:
            return
        item = _Writer(recipe, given, tuple(kwargs), ctx.types).item()
        if item is not None:
            place = _place(given)
            bucket = self.buckets[place] or ()
            self.buckets[place] = (item, *bucket[: MAX_BUCKET - 1])


def _type(x: Any, numbers: bool) -> Any:
    if type(x) is Array:
        return x._value.shape, x._value.dtype, x.weak_type
    if type(x) is tuple:
        return tuple([_type(item, False) for item in x])
    kind = type(x)
    if kind is int or kind is float:
        return kind if numbers else (kind, x)
    return id(x)


def _place(given: tuple) -> int:
    """The bucket of arguments, as native code finds it."""
    h = 0
    for x in given:
        words = [id(type(x))]
        if type(x) is Array:
            value = x._value
            words = [id(value.dtype), id(x.weak_type), value.ndim, *value.shape]
        for word in words:
            h = ((h ^ word) * w.MIX) & _MASK
    return h >> (64 - w.BUCKETS.bit_length() + 1)


# ---- entries


class _Writer:
    """Writes an entry's words; `objects` keeps alive what they point at."""

    def __init__(self, recipe: Recipe, given: tuple, names: tuple, types: dict):
        self.recipe, self.given, self.names, self.types = recipe, given, names, types
        self.objects: list[Any] = []

    def item(self) -> tuple | None:
        """(words, objects), or None if native code can't do such a call."""
        aval = self.recipe.aval
        numbers = {o for o in self.recipe.operands if type(o) is int}
        arrays = [o for o in self.recipe.operands if not self.is_number(o)]
        dtype = self.operand(arrays[0]).dtype  # which numbers take
        uniform = all(self.operand(o).dtype == dtype for o in arrays)
        nodes: list[int] = []
        for i, x in enumerate(self.given):
            if type(x) is Array:
                value = x._value
                nodes += [w.ARRAY, self.address(value.dtype), self.address(x.weak_type)]
                nodes += [value.ndim, *value.shape]
            elif i in numbers:
                if not (uniform and _takes(dtype, x)):
                    return None
                nodes += [w.NUMBER, self.address(type(x))]
            elif type(x) is tuple:
                nodes += [w.OBJECTS, len(x), *map(self.address, x)]
            else:
                nodes += [w.OBJECT, self.address(x)]
        nodes += [self.address(name) for name in self.names]
        operands, head = self.operation(dtype)
        shape = list(aval.shape)
        finish = functools.partial(wrap, aval=aval)
        head |= {
            w.TYPES: self.address(self.types), w.ARGS: len(self.given), w.NAMES: len(self.names),
            w.NODES: w.HEAD_WORDS, w.OPERANDS: w.HEAD_WORDS + len(nodes),
            w.INS: len(operands) // w.OPERAND_WORDS,
            w.SHAPE: w.HEAD_WORDS + len(nodes) + len(operands), w.NDIM: aval.ndim,
            w.DTYPE: self.address(aval.dtype), w.ITEM: aval.dtype.itemsize,
            w.WEAK: self.address(aval.weak_type), w.AVAL: self.address(aval),
            w.FINISH: self.address(finish),
        }  # fmt: skip
        words = [*(head.get(i, 0) for i in range(w.HEAD_WORDS)), *nodes, *operands, *shape]
        return struct.pack(f"{len(words)}q", *words), tuple(self.objects)

    def address(self, obj: Any) -> int:
        """An object's address; the entry keeps it alive."""
        self.objects.append(obj)
        return id(obj)

    def operand(self, o: Any) -> Any:
        """An operand's argument, or the constant."""
        x = self.given[o] if type(o) is int else o
        return x._value if type(x) is Array else x

    def is_number(self, o: Any) -> bool:
        return type(self.operand(o)) in (int, float)

    def operation(self, dtype: np.dtype) -> tuple[list[int], dict[int, int]]:
        """The words of operands, and those of the head that say what is computed."""
        recipe = self.recipe
        places = list(recipe.operands)
        if recipe.run is not None:
            head = {w.WAY: w.CALL | w.LISTED, w.FUNCTION: self.address(recipe.run)}
            return self.operands(places, dtype, recipe.aval.shape), head
        assert recipe.impl is not None
        called: Any = functools.partial(recipe.impl, np, **recipe.params)
        typed = [np.empty((), dtype) if self.is_number(o) else self.operand(o) for o in places]
        # What takes an `impl`'s place where arrays are large isn't taken apart.
        is_plain = isinstance(recipe.impl, FunctionType)
        found = probe(recipe.impl, typed, recipe.params) if is_plain else None
        inner: Loop | None = None
        way = w.CALL
        if found is not None:
            inner = self.loop(found, typed)
            way = w.CALL if inner is None else w.SUM if found.sums else w.EACH
            if not found.sums:
                called, places = found.function, [places[i] for i in found.order]
        head = {w.WAY: way, w.FUNCTION: self.address(called)}
        if isinstance(recipe.impl, LargeImpl) and all(_is_usual(x.dtype) for x in typed):
            head[w.KERNEL] = recipe.impl.words.ctypes.data
        if inner is not None:
            head |= {w.LOOP: inner.function, w.DATA: inner.data}
            head[w.COUNT] = typed[0].size if way == w.SUM else recipe.aval.size
        shape = typed[0].shape if way == w.SUM else recipe.aval.shape
        return self.operands(places, dtype, shape), head

    def loop(self, found: Any, typed: list) -> Loop | None:
        """The inner loop of NumPy that computes the whole result at once, of operands of its shape
        and of scalars."""
        out = self.recipe.aval
        dtypes = [typed[i].dtype for i in found.order] + [out.dtype]
        if found.sums:
            return loop(found.function, dtypes[:1] * 3) if typed[0].size <= MAX_SUM else None
        shapes = {typed[i].shape for i in found.order}
        if out.size > MAX_LOOP or not shapes <= {(), out.shape}:
            return None
        return loop(found.function, dtypes)

    def operands(self, places: list, dtype: np.dtype, shape: tuple) -> list[int]:
        """The words of operands, which are elements of a shape, or scalars."""
        words: list[int] = []
        for o in places:
            x = self.operand(o)
            row = [0] * w.OPERAND_WORDS
            row[w.ARGUMENT] = o if type(o) is int else -1
            row[w.CONSTANT] = 0 if type(o) is int else self.address(o)
            if self.is_number(o):
                row[w.NUMBER_DTYPE] = self.address(dtype)
                row[w.NUMBER_KIND], row[w.NUMBER_SIZE] = _KINDS[dtype.kind], dtype.itemsize
            else:
                row[w.STRIDE] = x.itemsize if x.ndim else 0
            words += row
        return words


def _is_usual(dtype: np.dtype) -> bool:
    """Whether elements lie in memory as C has them."""
    return dtype.isbuiltin == 1 and dtype.isnative


def _takes(dtype: np.dtype, number: Any) -> bool:
    """Whether native code makes an element of a dtype of such a number."""
    if not _is_usual(dtype):
        return False
    if type(number) is float:
        return dtype.kind == "f" and dtype.itemsize in (4, 8)
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize in (4, 8))
