"""The CPU backend: programs become machine code of this process through LLVM.

`BACKEND.compile` gives an `Executable`, a callable on numpy arrays: from disk (`saved`), or else by
planning the program and compiling its kernels and one host function (`build`), which is loaded only
then. Threads are set by `fg.set_num_threads` or the environment variable FUNCGRAD_NUM_THREADS, the
processor's level by FUNCGRAD_TARGET.

Whole programs:

- `build`: from a jaxpr to an executable
- `host`: a program as one native function: its steps in order
- `host_asks`: how that asks for signals
- `host_steps`: what it calls and writes to
- `host_run`: steps that run in Python
- `scratch_sizes`: what steps take of scratch memory
- `executable`: compiled programs as callables
- `saved`: whole programs on disk
- `identity`: what a program is, as a digest
- `standalone`: a program as objects for a linker

Packages, in the order of their layers:

- `native`: machine code: written, compiled, kept, loaded
- `runtime`: threads and memory of running programs
- `calls`: calls from Python without Python
- `vecmath`: elementary functions
- `gemm`: products and convolutions
- `attention`: attention
- `matrix`: decompositions of large matrices
- `sort`: sorts
- `routines`: host steps that generated code runs
- `emit`: kernels of the loop language as LLVM's IR

What programs are planned with:

- `cpu`: the processor as a target
- `kernels`: kernels that run through memory in an order of their own
- `rewrites`: program to program
- `drafts`: drafts of steps
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from funcgrad.backends.late import Late
from funcgrad.backends.llvm.native.caches import host_sizes
from funcgrad.backends.llvm.native.sources import linking
from funcgrad.backends.llvm.native.target import needs_llvm
from funcgrad.core import context
from funcgrad.core.ir import Jaxpr
from funcgrad.core.process import fork
from funcgrad.core.telemetry.events import record_event, record_event_duration_secs

if TYPE_CHECKING:
    from funcgrad.backends.llvm.calls.direct import Entry
    from funcgrad.backends.llvm.executable import Executable

# Not by the modules' own names, which importing them from here gives. Native eager calls come by
# here, too, and need none of them.
_direct = Late("funcgrad.backends.llvm.calls.direct")
_libllvm = Late("funcgrad.backends.llvm.native.libllvm")
_pool = Late("funcgrad.backends.llvm.runtime.pool")
_run_code = Late("funcgrad.backends.llvm.runtime.run_code")
_saved = Late("funcgrad.backends.llvm.saved")
_scratch = Late("funcgrad.backends.llvm.runtime.scratch")
_together = Late("funcgrad.backends.llvm.native.together")


_CACHE = "/funcgrad/compilation_cache"


class LLVMBackend:
    """The compiler for this processor."""

    name = "llvm"

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Executable:
        """Compile a program; a donated input's buffer may be written to."""
        if needs_llvm():
            _builder()
        key = _saved.key(jaxpr, donated)
        found = _kept(key, jaxpr, donated, name) if key else None
        if found is None:
            found = _builder().build(jaxpr, donated, name)
            if key:
                _saved.save(key, found)
        return found

    def caller(self, entries: Sequence[Entry]) -> Callable[[tuple, dict], Any]:
        """A fast function of (args, kwargs): the result of a call that is like one of the entries,
        NotImplemented for others."""
        return _direct.caller(entries)


def _kept(key: str, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Executable | None:
    """The program that is on disk under a key, if one is."""
    start = time.perf_counter()
    found = _saved.load(key, jaxpr, name, _parts(jaxpr, donated, name))
    record_event(f"{_CACHE}/compile_requests_use_cache")
    record_event(f"{_CACHE}/{'cache_misses' if found is None else 'cache_hits'}")
    if found is not None:
        seconds = time.perf_counter() - start
        record_event_duration_secs(f"{_CACHE}/cache_retrieval_time_sec", seconds)
    return found


@functools.cache
def _builder() -> Any:
    """What compiles. While Python loads it, a thread loads LLVM and has it compile what all
    programs need, or most: `native_run`, threads and scratch memory."""
    if _together.processors() > 1:
        # Now: a thread that reads small files waits for Python's lock after each.
        host_sizes()
        linking()
        # The system loads one library at a time, and LLVM's takes long.
        fork.import_module("mmap")
        fork.beside(_prepare)
    return fork.import_module("funcgrad.backends.llvm.build")


def _prepare() -> None:
    _libllvm.load()
    with contextlib.suppress(Exception):  # who needs it gets the error
        _run_code.native_run()
        _pool.parallel_for_address()
        _scratch.take_address()


def _parts(jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Callable[[], Any]:
    """What gives the parts of a program, as it would be built now."""
    # Without what was derived from the program, the executable among it.
    bare = Jaxpr(jaxpr.ins, jaxpr.eqns, jaxpr.outs, jaxpr.names)
    now = context.current()
    settings = {f: getattr(now, f) for f in ("axes", "manual", "float_dtype", "int_dtype")}

    @functools.cache
    def parts() -> Any:
        with context.scoped(**settings):
            return _builder().built(bare, donated, name)

    return parts


BACKEND = LLVMBackend()
