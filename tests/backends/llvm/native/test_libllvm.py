"""LLVM by its C functions: what it tells of the host, modules and their errors, object code."""

import llvmlite.binding as llvm
import pytest

from funcgrad.backends.llvm.native import libllvm
from funcgrad.backends.llvm.native.libllvm import Machine, Module

TEXT = """
declare double @exp2(double)
@table = global [2 x i32] [i32 1, i32 2]
define internal double @inner(double %x) alwaysinline {
  %y = call double @exp2(double %x)
  ret double %y
}
define double @outer(double %x) {
  %y = call double @inner(double %x)
  ret double %y
}
"""


@pytest.fixture
def machine():
    with Machine(*libllvm.host()[:2], "", 2) as machine:
        yield machine


def test_the_host_is_as_llvmlite_tells():
    triple, cpu, features = libllvm.host()
    assert (triple, cpu) == (llvm.get_process_triple(), llvm.get_host_cpu_name())
    assert features == dict(llvm.get_host_cpu_features())
    assert libllvm.version() == tuple(llvm.llvm_version_info)


def test_symbols(machine):
    with Module(TEXT, machine) as module:
        assert module.symbols() == (["outer", "table"], ["exp2"])


def test_passes_change_the_module(machine):
    with Module(TEXT, machine) as module:
        module.tidy("AlwaysInliner")
        assert "@inner" not in str(module)
        module.optimize(2, vectorize=False)
        assert "@outer" in str(module)


def test_code_and_assembly(machine):
    with Module(TEXT, machine) as module:
        assert b"outer" in module.code()
        assert b"outer:" in module.code(assembly=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("define i32 @f( {", "cannot parse the module: .*expected"),
        ("define i32 @f() {\nentry:\n br label %entry }", "rejects the module: Entry block"),
    ],
)
def test_invalid_modules(machine, text, words):
    for _ in range(3):
        with pytest.raises(ValueError, match=words):
            Module(text, machine)


def test_unknown_targets():
    with pytest.raises(RuntimeError, match="nothing"):
        Machine("nothing-at-all", "", "", 0)


def test_all_functions_are_there():
    for name in libllvm._FUNCTIONS:
        assert callable(getattr(libllvm._lib(), name)), name
