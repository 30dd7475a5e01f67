"""Kernels as modules' texts, and how each is launched.

For a GPU each kernel has a module of its own, with what it calls and the hardware's words, so that
equal kernels of several programs are assembled once, and many at the same time. Its names have no
dots, as PTX's can't, and nothing is weak, so that what no kernel calls goes. For the simulator all
are one module, without address spaces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from funcgrad.backends.cuda import words
from funcgrad.backends.cuda.kernels import mma
from funcgrad.backends.cuda.kernels.attention import AttentionKernel
from funcgrad.backends.cuda.kernels.attention_backward import ToKeys, ToQueries
from funcgrad.backends.cuda.kernels.attention_forward import Forward
from funcgrad.backends.cuda.kernels.attention_tiles import Tiles
from funcgrad.backends.cuda.kernels.convolution_tiles import TiledConvolution
from funcgrad.backends.cuda.kernels.convolution_tiles import writer as tile_writer
from funcgrad.backends.cuda.kernels.thread_text import ThreadText
from funcgrad.backends.cuda.points import Columns, Points
from funcgrad.backends.cuda.rows import Rows
from funcgrad.backends.cuda.schedule import Schedule, schedule
from funcgrad.backends.llvm.native.objects import digest
from funcgrad.backends.loops.ir import Kernel, Loop
from funcgrad.backends.loops.ir import walk as walk_body
from funcgrad.backends.program import KernelStep, Program, walk
from funcgrad.core.record import Record
from funcgrad.errors import CompileError

BASE = 16  # bytes to which arrays are aligned, at least
MOST = 1 << 31
_NAMELESS = "fg_kernel_"  # in texts from which names are made
TRIPLE = "nvptx64-nvidia-cuda"
LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
_WRITERS: dict[str, type[Points | Rows]] = {"points": Points, "columns": Columns, "rows": Rows}
_ATTENTION: dict[str, type[Tiles]] = {"attention": Forward, "queries": ToQueries, "keys": ToKeys}
_NAME = re.compile(r'@"?(?!llvm\.)([\w.]+)"?')
_WEAK = re.compile(r"\b(weak_odr|linkonce_odr|weak|linkonce)( hidden)?\b")
_SHARED = re.compile(r"^(@\w+) = internal addrspace\(3\) global \[(\d+) x i8\]", re.MULTILINE)


class Launch(Record, eq=False):
    """A kernel: its text, and what a launch needs to know beside the buffers' addresses.

    name: after what it computes, and its text: kernels of one name are equal
    needed: the texts of what it calls, by name
    shared: its pieces of shared memory, their names and bytes
    words: the hardware's words that it needs beside `words`, a GPU's and the simulator's
    """

    kernel: Kernel
    name: str
    plan: Schedule
    text: str
    needed: dict[str, str]
    shared: tuple[tuple[str, int], ...]
    words: tuple[str, str] = ("", "")

    @property
    def args(self) -> int:
        """How many buffers it gets."""
        return len(self.kernel.params) + (self.plan.workspace > 0)

    @property
    def workspace(self) -> int:
        """Bytes that the kernel gets as its last buffer, if any."""
        teams = self.plan.grid * (self.plan.block // self.plan.team)
        return teams * (-(-self.plan.workspace // 8) * 8)

    @property
    def device_text(self) -> str:
        """The module for a GPU that has this kernel alone."""
        return _for_device([self])


class Kernels(Record, eq=False):
    """The launches of a program's kernels."""

    launches: tuple[Launch, ...]

    @property
    def text(self) -> str:
        """The kernels and what they call, without the hardware's words."""
        return _text(self.launches)

    @property
    def device_text(self) -> str:
        """One module for a GPU that has all of them."""
        return _for_device(self.launches)

    @property
    def host_text(self) -> str:
        """The module for the simulator: `run_{name}(buffers, order)` runs a launch, and gives how
        many accesses were out of range."""
        text = re.sub(r" addrspace\([13]\)", "", self.text).replace("ptx_kernel ", "internal ")
        runs = [_run(launch) for launch in _distinct(self.launches)]
        more = dict.fromkeys(launch.words[1] for launch in self.launches)
        return "\n".join([words.SIMULATOR, *more, text, *runs])


def kernels(program: Program) -> Kernels:
    """A program's kernels.

    Raises CompileError for one of more points, or of a longer loop, than 32 bits count.
    """
    launches = []
    for kernel, aligned in _alignments(program).items():
        if not kernel.points:
            continue
        writer: Points | Rows | ThreadText
        more = ("", "")
        if isinstance(kernel, AttentionKernel | TiledConvolution):
            plan = kernel.plan
            writer = (
                tile_writer(kernel, _NAMELESS) if isinstance(kernel, TiledConvolution)
                else _ATTENTION[kernel.part](kernel, _NAMELESS)
            )  # fmt: skip
            more = mma.DEVICE, mma.SIMULATOR
        else:
            plan = schedule(kernel)
            writer = _WRITERS[plan.kind](kernel, _NAMELESS, aligned)
        _check_counts(kernel, plan)
        text = writer.run(plan)
        name = _plain_name(kernel.name, digest(text)[:8])
        text = text.replace(_NAMELESS, name)
        shared = tuple((n, int(size)) for n, size in _SHARED.findall(text))
        launches.append(Launch(kernel, name, plan, text, writer.module.needed, shared, more))
    return Kernels(tuple(launches))


def _distinct(launches: Sequence[Launch]) -> list[Launch]:
    return list({launch.name: launch for launch in launches}.values())


def _text(launches: Sequence[Launch]) -> str:
    some = _distinct(launches)
    needed = {name: text for launch in some for name, text in launch.needed.items()}
    text = "\n\n".join([*(launch.text for launch in some), *needed.values()]) + "\n"
    return _WEAK.sub("internal", _NAME.sub(lambda m: "@" + m[1].replace(".", "_"), text))


def _for_device(launches: Sequence[Launch]) -> str:
    head = f'target triple = "{TRIPLE}"\ntarget datalayout = "{LAYOUT}"\n'
    more = dict.fromkeys(launch.words[0] for launch in launches)
    return head + words.DEVICE + "".join(more) + _text(launches)


def _check_counts(kernel: Kernel, plan: Schedule) -> None:
    loops = [s.size for s in walk_body(kernel.body) if isinstance(s, Loop)]
    most = max([plan.grid * plan.block * plan.vector, *loops])
    if most >= MOST:
        raise CompileError(
            f"backend 'cuda': kernel {kernel.name} counts to {most}; kernels count to {MOST - 1} "
            "so far: cut its arrays"
        )


def _alignments(program: Program) -> dict[Kernel, list[int]]:
    """Of each kernel its parameters' alignment, the least of all steps that run it."""
    found: dict[Kernel, list[int]] = {}
    for s in walk(program.steps):
        if isinstance(s, KernelStep):
            here = [math.gcd(BASE, r.offset, *(n for _, n in r.strides)) for r in s.args]
            found[s.kernel] = [*map(min, here, found.get(s.kernel, here))]
    return found


def _plain_name(name: str, number: str) -> str:
    return f"{re.sub(r'[^a-zA-Z0-9]+', '_', name)[:40]}_{number}"


def _run(launch: Launch) -> str:
    """The function that runs a launch in the simulator."""
    name, plan = launch.name, launch.plan
    lines = [f"define internal void @thread_{name}(ptr %buffers) {{"]
    for i in range(launch.args):
        lines.append(f"  %a{i} = getelementptr ptr, ptr %buffers, i64 {i}")
        lines.append(f"  %p{i} = load ptr, ptr %a{i}")
    passed = ", ".join(f"ptr %p{i}" for i in range(launch.args))
    lines += [f"  call void @{name}({passed})", "  ret void", "}", ""]
    lines.append(f"define i32 @run_{name}(ptr %buffers, ptr %order) {{")
    # What nothing wrote in shared memory is NaN: slots between warps are written before all else.
    shared, nbytes = launch.shared[-1] if launch.shared else ("null", 0)
    lines.append(
        f"  %faults = call i32 @fg_run(ptr @thread_{name}, ptr %buffers, i32 {plan.grid}, "
        f"i32 {plan.block}, ptr %order, i1 {str(plan.waits).lower()}, ptr {shared}, i64 {nbytes})"
    )
    return "\n".join([*lines, "  ret i32 %faults", "}"])
