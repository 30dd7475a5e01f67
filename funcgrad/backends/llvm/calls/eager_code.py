"""The native code of eager calls: finds what is known of the arguments, computes, makes an Array.

What it doesn't know is left to Python, by the function that stands beside a table. No reference is
borrowed across what may run Python: the loops of NumPy don't, all else holds what it needs.
"""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.calls import eager_words as w
from funcgrad.backends.llvm.calls.direct_native import NULL
from funcgrad.backends.llvm.calls.direct_words import (
    ALIGNED,
    C_CONTIGUOUS,
    CALLBACK,
    COMMS,
    CONSTANTS,
    HEAD,
    PROGRAM,
)
from funcgrad.backends.llvm.calls.eager_match import Eager, write_find
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Bool, Int

I8, I16, F32, F64 = ir.IntType(8), ir.IntType(16), ir.FloatType(), ir.DoubleType()
# What an attempt at a loop comes to.
DONE, NOT_CONTIGUOUS, MISSED, ERROR = range(4)
_EXACT = 1 << 53  # up to which whole numbers are doubles


def module() -> ir.Module:
    """The functions of eager calls.

    fg_eager, of CPython's kind METH_FASTCALL | METH_KEYWORDS: it is bound to a list of buckets of
    entries, the function that does what no entry knows, and the one for all transformations.
    """
    m = ir.Module("eager")
    env = ir.GlobalVariable(m, ir.ArrayType(I64, len(w.ENV)), "fg_env")
    env.initializer = ir.Constant(env.value_type, None)
    write_find(m)
    _number(m)
    _wrap(m)
    _gather(m)
    _loop(m)
    _kernel(m)
    _operand(m)
    _call(m)
    _types(m)
    _dispatch(m)
    _entry_points(m)
    return m


# ---- operands


def _number(m: ir.Module) -> None:
    """number(object, operand, to) → whether a Python number was stored as an element."""
    c = Eager(m, "number", [PTR, PTR, PTR], result=I64)
    x, operand, to = c.args
    kind, size = c.word(operand, w.NUMBER_KIND), c.word(operand, w.NUMBER_SIZE)
    no, yes = I64(0), I64(1)

    def store_float(value: Any) -> None:
        with c.either(size.eq(4)) as (narrow, wide):
            with narrow:
                c.store(c.b.fptrunc(value, F32), to)
            with wide:
                c.store(value, to)
        c.ret(yes)

    with c.when(c.type_is(x, c.env("float"))):
        store_float(c.api("PyFloat_AsDouble", x))
    overflow = c.variable(I32, I32(0))
    whole = c.api("PyLong_AsLongLongAndOverflow", x, overflow.slot)
    with c.when(c.is_(c.b.icmp_signed("!=", overflow.get(), I32(0)))):
        c.ret(no)
    with c.when(kind.eq(w.FLOAT)):
        with c.when((whole > _EXACT) | (whole < -_EXACT)):
            c.ret(no)
        store_float(c.b.sitofp(whole.value, F64))
    gap = 64 - size * 8
    up = c.b.shl(whole.value, gap.value)
    signed = Int(c, c.b.ashr(up, gap.value))
    unsigned = Int(c, c.b.lshr(up, gap.value))
    back = Int(c, c.b.select(kind.eq(w.SIGNED).value, signed.value, unsigned.value))
    with c.when(back.ne(whole) | (kind.eq(w.UNSIGNED) & (whole < 0))):
        c.ret(no)
    c.store(whole, to)
    c.ret(yes)


def _new(c: Eager, dtype: Any, ndim: Any, shape: Any) -> Any:
    """A new ndarray, or null."""
    c.incref(dtype)  # which the function takes over
    args = (c.env("ndarray"), dtype, ndim, shape, NULL, NULL, I32(0), NULL)
    return c.through(c.env("new_array"), PTR, *args)


def _result(c: Eager, entry: Any) -> Any:
    rank = c.b.trunc(c.word(entry, w.NDIM).value, I32)
    shape = c.at(entry, c.word(entry, w.SHAPE), I64)
    return _new(c, c.address(entry, w.DTYPE), rank, shape)


def _operand(m: ir.Module) -> None:
    """operand(operand, args, values, out) → 0 and a new reference to the ndarray in out[0]; MISSED,
    ERROR."""
    c = Eager(m, "operand", [PTR, PTR, PTR, PTR], result=I64)
    operand, args, values, out = c.args
    at = c.word(operand, w.ARGUMENT)
    with c.when(at < 0):
        x = c.address(operand, w.CONSTANT)
        c.incref(x)
        c.store(x, out)
        c.ret(I64(DONE))
    value = c.address(values, at)
    with c.when(~c.null(value)):
        c.incref(value)
        c.store(value, out)
        c.ret(I64(DONE))
    element = c.variable(I64, I64(0))
    with c.when(c.run("number", c.address(args, at), operand, element.slot).eq(0)):
        c.ret(I64(MISSED))
    made = _new(c, c.address(operand, w.NUMBER_DTYPE), I32(0), NULL)
    with c.when(c.null(made)):
        c.ret(I64(ERROR))
    c.api("memcpy", c.field(made, HEAD), element.slot, c.word(operand, w.NUMBER_SIZE))
    c.store(made, out)
    c.ret(I64(DONE))


# ---- computing


def _gather(m: ir.Module) -> None:
    """gather(entry, args, values, pointers, scratch) → how it went; sets pointers[i] to where
    operand i lies: a number as an element in scratch[i]."""
    c = Eager(m, "gather", [PTR] * 5, result=I64)
    entry, args, values, pointers, scratch = c.args
    need = C_CONTIGUOUS | ALIGNED
    with c.range(0, c.word(entry, w.INS)) as i:
        operand = c.at(entry, c.word(entry, w.OPERANDS) + i * w.OPERAND_WORDS, I64)
        at = c.word(operand, w.ARGUMENT)
        value = c.variable(PTR, c.address(operand, w.CONSTANT))
        with c.when(at >= 0):
            value.set(c.address(values, at))
        with c.either(c.null(value.get())) as (number, array):
            with number:
                to = c.at(scratch, i, I64)
                with c.when(c.run("number", c.address(args, at), operand, to).eq(0)):
                    c.ret(I64(MISSED))
                c.put(to, pointers, i)
            with array:
                flags = c.b.and_(c.field(value.get(), HEAD + 48, I32), I32(need))
                with c.when(c.is_(c.b.icmp_unsigned("!=", flags, I32(need)))):
                    c.ret(I64(NOT_CONTIGUOUS))
                c.put(c.field(value.get(), HEAD), pointers, i)
    c.ret(I64(DONE))


def _loop(m: ir.Module) -> None:
    """loop(entry, args, values, out) → how it went; DONE sets out[0] to a new ndarray."""
    c = Eager(m, "loop", [PTR, PTR, PTR, PTR], result=I64)
    entry, args, values, out = c.args
    n = c.word(entry, w.INS)
    pointers = c.variable(PTR, count=w.MAX_OPERANDS + 2).slot
    steps = c.variable(I64, count=w.MAX_OPERANDS + 2).slot
    scratch = c.variable(I64, count=w.MAX_OPERANDS).slot
    sums = _has(c, c.word(entry, w.WAY), w.SUM)
    first = sums.select(1, 0)  # a reduction's result is the loop's first operand, too
    status = c.run("gather", entry, args, values, c.at(pointers, first, I64), scratch)
    with c.when(status.ne(DONE)):
        c.ret(status)
    with c.range(0, n) as i:
        place = c.word(entry, w.OPERANDS) + i * w.OPERAND_WORDS + w.STRIDE
        c.put(c.word(entry, place), steps, first + i)
    made = _result(c, entry)
    with c.when(c.null(made)):
        c.ret(I64(ERROR))
    data, item = c.field(made, HEAD), c.word(entry, w.ITEM)
    with c.when(sums):
        c.api("memset", data, I32(0), item)
        c.put(data, pointers, 0)
        c.put(I64(0), steps, 0)
    c.put(data, pointers, first + n)
    c.put(sums.select(0, item), steps, first + n)
    count = c.variable(I64, c.word(entry, w.COUNT))
    with c.when(c.word(entry, w.COUNT) > 0):
        loop, more = c.address(entry, w.LOOP), c.address(entry, w.DATA)
        c.through(loop, ir.VoidType(), pointers, count.slot, steps, more)
    c.store(made, out)
    c.ret(I64(DONE))


def _kernel(m: ir.Module) -> None:
    """kernel(entry, words, args, values, out) → how it went, of a compiled operation that these
    words (see `core.eager.large`) tell of; DONE sets out[0] to a new ndarray, in memory that is
    kept. Others may use Python meanwhile."""
    c = Eager(m, "kernel", [PTR] * 5, result=I64)
    entry, words, args, values, out = c.args
    pointers = c.variable(PTR, count=w.MAX_OPERANDS).slot
    scratch = c.variable(I64, count=w.MAX_OPERANDS).slot
    status = c.run("gather", entry, args, values, pointers, scratch)
    with c.when(status.ne(DONE)):
        c.ret(status)
    spec, handler, set_handler = (c.address(words, i) for i in range(3))
    before = c.through(set_handler, PTR, handler)
    with c.when(c.null(before)):
        c.ret(I64(ERROR))
    made = _result(c, entry)
    mine = c.through(set_handler, PTR, before)
    c.decref(before)
    with c.when(~c.null(mine)):
        c.decref(mine)
    with c.when(c.null(made)):
        c.ret(I64(ERROR))

    def each(do: Any) -> None:
        with c.range(0, c.word(entry, w.ARGS)) as i:
            value = c.address(values, i)
            with c.when(~c.null(value)):
                do(value)

    each(c.incref)  # an argument may be donated meanwhile
    thread = c.api("PyEval_SaveThread")
    result = c.variable(PTR, c.field(made, HEAD)).slot
    facts = [c.address(spec, i) for i in (CONSTANTS, CALLBACK, COMMS)]
    program = c.address(spec, PROGRAM)
    failed = c.through(program, I32, pointers, result, NULL, *facts)
    c.api("PyEval_RestoreThread", thread)
    each(c.decref)
    with c.when(c.is_(c.b.icmp_signed("!=", failed, I32(0)))):
        c.decref(made)
        c.ret(I64(ERROR))
    c.store(made, out)
    c.ret(I64(DONE))


def _call(m: ir.Module) -> None:
    """call(entry, args, values, out) → how it went; DONE sets out[0] to the ndarray, or to what the
    entry's function returned instead."""
    c = Eager(m, "call", [PTR, PTR, PTR, PTR], result=I64)
    entry, args, values, out = c.args
    n, way = c.word(entry, w.INS), c.word(entry, w.WAY)
    held = c.variable(PTR, count=w.MAX_OPERANDS).slot

    def drop(count: Any) -> None:
        with c.range(0, count) as k:
            c.decref(c.address(held, k))

    with c.range(0, n) as i:
        operand = c.at(entry, c.word(entry, w.OPERANDS) + i * w.OPERAND_WORDS, I64)
        status = c.run("operand", operand, args, values, c.at(held, i, I64))
        with c.when(status.ne(DONE)):
            drop(i)
            c.ret(status)
    token = c.api("PyContextVar_Set", c.env("errors"), c.env("silent"))
    with c.when(c.null(token)):
        drop(n)
        c.ret(I64(ERROR))
    function = c.address(entry, w.FUNCTION)
    result = c.variable(PTR, c.api("PyObject_Vectorcall", function, held, n, NULL))
    error = [c.variable(PTR, NULL).slot for _ in range(3)]
    c.api("PyErr_Fetch", *error)
    c.api("PyContextVar_Reset", c.env("errors"), token)
    c.api("PyErr_Restore", *[c.load(e, PTR) for e in error])
    c.decref(token)
    drop(n)
    with c.when(c.null(result.get())):
        c.ret(I64(ERROR))
    with c.when(_has(c, way, w.LISTED)):
        item = c.api("PySequence_GetItem", result.get(), 0)
        c.decref(result.get())
        with c.when(c.null(item)):
            c.ret(I64(ERROR))
        result.set(item)
    c.store(result.get(), out)
    c.ret(I64(DONE))


def _has(c: Eager, way: Int, flag: int) -> Bool:
    return Int(c, c.b.and_(way.value, I64(flag))).ne(0)


def _wrap(m: ir.Module) -> None:
    """wrap(entry, value) → an Array of an ndarray, of which it takes the reference; null for an
    error. What isn't as the entry says is for its function `finish`."""
    c = Eager(m, "wrap", [PTR, PTR], result=PTR)
    entry, value = c.args
    plain = c.variable(I64, I64(0))
    with c.when(c.type_is(value, c.env("ndarray"))):
        right = c.same(c.field(value, HEAD + 40), c.address(entry, w.DTYPE))
        plain.set(c.b.zext(right.value, I64))
    with c.when(Int(c, plain.get()).eq(0)):
        array = c.api("PyObject_CallOneArg", c.address(entry, w.FINISH), value)
        c.decref(value)
        c.ret(array)
    array = c.api("PyType_GenericAlloc", c.env("Array"), 0)
    with c.when(c.null(array)):
        c.decref(value)
        c.ret(NULL)
    fields = {
        "weak_type": c.address(entry, w.WEAK), "aval": c.address(entry, w.AVAL),
        "gone": c.env("None"),
    }  # fmt: skip
    for name, obj in fields.items():
        c.incref(obj)
        c.set_field(obj, array, c.slot(name))
    c.set_field(value, array, c.slot("value"))
    c.ret(array)


def _types(m: ir.Module) -> None:
    """types() → the context's `types`, null under a transformation."""
    c = Eager(m, "types", [], result=PTR)
    found = c.variable(PTR)
    bad = c.api("PyContextVar_Get", c.env("variable"), NULL, found.slot)
    with c.when(c.is_(c.b.icmp_signed("<", bad, I32(0)))):
        c.api("PyErr_Clear")
        c.ret(NULL)
    context = found.get()
    c.decref(context)  # the thread's context holds it, and no Python runs here
    with c.when(~c.same(c.field(context, c.slot("trace")), c.env("root"))):
        c.ret(NULL)
    c.ret(c.field(context, c.slot("types")))


def _dispatch(m: ir.Module) -> None:
    """dispatch(bound, args, n, names) → the result; null for an error."""
    c = Eager(m, "dispatch", [PTR, PTR, I64, PTR], result=PTR)
    bound, args, given, names = c.args
    types = c.run("types")
    with c.when(c.null(types)):
        general = c.api("PyTuple_GetItem", bound, 2)
        c.ret(c.api("PyObject_Vectorcall", general, args, given, names))
    n = c.variable(I64, given)
    with c.when(~c.null(names)):
        n.set(given + c.api("PyTuple_Size", names))
    total = Int(c, n.get())
    values = c.variable(PTR, count=w.MAX_ARGS).slot
    found = c.variable(PTR, NULL)
    with c.when(total <= w.MAX_ARGS):
        table = c.api("PyTuple_GetItem", bound, 0)
        found.set(c.run("find", table, args, total, names, values, types))
    item = found.get()
    with c.when(~c.null(item)):
        c.incref(item)
        entry = c.api("PyBytes_AsString", c.api("PyTuple_GetItem", item, 0))
        status, out = c.variable(I64, I64(NOT_CONTIGUOUS)), c.variable(PTR, NULL)
        with c.when(~c.null(c.address(entry, w.LOOP))):
            status.set(c.run("loop", entry, args, values, out.slot))
        words = c.address(entry, w.KERNEL)
        with c.when(~c.null(words)), c.when(~c.null(c.address(words, 0))):
            status.set(c.run("kernel", entry, words, args, values, out.slot))
        with c.when(Int(c, status.get()).eq(NOT_CONTIGUOUS)):
            status.set(c.run("call", entry, args, values, out.slot))
        with c.when(Int(c, status.get()).eq(DONE)):
            array = c.run("wrap", entry, out.get())
            c.decref(item)
            c.ret(array)
        c.decref(item)
        with c.when(Int(c, status.get()).eq(ERROR)):
            c.ret(NULL)
    otherwise = c.api("PyTuple_GetItem", bound, 1)
    c.ret(c.api("PyObject_Vectorcall", otherwise, args, given, names))


def _entry_points(m: ir.Module) -> None:
    """What CPython calls."""
    c = Eager(m, "fg_eager", [PTR, PTR, I64, PTR], public=True, result=PTR)
    c.ret(c.run("dispatch", *c.args))
