"""The context: scoped settings, private to threads and tasks."""

import asyncio
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core import context
from funcgrad.core.checks import Checks
from funcgrad.errors import DTypeError


def test_default_float():
    assert fnp.asarray(1.0).dtype == np.float32
    with fg.default_dtype("float64"):
        assert fnp.asarray(1.0).dtype == np.float64
        assert fnp.asarray(1j).dtype == np.complex128
        assert fnp.asarray(1).dtype == np.int32
        assert fnp.zeros(2).dtype == np.float64
    assert fnp.zeros(2).dtype == np.float32


def test_default_int_and_nesting():
    with fg.default_dtype("int64"):
        with fg.default_dtype("float64"):
            assert fnp.arange(3).dtype == np.int64
            assert fnp.asarray(0.5).dtype == np.float64
        assert fnp.asarray(0.5).dtype == np.float32
    assert fnp.arange(3).dtype == np.int32


@pytest.mark.parametrize("bad", ["complex64", "bool"])
def test_default_dtype_refuses(bad):
    with (
        pytest.raises(DTypeError, match="need a float or an integer dtype"),
        fg.default_dtype(bad),
    ):
        pass


def test_settings_end_with_the_block_also_after_errors():
    with pytest.raises(ZeroDivisionError), fg.default_dtype("float64"), fg.disable_jit():
        raise ZeroDivisionError
    assert context.current() is context.ROOT


INTERRUPTED = """
import random, signal, time
import numpy as np
import funcgrad as fg, funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core import context
from funcgrad.core.checks import Checks

armed = False

def interrupt(*_):
    if armed:
        raise KeyboardInterrupt

@fg.custom_vjp
def sine(x):
    return fnp.sin(x)

sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * fnp.cos(x),))

def loss(x):
    with fg.named_scope("loss"):
        return fnp.sum(fnp.tanh(x) * sine(x))

def scanned(x):
    return fnp.sum(lax.scan(lambda c, r: (c * r + 1, fnp.sin(c)), x, pair)[0])

def wide(x):
    with fg.default_dtype("float64"):
        return fnp.zeros(3) + fnp.asarray(1.0)

x = fnp.arange(1, 7) / 7
pair = fnp.stack([x, x])
work = [
    fg.grad(loss), fg.grad(lambda x: fnp.sum(fg.grad(loss)(x))), fg.grad(scanned), wide,
    fg.hessian(loss), lambda x: fg.vmap(fg.grad(loss))(pair), lambda x: fg.jvp(loss, (x,), (x,))[1],
    lambda x: fg.jit(lambda x: fg.grad(loss)(x), backend="numpy")(x),
]
wanted, times = [], []
for f in work:
    wanted.append(np.asarray(f(x)))
    start = time.perf_counter()
    f(x)
    times.append(time.perf_counter() - start)
signal.signal(signal.SIGALRM, interrupt)
random.seed(0)
hits = 0
for _ in range(1200):
    i = random.randrange(len(work))
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, random.random() * times[i]))
        work[i](x)
        armed = False
    except KeyboardInterrupt:
        armed = False
        hits += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert context.current().static_key() == context.ROOT.static_key()
    assert context.current().trace is context.ROOT.trace
    np.testing.assert_array_equal(np.asarray(work[i](x)), wanted[i])
print(hits)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that interrupt")
def test_interrupted_calls_leave_no_context_behind():
    """A KeyboardInterrupt at any time: what was called gives the same afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_dropped_block_changes_nothing_outside():
    """Which was left without its end, as by an interrupt."""
    with context.scoped(int_dtype=np.dtype("int8")):
        block = fg.default_dtype("float64")
        block.__enter__()
        del block
        assert context.current().float_dtype == np.float32
        outer = fg.default_dtype("float64")
        outer.__enter__()
    assert context.current() is context.ROOT
    del outer
    assert context.current() is context.ROOT


def test_a_block_that_ends_in_another_thread_leaves_no_context_there():
    def wide():
        with fg.default_dtype("float64"):
            yield

    def begin(x):
        begun.append(wide())
        next(begun[0])
        return x

    begun = []
    work = threading.Thread(target=lambda: fg.jit(begin)(1.0))
    work.start()
    work.join()
    with pytest.raises(ValueError, match="different Context"):
        next(begun[0])
    assert context.current() is context.ROOT


def test_explicit_dtypes_win():
    x = np.arange(3.0)
    assert fnp.asarray(x).dtype == np.float64
    assert (fnp.asarray(x) * 2.0).dtype == np.float64
    assert fg.jit(lambda x: x * 2.0)(x).dtype == np.float64
    with fg.default_dtype("float64"):
        assert (fnp.ones(2, "float32") * 2.0).dtype == np.float32


def test_default_dtype_is_part_of_a_compiled_functions_key():
    f = fg.jit(lambda x: x * 0 + fnp.asarray(0.1), backend="numpy")
    x = fnp.asarray(np.float64(1))
    low = f(x)
    with fg.default_dtype("float64"):
        high = f(x)
    assert float(high) == 0.1
    assert float(low) == float(np.float32(0.1))
    assert f.cache_info().currsize == 2


def test_threads_start_from_the_root():
    seen = []
    with fg.default_dtype("float64"), fg.disable_jit():
        thread = threading.Thread(target=lambda: seen.append(context.current()))
        thread.start()
        thread.join()
    assert seen == [context.ROOT]


def test_threads_transform_independently():
    results = {}

    def work(i):
        def f(x):
            return fnp.sum(fnp.sin(x) ** i)

        with fg.default_dtype("float64" if i % 2 else "float32"):
            for _ in range(5):
                g = fg.grad(fg.jit(f, backend="numpy"))(fnp.ones(3) * i)
        results[i] = g

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, g in results.items():
        want = i * np.sin(i) ** (i - 1) * np.cos(i) * np.ones(3)
        assert g.dtype == (np.float64 if i % 2 else np.float32)
        np.testing.assert_allclose(g, want, rtol=1e-5)


def test_tasks_keep_their_own_context():
    async def task(dtype):
        with fg.default_dtype(dtype):
            await asyncio.sleep(0)
            return fnp.zeros(()).dtype

    async def both():
        return await asyncio.gather(task("float64"), task("float16"))

    assert asyncio.run(both()) == [np.float64, np.float16]


def test_named_axes_are_scoped():
    with context.named_axis("i", 4), context.named_axis("j", 2):
        assert context.current().axes == {"i": 4, "j": 2}
    assert context.current().axes == {}


def test_scopes_mark_equations():
    def f(x):
        with fg.named_scope("outer"):
            y = x + 1.0
            with fg.named_scope("inner"):
                return y * 2.0

    add, mul = fg.make_jaxpr(f)(1.0).eqns
    assert add.scopes == ("outer",)
    assert mul.scopes == ("outer", "inner")


def test_scopes_survive_a_gradient():
    def f(x):
        with fg.named_scope("layer"):
            return fnp.sin(x) * fnp.cos(x)

    eqns = fg.make_jaxpr(fg.grad(f))(1.0).eqns
    assert {e.scopes for e in eqns if e.prim.name in ("sin", "cos")} == {("layer",)}
    assert any(e.scopes == ("layer",) for e in eqns[-3:]), "the backward pass keeps them"


def test_replace_and_static_key():
    ctx = context.current()
    checks = Checks(nans=True)
    assert ctx.replace(checks=checks).checks is checks
    assert ctx.replace(checks=checks).static_key() != ctx.static_key()
    assert ctx.with_trace("t").trace == "t"
    assert ctx.with_trace("t").static_key() == ctx.static_key()
