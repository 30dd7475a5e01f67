"""When native code takes over eager calls."""

import os
import subprocess
import sys

import pytest

from funcgrad.core.eager import functions
from funcgrad.core.eager.functions import EagerFunction

native_calls = functions.activate()


class Native:
    """A stand-in for the native code."""

    def __init__(self, there, can):
        self.there, self.can, self.asked = there, can, []

    def ready(self, compiling):
        self.asked.append(compiling)
        return self.there or (compiling and self.can)

    def function(self, of):
        return lambda *args: ("native", *args)


@pytest.fixture
def alone(monkeypatch):
    """No functions, and no native code so far."""
    monkeypatch.setattr(functions, "_functions", [])
    monkeypatch.setattr(functions, "_native", None)

    def install(there, can):
        native = Native(there, can)
        monkeypatch.setattr(functions.backend, "eager_calls", lambda: native)
        monkeypatch.setattr(functions, "_considered", iter(range(9)))
        monkeypatch.setattr(functions.fork, "beside", lambda work: work())
        return native

    return install


def function():
    return EagerFunction(lambda *args: ("python", *args), lambda *_: None)


def test_code_on_disk_is_loaded_at_the_first_moment(alone):
    native, f = alone(there=True, can=True), function()
    assert f.call(1) == ("python", 1)
    functions.consider()
    assert native.asked[0] is False
    assert f.call(1) == ("native", 1)
    assert function().call(2) == ("native", 2)


def test_code_is_compiled_at_the_second_moment(alone):
    native, f = alone(there=False, can=True), function()
    functions.consider()
    assert native.asked == [False]
    assert f.call(1) == ("python", 1)
    functions.consider()
    assert native.asked[1:] == [True]
    assert f.call(1) == ("native", 1)


def test_without_native_code_all_goes_on(alone):
    alone(there=False, can=False)
    f = function()
    functions.consider()
    functions.consider()
    assert not functions.activate()
    assert f.call(1) == ("python", 1)


OPERATIONS = """
import sys, threading, funcgrad.numpy as fnp
from funcgrad.core.eager import functions
x = fnp.ones(3)
for _ in range({calls} // 3):
    x + x; fnp.tanh(x); fnp.sum(x)
for thread in threading.enumerate():
    if not thread.daemon and thread is not threading.main_thread():
        thread.join()
print(functions._native is not None)
print(*sys.modules)
"""
COMPILER = {f"funcgrad.backends.llvm.{name}" for name in ("build", "compiler", "libllvm")}


def run(calls):
    """Whether native code does the calls after so many, and the modules that were loaded."""
    done = subprocess.run(
        [sys.executable, "-c", OPERATIONS.format(calls=calls)],
        env=os.environ | {"FUNCGRAD_TARGET": "host"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    native, modules = done.stdout.splitlines()
    return native == "True", set(modules.split())


def test_a_few_operations_load_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "cache"))
    native, modules = run(functions.MOMENTS[0] // 2)
    assert not native
    assert not any(m.startswith(("llvmlite", "funcgrad.backends")) for m in modules)
    # Nothing is on disk, which is found out without LLVM.
    native, modules = run(functions.MOMENTS[0] * 2)
    assert not native
    assert not {"llvmlite.binding", *COMPILER} & modules


@pytest.mark.skipif(not native_calls, reason="another Python or NumPy")
def test_a_second_process_finds_the_code_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "cache"))
    native, modules = run(functions.MOMENTS[1] * 2)
    assert native
    assert "funcgrad.backends.llvm.native.compiler" in modules
    native, modules = run(functions.MOMENTS[0] * 2)
    assert native
    assert not {"llvmlite.binding", *COMPILER} & modules
    # What only compiled programs need isn't loaded, either.
    assert not {f"funcgrad.backends.llvm.{m}" for m in ("saved", "executable", "pool")} & modules
