"""What native communicators have in common: their context, and the exchange's beginning and end.

A communicator's context (`CONTEXT`, 64-bit words) begins with the functions that programs call.
An exchange begins by being written down, in the rank's *record*: a ring of the latest ones in
memory that the other ranks of the node see, from which a watchdog tells who waits for whom.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from funcgrad.backends.llvm.gemm import pack as gemm_pack
from funcgrad.backends.llvm.native import code as native_code
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Bool, Code, Int, Record, declare
from funcgrad.backends.llvm.routines import copies
from funcgrad.backends.llvm.runtime import run_code
from funcgrad.backends.rewrites import exchanges
from funcgrad.backends.rewrites.exchanges import DESCRIPTOR, DTYPES, KINDS, OPS, WIDER
from funcgrad.errors import CollectiveError
from funcgrad.parallel.communicators import fold
from funcgrad.parallel.communicators.communicator import Communicator, Pairs

CONTEXT = (
    *KINDS, "rank", "size", "barrier",
    # How many exchanges there were, and the record they are written to.
    "sequence", "record", "number", "failed",
    # Shared memory: the window's head, lines and slots; whose turn the halves of a slot have.
    "head", "lines", "slots", "slot_bytes", "parity", "epoch", "spins", "yields",
    # MPI: handles, and the largest message.
    "comm", "byte", "in_place", "types", "ops", "chunk", "small",
    # Nodes: the contexts of the ranks of this node, and of those with the same place on others.
    "local", "across",
)  # fmt: skip
BARRIER = len(KINDS)
# What an exchange returns: 1 where it ended with an exception of Python, by a signal.
RAISED, DISAGREE, ABORTED, UNKNOWN, MPI_FAILED = 1, 2, 3, 4, 5

# A record's words, in front of the ring of events and in each event.
RECORD = ("total", "inside", "ended")
EVENT = ("number", "sequence", "what", "count", "since")
RING, EVENT_WORDS, HEAD_WORDS = 64, 8, 8
RECORD_BYTES = 8 * (HEAD_WORDS + RING * EVENT_WORDS)


# What ranks wait for beside exchanges, by the number of their kind.
WAITS = ("barrier", "making a communicator", "agreeing on a value", "a message")


def what_word(kind: int, op: int, dtype: int) -> int:
    """Kind, op and dtype of an exchange in one word."""
    return kind | op << 8 | dtype << 16


def what_text(word: int, count: int) -> str:
    """An exchange as people read it.

    >>> what_text(what_word(0, 1, DTYPES.index(np.dtype("float32"))), 10)
    'all_reduce max float32[10]'
    """
    kind, op, dtype = word & 255, word >> 8 & 255, word >> 16 & 255
    if kind >= BARRIER:
        return WAITS[kind - BARRIER]
    how = f" {OPS[op]}" if "reduce" in KINDS[kind] else ""
    return f"{KINDS[kind]}{how} {DTYPES[dtype].name}[{count}]"


def source_key(module: ModuleType) -> str:
    """What the code that a module writes depends on, beside the target: the sources."""
    modules = (module, fold, copies, native_code, gemm_pack, exchanges, sys.modules[__name__])
    sources = b"".join(Path(str(m.__file__)).read_bytes() for m in modules)
    return hashlib.sha256(sources).hexdigest()


class Writer:
    """Functions `i32 (ptr context, ptr descriptor)` of a module, and what they are made of."""

    def __init__(self, module: ir.Module, prefix: str):
        self.module, self.prefix = module, prefix

    def begin(self, name: str, public: bool = True) -> Exchange:
        """A function to be written."""
        args = [PTR, PTR]
        code = Code(self.module, f"{self.prefix}_{name}", args, public, result=I32)
        return Exchange(code)


class Exchange:
    """A function being written, with its context, its descriptor and pointers in bytes."""

    def __init__(self, code: Code):
        self.code = code
        self.context = Record(code, CONTEXT, code.args[0])
        self.wanted = Record(code, DESCRIPTOR, code.args[1])
        self.ctx, self.descriptor = code.args

    def load_all(self) -> None:
        """Read what every exchange needs."""
        self.rank, self.size = self.context["rank"], self.context["size"]
        self.count, self.width = self.wanted["count"], self.wanted["width"]
        self.source, self.to = self.wanted.pointer_at("source"), self.wanted.pointer_at("to")

    def at(self, pointer: ir.Value, nbytes: Any) -> ir.Value:
        """The pointer so many bytes further on."""
        return self.code.at(pointer, nbytes, ir.IntType(8))

    def copy(self, to: ir.Value, source: ir.Value, nbytes: Int) -> None:
        """Copy bytes; the ranges must not overlap."""
        kind = ir.FunctionType(PTR, [PTR, PTR, I64])
        memcpy = declare(self.code.module, "memcpy", kind)
        self.code.b.call(memcpy, [to, source, nbytes.value])

    def clear(self, to: ir.Value, nbytes: Int) -> None:
        """Set bytes to 0."""
        kind = ir.FunctionType(PTR, [PTR, I32, I64])
        memset = declare(self.code.module, "memset", kind)
        self.code.b.call(memset, [to, I32(0), nbytes.value])

    def give_up_unless(self, status: ir.Value) -> None:
        """Return a status other than 0."""
        with self.code.when(Bool(self.code, self.code.b.icmp_signed("!=", status, I32(0)))):
            self.leave()
            self.code.b.ret(status)

    def call(self, function: ir.Function, *args: Any) -> ir.Value:
        """The result of a function, called here."""
        return self.code.call(function, *args)

    def table(self, count: int | Int) -> ir.Value:
        """Room for pointers, in the frame."""
        b = self.code.b
        slot = b.alloca(PTR, self.code.i64(count).value)
        return slot

    # ---- the record

    def enter(self, kind: int | None = None) -> None:
        """Count the exchange and write it down; a barrier has no descriptor."""
        code, context = self.code, self.context
        sequence = context["sequence"] + 1
        context["sequence"] = sequence
        if kind is None:
            wanted = self.wanted
            self.what = self.packed(wanted["kind"], wanted["op"], wanted["dtype"])
            self.number_of = wanted["count"]
        else:
            self.what, self.number_of = code.i64(kind), code.i64(0)
        self.sequence = sequence
        record = context.pointer_at("record")
        with code.when(self.nonnull(record)):
            head = Record(code, RECORD, record)
            total = head["total"]
            place = total % RING * EVENT_WORDS + HEAD_WORDS
            event = Record(code, EVENT, code.at(record, place, I64))
            event["number"], event["sequence"] = context["number"], sequence
            event["what"], event["count"] = self.what, self.number_of
            event["since"] = self.now()
            head["inside"] = 1
            head["total"] = total + 1

    def packed(self, kind: Int, op: Int, dtype: Int) -> Int:
        """A word that says what an exchange does, as `what_text` reads it."""
        return kind + op * 256 + dtype * 65536

    def leave(self) -> None:
        """Write down that the exchange is over."""
        record = self.context.pointer_at("record")
        with self.code.when(self.nonnull(record)):
            Record(self.code, RECORD, record)["inside"] = 0

    def done(self) -> None:
        """The end of the function, all well."""
        self.leave()
        self.code.b.ret(I32(0))

    def nonnull(self, pointer: ir.Value) -> Bool:
        """Whether a pointer points anywhere."""
        code = self.code
        return Bool(code, code.b.icmp_unsigned("!=", pointer, ir.Constant(PTR, None)))

    def now(self) -> Int:
        """Nanoseconds of a clock that the processes of a node share."""
        code = self.code
        kind = ir.FunctionType(I32, [I32, PTR])
        clock = declare(code.module, "clock_gettime", kind)
        place = code.variable(I64, None, 2).slot
        code.b.call(clock, [I32(1), place])
        return code.load(place, I64) * 1_000_000_000 + code.load(code.at(place, 1, I64), I64)


class NativeCommunicator(Communicator[np.ndarray]):
    """A communicator whose exchanges are native functions; the methods call them."""

    def __init__(self, rank: int, size: int, functions: Sequence[int], **words: int):
        self.rank, self.size = rank, size
        # Queues of messages, made when the first one is sent, the number of the run of a program
        # that sends them, and what is on its way by MPI (`mail`).
        self.mail: dict[Any, Any] = {}
        self.run = 0
        self.flying: list[tuple[Any, np.ndarray]] = []
        self._context = (ctypes.c_int64 * len(CONTEXT))()
        self._functions = list(functions)
        named = dict(zip(KINDS, functions, strict=False))
        self.set_words(**named, barrier=functions[BARRIER], rank=rank, size=size, **words)

    def set_words(self, **words: int) -> None:
        """Write words of the context."""
        for name, value in words.items():
            self._context[CONTEXT.index(name)] = value

    def word(self, name: str) -> int:
        """A word of the context."""
        return self._context[CONTEXT.index(name)]

    @property
    def address(self) -> int:
        """The address of the native context."""
        return ctypes.addressof(self._context)

    def failure(self, what: str) -> BaseException:
        """The exception for what has just failed."""
        return CollectiveError(f"{what}: {self.reason(self.word('failed'))}")

    def reason(self, status: int) -> str:
        """Why an exchange failed."""
        return {
            ABORTED: "another rank failed before",
            UNKNOWN: "numbers of this dtype can't be combined so",
        }.get(status, f"it failed with status {status}")

    # ---- numpy arrays

    def all_reduce(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        """The sum ("max", "min") of all ranks' x, on all ranks."""
        if x.dtype.kind == "c" and op != "sum":
            return getattr(self.all_gather(x), op)(axis=0)
        wide = np.ascontiguousarray(x, WIDER.get(x.dtype, x.dtype))
        out = self._exchange("all_reduce", op, wide, np.empty_like(wide), x.size)
        return out.astype(x.dtype, copy=False).reshape(x.shape)

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """All ranks' x, stacked along a new first axis, on all ranks."""
        out = np.empty((self.size, *x.shape), x.dtype)
        return self._exchange("all_gather", "sum", x, out, x.size)

    def reduce_scatter(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        """Row `rank` of the sum of all ranks' x, which have a row for each rank."""
        self.check_rows("reduce_scatter", x)
        if x.dtype.kind == "c" and op != "sum":
            return getattr(self.all_to_all(x), op)(axis=0)
        wide = np.ascontiguousarray(x, WIDER.get(x.dtype, x.dtype))
        out = np.empty(x.shape[1:], wide.dtype)
        return self._exchange("reduce_scatter", op, wide, out, out.size).astype(x.dtype, copy=False)

    def all_to_all(self, x: np.ndarray) -> np.ndarray:
        """Row j of rank i's x becomes row i of rank j's result."""
        self.check_rows("all_to_all", x)
        return self._exchange("all_to_all", "sum", x, np.empty(x.shape, x.dtype), x[0].size)

    def permute(self, x: np.ndarray, perm: Pairs) -> np.ndarray:
        """x sent along pairs (from, to) of ranks; zeros for who receives nothing."""
        words = (ctypes.c_int64 * (2 * self.size))(*[-1] * (2 * self.size))
        for a, b in perm:
            words[2 * a], words[2 * b + 1] = b, a
        out = np.empty(x.shape, x.dtype)
        return self._exchange("permute", "sum", x, out, x.size, ctypes.addressof(words))

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._check(run_code.released(self._functions[BARRIER], self.address, 0), "barrier")

    def _exchange(
        self, kind: str, op: str, x: np.ndarray, out: np.ndarray, count: int, perm: int = 0
    ) -> np.ndarray:
        if not max(x.size, out.size):
            return out
        x = np.ascontiguousarray(x)
        words = {
            "kind": KINDS.index(kind), "op": OPS.index(op), "dtype": DTYPES.index(x.dtype),
            "width": x.dtype.itemsize, "count": count, "source": x.ctypes.data,
            "to": out.ctypes.data, "perm": perm,
        }  # fmt: skip
        descriptor = (ctypes.c_int64 * len(DESCRIPTOR))(*[words[w] for w in DESCRIPTOR])
        function = self._functions[KINDS.index(kind)]
        status = run_code.released(function, self.address, ctypes.addressof(descriptor))
        self._check(status, f"{kind} of {x.dtype.name}[{max(x.size, out.size)}]")
        return out

    def _check(self, status: int, what: str) -> None:
        if status:
            raise self.failure(what)
