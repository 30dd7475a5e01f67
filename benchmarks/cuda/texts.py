"""LLVM's text as PTX, by llvmlite's NVPTX target, and PTX as cubins by ptxas where there is one."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import llvmlite.binding as llvm

HEAD = """target triple = "nvptx64-nvidia-cuda"
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
"""


def ptx(text: str, cpu: str = "sm_90", features: str = "+ptx80", level: int = 3) -> str:
    """The PTX of a module's text, optimized; its kernels are functions `define ptx_kernel`."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text if text.startswith("target") else HEAD + text)
    module.verify()
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
        cpu=cpu, features=features, opt=level
    )
    passes = llvm.create_pass_builder(
        machine, llvm.create_pipeline_tuning_options(speed_level=level)
    )
    passes.getModulePassManager().run(module, passes)
    return machine.emit_assembly(module)


def assembled(text: str, arch: str = "sm_90") -> dict[str, int]:
    """What ptxas says of PTX: registers, bytes of stack, of spills and of static shared memory."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(text)
        done = subprocess.run(
            ["ptxas", f"-arch={arch}", "-v", source, "-o", Path(folder, "kernel.cubin")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"ptxas: {done.stderr.strip()[:2000]}")
    found = {
        what: [int(n) for n in re.findall(pattern, done.stderr)]
        for what, pattern in (
            ("registers", r"Used (\d+) registers"),
            ("stack", r"(\d+) bytes stack frame"),
            ("spills", r"(\d+) bytes spill stores"),
            ("shared", r"(\d+) bytes smem"),
        )
    }
    return {what: max(numbers, default=0) for what, numbers in found.items()}
