"""Direct calls: compiled functions called by native code that reads Python's objects itself.

After a call by way of Python (flatten, look up, run, unflatten), `entry` writes down how its
arguments looked and what its result is made of. `caller` makes a builtin function of such entries:
where a call matches one of them, the program runs at once; all else is left to Python, whose
meaning this is. Calls that match do what Python would have done, errors and donation included.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.llvm.calls import direct_words as w
from funcgrad.backends.llvm.calls.direct_layout import (
    FASTCALL,
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
from funcgrad.backends.llvm.native.engine import here
from funcgrad.backends.llvm.native.sources import generator
from funcgrad.backends.llvm.runtime.memory import allocator
from funcgrad.core import context
from funcgrad.core.array import Array, Freed
from funcgrad.core.aval import ShapedArray
from funcgrad.core.backend import Call
from funcgrad.core.process import fork
from funcgrad.tree.differences import same_data
from funcgrad.tree.kinds import DICT, LIST, NONE, TUPLE, kind_of

MAX_LEAVES = 4096
MAX_DEPTH = 64
PATIENCE = 16  # calls by way of Python before a thread makes the native code that isn't on disk
_LEVEL = 1
# What a call depends on beside its arguments.
_CONTEXT = ("trace", "axes", "manual", "float_dtype", "int_dtype", "disable_jit", "checks",
            "communicators", "mesh", "precision", "device")  # fmt: skip
_NUMBERS = {
    float: {"float32": 4, "float64": 8}, int: {"int32": 4, "int64": 8}, bool: {"bool": 1},
}  # fmt: skip


class NotDirect(Exception):
    """A call that native code doesn't know; Python does it."""


class Entry:
    """Calls of one kind in words, and the objects whose addresses the words hold."""

    def __init__(self, words: list[int], objects: list):
        self.words = struct.pack(f"{len(words)}q", *words)
        self.objects = objects


def entry(executable: Any, call: Call, release: bool, calls: int = PATIENCE) -> Entry | None:
    """What calls like this one look like, and what is to be done; None if Python must do it,
    NotImplemented if only for now: until it is known that direct calls are worth compiling, and
    while they are compiled, which nobody waits for.

    release: whether other threads may use Python while the program runs
    calls: how many there were by way of Python
    """
    if executable.facts.comms:
        return None
    if not _is_known(calls):
        return NotImplemented
    if not available():
        return None
    try:
        return _Writer(executable, call, release).entry()
    except NotDirect:
        return None


def caller(entries: Sequence[Entry]) -> Callable[[tuple, dict], Any]:
    """A function of (args, kwargs): the result of the first entry they match, else
    NotImplemented."""
    return _make_function(tuple([(e.words, e.objects) for e in entries]))


# ---- writing entries


class _Writer:
    """Writes an entry's words; `objects` keeps alive what they point at."""

    def __init__(self, executable: Any, call: Call, release: bool):
        self.executable = executable
        self.call = call
        self.objects: list[Any] = [executable]
        self.nodes: list[int] = []
        self.leaves: list[ShapedArray | None] = []  # the types of those that are Arrays
        self.flags = (w.RELEASE if release else 0) | (w.LARGE if executable.aligned else 0)

    def entry(self) -> Entry:
        call, executable = self.call, self.executable
        self.nodes.append(len(call.captured))
        for x in call.captured:
            self.nodes.append(self.address(x))
            self.leaf(x)
        nums, names = call.static
        self.head(w.TUPLE, tuple, len(call.args))
        for i, x in enumerate(call.args):
            self.static(x) if i in nums else self.argument(x)
        self.head(w.DICT, dict, len(call.kwargs))
        for k in sorted(call.kwargs):
            self.nodes.append(self.address(k))
            x = call.kwargs[k]
            self.static(x) if k in names else self.argument(x)
        self.result(call.out_tree)
        if len(self.leaves) > MAX_LEAVES or len(self.leaves) != len(executable.facts.ins):
            raise NotDirect
        parts = {
            w.CHECKS: self.checks(),
            w.RESULTS: self.results(),
            w.WRITTEN: self.written(),
            w.DONATED: self.donated(),
        }
        head = [0] * w.NODES
        head[w.LEAVES], head[w.OUTS] = len(self.leaves), len(call.out_avals)
        head[w.SPEC], head[w.FLAGS] = executable.spec_address, self.flags
        head[w.FAIL] = self.address(executable._fail)
        words = [*head, *self.nodes]
        for at, part in parts.items():
            words[at] = len(words)
            words += part
        return Entry(words, self.objects)

    def address(self, obj: Any) -> int:
        """An object's address; the entry keeps it alive."""
        self.objects.append(obj)
        return id(obj)

    def head(self, tag: int, cls: type, n: int) -> None:
        self.nodes += [tag, self.address(cls), n]

    def static(self, x: Any) -> None:
        self.nodes += [w.OBJECT, self.address(x)]

    def argument(self, x: Any, depth: int = 0) -> None:
        """The node of a tree of arguments, and those below it."""
        kind = kind_of(type(x))
        if depth > MAX_DEPTH:
            raise NotDirect
        if kind is None:
            return self.leaf(x)
        if kind is NONE:
            self.nodes.append(w.NONE)
            return None
        children, data = kind.flatten(x)
        children = tuple(children)
        if kind is DICT and all(type(k) is str for k in data):
            self.head(w.DICT, dict, len(children))
            for k, child in zip(data, children, strict=True):
                self.nodes.append(self.address(k))
                self.argument(child, depth + 1)
            return None
        if kind is TUPLE or kind.label == "namedtuple":
            self.head(w.TUPLE, kind.cls, len(children))
        elif kind is LIST:
            self.head(w.LIST, list, len(children))
        else:
            self.head(w.CUSTOM, kind.cls, len(children))
            self.nodes.append(self.address(_children_of(kind, data, len(children))))
        for child in children:
            self.argument(child, depth + 1)
        return None

    def leaf(self, x: Any) -> None:
        if type(x) is Array:
            a = x.aval
            weak = self.address(a.weak_type)
            self.nodes += [w.ARRAY, self.address(a.dtype), weak, a.ndim, *a.shape]
            self.leaves.append(a)
            return
        self.leaves.append(None)
        if type(x) is np.ndarray:
            self.nodes += [w.NDARRAY, self.address(x.dtype), x.ndim, *x.shape]
            return
        if type(x) in SCALARS:
            self.nodes += [w.SCALAR, self.address(type(x))]
            return
        # A Python number has the dtype that was its default when the program was traced.
        traced = self.executable.facts.ins[len(self.leaves) - 1]
        size = _NUMBERS.get(type(x), {}).get(traced.dtype.name)
        if size is None:
            raise NotDirect
        self.nodes += [w.NUMBER, self.address(type(x)), size]

    def result(self, treedef: Any) -> None:
        """The nodes of the result's tree."""
        if treedef._kind is None:
            self.nodes.append(w.LEAF)
            return
        kind, data, children = treedef._kind, treedef._data, treedef.children()
        if kind is NONE:
            self.nodes.append(w.NONE)
            return
        tag = {TUPLE: w.TUPLE, LIST: w.LIST, DICT: w.DICT}.get(kind, w.CUSTOM)
        self.head(tag, kind.cls, len(children))
        if tag == w.CUSTOM:
            self.nodes.append(self.address(lambda xs: kind.unflatten(data, xs)))
        for i, child in enumerate(children):
            if tag == w.DICT:
                self.nodes.append(self.address(data[i]))
            self.result(child)

    def checks(self) -> list[int]:
        now = context.current()
        words = [len(_CONTEXT)]
        for name in _CONTEXT:
            words += [_context_slots()[name], self.address(getattr(now, name))]
        return words

    def results(self) -> list[int]:
        sources = {o: i for i, o in self.executable._written if o is not None}
        words: list[int] = []
        for o, (aval, want) in enumerate(
            zip(self.call.out_avals, self.executable.facts.outs, strict=True)
        ):
            if aval.dtype != want.dtype or aval.shape != want.shape:
                raise NotDirect
            # An op's own aval may hold another object for the same dtype.
            aval = ShapedArray(aval.shape, aval.dtype, aval.weak_type)
            words += [self.address(want.dtype), self.address(aval.weak_type), self.address(aval)]
            words += [sources.get(o, -1), aval.ndim, *aval.shape]
        return words

    def written(self) -> list[int]:
        written = [i for i, _ in self.executable._written]
        if any(self.leaves[i] is None for i in written):
            raise NotDirect
        return [len(written), *written]

    def donated(self) -> list[int]:
        words = [0]
        for i, (aval, reason) in enumerate(zip(self.leaves, self.call.donated, strict=True)):
            if aval is not None and reason is not None:
                words[0] += 1
                held = np.broadcast_to(np.empty((), aval.dtype), aval.shape)
                words += [i, self.address(Freed(held)), self.address(reason)]
        return words


def _children_of(kind: Any, data: Any, n: int) -> Callable[[Any], tuple | None]:
    """A custom node's children as a tuple, or None where its metadata differ."""

    def children_of(x: Any) -> tuple | None:
        children, now = kind.flatten(x)
        children = tuple(children)
        if len(children) != n or not (now is data or same_data(kind, now, data)):
            return None
        return children

    return children_of


# ---- the native function


_lock = fork.lock()
_method: MethodDef | None = None
_slots: dict[str, int] = {}
_failed = NO_GIL
_begun = itertools.count()


def _is_known(calls: int) -> bool:
    """Whether the native code is there, at least on disk, or can't be. When calls so far show that
    it will pay for its making, a thread begins to make it."""
    if _method is not None or _failed:
        return True
    if calls < PATIENCE:
        return here().compiled(_key(), _LEVEL)
    if not next(_begun):
        fork.beside(available)
    return False


def available() -> bool:
    """Whether there are direct calls in this Python; the native code is made at first use."""
    global _failed, _method
    with _lock:
        if _method is None and not _failed:
            try:
                _method = _load()
            except (RuntimeError, LookupError, ValueError):
                # Another layout of objects, or a Python that hides its C API.
                _failed = True
        return not _failed


def _key() -> str:
    return f"direct {w.HEAD} {generator('calls.direct_code')}"


def _module() -> Any:
    return fork.import_module("funcgrad.backends.llvm.calls.direct_code").module()


def _load() -> MethodDef:
    target = here()
    target.provide("fg_memory_take", lambda: allocator().take)
    target.provide("fg_memory_give", lambda: allocator().give)
    library = target.compile(_module, _LEVEL, _key())
    memory = allocator()
    slots = array_slots()
    check_layouts()
    facts = {
        "Array": id(Array), "ndarray": id(np.ndarray), "float": id(float), "int": id(int),
        "str": id(str), "True": id(True), "None": id(None), "miss": id(NotImplemented),
        "variable": id(context.variable), "new_array": numpy_function(NEW_FROM_DESCR),
        "set_handler": memory.set_handler, "handler": id(memory.capsule), **slots,
    }  # fmt: skip
    env = (ctypes.c_int64 * len(w.ENV)).from_address(library.address("fg_env"))
    env[:] = [facts[name] for name in w.ENV]
    _find_context_slots()
    return MethodDef(b"direct", library.address("fg_direct"), FASTCALL, None)


def _find_context_slots() -> None:
    probe = context.ROOT.replace(**{name: object() for name in _CONTEXT})
    size = type(probe).__basicsize__
    _slots.update({name: offset(probe, getattr(probe, name), size) for name in _CONTEXT})


def _context_slots() -> dict[str, int]:
    return _slots


def _make_function(entries: tuple) -> Callable[[tuple, dict], Any]:
    assert _method is not None
    return builtin(_method, entries)
