import gc
import subprocess
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.caches import Latest
from funcgrad.transforms.jit import jit as jit_module

X = np.ones((8, 8), np.float32)


def test_functions_forget_and_go_on():
    traced = []

    @fg.jit
    def f(x):
        traced.append(1)
        return fnp.tanh(x @ x) * 1.625

    before = f(X)
    for _ in range(20):
        f(X)
    assert len(traced) == 1
    fg.clear_caches()
    assert f.cache_info() == (0, 0, 0)
    np.testing.assert_array_equal(f(X), before)
    assert len(traced) == 2


def test_code_goes_unless_somebody_holds_it():
    f = fg.jit(lambda x: fnp.exp(x) + 1.8125)
    g = fg.jit(lambda x: fnp.exp(x) + 1.9375)
    held, expected = g.lower(X).compile(), g(X)
    library = weakref.ref(f.lower(X).compile()._executable.library)
    assert library() is not None
    fg.clear_caches()
    assert library() is None
    np.testing.assert_array_equal(held(X), expected)
    np.testing.assert_array_equal(f(X), np.asarray(expected) - np.float32(0.125))


def test_dropped_functions_need_no_clearing():
    f = fg.jit(lambda x: fnp.exp(x) + 1.5625)
    f(X)
    library = weakref.ref(f.lower(X).compile()._executable.library)
    del f
    gc.collect()
    assert library() is None


def test_nested_and_eager_use_goes_on():
    inner = fg.jit(lambda x: x * 3)

    @fg.jit
    def outer(x):
        fg.clear_caches()  # while it is traced
        return inner(x) + fg.grad(lambda y: fnp.sum(inner(y) ** 2))(x)

    np.testing.assert_allclose(outer(X), 3 * X + 18 * X)
    total = fnp.sum(X) + fnp.ones(())
    fg.clear_caches()
    assert fnp.sum(X) + fnp.ones(()) == total


MANY = """
import sys, gc
import numpy as np
import funcgrad as fg, funcgrad.numpy as fnp
from funcgrad.backends.llvm.native.engine import engine

def resident():
    engine().later.settle()  # what is optimized later is held till then
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def make(first, n):
    for i in range(first, first + n):
        kept = []
        @fg.jit
        def f(x):
            kept.append(f)  # a cycle
            return fnp.tanh(x) * (i + 0.5)
        f(x)
        held.append(f)

n, x, held = int(sys.argv[1]), np.ones(16, np.float32), []
sizes = []
for part in range(4):
    make(part * n, n)
    if part % 2:
        held.clear()
        gc.collect()
    else:
        fg.clear_caches()
        held.clear()
    sizes.append(resident())
print((sizes[-1] - sizes[0]) / (3 * n))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("n", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_memory_of_many_functions_is_bounded(n, monkeypatch):
    """Code, programs and what led to them go with the functions: what stays of one, in bytes."""
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", "")
    # glibc gives threads that collide, as on a busy machine, heaps of their own of up to a
    # megabyte each: those are no function's.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(n)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 4000


VALUES = """
import sys, gc, warnings
import numpy as np
import funcgrad as fg, funcgrad.numpy as fnp
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.transforms.jit import jit

jit.MOST_PROGRAMS = 32
warnings.simplefilter("ignore")

def resident():
    engine().later.settle()  # what is optimized later is held till then
    return int(open("/proc/self/statm").read().split()[1]) * 4096

f = fg.jit(lambda x, n, named=0: fnp.tanh(x) * (n + 0.5) + named, static_argnums=1,
           static_argnames="named")
x, n = np.ones(16, np.float32), int(sys.argv[1])
sizes = []
for part in range(4):
    for i in range(n):  # each part the same ones, long forgotten, so that LLVM's heap is no part
        f(x, i, named=-i)
        f(x, (i, "tuple")[0] + 0.25)
        f(np.ones(i % 100 + 1, np.float32), 1)
    gc.collect()
    sizes.append(resident())
    assert f.cache_info().currsize <= 32 and len(f._learned) <= 32, f.cache_info()
print((sizes[-1] - sizes[1]) / (6 * n))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("n", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_memory_of_many_kinds_of_arguments_is_bounded(n, monkeypatch, tmp_path):
    """What stays of a call with another static value, or another shape, in bytes."""
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    done = subprocess.run(
        [sys.executable, "-c", VALUES, str(n)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 4000


def test_the_programs_used_latest_stay_and_compiled_ones_work_on(monkeypatch):
    monkeypatch.setattr(jit_module, "MOST_PROGRAMS", 8)
    traced = []

    def fun(x, n):
        traced.append(n)
        return x + n

    f = fg.jit(fun, static_argnums=1)
    f.expect_many_types()
    compiled = f.lower(X, -1).compile()
    for i in range(40):
        np.testing.assert_array_equal(f(X, i), X + i)
        f.trace(X, 0)
    assert traced.count(0) == 1
    assert f.cache_info().currsize <= 8
    gc.collect()
    np.testing.assert_array_equal(compiled(X), X - 1)
    f(X, 39)
    assert traced.count(39) == 1
    np.testing.assert_array_equal(f(X, -1), X - 1)
    assert traced.count(-1) == 2


def test_threads_share_what_is_kept():
    kept, failed = Latest(16), []

    def work(first):
        for i in range(first, first + 500):
            kept.put(i, -i)
            found = kept.get(i)
            if found not in (None, -i):
                failed.append((i, found))

    threads = [threading.Thread(target=work, args=(1000 * k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert len(kept) <= 16


def test_a_warning_of_many_programs_names_the_last_two(monkeypatch):
    """Also where few are kept."""
    monkeypatch.setattr(jit_module, "MOST_PROGRAMS", 16)
    f = fg.jit(lambda x, n: x + n, static_argnums=1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for i in range(100):
            f.trace(X, i)
    (warning,) = found
    assert "static argument n changed from 14 to 15" in str(warning.message)
