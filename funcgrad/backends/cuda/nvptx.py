"""LLVM's text as PTX, by the NVPTX target of llvmlite's LLVM, and PTX as cubins by ptxas.

A driver assembles PTX itself; ptxas, where it is installed, tells registers and spills without one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from funcgrad.backends.cuda.modules import TRIPLE
from funcgrad.backends.late import Late

llvm = Late("llvmlite.binding")

# From which architecture on which PTX version is the least that it asks for.
_VERSIONS = ((120, "+ptx87"), (100, "+ptx86"), (0, "+ptx80"))


class Usage(NamedTuple):
    """What ptxas says of a kernel: registers a thread, and bytes."""

    registers: int
    stack: int
    spills: int
    shared: int


def ptx(text: str, arch: str = "sm_90") -> str:
    """The PTX of a module's text, optimized."""
    features = next(v for least, v in _VERSIONS if int(arch.removeprefix("sm_")) >= least)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
        cpu=arch, features=features, opt=3
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    return machine.emit_assembly(module)


def has_ptxas() -> bool:
    """Whether ptxas is here."""
    return shutil.which("ptxas") is not None


def assembled(text: str, arch: str) -> dict[str, Usage]:
    """What each kernel of some PTX uses, by ptxas.

    Raises RuntimeError, with what ptxas says, for PTX that it doesn't take.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.ptx")
        source.write_text(text)
        done = subprocess.run(
            ["ptxas", f"-arch={arch}", "-v", source, "-o", Path(folder, "kernels.cubin")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"ptxas for {arch}: {done.stderr.strip()[:2000]}")
    found = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        numbers = [
            int(m[1]) if (m := re.search(pattern, part)) else 0
            for pattern in (
                r"Used (\d+) registers",
                r"(\d+) bytes stack frame",
                r"(\d+) bytes spill stores",
                r"(\d+) bytes smem",
            )
        ]
        found[part[: part.index("'")]] = Usage(*numbers)
    return found
