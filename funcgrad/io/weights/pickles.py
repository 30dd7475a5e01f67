"""Pickles of weights, interpreted: no class is imported, no function called but those listed.

A pickle is a program for a stack machine. Those that PyTorch writes for weights need containers,
numbers, references to storages, and a few names, which here stand for functions of this library in
a literal table; any other name is an error. The operations are told apart by `pickletools`, which
runs nothing.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any

from funcgrad.errors import FormatError

MAX_DEPTH, MAX_LEAVES = 200, 10_000_000
_VALUES = frozenset((
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "SHORT_BINSTRING",
))  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set,
}  # fmt: skip
_MARK = object()


class Name:
    """A name in a pickle: what it stands for in the table, or nothing."""

    def __init__(self, name: str, meaning: Any):
        self.name, self.meaning = name, meaning


class Machine:
    """The stack, the memo, and what names and references to storages stand for."""

    def __init__(self, names: Mapping[str, Any], storage: Callable[[tuple], Any]):
        self.names = names
        self.storage = storage
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """The value that a pickle describes; FormatError where it needs more than is allowed."""
        try:
            for opcode, arg, _ in pickletools.genops(data):
                if opcode.name == "STOP":
                    return self._result()
                self._step(opcode.name, arg)
        except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as e:
            if isinstance(e, FormatError):
                raise
            raise FormatError(f"its pickle is damaged: {type(e).__name__}: {e}") from None
        raise FormatError("its pickle has no end")

    def _result(self) -> Any:
        (value,) = self.stack
        check_size(value)
        return value

    def _step(self, op: str, arg: Any) -> None:
        stack = self.stack
        if op in ("PROTO", "FRAME"):
            return
        if op in _VALUES:
            stack.append(arg)
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op in _EMPTY:
            stack.append(_EMPTY[op]())
        elif op == "MARK":
            stack.append(_MARK)
        elif op in ("BINPUT", "LONG_BINPUT"):
            self.memo[arg] = stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif op in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[arg])
        elif op in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(op[-1])
            if len(stack) < n:
                raise FormatError("its pickle takes from an empty stack")
            stack[-n:] = [tuple(stack[-n:])]
        elif op == "TUPLE":
            items = self._marked()
            stack.append(tuple(items))
        else:
            self._build(op, arg)

    def _build(self, op: str, arg: Any) -> None:
        stack = self.stack
        if op in ("APPEND", "APPENDS"):
            items = [stack.pop()] if op == "APPEND" else self._marked()
            self._last(list).extend(items)
        elif op in ("SETITEM", "SETITEMS"):
            items = [stack.pop(), stack.pop()][::-1] if op == "SETITEM" else self._marked()
            target = self._last(dict)
            target.update(zip(items[::2], items[1::2], strict=True))
        elif op in ("GLOBAL", "STACK_GLOBAL"):
            if op == "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                arg = f"{module} {name}"
            name = str(arg).replace(" ", ".")
            if name not in self.names:
                raise FormatError(
                    f"its pickle asks for {name[:200]}, which is none of what weights are made of; "
                    "nothing of it was run"
                )
            stack.append(Name(name, self.names[name]))
        elif op == "BINPERSID":
            stack.append(self.storage(stack.pop()))
        elif op == "REDUCE":
            args, function = stack.pop(), stack.pop()
            if not isinstance(function, Name) or not callable(function.meaning):
                raise FormatError("its pickle calls what is no function of weights")
            if type(args) is not tuple:
                raise FormatError(f"its pickle calls {function.name} without a tuple")
            stack.append(function.meaning(*args))
        elif op == "BUILD":  # attributes of a dictionary, such as its versions
            stack.pop()
            self._last(dict)
        else:
            raise FormatError(f"its pickle uses the operation {op}, which weights don't need")

    def _last(self, kind: type) -> Any:
        target = self.stack[-1]
        if type(target) is not kind:
            raise FormatError(f"its pickle fills a {type(target).__name__} as a {kind.__name__}")
        return target

    def _marked(self) -> list[Any]:
        for i in range(len(self.stack) - 1, -1, -1):
            if self.stack[i] is _MARK:
                items = self.stack[i + 1 :]
                del self.stack[i:]
                return items
        raise FormatError("its pickle ends a list that never began")


def check_size(value: Any) -> None:
    """Raise FormatError for what holds itself, is very deep, or is much larger than its pickle.

    What is shared counts each time, as it does for whoever goes through the tree.
    """
    sizes: dict[int, int] = {}
    path: set[int] = set()

    def size(x: Any, depth: int) -> int:
        if type(x) not in (list, tuple, dict, set):
            return 1
        if depth > MAX_DEPTH or id(x) in path:
            raise FormatError("its pickle is nested too deeply, or holds itself")
        if id(x) not in sizes:
            path.add(id(x))
            inner = [*x.keys(), *x.values()] if type(x) is dict else list(x)
            total = 1
            for item in inner:
                total += size(item, depth + 1)
            path.discard(id(x))
            if total > MAX_LEAVES:
                raise FormatError(f"its pickle stands for more than {MAX_LEAVES} values")
            sizes[id(x)] = total
        return sizes[id(x)]

    size(value, 0)
