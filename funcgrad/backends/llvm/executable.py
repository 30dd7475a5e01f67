"""Compiled programs as Python callables: one native call that takes lists of numpy arrays.

What a call needs are `Facts` and a library, which come from `build` or from disk (`saved`). A
program that came from disk is planned when somebody asks what is in it.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.native.engine import Library
from funcgrad.backends.llvm.runtime.run_code import EXCHANGE, EXHAUSTED, ODD, native_run
from funcgrad.core.aval import ShapedArray
from funcgrad.core.backend import Call, MemoryAnalysis
from funcgrad.core.display.compile_report import CompileStage
from funcgrad.core.eager import aligned
from funcgrad.core.eager.large import LARGE
from funcgrad.core.record import Record
from funcgrad.errors import CompileError

_DIRECT = "funcgrad.backends.llvm.calls.direct"

if TYPE_CHECKING:
    from funcgrad.backends.llvm.build import Built
    from funcgrad.backends.llvm.calls.direct import Entry
    from funcgrad.backends.program import Comm, Program

direct = Late(_DIRECT)
memory = Late("funcgrad.backends.llvm.runtime.memory")
scratch_sizes = Late("funcgrad.backends.llvm.scratch_sizes")

ENTRY = "fg_program"

_calls = itertools.count()

empty = np.empty
_PLACES = ctypes.c_void_p * (1 << 16)  # of a step's arrays, which are fewer
_ALIGNED_FROM = 1 << 16  # bytes of a result from which that is worth another allocator's time


class Facts(Record):
    """What calls need to know of a planned program.

    written: the inputs that it writes to, donated ones that become results among them
    aliases: output number → input number, where a result lives in a donated input
    short: whether it is over before other Python threads could make use of the time
    """

    name: str
    ins: tuple[ShapedArray, ...]
    outs: tuple[ShapedArray, ...]
    arena_bytes: int
    constants: tuple[np.ndarray, ...]
    aliases: dict[int, int]
    written: tuple[int, ...]
    comms: tuple[Comm, ...]
    short: bool


class Executable:
    """A planned program in machine code; calls may overlap in time, unless it exchanges data with
    other devices. Then it runs after `bind`.

    parts: gives what the program is made of
    calls_back: whether some of its steps run in Python
    aligned: whether its results are to begin where a line of the caches does
    spec_address: where the words are by which native code runs it
    """

    texts = ("loops", "llvm")

    def __init__(
        self,
        facts: Facts,
        library: Library,
        stages: Sequence[CompileStage],
        parts: Callable[[], Built],
        calls_back: bool = False,
    ):
        self.facts = facts
        self.library = library
        self._stages = list(stages)
        self._parts = parts
        self.calls_back = calls_back
        self._constants = [np.require(c, requirements=("C", "A")) for c in facts.constants]
        self._dtypes = [a.dtype for a in facts.ins]
        self._outs = [(a.shape, a.dtype) for a in facts.outs]
        self._large = any(a.nbytes >= LARGE for a in facts.outs)
        self.aligned = any(a.nbytes >= _ALIGNED_FROM for a in facts.outs)
        results = {i: o for o, i in facts.aliases.items()}
        self._written = [(i, results.get(i)) for i in facts.written]
        self._run = self._unbound if facts.comms else native_run()
        self._communicators: Callable[[tuple], Any] | None = None
        self._comms: list[Any] = []
        self._is_new = True
        self._set_spec()

    @property
    def program(self) -> Program:
        """The planned program."""
        return self._parts().program

    def bind(self, communicators: Callable[[tuple], Any]) -> Executable:
        """The program whose collectives go through these communicators: communicators(axis names)
        gives the one over named axes. Each is asked for once, in an order that is the same on all
        ranks. Raises ValueError if one has another size than the program was compiled for."""
        bound = copy.copy(self)
        bound._communicators = communicators
        bound._comms = [communicators(c.axes) for c in self.facts.comms]
        for need, comm in zip(self.facts.comms, bound._comms, strict=True):
            if comm.size != need.size:
                raise ValueError(
                    f"{self.facts.name} was compiled for {need.size} devices over {need.axes}, "
                    f"its communicator has {comm.size}"
                )
        bound._run = native_run()
        bound._set_spec()
        return bound

    def _unbound(self, values: list, results: list, spec: int) -> int:
        axes = ", ".join(str(c.axes) for c in self.facts.comms)
        raise CompileError(
            f"{self.facts.name} exchanges data over the axes {axes}: bind communicators to it "
            "before it is called (Executable.bind)"
        )

    def _set_spec(self) -> None:
        self._spec = self._make_spec()
        self.spec_address = ctypes.addressof(self._spec)

    def _make_spec(self) -> Any:
        program = self.library.address(ENTRY)
        pointers = [c.ctypes.data for c in self._constants]
        self._constant_table = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        self._callback = self._call_back  # the object whose address native code has
        words = [len(self._dtypes), len(self._outs), program]
        words += [ctypes.addressof(self._constant_table), id(self._callback)]
        contexts = [c.address for c in self._comms]
        self._contexts = (ctypes.c_void_p * max(1, len(contexts)))(*contexts)
        words += [self.facts.arena_bytes, ctypes.addressof(self._contexts)]
        kept = memory.allocator() if self.facts.arena_bytes else None
        words += [kept.take, kept.give] if kept else [0, 0]
        words += [id(d) for d in self._dtypes]
        return (ctypes.c_int64 * len(words))(*words)

    def direct(self, call: Call) -> Entry | None:
        """An entry of `direct.caller`: calls like this one; None if they can't do without Python,
        NotImplemented if they can't yet.

        Other threads may use Python while the program runs, unless it is over before they could.
        """
        calls, first = next(_calls), self._is_new
        self._is_new = False
        if first and _DIRECT not in sys.modules:  # it may be the program's only call
            return NotImplemented
        return direct.entry(self, call, not self.facts.short, calls)

    def __call__(self, values: Sequence[Any], began: list | None = None) -> list[np.ndarray]:
        """Run the program on arrays of its inputs' types."""
        if type(values) is not list:
            values = list(values)
        if not self.aligned:
            results = [empty(*s) for s in self._outs]
        else:
            results = (memory.large_arrays if self._large else aligned.arrays)(self._outs)
        if self._written:
            values = self._donated(values, results)
        if began is not None:
            began.append(self)
        status = self._run(values, results, self.spec_address)
        if status == ODD:
            values = self._plain(values)
            status = self._run(values, results, self.spec_address)
        if status == EXHAUSTED and began:
            began.clear()
        if status:
            self._fail(status)
        return results

    def _donated(self, values: list, results: list) -> list:
        """Donated arrays that the program writes to: themselves where nobody else holds them, else
        copies; those that become results are put among them."""
        values = list(values)
        for i, out in self._written:
            x, aval = values[i], self.facts.ins[i]
            # Beside this list there are `x`, the caller's list, and the Array that was donated.
            mine = type(x) is np.ndarray and _references(values, i) <= _LISTED + 3
            if not (mine and x.flags.carray and x.flags.owndata and x.dtype is aval.dtype):
                copy = results[out] if out is not None else empty(aval.shape, aval.dtype)
                copy[...] = x
                x = copy
            values[i] = x
            if out is not None:
                results[out] = x
        return values

    def _plain(self, values: list) -> list:
        """The same arrays as the native code needs them: contiguous, aligned, in native order."""
        if len(values) != len(self._dtypes):
            raise TypeError(
                f"{self.facts.name} takes {len(self._dtypes)} arrays, got {len(values)}"
            )
        out = []
        for v, aval in zip(values, self.facts.ins, strict=True):
            if type(v) is np.ndarray and v.dtype is aval.dtype and v.flags.aligned:
                x = v if v.flags.c_contiguous else np.ascontiguousarray(v)
            else:
                x = np.require(v, aval.dtype, ("C", "A"))
            if x.shape != aval.shape:
                raise TypeError(f"{self.facts.name} takes {aval}, got shape {x.shape}")
            if type(x) is not np.ndarray or x.dtype is not aval.dtype:
                # Equal dtypes need not be one object.
                x = np.asarray(x).view(np.ndarray).view(aval.dtype)
            out.append(x)
        return out

    def _call_back(self, number: int, pointers: int) -> None:
        self._parts().run_step(number, _PLACES.from_address(pointers), self._communicators)

    def _fail(self, status: int) -> None:
        name = self.facts.name
        if status >= EXCHANGE:
            comm, what = self._parts().exchange_text(status - EXCHANGE)
            raise self._comms[comm].failure(f"{what} over {self.facts.comms[comm].axes} in {name}")
        if status == EXHAUSTED:
            raise MemoryError(f"no room for the {self.facts.arena_bytes} temporary bytes of {name}")
        raise CompileError(f"the compiled {name} ended with status {status}")

    # ---- inspection

    def as_text(self, stage: str) -> str:
        """The planned program ("loops"), its optimized LLVM IR ("llvm"), its assembly ("asm")."""
        return self._parts().as_text(stage)

    def compile_stages(self) -> list[CompileStage]:
        """Planning; kernels and products; what is left of the host function after them."""
        return self._stages

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and bytes moved by one call; with collectives also the bytes of
        all ("collective bytes"), and of each kind its number and bytes ("all_reduce bytes")."""
        p = self.program
        moved = {"flops": p.flops, "bytes accessed": p.bytes_moved}
        if p.traffic:
            moved["collective bytes"] = sum(n for k, n in p.traffic.items() if k.endswith("bytes"))
        return moved | p.traffic

    def memory_analysis(self) -> MemoryAnalysis:
        """Bytes of arguments, results, what they share, constants and temporaries, and which these
        are when they are most; and of the memory that bands of rows, products by tiles and
        attention take beside them, of one step at a time, with as many threads as there are now."""
        p = self.program
        scratch = scratch_sizes.scratch_of(p)
        sizes = {
            "argument_size_in_bytes": sum(a.nbytes for a in p.ins),
            "output_size_in_bytes": sum(a.nbytes for a in p.outs),
            "alias_size_in_bytes": sum(p.outs[o].nbytes for o in p.aliases),
            "constant_size_in_bytes": sum(c.nbytes for c in p.constants),
            "temp_size_in_bytes": p.arena_bytes,
            "scratch_size_in_bytes": max((size for size, _, _ in scratch), default=0),
        }
        return MemoryAnalysis(sizes, p.peak, scratch)

    def __repr__(self) -> str:
        return f"Executable({self.facts.name})"


def _references(values: list, i: int) -> int:
    """The reference count of a list's element, and what reading it adds."""
    return sys.getrefcount(values[i])


_LISTED = _references([np.empty(0)], 0)
