"""The CPU backend: programs become machine code of this process through LLVM.

`BACKEND.compile` gives an `Executable`, a callable on numpy arrays: from disk (`saved`), or else by
planning the program and compiling its kernels and one host function (`build`), which is loaded only
then. Threads are set by `fg.set_num_threads` or the environment variable FUNCGRAD_NUM_THREADS, the
processor's level by FUNCGRAD_TARGET.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.backends.llvm import direct, saved
from funcgrad.backends.llvm.executable import Executable
from funcgrad.core import context
from funcgrad.core.ir import Jaxpr


class LLVMBackend:
    """The compiler for this processor."""

    name = "llvm"

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Executable:
        """Compile a program; a donated input's buffer may be written to."""
        key = saved.key(jaxpr, donated)
        found = saved.load(key, jaxpr, name, _parts(jaxpr, donated, name)) if key else None
        if found is None:
            found = _builder().build(jaxpr, donated, name)
            if key:
                saved.save(key, found)
        return found

    def caller(self, entries: Sequence[direct.Entry]) -> Callable[[tuple, dict], Any]:
        """A fast function of (args, kwargs): the result of a call that is like one of the entries,
        NotImplemented for others."""
        return direct.caller(entries)


def _builder() -> Any:
    return importlib.import_module("funcgrad.backends.llvm.build")


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
