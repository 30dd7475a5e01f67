"""The CPU backend: programs become machine code of this process through LLVM.

`BACKEND.compile` plans a jaxpr (`backends.plan`), compiles its kernels and one host function, and
gives an `Executable`, a callable on numpy arrays. Threads are set by `fg.set_num_threads` or the
environment variable FUNCGRAD_NUM_THREADS, the processor's level by FUNCGRAD_TARGET.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.backends.llvm import direct
from funcgrad.backends.llvm.executable import Executable
from funcgrad.backends.plan import plan
from funcgrad.core.ir import Jaxpr


class LLVMBackend:
    """The compiler for this processor."""

    name = "llvm"

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Executable:
        """Compile a program; a donated input's buffer may be written to."""
        start = time.perf_counter()
        program = plan(jaxpr, donated, name)
        return Executable(program, time.perf_counter() - start)

    def caller(self, entries: Sequence[direct.Entry]) -> Callable[[tuple, dict], Any]:
        """A fast function of (args, kwargs): the result of a call that is like one of the entries,
        NotImplemented for others."""
        return direct.caller(entries)


BACKEND = LLVMBackend()
