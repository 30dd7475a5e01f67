"""Native code that matches Python arguments against an entry's nodes, and collects their memory."""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.calls.direct_native import NULL, Native
from funcgrad.backends.llvm.calls.direct_words import (
    ALIGNED,
    ARRAY,
    C_CONTIGUOUS,
    DICT,
    ERROR,
    HEAD,
    LIST,
    MATCHED,
    MISSED,
    NDARRAY,
    NONE,
    NUMBER,
    OBJECT,
    SCALAR,
    STATE,
    TUPLE,
)
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Int


def write_match(m: ir.Module) -> None:
    """Write match(object, cursor, state) and what it needs."""
    _plain(m)
    _keep(m)
    _number(m)
    _match(m)


def _plain(m: ir.Module) -> None:
    """plain(ndarray, dtype, ndim, shape) → its data where all is as expected, else null."""
    c = Native(m, "plain", [PTR, PTR, I64, PTR], result=PTR)
    x, dtype, ndim, shape = c.args
    with c.when(~c.type_is(x, c.env("ndarray"))):
        c.ret(NULL)
    flags = c.b.and_(c.field(x, HEAD + 48, I32), I32(C_CONTIGUOUS | ALIGNED))
    right = c.same(c.field(x, HEAD + 40), dtype)
    right &= c.is_(c.b.icmp_unsigned("==", flags, I32(C_CONTIGUOUS | ALIGNED)))
    right &= c.is_(c.b.icmp_unsigned("==", c.field(x, HEAD + 8, I32), c.b.trunc(ndim.value, I32)))
    with c.when(~right):
        c.ret(NULL)
    sizes = c.field(x, HEAD + 16)
    with c.range(0, ndim) as i, c.when(c.word(sizes, i).ne(c.word(shape, i))):
        c.ret(NULL)
    c.ret(c.field(x, HEAD))


def _keep(m: ir.Module) -> None:
    """keep(state, data, array, object): one more leaf; objects stay alive until `clean`."""
    c = Native(m, "keep", [PTR, PTR, PTR, PTR], result=I64)
    state, data, array, given = c.args
    n = c.word(state, STATE["count"])
    c.put(data, c.address(state, STATE["ins"]), n)
    c.put(array, c.address(state, STATE["held"]), n)
    c.put(given, c.address(state, STATE["given"]), n)
    for obj in (array, given):
        with c.when(~c.null(obj)):
            c.incref(obj)
    c.put(n + 1, state, STATE["count"])
    c.ret(I64(MATCHED))


def _number(m: ir.Module) -> None:
    """number(object, words, state): a Python scalar becomes an element in scratch memory."""
    c = Native(m, "number", [PTR, PTR, PTR], result=I64)
    x, w, state = c.args
    size = c.word(w, 1)
    to = c.at(c.address(state, STATE["scratch"]), c.word(state, STATE["count"]), I64)
    with c.when(~c.type_is(x, c.address(w, 0))):
        c.ret(I64(MISSED))
    with c.when(size.eq(1)):
        c.store(c.b.zext(c.same(x, c.env("True")).value, I64), to)
        c.ret(c.run("keep", state, to, NULL, NULL))
    with c.when(c.same(c.address(w, 0), c.env("float"))):
        value = c.api("PyFloat_AsDouble", x)
        with c.either(size.eq(4)) as (narrow, wide):
            with narrow:
                c.store(c.b.fptrunc(value, ir.FloatType()), to)
            with wide:
                c.store(value, to)
        c.ret(c.run("keep", state, to, NULL, NULL))
    overflow = c.variable(I32, I32(0))
    whole = c.api("PyLong_AsLongLongAndOverflow", x, overflow.slot)
    low = Int(c, c.b.sext(c.b.trunc(whole.value, I32), I64))
    odd = c.is_(c.b.icmp_signed("!=", overflow.get(), I32(0)))
    with c.when(odd | (size.eq(4) & low.ne(whole))):
        c.ret(I64(MISSED))
    c.store(whole, to)
    c.ret(c.run("keep", state, to, NULL, NULL))


def _match(m: ir.Module) -> None:
    """match(object, cursor, state) → matched, missed, error. The cursor moves behind the node."""
    c = Native(m, "match", [PTR, PTR, PTR], result=I64)
    x, cursor, state = c.args
    node = c.load(cursor, PTR)
    tag = c.word(node, 0)
    with c.when(tag.eq(ARRAY)):
        ndim = c.word(node, 3)
        c.store(c.at(node, ndim + 4, I64), cursor)
        with c.when(~c.type_is(x, c.env("Array"))):
            c.ret(I64(MISSED))
        good = c.same(c.field(x, c.slot("weak_type")), c.address(node, 2))
        with c.when(~(good & c.same(c.field(x, c.slot("gone")), c.env("None")))):
            c.ret(I64(MISSED))
        value = c.field(x, c.slot("value"))
        data = c.run("plain", value, c.address(node, 1), ndim, c.at(node, 4, I64))
        with c.when(c.null(data)):
            c.ret(I64(MISSED))
        c.ret(c.run("keep", state, data, value, x))
    with c.when(tag.eq(NDARRAY)):
        ndim = c.word(node, 2)
        c.store(c.at(node, ndim + 3, I64), cursor)
        data = c.run("plain", x, c.address(node, 1), ndim, c.at(node, 3, I64))
        with c.when(c.null(data)):
            c.ret(I64(MISSED))
        c.ret(c.run("keep", state, data, x, NULL))
    with c.when(tag.eq(NUMBER)):
        c.store(c.at(node, 3, I64), cursor)
        c.ret(c.run("number", x, c.at(node, 1, I64), state))
    with c.when(tag.eq(SCALAR)):
        c.store(c.at(node, 2, I64), cursor)
        with c.when(~c.type_is(x, c.address(node, 1))):
            c.ret(I64(MISSED))
        to = c.at(c.address(state, STATE["scratch"]), c.word(state, STATE["count"]), I64)
        c.store(c.field(x, HEAD, I64), to)
        c.ret(c.run("keep", state, to, NULL, NULL))
    with c.when(tag.eq(NONE)):
        c.store(c.at(node, 1, I64), cursor)
        c.ret(c.same(x, c.env("None")).select(MATCHED, MISSED))
    with c.when(tag.eq(OBJECT)):
        c.store(c.at(node, 2, I64), cursor)
        c.ret(c.same(x, c.address(node, 1)).select(MATCHED, MISSED))
    _match_containers(c, x, node, tag, cursor, state)


def _match_containers(c: Native, x: Any, node: Any, tag: Int, cursor: Any, state: Any) -> None:
    """The rest of `match`: nodes with children."""
    with c.when(~c.type_is(x, c.address(node, 1))):
        c.ret(I64(MISSED))
    n = c.word(node, 2)

    def check(item: Any) -> None:
        # What a custom node's function does to a list or a dict must not free what is looked at.
        c.incref(item)
        found = Int(c, c.call(c.function, item, cursor, state))
        c.decref(item)
        with c.when(found.ne(MATCHED)):
            c.ret(found)

    def present(item: Any) -> None:
        with c.when(c.null(item)):
            c.api("PyErr_Clear")
            c.ret(I64(MISSED))

    with c.when(tag.eq(TUPLE)):
        c.store(c.at(node, 3, I64), cursor)
        with c.when(c.api("PyTuple_Size", x).ne(n)):
            c.ret(I64(MISSED))
        with c.range(0, n) as i:
            check(c.api("PyTuple_GetItem", x, i))
        c.ret(I64(MATCHED))
    with c.when(tag.eq(LIST)):
        c.store(c.at(node, 3, I64), cursor)
        with c.when(c.api("PyList_Size", x).ne(n)):
            c.ret(I64(MISSED))
        with c.range(0, n) as i:
            item = c.api("PyList_GetItem", x, i)
            present(item)
            check(item)
        c.ret(I64(MATCHED))
    with c.when(tag.eq(DICT)):
        c.store(c.at(node, 3, I64), cursor)
        with c.when(c.api("PyDict_Size", x).ne(n)):
            c.ret(I64(MISSED))
        # A key of another class may equal a str.
        at, key, ignored = c.variable(I64, I64(0)), c.variable(PTR), c.variable(PTR)
        with c.range(0, n):
            c.api("PyDict_Next", x, at.slot, key.slot, ignored.slot)
            with c.when(~c.type_is(key.get(), c.env("str"))):
                c.ret(I64(MISSED))
        with c.range(0, n):
            place = c.load(cursor, PTR)
            c.store(c.at(place, 1, I64), cursor)
            item = c.api("PyDict_GetItemWithError", x, c.address(place, 0))
            present(item)
            check(item)
        c.ret(I64(MATCHED))
    _match_custom(c, x, node, cursor, state)


def _match_custom(c: Native, x: Any, node: Any, cursor: Any, state: Any) -> None:
    """The rest of `match`: a custom node, whose function gives the children."""
    c.store(c.at(node, 4, I64), cursor)
    children = c.api("PyObject_CallOneArg", c.address(node, 3), x)
    with c.when(c.null(children)):
        c.ret(I64(ERROR))
    result = c.variable(I64, I64(MISSED))
    with c.when(~c.same(children, c.env("None"))):
        result.set(I64(MATCHED))
        with c.range(0, c.word(node, 2)) as i, c.when(Int(c, result.get()).eq(MATCHED)):
            item = c.api("PyTuple_GetItem", children, i)
            result.set(c.call(c.function, item, cursor, state))
    c.decref(children)
    c.ret(result.get())
