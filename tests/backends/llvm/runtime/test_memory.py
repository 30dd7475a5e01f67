"""The allocator that keeps memory: blocks live as long as their views, idle ones come back."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.runtime.memory import _limit, allocator, large_arrays
from funcgrad.core.eager.large import LARGE

SIZE = 1 << 18
FLOATS = np.dtype("float32")


@pytest.fixture(autouse=True)
def no_garbage():
    """No array that other tests left in a cycle comes back in the midst of a test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def large():
    return large_arrays([((SIZE,), FLOATS)])[0]


def address(x):
    return x.__array_interface__["data"][0]


def test_the_memory_of_a_dead_array_is_taken_over():
    fg.release_memory()
    x = large()
    there = address(x)
    assert there % 64 == 0
    del x
    assert fg.memory_summary().idle >= SIZE * 4
    assert address(large()) == there


@pytest.mark.parametrize("size", [1, 100, 5000, LARGE - 1])
def test_small_arrays_are_aligned_and_not_kept(size):
    before = fg.memory_summary()
    arrays = large_arrays([((size,), np.dtype("uint8")) for _ in range(20)])
    assert all(address(x) % 64 == 0 for x in arrays)
    for i, x in enumerate(arrays):
        x[:] = i
    arrays[7].resize(3 * size)
    assert all((x[:size] == i).all() for i, x in enumerate(arrays))
    assert fg.memory_summary().in_use - before.in_use == (3 * size if 3 * size >= LARGE else 0)


def test_a_block_lives_as_long_as_a_view():
    fg.release_memory()
    x = large()
    x[:] = 7
    view = x.reshape(512, -1)[3:5, ::2]
    del x
    others = [large() for _ in range(3)]
    for other in others:
        other[:] = 1
    assert (view == 7).all()
    assert fg.memory_summary().idle == 0
    del view
    assert fg.memory_summary().idle >= SIZE * 4


def test_numpy_may_resize_and_clear_such_arrays():
    a = allocator()
    token = a.begin()
    try:
        grown = np.arange(SIZE, dtype=np.int64)
        small = np.arange(10)
        zeros = np.zeros(SIZE)
    finally:
        a.end(token)
    grown.resize(2 * SIZE, refcheck=False)
    small.resize(20, refcheck=False)
    assert grown[SIZE - 1] == SIZE - 1
    assert not grown[SIZE:].any()
    assert small.tolist() == [*range(10), *[0] * 10]
    assert not zeros.any()


def test_repeated_steps_make_no_blocks():
    step = fg.jit(lambda x: fnp.cumsum(x[::-1] * 2 + 1) - x)
    x = fnp.array(np.ones(SIZE, np.float32))
    for _ in range(3):
        y = step(x)
    made = fg.memory_summary().made
    for _ in range(20):
        y = step(x)
    assert fg.memory_summary().made == made
    assert y.shape == x.shape


def test_summary_and_release():
    x = large()
    before = fg.memory_summary()
    assert before.in_use >= x.nbytes
    assert before.peak >= before.in_use
    del x
    assert fg.memory_summary().in_use <= before.in_use - SIZE * 4
    assert fg.release_memory() >= SIZE * 4
    after = fg.memory_summary()
    assert (after.idle, after.idle_blocks) == (0, 0)
    text = repr(after)
    assert "kept idle      0 B in 0 blocks" in text
    assert "FUNCGRAD_KEPT_MEMORY" in after._repr_html_()


@pytest.mark.parametrize(
    ("text", "limit"), [("0", 0), ("1000", 1000), ("2k", 2048), ("3MB", 3 << 20), ("1 GiB", None)]
)
def test_the_bound_is_set_by_the_environment(monkeypatch, text, limit):
    monkeypatch.setenv("FUNCGRAD_KEPT_MEMORY", text)
    if limit is None:
        with pytest.raises(ValueError, match="FUNCGRAD_KEPT_MEMORY must be a number of bytes"):
            _limit()
    else:
        assert _limit() == limit


def test_no_more_is_kept_than_the_bound():
    number = allocator().numbers["limit"]
    before = number.value
    fg.release_memory()
    try:
        number.value = 5 * SIZE * 4
        arrays = [large() for _ in range(9)]
        del arrays
        assert fg.memory_summary().idle <= 5 * SIZE * 4
        assert fg.memory_summary().idle_blocks == 5
        fg.release_memory()
        number.value = 0
        arrays = [large()]
        del arrays
        assert fg.memory_summary().idle == 0
    finally:
        number.value = before


def test_more_blocks_than_the_table_has():
    fg.release_memory()
    arrays = large_arrays([((1 << 15,), FLOATS)] * 300)
    del arrays
    assert fg.memory_summary().idle_blocks <= 256
    fg.release_memory()


def test_threads_take_and_give_at_once():
    def work(seed):
        rng = np.random.default_rng(seed)
        held = []
        for _ in range(300):
            (x,) = large_arrays([((int(rng.integers(1 << 15, 1 << 17)),), FLOATS)])
            x[:] = seed
            held.append(x)
            if len(held) > 5:
                mine = held.pop(int(rng.integers(len(held))))
                if not (mine == seed).all():
                    wrong.append(seed)

    wrong: list[int] = []
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert fg.memory_summary().in_use >= 0


def test_a_child_that_was_forked_while_a_thread_held_the_lock():
    code = (
        "import os, numpy as np, funcgrad as fg\n"
        "from funcgrad.backends.llvm.runtime.memory import allocator, large_arrays\n"
        "spec = [((1 << 18,), np.dtype('float32'))]\n"
        "kept = large_arrays(spec); del kept\n"
        "allocator().lock.value = 1\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ok = fg.memory_summary().idle == 0 and large_arrays(spec)[0].size == 1 << 18\n"
        "    os._exit(0 if ok else 1)\n"
        "allocator().lock.value = 0\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert fg.memory_summary().idle == 1 << 20\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, env=dict(os.environ))


def test_what_is_too_large_is_an_error_and_nothing_is_counted():
    before = fg.memory_summary().in_use
    with pytest.raises(MemoryError):
        large_arrays([((1 << 60,), np.dtype("int8"))])
    assert fg.memory_summary().in_use == before
