"""Executables as `jit` calls them: what arrays they take and give, donation, memory, inspection."""

import gc
import os
import threading

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm import BACKEND
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.core.array import Array
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import sum_p, transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.elementwise import arithmetic, transcendental
from funcgrad.ops.sort import sort_p

mul, sub, neg = arithmetic.mul, arithmetic.sub, arithmetic.neg
F32 = np.dtype("float32")


def compiled(fun, *arrays, donated=None):
    jaxpr, consts = stage(lambda *args: fun(*args), [aval_of(a) for a in arrays])
    assert not consts
    return BACKEND.compile(jaxpr, donated or [False] * len(arrays), "test")


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


def total(x):
    return sum_p.bind(x, axes=tuple(range(x.ndim)))


def matmul(x, y):
    numbers = (((1,), (0,)), ((), ()))
    return dot_general_p.bind(x, y, dimension_numbers=numbers, preferred_element_type=None)


# ---- arguments


def double(x):
    return [mul.bind(x, x.dtype.type(2))]


@pytest.mark.parametrize(
    "x",
    [
        np.arange(12, dtype=F32).reshape(3, 4),
        np.arange(12, dtype=F32).reshape(4, 3).T,
        np.arange(24, dtype=F32).reshape(3, 8)[:, ::2],
        np.arange(12, dtype=F32).reshape(3, 4)[::-1],
        np.broadcast_to(np.float32(3), (3, 4)),
        np.frombuffer(b"\1" * 49, np.uint8)[1:].view(F32).reshape(3, 4),
        np.arange(12, dtype=">f4").reshape(3, 4),
        np.arange(12, dtype=F32).reshape(3, 4).view(np.matrix),
    ],
    ids=[
        "plain",
        "transposed",
        "strided",
        "reversed",
        "broadcast",
        "misaligned",
        "swapped",
        "matrix",
    ],
)
def test_arrays_of_any_layout(x):
    plain = np.ascontiguousarray(np.asarray(x), F32)
    before = plain.copy()
    (out,) = compiled(double, plain)([x])
    np.testing.assert_array_equal(out, plain * 2)
    np.testing.assert_array_equal(np.asarray(x), before)
    assert type(out) is np.ndarray


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 1, 3)])
def test_shapes(shape):
    (out,) = compiled(double, ones(*shape))([ones(*shape)])
    assert out.shape == shape
    assert (out == 2).all()


def test_wrong_arguments_raise():
    executable = compiled(double, ones(2, 3))
    with pytest.raises(TypeError, match="takes 1 arrays, got 2"):
        executable([ones(2, 3), ones(2, 3)])
    with pytest.raises(TypeError, match=r"takes f32\[2,3\], got shape \(3, 2\)"):
        executable([ones(2, 3).T])
    with pytest.raises(TypeError, match="takes 1 arrays, got 0"):
        executable([])
    np.testing.assert_array_equal(executable((ones(2, 3),))[0], 2 * ones(2, 3))


def test_inputs_are_never_written_and_results_are_new():
    x = ones(5)
    executable = compiled(lambda x: [x, mul.bind(x, x)], x)
    same, square = executable([x])
    same[0] = square[0] = 7
    np.testing.assert_array_equal(x, ones(5))


def test_many_leaves():
    xs = [np.full(3, i, F32) for i in range(60)]
    outs = compiled(lambda *xs: [neg.bind(x) for x in xs], *xs)(xs)
    np.testing.assert_array_equal(np.stack(outs), -np.stack(xs))


# ---- donation


def test_donated_memory_becomes_the_result():
    executable = compiled(double, ones(4), donated=[True])
    arrays = [Array(ones(4))]
    address = arrays[0].value.ctypes.data
    results = executable([a.value for a in arrays])
    assert results[0].ctypes.data == address
    np.testing.assert_array_equal(results[0], [2, 2, 2, 2])


def test_memory_that_others_hold_is_not_overwritten():
    executable = compiled(double, ones(4), donated=[True])
    x = ones(4)
    view = x[:2]
    held = ones(4)
    listed = [x, held, ones(8)[::2], np.broadcast_to(np.float32(1), (4,)), ones(2, 4)[1]]
    for y in listed:
        (out,) = executable([y])
        np.testing.assert_array_equal(out, [2, 2, 2, 2])
        np.testing.assert_array_equal(y, [1, 1, 1, 1])
    np.testing.assert_array_equal(view, [1, 1])
    frozen = ones(4)
    frozen.flags.writeable = False
    executable([frozen])
    np.testing.assert_array_equal(frozen, [1, 1, 1, 1])


def test_donated_memory_serves_temporaries():
    def fun(x, y):
        a = transcendental.exp(transpose_p.bind(matmul(x, y), permutation=(1, 0)))
        return [total(matmul(a, x))]

    x, y = ones(30, 30), ones(30, 30)
    wanted = compiled(fun, x, y)([x, y])[0]
    executable = compiled(fun, x, y, donated=[True, True])
    np.testing.assert_allclose(executable([x, y])[0], wanted)
    np.testing.assert_array_equal(x, ones(30, 30))
    np.testing.assert_array_equal(y, ones(30, 30))


# ---- memory


def test_large_results_reuse_the_memory_of_dead_ones():
    n = 1 << 20
    executable = compiled(double, ones(n))
    x = ones(n)
    gc.collect()  # what other tests left comes back before, not in between
    address = executable([x])[0].ctypes.data
    assert executable([x])[0].ctypes.data == address
    first, second = executable([x])[0], executable([x])[0]
    assert first.ctypes.data != second.ctypes.data
    assert first.flags.owndata
    assert first.ctypes.data % 64 == 0


def test_arrays_outlive_their_executable():
    out = compiled(double, ones(1 << 18))([ones(1 << 18)])[0]
    gc.collect()
    assert (out == 2).all()
    assert (out + 1 == 3).all()


def test_calls_in_threads_do_not_share_temporaries():
    def fun(x, y):
        return [total(transcendental.exp(sub.bind(matmul(x, y), x.dtype.type(100))))]

    x = np.eye(100, dtype=F32)
    executable = compiled(fun, x, x)
    alone = {i: executable([x, np.full((100, 100), i, F32)])[0] for i in range(90, 94)}
    np.testing.assert_allclose([*alone.values()], [1e4 * np.exp(i - 100.0) for i in alone], 1e-4)
    wrong = []

    def call(i):
        y = np.full((100, 100), i, F32)
        for _ in range(50):
            if executable([x, y])[0] != alone[i]:
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(90 + i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_processes_go_on():
    x = ones(1 << 20)
    executable = compiled(double, x)
    executable([x])
    child = os.fork()
    if not child:
        os._exit(0 if (executable([x])[0] == 2).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---- inspection


def test_texts_and_analyses():
    executable = compiled(lambda x: [total(mul.bind(x, x))], ones(10))
    assert "multiply" in executable.as_text("loops")
    assert "define" in executable.as_text("llvm")
    assert "fg_program" in executable.as_text("asm")
    with pytest.raises(ValueError, match="no stage 'cuda'"):
        executable.as_text("cuda")
    assert executable.cost_analysis()["flops"] > 0
    assert executable.memory_analysis()["argument_size_in_bytes"] == 40
    assert repr(executable) == "Executable(test)"


def test_equal_kernels_are_compiled_once():
    first = compiled(lambda x: [transcendental.tanh(x)], ones(123))
    second = compiled(
        lambda x, y: [transcendental.tanh(x), transcendental.tanh(y)], *[ones(123)] * 2
    )
    assert first.library.uses == second.library.uses


def test_sort_runs_in_python():
    x = np.array([3, 1, 2], F32)

    def fun(x):
        return sort_p.bind(neg.bind(x), dimension=0, is_stable=True, num_keys=1)

    np.testing.assert_array_equal(compiled(fun, x)([x])[0], [-3, -2, -1])


def test_code_of_functions_that_died_is_unloaded():
    def run(i):
        f = fg.jit(lambda x: fnp.sin(x) * float(i) + fnp.sum(x @ x.T, axis=0))
        return f, f(fnp.ones((3, 3)))

    kept, value = run(1000)
    run(0)
    gc.collect()
    before = len(engine()._libraries)
    for i in range(1, 12):
        run(i)
    engine().later.settle()  # what is optimized later is held till then
    gc.collect()
    assert len(engine()._libraries) <= before + 2
    assert len(engine()._dead) < 6
    np.testing.assert_array_equal(kept(fnp.ones((3, 3))), value)
    # What was unloaded is compiled again, or found on disk.
    np.testing.assert_array_equal(run(5)[1], run(5)[1])


@pytest.mark.long
def test_threads_that_compile_and_forget():
    faults = []

    def work(seed):
        try:
            for i in range(3):
                f = fg.jit(lambda x, i=i: fnp.sum(fnp.cos(x) * float(i % 3 + seed % 2)))
                want = 5 * np.cos(np.float32(1)) * (i % 3 + seed % 2)
                np.testing.assert_allclose(float(f(fnp.ones(5))), want, rtol=1e-5)
                del f
                gc.collect()
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not faults
