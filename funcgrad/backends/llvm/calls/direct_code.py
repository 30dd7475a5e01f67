"""The native code of direct calls: matches Python arguments, runs a program, builds the result."""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.calls.direct_match import write_match
from funcgrad.backends.llvm.calls.direct_native import NULL, Native
from funcgrad.backends.llvm.calls.direct_words import (
    ALIGNED,
    ARENA,
    C_CONTIGUOUS,
    CALLBACK,
    CHECKS,
    COMMS,
    CONSTANTS,
    CUSTOM,
    DICT,
    DONATED,
    ENV,
    ERROR,
    FAIL,
    FLAGS,
    HEAD,
    LEAF,
    LEAVES,
    LIST,
    MATCHED,
    MISSED,
    NODES,
    NONE,
    OUTS,
    OWNDATA,
    PROGRAM,
    RESULTS,
    SPEC,
    STATE,
    WRITEABLE,
    WRITTEN,
)
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Int

_EXHAUSTED = 3


def module() -> ir.Module:
    """The functions of direct calls; the entry point is `fg_direct`, of CPython's kind
    METH_FASTCALL: (self, [args, kwargs]) → result, or ENV's `miss`."""
    m = ir.Module("direct")
    env = ir.GlobalVariable(m, ir.ArrayType(I64, len(ENV)), "fg_env")
    env.initializer = ir.Constant(env.value_type, None)
    write_match(m)
    _build(m)
    _clean(m)
    _results(m)
    _execute(m)
    _attempt(m)
    _direct(m)
    return m


# ---- results


def _build(m: ir.Module) -> None:
    """build(cursor, next) → the result's tree, or null. `next` points at the next array made, of
    which the reference passes to the tree."""
    c = Native(m, "build", [PTR, PTR], result=PTR)
    cursor, following = c.args
    node = c.load(cursor, PTR)
    tag = c.word(node, 0)
    with c.when(tag.eq(LEAF)):
        c.store(c.at(node, 1, I64), cursor)
        place = c.load(following, PTR)
        c.store(c.at(place, 1, I64), following)
        array = c.load(place, PTR)
        c.store(NULL, place)
        c.ret(array)
    with c.when(tag.eq(NONE)):
        c.store(c.at(node, 1, I64), cursor)
        c.incref(c.env("None"))
        c.ret(c.env("None"))
    n = c.word(node, 2)
    c.store(c.at(node, 3, I64), cursor)
    out = c.variable(PTR, NULL)

    def filled(new: Any, put: Any) -> None:
        out.set(new)
        with c.when(c.null(out.get())):
            c.ret(NULL)
        with c.range(0, n) as i:
            put(i)

    def child() -> Any:
        item = c.b.call(c.function, [cursor, following])
        with c.when(c.null(item)):
            c.decref(out.get())
            c.ret(NULL)
        return item

    def put_named(i: Any) -> None:
        place = c.load(cursor, PTR)
        c.store(c.at(place, 1, I64), cursor)
        item = child()
        failed = c.api("PyDict_SetItem", out.get(), c.address(place, 0), item)
        c.decref(item)
        with c.when(c.is_(c.b.icmp_signed("!=", failed, I32(0)))):
            c.decref(out.get())
            c.ret(NULL)

    with c.when(tag.eq(LIST)):
        filled(c.api("PyList_New", n), lambda i: c.api("PyList_SetItem", out.get(), i, child()))
        c.ret(out.get())
    with c.when(tag.eq(DICT)):
        filled(c.api("PyDict_New"), put_named)
        c.ret(out.get())
    with c.when(tag.eq(CUSTOM)):
        c.store(c.at(node, 4, I64), cursor)
    filled(c.api("PyTuple_New", n), lambda i: c.api("PyTuple_SetItem", out.get(), i, child()))
    with c.when(tag.eq(CUSTOM)):
        custom = c.api("PyObject_CallOneArg", c.address(node, 3), out.get())
        c.decref(out.get())
        c.ret(custom)
    c.ret(out.get())


def _clean(m: ir.Module) -> None:
    """clean(n, objects): drop references (null ones aside)."""
    c = Native(m, "clean", [I64, PTR])
    n, objects = c.args
    with c.range(0, n) as i:
        obj = c.address(objects, i)
        with c.when(~c.null(obj)):
            c.decref(obj)
    c.ret()


def _results(m: ir.Module) -> None:
    """results(entry, n, held, made, outs) → 0, or 1 for no memory: makes the result arrays.

    A result's words: dtype, weak type, aval, the input whose memory it takes (or -1), ndim, *shape.
    """
    c = Native(m, "results", [PTR, I64, PTR, PTR, PTR], result=I64)
    entry, n, held, made, outs = c.args
    at = c.variable(PTR, c.at(entry, c.word(entry, RESULTS), I64))
    new, cls, none = c.env("new_array"), c.env("Array"), c.env("None")
    with c.range(0, n) as o:
        w = at.get()
        dtype, source, ndim = c.address(w, 0), c.word(w, 3), c.word(w, 4)
        at.set(c.at(w, ndim + 5, I64))
        value = c.variable(PTR)
        with c.either(source < 0) as (fresh, shared):
            with fresh:
                c.incref(dtype)  # which the function takes over
                rank = c.b.trunc(ndim.value, I32)
                shape, rest = c.at(w, 5, I64), (NULL, NULL, I32(0), NULL)
                value.set(c.through(new, PTR, c.env("ndarray"), dtype, rank, shape, *rest))
                with c.when(c.null(value.get())):
                    c.ret(I64(1))
            with shared:
                value.set(c.address(held, source))
                c.incref(value.get())
        array = c.api("PyType_GenericAlloc", cls, 0)
        with c.when(c.null(array)):
            c.decref(value.get())
            c.ret(I64(1))
        fields = {"weak_type": c.address(w, 1), "aval": c.address(w, 2), "gone": none}
        for name, obj in fields.items():
            c.incref(obj)
            c.set_field(obj, array, c.slot(name))
        c.set_field(value.get(), array, c.slot("value"))
        c.put(array, made, o)
        c.put(c.field(value.get(), HEAD), outs, o)
    c.ret(I64(0))


def _execute(m: ir.Module) -> None:
    """execute(entry, ins, outs) → the program's status; others may use Python meanwhile."""
    c = Native(m, "execute", [PTR, PTR, PTR], result=I32)
    entry, ins, outs = c.args
    spec = c.address(entry, SPEC)
    size = c.word(spec, ARENA)
    arena, status, thread = c.variable(PTR, NULL), c.variable(I32), c.variable(PTR, NULL)
    release = c.is_(c.b.trunc(c.word(entry, FLAGS).value, ir.IntType(1)))
    with c.when(release):
        thread.set(c.api("PyEval_SaveThread"))
    with c.when(size > 0):
        arena.set(c.api("fg_memory_take", NULL, size))
    with c.either((size > 0) & c.null(arena.get())) as (no_room, fine):
        with no_room:
            status.set(I32(_EXHAUSTED))
        with fine:
            words = [c.address(spec, i) for i in (CONSTANTS, CALLBACK, COMMS)]
            program = c.address(spec, PROGRAM)
            status.set(c.through(program, I32, ins, outs, arena.get(), *words))
            with c.when(size > 0):
                c.api("fg_memory_give", NULL, arena.get(), 0)
    with c.when(release):
        c.api("PyEval_RestoreThread", thread.get())
    c.ret(status.get())


# ---- the call


def _attempt(m: ir.Module) -> None:
    """attempt(entry, args, kwargs) → the result, ENV's `miss`, or null for an error."""
    c = Native(m, "attempt", [PTR, PTR, PTR], result=PTR)
    entry, args, kwargs = c.args
    miss = c.env("miss")
    _check_context(c, entry, miss)
    n_in, n_out = c.word(entry, LEAVES), c.word(entry, OUTS)
    room = {name: _frame_array(c, n_in) for name in ("ins", "held", "given", "scratch")}
    state = c.variable(I64, count=len(STATE)).slot
    for name, array in room.items():
        c.put(array, state, STATE[name])
    c.put(I64(0), state, STATE["count"])

    def leave(value: Any) -> None:
        count = c.word(state, STATE["count"])
        c.run("clean", count, room["held"])
        c.run("clean", count, room["given"])
        c.ret(value)

    cursor = c.variable(PTR, c.at(entry, NODES + 1, I64)).slot
    found = c.variable(I64, I64(MATCHED))

    def go_on() -> Any:
        return c.when(Int(c, found.get()).eq(MATCHED))

    with c.range(0, c.word(entry, NODES)), go_on():
        place = c.load(cursor, PTR)
        c.store(c.at(place, 1, I64), cursor)
        found.set(c.run("match", c.address(place, 0), cursor, state))
    for given in (args, kwargs):
        with go_on():
            found.set(c.run("match", given, cursor, state))
    _check_written(c, entry, room["held"], found)
    with c.when(Int(c, found.get()).eq(ERROR)):
        leave(NULL)
    with c.when(Int(c, found.get()).eq(MISSED)):
        c.incref(miss)
        leave(miss)

    made, outs = _frame_array(c, n_out), _frame_array(c, n_out)
    with c.range(0, n_out) as o:
        c.put(NULL, made, o)
    failed = _made_results(c, entry, n_out, room["held"], made, outs)
    result = c.variable(PTR, NULL)
    with c.when(failed.eq(0)):
        status = c.run("execute", entry, room["ins"], outs)
        bad = c.is_(c.b.icmp_signed("!=", status, I32(0)))
        with c.either(bad) as (wrong, right):
            with wrong:
                _fail(c, entry, Int(c, c.b.sext(status, I64)), room["given"], result)
            with right:
                _delete_donated(c, entry, room["given"])
                following = c.variable(PTR, made)
                result.set(c.b.call(c.fn("build"), [cursor, following.slot]))
    c.run("clean", n_out, made)
    leave(result.get())


def _fail(c: Native, entry: Any, status: Int, given: Any, result: Any) -> None:
    """A program that hasn't begun for want of memory; else there is an exception of Python, and
    donated arrays may hold anything."""
    with c.either(status.eq(_EXHAUSTED)) as (not_begun, begun):
        with not_begun:
            number = c.api("PyLong_FromLong", status)
            result.set(c.api("PyObject_CallOneArg", c.address(entry, FAIL), number))
            c.decref(number)
        with begun:
            _delete_donated(c, entry, given)


def _frame_array(c: Native, n: Int) -> Any:
    return c.b.alloca(I64, n.value)


def _check_context(c: Native, entry: Any, miss: Any) -> None:
    """Leave, unless the context's fields (offset and object, behind their number) are as noted."""
    found = c.variable(PTR)
    bad = c.api("PyContextVar_Get", c.env("variable"), NULL, found.slot)
    with c.when(c.is_(c.b.icmp_signed("<", bad, I32(0)))):
        c.ret(NULL)
    ctx = found.get()
    c.decref(ctx)  # the thread's context holds it, and no Python runs here
    checks = c.at(entry, c.word(entry, CHECKS), I64)
    with c.range(0, c.word(checks, 0)) as i:
        want = c.address(checks, i * 2 + 2)
        with c.when(~c.same(c.field(ctx, c.word(checks, i * 2 + 1)), want)):
            c.incref(miss)
            c.ret(miss)


def _check_written(c: Native, entry: Any, held: Any, found: Any) -> None:
    """A miss, unless the inputs that the program writes to are nobody else's."""
    written = c.at(entry, c.word(entry, WRITTEN), I64)
    with c.range(0, c.word(written, 0)) as i, c.when(Int(c, found.get()).eq(MATCHED)):
        x = c.address(held, c.word(written, i + 1))
        # Two references: the Array's and ours.
        alone = c.is_(c.b.icmp_unsigned("==", c.field(x, HEAD - 16, I32), I32(2)))
        need = C_CONTIGUOUS | ALIGNED | WRITEABLE | OWNDATA
        flags = c.b.and_(c.field(x, HEAD + 48, I32), I32(need))
        with c.when(~(alone & c.is_(c.b.icmp_unsigned("==", flags, I32(need))))):
            found.set(I64(MISSED))


def _made_results(c: Native, entry: Any, n: Int, held: Any, made: Any, outs: Any) -> Int:
    """`results`, where large ones come from the allocator that keeps memory."""
    large = c.is_(c.b.trunc(c.b.lshr(c.word(entry, FLAGS).value, I64(1)), ir.IntType(1)))
    before = c.variable(PTR, NULL)
    with c.when(large):
        before.set(c.through(c.env("set_handler"), PTR, c.env("handler")))
    failed = c.run("results", entry, n, held, made, outs)
    with c.when(large):
        mine = c.through(c.env("set_handler"), PTR, before.get())
        for obj in (mine, before.get()):
            with c.when(~c.null(obj)):
                c.decref(obj)
    return failed


def _delete_donated(c: Native, entry: Any, given: Any) -> None:
    """Donated Arrays are gone. Words: their number; for each the input, its Freed, the reason."""
    donated = c.at(entry, c.word(entry, DONATED), I64)
    with c.range(0, c.word(donated, 0)) as i:
        array = c.address(given, c.word(donated, i * 3 + 1))
        for name, at in (("value", i * 3 + 2), ("gone", i * 3 + 3)):
            old, new = c.field(array, c.slot(name)), c.address(donated, at)
            c.incref(new)
            c.set_field(new, array, c.slot(name))
            c.decref(old)


def _direct(m: ir.Module) -> None:
    """fg_direct(entries, [args, kwargs], 2): the first entry that matches runs. `entries` is a
    tuple of tuples, of which the first item is the entry's words in bytes."""
    c = Native(m, "fg_direct", [PTR, PTR, I64], public=True, result=PTR)
    entries, given, _ = c.args
    args, kwargs = c.address(given, 0), c.address(given, 1)
    with c.range(0, c.api("PyTuple_Size", entries)) as i:
        item = c.api("PyTuple_GetItem", c.api("PyTuple_GetItem", entries, i), 0)
        entry = c.api("PyBytes_AsString", item)
        out = c.run("attempt", entry, args, kwargs)
        with c.when(~c.same(out, c.env("miss"))):
            c.ret(out)
        c.decref(out)
    c.incref(c.env("miss"))
    c.ret(c.env("miss"))
