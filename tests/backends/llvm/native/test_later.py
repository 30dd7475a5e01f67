"""Code that runs as it was translated, until it is optimized."""

import ctypes
import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.llvm.native import objects
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.native.images import Turning
from funcgrad.backends.llvm.native.later import soon

TEXT = """
@place = global i64 5
@table = constant i64 7
define i64 @held(i64 %x) {{
  %old = load i64, ptr @place
  %new = add i64 %old, %x
  store i64 %new, ptr @place
  ret i64 %new
}}
define i64 @sum{number}(i64 %n) {{
entry:
  %slot = alloca i64
  store i64 0, ptr %slot
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %next = add i64 %i, 1
  %old = load i64, ptr %slot
  %new = add i64 %old, %next
  store i64 %new, ptr %slot
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  %all = load i64, ptr %slot
  ret i64 %all
}}
"""


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """An engine that has nothing, in memory or on disk."""
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path / "cache"))
    return Engine(engine().target)


def compiled(engine, text, **how):
    found = []
    soon(lambda: found.append(engine.compile(text, **how)))
    return found[0]


def function(library, name):
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address(name))


@pytest.mark.parametrize("how", [{"key": "sums", "level": 1}, {"links": {}}, {}])
def test_calls_go_on_with_optimized_code_and_the_same_memory(cold, how):
    library = compiled(cold, TEXT.format(number=1), **how)
    held, total = function(library, "held"), function(library, "sum1")
    assert [held(2), total(100)] == [7, 5050]
    assert not objects.exists(library.name)
    user = cold.compile(
        "declare i64 @held(i64)  @place = external global i64\n"
        "define i64 @use(i64 %x) { %a = call i64 @held(i64 %x) %b = load i64, ptr @place"
        " %c = add i64 %a, %b ret i64 %c }",
        links={"held": library, "place": library},
    )
    use = function(user, "use")
    assert use(1) == 16
    before = function(library, "sum1")
    cold.later.settle()
    assert objects.exists(library.name)
    assert [held(2), use(1), before(100), total(100)] == [10, 22, 5050, 5050]
    assert ctypes.c_int64.from_address(library.address("place")).value == 11
    assert ctypes.c_int64.from_address(library.address("table")).value == 7


def test_code_that_nobody_holds_is_kept_on_disk(cold):
    library = compiled(cold, TEXT.format(number=2), links={})
    name = library.name
    del library
    cold.later.settle()
    assert objects.exists(name)
    gc.collect()
    assert name not in cold._libraries
    assert function(cold.load(name), "sum2")(4) == 10


def test_only_what_a_library_calls_is_waited_for(cold):
    first, second = (compiled(cold, TEXT.format(number=n), links={}) for n in (3, 4))
    text = (
        "declare i64 @sum3(i64)  define i64 @f(i64 %x) { %a = call i64 @sum3(i64 %x) ret i64 %a }"
    )
    user = cold.compile(text, links={"sum3": first})
    cold.later.settle(user)
    assert [objects.exists(x.name) for x in (first, second)] == [True, False]
    assert function(user, "f")(4) == 10


def test_code_that_may_be_reassociated_is_optimized_at_once(cold):
    text = "define float @f(float %x) { %y = fadd reassoc float %x, 1.0 ret float %y }"
    assert objects.exists(compiled(cold, text, links={}).name)


def test_code_that_cannot_be_optimized_runs_as_it_is(cold, monkeypatch):
    library = compiled(cold, TEXT.format(number=5), links={})

    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(cold, "_compiled", fail)
    cold.later.settle()
    assert function(library, "sum5")(4) == 10


PROGRAM = """
import os
import numpy as np
import funcgrad as fg
x = np.linspace(-3, 40, 4096, dtype=np.float32).reshape(64, 64)
f = fg.jit(lambda x: (fg.numpy.sin(x) * 2 + 1, x @ x, fg.numpy.sort(x), fg.numpy.cumsum(x)))
first = f(x)
from funcgrad.backends.llvm.native.engine import engine
engine().later.settle()
print(all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(first, f(x))))
print("funcgrad.backends.llvm.native.compiler" in __import__("sys").modules)
"""


def test_first_calls_give_the_bits_of_later_ones_and_processes_keep_the_code(tmp_path):
    env = os.environ | {"FUNCGRAD_CACHE_DIR": str(tmp_path / "cache")}
    for compiles in ("True", "False"):
        run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                             check=True, timeout=240, env=env)  # fmt: skip
        assert run.stdout.split() == ["True", compiles]


def test_programs_run_while_their_code_is_optimized():
    x = np.random.default_rng(0).standard_normal((48, 48), np.float32)
    for n in range(3):
        run = fg.jit(lambda x, n=n: lax.top_k(fnp.tanh(x + n) @ x, 3)[0])
        first = np.asarray(run(x))
        for _ in range(200):
            np.testing.assert_array_equal(np.asarray(run(x)), first)


def test_large_programs_wait_for_their_code():
    x = np.ones((2000, 1500), np.float32)
    run = fg.jit(lambda x: fnp.floor(x * 1.375) - 17)
    run(x)
    (library,) = run.lower(x)._executable().library.uses - set()
    assert not isinstance(library._symbols, Turning)
