"""The native code of eager calls that finds what is known of the arguments, by their types."""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.calls import eager_words as w
from funcgrad.backends.llvm.calls.direct_native import NULL, Native
from funcgrad.backends.llvm.calls.direct_words import HEAD
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Int


class Eager(Native):
    """As `Native`, with the facts of this module."""

    env_names = w.ENV


def write_find(m: ir.Module) -> None:
    """Write find(table, args, n, names, values, types) and what it needs."""
    _same(m)
    _known(m)
    _find(m)


def _same(m: ir.Module) -> None:
    """same(object, object) → whether they are one, or equal ints."""
    c = Eager(m, "same", [PTR, PTR], result=I64)
    x, y = c.args
    with c.when(c.same(x, y)):
        c.ret(I64(1))
    with c.when(~(c.type_is(x, c.env("int")) & c.type_is(y, c.env("int")))):
        c.ret(I64(0))
    equal = c.api("PyObject_RichCompareBool", x, y, I32(2))  # Py_EQ, which runs no Python here
    c.ret(c.b.zext(c.b.icmp_signed("==", equal, I32(1)), I64))


def _known(m: ir.Module) -> None:
    """known(entry, args, n, names, values, types) → whether an entry is of such a call."""
    c = Eager(m, "known", [PTR, PTR, I64, PTR, PTR, PTR], result=I64)
    entry, args, n, names, values, types = c.args
    no = I64(0)
    with c.when(~(c.same(c.address(entry, w.TYPES), types) & c.word(entry, w.ARGS).eq(n))):
        c.ret(no)
    at = c.variable(PTR, c.at(entry, c.word(entry, w.NODES), I64))
    with c.range(0, n) as i:
        node, x, value = at.get(), c.address(args, i), c.address(values, i)
        tag = c.word(node, 0)
        with c.either(tag.eq(w.ARRAY)) as (array, other):
            with array:
                with c.when(c.null(value)):
                    c.ret(no)
                right = c.same(c.field(value, HEAD + 40), c.address(node, 1))
                right &= c.same(c.field(x, c.slot("weak_type")), c.address(node, 2))
                ndim = Int(c, c.b.zext(c.field(value, HEAD + 8, I32), I64))
                with c.when(~(right & ndim.eq(c.word(node, 3)))):
                    c.ret(no)
                sizes = c.field(value, HEAD + 16)
                with (
                    c.range(0, ndim) as k,
                    c.when(c.word(sizes, k).ne(c.word(node, k + 4))),
                ):
                    c.ret(no)
                at.set(c.at(node, ndim + 4, I64))
            with other:
                with c.when(~c.null(value)):
                    c.ret(no)
                at.set(c.at(node, 2, I64))
                with c.when(tag.eq(w.NUMBER)), c.when(~c.type_is(x, c.address(node, 1))):
                    c.ret(no)
                with (
                    c.when(tag.eq(w.OBJECT)),
                    c.when(c.run("same", x, c.address(node, 1)).eq(0)),
                ):
                    c.ret(no)
                with c.when(tag.eq(w.OBJECTS)):
                    length = c.word(node, 1)
                    at.set(c.at(node, length + 2, I64))
                    with c.when(~c.type_is(x, c.env("tuple"))):
                        c.ret(no)
                    with c.when(c.api("PyTuple_Size", x).ne(length)):
                        c.ret(no)
                    with c.range(0, length) as k:
                        item = c.api("PyTuple_GetItem", x, k)
                        with c.when(c.run("same", item, c.address(node, k + 2)).eq(0)):
                            c.ret(no)
    count = c.word(entry, w.NAMES)
    with c.when(c.null(names)):
        c.ret(c.b.zext(count.eq(0).value, I64))
    with c.when(c.api("PyTuple_Size", names).ne(count)):
        c.ret(no)
    with c.range(0, count) as i:
        name = c.api("PyTuple_GetItem", names, i)
        with c.when(~c.same(name, c.address(at.get(), i))):
            c.ret(no)
    c.ret(I64(1))


def _mixed(c: Eager, h: Any, value: Any) -> None:
    value = c.b.ptrtoint(value, I64) if value.type != I64 else value
    h.set(c.b.mul(c.b.xor(h.get(), value), I64(w.MIX)))


def _find(m: ir.Module) -> None:
    """find(table, args, n, names, values, types) → the entry that knows a call, a tuple of which
    the first item is the words in bytes; null if there is none. Sets values[i] to the ndarray of
    args[i], to null where that is no Array."""
    c = Eager(m, "find", [PTR, PTR, I64, PTR, PTR, PTR], result=PTR)
    table, args, n, names, values, types = c.args
    h = c.variable(I64, I64(0))
    with c.range(0, n) as i:
        x = c.address(args, i)
        cls = c.field(x, HEAD - 8)
        with c.either(c.same(cls, c.env("Array"))) as (array, other):
            with other:
                c.put(NULL, values, i)
                _mixed(c, h, cls)
            with array:
                # `gone` is set last: without it there may be no value, either.
                with c.when(~c.same(c.field(x, c.slot("gone")), c.env("None"))):
                    c.ret(NULL)
                value = c.field(x, c.slot("value"))
                with c.when(~c.type_is(value, c.env("ndarray"))):
                    c.ret(NULL)
                c.put(value, values, i)
                _mixed(c, h, c.field(value, HEAD + 40))
                _mixed(c, h, c.field(x, c.slot("weak_type")))
                ndim = Int(c, c.b.zext(c.field(value, HEAD + 8, I32), I64))
                _mixed(c, h, ndim.value)
                sizes = c.field(value, HEAD + 16)
                with c.range(0, ndim) as k:
                    _mixed(c, h, c.word(sizes, k).value)
    place = c.b.lshr(h.get(), I64(64 - w.BUCKETS.bit_length() + 1))
    bucket = c.api("PyList_GetItem", table, Int(c, place))
    with c.when(c.same(bucket, c.env("None"))):
        c.ret(NULL)
    with c.range(0, c.api("PyTuple_Size", bucket)) as i:
        item = c.api("PyTuple_GetItem", bucket, i)
        words = c.api("PyBytes_AsString", c.api("PyTuple_GetItem", item, 0))
        with c.when(c.run("known", words, args, n, names, values, types).ne(0)):
            c.ret(item)
    c.ret(NULL)
