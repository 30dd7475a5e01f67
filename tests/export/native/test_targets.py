"""Libraries for other processors: objects of all formats, and what is refused.

What they compute is tested under emulators, by `tests/peers/test_targets.py`.
"""

import subprocess
import sys

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export
from funcgrad.backends.llvm.native.foreign import FOREIGN
from funcgrad.backends.llvm.native.libllvm import Machine, Module
from funcgrad.backends.llvm.native.target import LEVELS, Target
from funcgrad.errors import CompileError, ExportError

X = fg.ShapeDtypeStruct((8, 16), "float32")


@pytest.mark.parametrize("name", FOREIGN)
def test_objects_of_all_targets(name):
    target = Target.named(name)
    text = "define <4 x float> @f(<4 x float> %x, <4 x float> %y) { ret <4 x float> %y }"
    machine = Machine(target.triple, target.cpu, target.features, 3)
    with machine, Module(text, machine) as module:
        code = module.code()
    magic = {"x86-64-windows": b"\x64\x86", "aarch64-windows": b"\x64\xaa", "wasm32": b"\0asm"}
    known = b"\xcf\xfa\xed\xfe" if name.endswith(("macos", "ios")) else b"\x7fELF"
    assert code.startswith(magic.get(name, known))
    assert not target.runs_here


def test_levels_are_other_processors_where_they_are_not_reached():
    target = Target.named("x86-64-v4-linux")
    assert target.has("avx512f")
    assert not target.runs_here
    assert [Target.named(f"{level}-linux").vector_bits for level in LEVELS] == [128, 128, 256, 512]


def test_programs_for_other_processors_are_not_run_here():
    code = (
        "import funcgrad as fg\nprint((fg.numpy.ones(3) + 1).sum())\nfg.jit(lambda x: x * 2)(1.0)"
    )
    environment = {"FUNCGRAD_TARGET": "riscv64-linux", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.stdout == "6.0\n"
    assert f"{CompileError.__name__}: FUNCGRAD_TARGET is riscv64-unknown-linux-gnu" in done.stderr


# ---- refusals


def test_kinds_that_a_system_lacks(tmp_path):
    e = export.export(fg.jit(fnp.sin))(X)
    with pytest.raises(ExportError, match="no kind='object' for windows"):
        export.aot(e, tmp_path, target="x86-64-windows", kind="object")


def test_targets_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    e = export.export(fg.jit(fnp.sin))(X)
    with pytest.raises(ExportError, match="target='aarch64-ios' needs a C compiler for it: set CC"):
        export.aot(e, tmp_path, target="aarch64-ios", kind="static")
