"""From a jaxpr to an executable: simplify, plan, compile the kernels and the host function.

Loaded when a program isn't on disk, or when somebody asks what is in one.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.backends.llvm import cpu
from funcgrad.backends.llvm.emit.kernels import KernelCache, merge
from funcgrad.backends.llvm.executable import ENTRY, Executable, Facts
from funcgrad.backends.llvm.host import emit_host
from funcgrad.backends.llvm.host_steps import exchange_steps, host_steps, needs, written_inputs
from funcgrad.backends.llvm.native.engine import Engine, Library, engine
from funcgrad.backends.llvm.native.later import soon
from funcgrad.backends.llvm.native.together import Together
from funcgrad.backends.loops.ir import Kernel
from funcgrad.backends.plan import plan
from funcgrad.backends.program import (
    CopyStep,
    GemmStep,
    KernelStep,
    LoopStep,
    Program,
    Step,
    View,
    WhileStep,
    blocks,
    walk,
)
from funcgrad.backends.program_text import program_text
from funcgrad.core import caches, context
from funcgrad.core.display.compile_report import CompileStage
from funcgrad.core.ir import Jaxpr
from funcgrad.core.process import fork
from funcgrad.errors import CompileError
from funcgrad.transforms.passes.simplify import simplify

host_run = Late("funcgrad.backends.llvm.host_run")
gemm_steps = Late("funcgrad.backends.llvm.gemm.steps")
memory = Late("funcgrad.backends.llvm.runtime.memory")

_SHORT = 20_000  # operations and bytes, in some microseconds
_MANY_TURNS = 8
_BRIEF = 10_000_000  # operations and bytes, in milliseconds by code that isn't optimized

_lock = fork.lock()
_cache: KernelCache | None = None


def kernel_cache() -> KernelCache:
    """The compiled kernels of this processor."""
    global _cache
    with _lock:
        if _cache is None:
            _cache = KernelCache(engine())
        return _cache


@caches.forgotten_by
def _forget() -> None:
    if _cache is not None:
        _cache.forget()


def build(jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Executable:
    """Compile a program.

    >>> import funcgrad as fg
    >>> run = build(fg.make_jaxpr(lambda x: x * 2)(1.0).jaxpr, [False], "f")
    >>> run([np.float32(4)])
    [array(8., dtype=float32)]
    """
    return built(jaxpr, donated, name).executable()


def built(jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> Built:
    """The parts of a program's executable."""
    start = time.perf_counter()
    program = plan(simplify(jaxpr), donated, name, cpu.CPU)
    return Built(program, time.perf_counter() - start)


def assemble(program: Program) -> Executable:
    """Compile a planned program."""
    return Built(program).executable()


class Built:
    """A planned program, the code of its kernels and of its host function."""

    def __init__(self, program: Program, planned: float = 0.0):
        self.program = program
        times = [time.perf_counter() - planned, time.perf_counter()]
        cache = kernel_cache()
        ready: list[float] = []
        # (Turns of a parallel loop are long.)
        repeats = any(
            isinstance(s, WhileStep) or (isinstance(s, LoopStep) and not s.parallel)
            for s in walk(program.steps)
        )
        with Together() as work:
            brief = program.flops + program.bytes_moved < _BRIEF
            tasks = [work.add(partial(soon, x, brief)) for x in needs(program)]
            natives, compiled, own = cache.compile(
                program.kernels(), work, not repeats, set(_often(program.steps)), brief
            )
            if program.arena_bytes and cache.engine.target.runs_here:
                work.add(lambda: memory.allocator())

            def links() -> dict[str, Library]:
                found = compiled()
                for task in tasks:
                    task.wait()
                ready.append(time.perf_counter())
                return found

            text = merge([*own, emit_host(program, natives, ENTRY)])
            work.add(partial(self._compile_host, cache.engine, text, repeats, links))
        if brief:
            cache.engine.later.begin()
        else:
            cache.engine.later.settle(self.library)
        end = time.perf_counter()
        self._times = [*times, (ready or [end])[0], end]
        self._asks = any(n.asks for n in natives.values())
        self.kernels = list(dict.fromkeys(compiled().values()))
        self.host_steps = host_steps(program.steps)

    def _compile_host(
        self, target: Engine, text: str, repeats: bool, links: Callable[[], dict[str, Library]]
    ) -> None:
        # Without loops it runs once a call: calls of kernels, whose time is theirs.
        self.library = target.compile(text, level=int(repeats), links=links)

    def executable(self) -> Executable:
        """The program as a callable."""
        target = engine().target
        if not target.runs_here:
            raise CompileError(f"FUNCGRAD_TARGET is {target.triple}, whose code can't be run here")
        back = bool(self.host_steps)
        return Executable(self.facts(), self.library, self.stages(), lambda: self, back)

    def facts(self) -> Facts:
        """What calls need to know."""
        p = self.program
        plain = all(isinstance(s, KernelStep | CopyStep) for s in p.steps) and not self._asks
        short = plain and p.flops + p.bytes_moved < _SHORT
        written = sorted(written_inputs(p.steps) | set(p.aliases.values()))
        return Facts(
            p.name, p.ins, p.outs, p.arena_bytes, p.constants, p.aliases, tuple(written), p.comms,
            short,
        )  # fmt: skip

    def stages(self) -> list[CompileStage]:
        """Planning; kernels and products; what is left of the host function after them."""
        t, p = self._times, self.program
        counts = collections.Counter(
            "held already" if x.made < t[1] else "found on disk" if x.from_disk else "compiled"
            for x in self.kernels
        )
        modules = ", ".join(f"{n} {how}" for how, n in sorted(counts.items())) or "none"
        products = [gemm_steps.product_kind(s) for s in walk(p.steps) if isinstance(s, GemmStep)]
        kinds = dict.fromkeys(" ".join(filter(None, (d, way))) for d, _, way in products)
        ways = ", ".join(kinds)
        found = "found on disk" if self.library.from_disk else "compiled"
        what = (
            f"{len(p.steps)} steps, {len(p.kernels())} kernels",
            f"modules: {modules}" + (f"; products: {ways}" if ways else ""),
            f"{found}, {self.library.size} bytes",
        )
        names = ("plan", "kernels", "program")
        spans = [b - a for a, b in itertools.pairwise(t)]
        return [CompileStage(*s) for s in zip(names, spans, what, strict=True)]

    def as_text(self, stage: str) -> str:
        """The planned program ("loops"), its optimized LLVM IR ("llvm"), its assembly ("asm")."""
        libraries: list[Library] = [self.library, *self.kernels]
        if stage == "loops":
            return program_text(self.program)
        if stage == "llvm":
            return "\n".join(x.llvm_text for x in libraries)
        if stage == "asm":
            return "\n".join(x.asm() for x in libraries)
        raise ValueError(f'no stage {stage!r}: there are "jaxpr", "loops", "llvm" and "asm"')

    def run_step(self, number: int, pointers: Any, communicators: Any) -> None:
        """Run a step that is Python's, on arrays at these addresses."""
        step = self.host_steps[number]
        views = [
            _view(v, pointers[i], i >= len(step.ins)) for i, v in enumerate((*step.ins, *step.outs))
        ]
        ins, outs = views[: len(step.ins)], views[len(step.ins) :]
        if communicators is None:
            host_run.run_host_step(step, ins, outs)
        else:
            with context.scoped(communicators=communicators):
                host_run.run_host_step(step, ins, outs)

    def exchange_text(self, number: int) -> tuple[int, str]:
        """The number of an exchange's communicator, and what it exchanges."""
        step = exchange_steps(self.program.steps)[number]
        return step.comm, f"{step.kind} of {step.dtype.name}[{max(step.blocks) * step.count}]"


def _often(steps: Sequence[Step], turns: float = 1) -> Iterator[Kernel]:
    """The kernels that loops run many times, one turn after the other."""
    for s in steps:
        if isinstance(s, KernelStep) and turns >= _MANY_TURNS:
            yield s.kernel
        inside = turns
        if isinstance(s, LoopStep):
            # What a task runs isn't shared again.
            inside = 0 if s.parallel else turns * s.length
        elif isinstance(s, WhileStep):
            inside = turns * _MANY_TURNS
        for block in blocks(s):
            yield from _often(block, inside)


def _view(view: View, address: int, writable: bool) -> np.ndarray:
    """The array at an address."""
    aval = view.aval
    if not aval.size:
        return np.empty(aval.shape, aval.dtype)
    memory = (ctypes.c_char * aval.nbytes).from_address(address)
    array = np.ndarray(aval.shape, aval.dtype, memoryview(memory))
    array.flags.writeable = writable
    return array
