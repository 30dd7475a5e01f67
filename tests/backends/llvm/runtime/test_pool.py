import ctypes
import subprocess
import sys
import textwrap
import threading

import pytest

from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime import pool

# @mark counts how often each index is visited; @outer runs a loop inside each of its tasks.
CODE = """
declare void @fg_parallel_for(ptr, ptr, i64, i64)
define void @mark(ptr %ctx, i64 %begin, i64 %end) {
entry:
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%next, %loop]
  %p = getelementptr i64, ptr %ctx, i64 %i
  %old = atomicrmw add ptr %p, i64 1 monotonic
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}
define void @outer(ptr %ctx, i64 %begin, i64 %end) {
  call void @fg_parallel_for(ptr @mark, ptr %ctx, i64 100, i64 7)
  ret void
}
define void @repeat(ptr %ctx, i64 %n, i64 %grain, i64 %times) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  call void @fg_parallel_for(ptr @mark, ptr %ctx, i64 %n, i64 %grain)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""
I64, PTR = ctypes.c_int64, ctypes.c_void_p


@pytest.fixture(scope="module")
def lib():
    pool.bind(engine())
    return engine().compile(CODE)


def parallel_for(task, ctx, n, grain):
    function = ctypes.CFUNCTYPE(None, PTR, PTR, I64, I64)(pool.parallel_for_address())
    function(task, ctypes.addressof(ctx), n, grain)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("n", "grain"), [(0, 1), (1, 1), (5, 100), (1000, 1), (1000, 7), (9, 0)])
def test_every_index_is_visited_once(lib, threads, n, grain):
    pool.set_num_threads(threads)
    counts = (I64 * 1001)()
    parallel_for(lib.address("mark"), counts, n, grain)
    assert list(counts) == [1] * n + [0] * (1001 - n)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_chunks_do_not_depend_on_the_number_of_threads(threads):
    pool.set_num_threads(threads)
    chunks = []
    task = ctypes.CFUNCTYPE(None, PTR, I64, I64)(lambda ctx, b, e: chunks.append((b, e)))
    parallel_for(ctypes.cast(task, PTR).value, (I64 * 1)(), 23, 5)
    assert sorted(chunks) == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 23)]


@pytest.mark.parametrize("threads", [2, 4])
def test_many_loops_in_a_row(lib, threads):
    pool.set_num_threads(threads)
    counts = (I64 * 8)()
    repeat = ctypes.CFUNCTYPE(None, PTR, I64, I64, I64)(lib.address("repeat"))
    repeat(ctypes.addressof(counts), 8, 1, 5000)
    assert list(counts) == [5000] * 8


def test_both_threads_work():
    pool.set_num_threads(2)
    barrier = threading.Barrier(2)  # only two threads at once get past it

    def meet(ctx, begin, end):
        barrier.wait(timeout=240)

    task = ctypes.CFUNCTYPE(None, PTR, I64, I64)(meet)
    parallel_for(ctypes.cast(task, PTR).value, (I64 * 1)(), 2, 1)
    assert not barrier.broken


def test_the_caller_begins_at_the_front_and_workers_at_the_back():
    pool.set_num_threads(2)
    barrier, taken = threading.Barrier(2), {}

    def note(ctx, begin, end):
        mine = taken.setdefault(threading.get_ident(), [])
        if not mine:
            barrier.wait(timeout=240)
        mine.append((begin, end))

    task = ctypes.CFUNCTYPE(None, PTR, I64, I64)(note)
    parallel_for(ctypes.cast(task, PTR).value, (I64 * 1)(), 39, 2)
    front = taken.pop(threading.get_ident())
    (back,) = taken.values()
    chunks = [(i, min(i + 2, 39)) for i in range(0, 39, 2)]
    assert front == chunks[: len(front)]
    assert back == chunks[: -len(back) - 1 : -1]


def test_chunks_of_a_very_long_loop():
    pool.set_num_threads(2)
    chunks = []
    task = ctypes.CFUNCTYPE(None, PTR, I64, I64)(lambda ctx, b, e: chunks.append((b, e)))
    parallel_for(ctypes.cast(task, PTR).value, (I64 * 1)(), 2**62 + 1, 2**61)
    assert sorted(chunks) == [(0, 2**61), (2**61, 2**62), (2**62, 2**62 + 1)]


def test_nested_loops_run_inline(lib):
    pool.set_num_threads(3)
    counts = (I64 * 100)()
    parallel_for(lib.address("outer"), counts, 20, 1)
    assert list(counts) == [20] * 100


def test_callers_from_several_python_threads(lib):
    pool.set_num_threads(2)
    counts = [(I64 * 1000)() for _ in range(4)]
    repeat = ctypes.CFUNCTYPE(None, PTR, I64, I64, I64)(lib.address("repeat"))
    callers = [
        threading.Thread(target=repeat, args=(ctypes.addressof(c), 1000, 10, 200)) for c in counts
    ]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert all(list(c) == [200] * 1000 for c in counts)


def test_bad_numbers_of_threads(monkeypatch):
    with pytest.raises(ValueError, match="set_num_threads: n must be between 1 and 4096, got 0"):
        pool.set_num_threads(0)
    with pytest.raises(TypeError, match="set_num_threads: n must be an integer, got 'two'"):
        pool.set_num_threads("two")
    monkeypatch.setattr(pool, "_threads", None)
    monkeypatch.setenv("FUNCGRAD_NUM_THREADS", "3")
    assert pool.num_threads() == 3
    monkeypatch.setenv("FUNCGRAD_NUM_THREADS", "two")
    with pytest.raises(ValueError, match="FUNCGRAD_NUM_THREADS must be an integer .* got 'two'"):
        pool.num_threads()
    pool.set_num_threads(1)


def run(code):
    prelude = """
        import ctypes, os, sys
        from funcgrad.backends.llvm.runtime import pool
        chunks = []
        task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            lambda ctx, b, e: chunks.append(b))
        def loop():
            chunks.clear()
            f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                 ctypes.c_int64)(pool.parallel_for_address())
            f(ctypes.cast(task, ctypes.c_void_p).value, None, 10, 1)
            assert sorted(chunks) == list(range(10)), chunks
    """
    script = textwrap.dedent(prelude) + textwrap.dedent(code)
    command = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.skipif(sys.platform == "win32", reason="needs os.fork")
def test_fork_forgets_the_workers_and_starts_new_ones():
    result = run("""
        pool.set_num_threads(3)
        loop()
        child = os.fork()
        loop()
        started = pool._pool.field("started").value
        assert started == 2, started
        if child == 0:
            grandchild = os.fork()
            loop()
            if grandchild == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 7
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        print("done")
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_interpreter_exits_at_once_with_workers_spinning_or_asleep():
    for pause in ("", "import time; time.sleep(0.05)"):
        result = run(f"pool.set_num_threads(4); loop(); {pause}\nprint('bye')")
        assert (result.returncode, result.stdout, result.stderr) == (0, "bye\n", "")


def test_a_sample_that_is_interrupted_leaves_spinning_as_long(monkeypatch):
    now = iter(range(1000))
    late = {3: 5.0, 9: 1.0}

    def clock():
        tick = next(now)
        return tick * 1e-5 + sum(delay for at, delay in late.items() if at <= tick)

    monkeypatch.setattr(pool.time, "perf_counter", clock)
    turns = pool._the_pool()._calibrate()
    assert turns == pytest.approx(pool.SAMPLE * pool.SPIN_SECONDS / 1e-5, rel=0.01)
