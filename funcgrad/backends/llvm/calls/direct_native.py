"""How the native code of direct calls is written: functions on Python objects and words."""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.calls.direct_words import ENV, HEAD
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, VOID, Bool, Code, Int, declare

API = {
    "Py_IncRef": (VOID, [PTR]),
    "Py_DecRef": (VOID, [PTR]),
    "PyTuple_Size": (I64, [PTR]),
    "PyTuple_GetItem": (PTR, [PTR, I64]),
    "PyTuple_SetItem": (I32, [PTR, I64, PTR]),
    "PyTuple_New": (PTR, [I64]),
    "PyList_Size": (I64, [PTR]),
    "PyList_GetItem": (PTR, [PTR, I64]),
    "PyList_SetItem": (I32, [PTR, I64, PTR]),
    "PyList_New": (PTR, [I64]),
    "PyDict_Size": (I64, [PTR]),
    "PyDict_Next": (I32, [PTR, PTR, PTR, PTR]),
    "PyDict_GetItemWithError": (PTR, [PTR, PTR]),
    "PyDict_SetItem": (I32, [PTR, PTR, PTR]),
    "PyDict_New": (PTR, []),
    "PyBytes_AsString": (PTR, [PTR]),
    "PyFloat_AsDouble": (ir.DoubleType(), [PTR]),
    "PyLong_AsLongLongAndOverflow": (I64, [PTR, PTR]),
    "PyLong_FromLong": (PTR, [I64]),
    "PyObject_CallOneArg": (PTR, [PTR, PTR]),
    "PyErr_Clear": (VOID, []),
    "PyType_GenericAlloc": (PTR, [PTR, I64]),
    "PyObject_RichCompareBool": (I32, [PTR, PTR, I32]),
    "PySequence_GetItem": (PTR, [PTR, I64]),
    "PyObject_Vectorcall": (PTR, [PTR, PTR, I64, PTR]),
    "PyErr_Fetch": (VOID, [PTR, PTR, PTR]),
    "PyErr_Restore": (VOID, [PTR, PTR, PTR]),
    "PyContextVar_Get": (I32, [PTR, PTR, PTR]),
    "PyContextVar_Set": (PTR, [PTR, PTR]),
    "PyContextVar_Reset": (I32, [PTR, PTR]),
    "PyEval_SaveThread": (PTR, []),
    "PyEval_RestoreThread": (VOID, [PTR]),
    "memcpy": (PTR, [PTR, PTR, I64]),
    "memset": (PTR, [PTR, I32, I64]),
    "fg_memory_take": (PTR, [PTR, I64]),
    "fg_memory_give": (VOID, [PTR, PTR, I64]),
}
NULL = ir.Constant(PTR, None)


class Native(Code):
    """A function that speaks of Python objects and of words.

    env_names: the facts of the process that the module's words `fg_env` hold
    """

    env_names: tuple[str, ...] = ENV

    def word(self, pointer: Any, i: Any) -> Int:
        """The word numbered `i` behind a pointer."""
        return self.load(self.at(pointer, i, I64), I64)

    def address(self, pointer: Any, i: Any) -> ir.Value:
        """The pointer stored as the word numbered `i` behind a pointer."""
        return self.load(self.at(pointer, i, I64), PTR)

    def put(self, value: Any, pointer: Any, i: Any) -> None:
        """Store a value as the word numbered `i` behind a pointer."""
        self.store(value, self.at(pointer, i, I64))

    def field(self, obj: Any, offset: Any, type_: ir.Type = PTR) -> Any:
        """What is stored at an offset in bytes."""
        return self.load(self.at(obj, offset, ir.IntType(8)), type_)

    def set_field(self, value: Any, obj: Any, offset: Any) -> None:
        """Store a value at an offset in bytes."""
        self.store(value, self.at(obj, offset, ir.IntType(8)))

    def env(self, name: str) -> ir.Value:
        """The pointer among the facts of the process that has this name."""
        return self.address(self.module.globals["fg_env"], self.env_names.index(name))

    def slot(self, name: str) -> Int:
        """The offset of a slot of Array."""
        return self.word(self.module.globals["fg_env"], self.env_names.index(name))

    def api(self, name: str, *args: Any) -> Any:
        """The result of a function of `API`."""
        result, kinds = API[name]
        function = declare(self.module, name, ir.FunctionType(result, kinds))
        out = self.call(function, *args)
        return Int(self, out) if result == I64 else out

    def through(self, pointer: Any, returns: ir.Type, *args: Any) -> ir.Value:
        """The result of a function that is known by its address."""
        values = [a.value if isinstance(a, Int) else a for a in args]
        kind = ir.FunctionType(returns, [v.type for v in values])
        return self.b.call(ir.Called(pointer, kind), values)

    def same(self, a: Any, b: Any) -> Any:
        """Whether two words or pointers are equal."""
        return self.is_(self.b.icmp_unsigned("==", a, b))

    def is_(self, value: ir.Value) -> Bool:
        """An i1 as a condition."""
        return Bool(self, value)

    def null(self, pointer: Any) -> Any:
        """Whether a pointer is null."""
        return self.same(pointer, NULL)

    def type_is(self, obj: Any, cls: Any) -> Any:
        """Whether an object's type is this one, and none derived from it."""
        return self.same(self.field(obj, HEAD - 8), cls)

    def incref(self, obj: Any) -> None:
        """Count a reference more to an object."""
        self.api("Py_IncRef", obj)

    def decref(self, obj: Any) -> None:
        """Count a reference less, which frees an object that has none."""
        self.api("Py_DecRef", obj)

    def fn(self, name: str) -> ir.Function:
        """A function of the module by its name."""
        return self.module.globals[name]

    def run(self, name: str, *args: Any) -> Any:
        """The result of one of the module's functions."""
        out = self.call(self.fn(name), *args)
        return Int(self, out) if out.type == I64 else out
