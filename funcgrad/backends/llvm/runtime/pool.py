"""One thread pool for all generated code: a native fork-join loop.

`fg_parallel_for(task, ctx, n, grain)` calls `task(ctx, begin, end)` on every chunk
[k·grain, min((k+1)·grain, n)). Chunks are the same for any number of threads, so a reduction that
keeps a partial result a chunk is reproducible. The caller takes them from the front, workers from
the back: what a core wrote in one loop it tends to read in the next, from its own cache. Only one
loop is open at a time: a nested one, or one from another Python thread, runs its chunks in its
caller, so that processors are never oversubscribed.
Workers are POSIX threads that spin for a while, then sleep; the first loop starts them.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import time
from string import Template

from funcgrad.backends.llvm.native.engine import Engine, here
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import run_code
from funcgrad.core.process import fork

NAME, ASKING = "fg_parallel_for", "fg_parallel_asking"
# Longer than it takes Python to come to the next large operation, or small program: waking a worker
# costs what such a loop takes. (A training step without jit: 6 % less time than with 30 µs.)
SPIN_SECONDS = 300e-6
# How often the spinning loop is timed, and so many turns of it.
SAMPLES, SAMPLE = 8, 250

_lock = fork.lock()
_pool: _Pool | None = None
_threads: int | None = None

# The shared state, by cache lines: what sleeping workers watch; the gate of the open loop (bit 16:
# open, bit 17: its caller sleeps until the count in bits 0-15, of workers inside, is zero); the
# counter of chunks; the loop itself; mutex and the two condition variables (workers, callers).
_FIELDS = {
    "signal": 0, "sleepers": 4, "limit": 8, "started": 12, "spins": 16,
    "gate": 64, "busy": 68, "next": 128,
    "task": 192, "ctx": 200, "n": 208, "grain": 216, "chunks": 224, "words": 232,
    "mutex": 256, "wake": 320, "done": 384,
}  # fmt: skip
_SIZE = 448

_IR = Template("""
@fg_pool = global [$size x i8] zeroinitializer, align 64

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_timedwait(ptr, ptr, ptr)
declare i32 @clock_gettime(i32, ptr)
declare i32 @fg_poll(ptr)
$declare_pause

define void @fg_pool_spin(i64 %n) noinline {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = load atomic i32, ptr $signal monotonic, align 4
  $pause
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}

; Runs [begin, end) chunk by chunk in the caller.
define internal void @serial(ptr %task, ptr %ctx, i64 %n, i64 %grain) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %out
loop:
  %begin = phi i64 [0, %entry], [%stop, %loop]
  %stop = add i64 %begin, %grain
  %end = call i64 @llvm.smin.i64(i64 %stop, i64 %n)
  call void %task(ptr %ctx, i64 %begin, i64 %end)
  %more = icmp slt i64 %stop, %n
  br i1 %more, label %loop, label %out
out:
  ret void
}

; Takes chunks of the open loop until none is left: from the front, or the last first. How many
; were taken at each end is in one word, so the sum of both says whether one is left.
define internal void @drain(i1 %front) {
entry:
  %task = load ptr, ptr $task
  %ctx = load ptr, ptr $ctx
  %n = load i64, ptr $n
  %grain = load i64, ptr $grain
  %chunks = load i64, ptr $chunks
  %last = sub i64 %chunks, 1
  %one = select i1 %front, i64 1, i64 4294967296
  br label %take
take:
  %taken = atomicrmw add ptr $next, i64 %one monotonic
  %first = and i64 %taken, 4294967295
  %behind = lshr i64 %taken, 32
  %all = add i64 %first, %behind
  %some = icmp slt i64 %all, %chunks
  br i1 %some, label %run, label %out
run:
  %back = sub i64 %last, %behind
  %chunk = select i1 %front, i64 %first, i64 %back
  %begin = mul i64 %chunk, %grain
  %stop = add i64 %begin, %grain
  %end = call i64 @llvm.smin.i64(i64 %stop, i64 %n)
  call void %task(ptr %ctx, i64 %begin, i64 %end)
  br label %take
out:
  ret void
}

define internal ptr @worker(ptr %arg) {
entry:
  %id = ptrtoint ptr %arg to i32
  br label %enter

; Joins the open loop, if any: the caller can't leave while the gate counts a worker inside.
enter:
  %seen = load atomic i32, ptr $signal seq_cst, align 4
  %limit = load atomic i32, ptr $limit monotonic, align 4
  %allowed = icmp slt i32 %id, %limit
  br i1 %allowed, label %join, label %sleep
join:
  %gate = load atomic i32, ptr $gate monotonic, align 4
  %bit = and i32 %gate, 65536
  %open = icmp ne i32 %bit, 0
  br i1 %open, label %count, label %spin
count:
  %gate1 = add i32 %gate, 1
  %swap = cmpxchg ptr $gate, i32 %gate, i32 %gate1 acq_rel monotonic
  %joined = extractvalue {i32, i1} %swap, 1
  br i1 %joined, label %work, label %join
work:
  call void @drain(i1 false)
  %inside = atomicrmw sub ptr $gate, i32 1 acq_rel
  %awaited = icmp eq i32 %inside, 131073
  br i1 %awaited, label %notify, label %spin
notify:
  %l0 = call i32 @pthread_mutex_lock(ptr $mutex)
  %u0 = call i32 @pthread_mutex_unlock(ptr $mutex)
  %s0 = call i32 @pthread_cond_signal(ptr $done)
  br label %spin

spin:
  %spins = load i32, ptr $spins
  br label %look
look:
  %i = phi i32 [0, %spin], [%i1, %pause]
  %now = load atomic i32, ptr $signal monotonic, align 4
  %changed = icmp ne i32 %now, %seen
  br i1 %changed, label %enter, label %pause
pause:
  $pause
  %i1 = add i32 %i, 1
  %again = icmp slt i32 %i1, %spins
  br i1 %again, label %look, label %sleep

; seq_cst on both sides: either the caller sees this sleeper, or this thread the new signal.
sleep:
  %l1 = call i32 @pthread_mutex_lock(ptr $mutex)
  %a1 = atomicrmw add ptr $sleepers, i32 1 seq_cst
  br label %doze
doze:
  %late = load atomic i32, ptr $signal seq_cst, align 4
  %quiet = icmp eq i32 %late, %seen
  br i1 %quiet, label %wait, label %awake
wait:
  %w1 = call i32 @pthread_cond_wait(ptr $wake, ptr $mutex)
  br label %doze
awake:
  %a2 = atomicrmw sub ptr $sleepers, i32 1 seq_cst
  %u1 = call i32 @pthread_mutex_unlock(ptr $mutex)
  br label %enter
}

; Starts the workers that set_num_threads asks for; if the system refuses, does with fewer.
define internal void @start() noinline {
entry:
  %thread = alloca i64
  br label %check
check:
  %started = load i32, ptr $started
  %limit = load atomic i32, ptr $limit monotonic, align 4
  %missing = icmp slt i32 %started, %limit
  br i1 %missing, label %create, label %out
create:
  %id = inttoptr i32 %started to ptr
  %error = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %id)
  %good = icmp eq i32 %error, 0
  br i1 %good, label %count, label %refused
count:
  %handle = load i64, ptr %thread
  %d = call i32 @pthread_detach(i64 %handle)
  %started1 = add i32 %started, 1
  store i32 %started1, ptr $started
  br label %check
refused:
  %l = atomicrmw xchg ptr $limit, i32 %started monotonic
  br label %out
out:
  ret void
}

; Wakes as many workers as there are chunks for; all, if some of them are above the limit.
define internal void @wake_workers(i64 %n, i64 %grain) noinline {
entry:
  %l = call i32 @pthread_mutex_lock(ptr $mutex)
  %u = call i32 @pthread_mutex_unlock(ptr $mutex)
  %sleepers = load atomic i32, ptr $sleepers monotonic, align 4
  %have = sext i32 %sleepers to i64
  %last = sub i64 %n, 1
  %useful = udiv i64 %last, %grain
  %fewer = icmp slt i64 %useful, %have
  %started = load i32, ptr $started
  %limit = load atomic i32, ptr $limit monotonic, align 4
  %equal = icmp sle i32 %started, %limit
  %few = and i1 %fewer, %equal
  br i1 %few, label %one, label %all
one:
  %i = phi i64 [0, %entry], [%i1, %one]
  %s = call i32 @pthread_cond_signal(ptr $wake)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %useful
  br i1 %more, label %one, label %out
all:
  %b = call i32 @pthread_cond_broadcast(ptr $wake)
  br label %out
out:
  ret void
}

; After the gate is closed: waits until the last worker inside has left.
define internal void @await_workers() {
entry:
  %end = alloca [2 x i64]
  %spins = load i32, ptr $spins
  br label %look
look:
  %i = phi i32 [0, %entry], [%i1, %pause]
  %inside = load atomic i32, ptr $gate acquire, align 4
  %none = icmp eq i32 %inside, 0
  br i1 %none, label %out, label %pause
pause:
  $pause
  %i1 = add i32 %i, 1
  %again = icmp slt i32 %i1, %spins
  br i1 %again, label %look, label %sleep
sleep:
  %l = call i32 @pthread_mutex_lock(ptr $mutex)
  %f = atomicrmw or ptr $gate, i32 131072 acq_rel
  br label %doze
doze:
  %gate = load atomic i32, ptr $gate acquire, align 4
  %empty = icmp eq i32 %gate, 131072
  br i1 %empty, label %awake, label %wait
wait:
  %words = load ptr, ptr $words
  %quick = icmp eq ptr %words, null
  br i1 %quick, label %long, label %short
long:
  %w = call i32 @pthread_cond_wait(ptr $done, ptr $mutex)
  br label %doze
short:
  %c = call i32 @clock_gettime(i32 0, ptr %end)
  %seconds = load i64, ptr %end
  %rest.at = getelementptr i64, ptr %end, i64 1
  %rest = load i64, ptr %rest.at
  %later = add i64 %rest, $nanoseconds
  %over = icmp uge i64 %later, 1000000000
  %less = sub i64 %later, 1000000000
  %nanoseconds = select i1 %over, i64 %less, i64 %later
  %carried = zext i1 %over to i64
  %second = add i64 %seconds, %carried
  store i64 %nanoseconds, ptr %rest.at
  store i64 %second, ptr %end
  %t = call i32 @pthread_cond_timedwait(ptr $done, ptr $mutex, ptr %end)
  %u1 = call i32 @pthread_mutex_unlock(ptr $mutex)
  %p = call i32 @fg_poll(ptr %words)
  %l1 = call i32 @pthread_mutex_lock(ptr $mutex)
  br label %doze
awake:
  %u = call i32 @pthread_mutex_unlock(ptr $mutex)
  br label %out
out:
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
""")

# One whose tasks don't take long; one whose tasks do, and ask for signals by words of `fg_poll`, as
# does its caller while it waits for them.
_LOOP = Template("""
define void @$name(ptr %task, ptr %ctx, i64 %n, i64 %grain0$more) {
entry:
  %grain = call i64 @llvm.smax.i64(i64 %grain0, i64 1)
  %limit = load atomic i32, ptr $limit monotonic, align 4
  %single = icmp eq i32 %limit, 0
  %end = sub i64 %n, 1
  %last = udiv i64 %end, %grain
  ; None or one; or more than half a word counts (without any, the end is a large number).
  %few = icmp eq i64 %last, 0
  %most = icmp ugt i64 %last, 2147483647
  %odd = or i1 %few, %most
  %simple = or i1 %single, %odd
  br i1 %simple, label %alone, label %claim
alone:
  call void @serial(ptr %task, ptr %ctx, i64 %n, i64 %grain)
  ret void
claim:
  %other = atomicrmw xchg ptr $busy, i32 1 acquire
  %free = icmp eq i32 %other, 0
  br i1 %free, label %check, label %alone
check:
  %started = load i32, ptr $started
  %missing = icmp slt i32 %started, %limit
  br i1 %missing, label %launch, label %open
launch:
  call void @start()
  br label %open
open:
  store ptr %task, ptr $task
  store ptr %ctx, ptr $ctx
  store i64 %n, ptr $n
  store i64 %grain, ptr $grain
  %chunks = add i64 %last, 1
  store i64 %chunks, ptr $chunks
  store ptr $given, ptr $words
  %x = atomicrmw xchg ptr $next, i64 0 monotonic
  %g = atomicrmw xchg ptr $gate, i32 65536 release
  %s = atomicrmw add ptr $signal, i32 1 seq_cst
  %sleepers = load atomic i32, ptr $sleepers seq_cst, align 4
  %asleep = icmp sgt i32 %sleepers, 0
  br i1 %asleep, label %wake, label %work
wake:
  call void @wake_workers(i64 %n, i64 %grain)
  br label %work
work:
  call void @drain(i1 true)
  %gate = atomicrmw and ptr $gate, i32 -65537 acq_rel
  call void @await_workers()
  %z = atomicrmw xchg ptr $busy, i32 0 release
  ret void
}
""")


class _Pool:
    """The compiled loop and its state in memory, which a forked child resets."""

    def __init__(self) -> None:
        run_code.bind(here())
        self.library = here().compile(_ir(here().target), level=0)
        self.address = self.library.address(NAME)
        self.state = self.library.address("fg_pool")
        self.spins = 0
        self.reset()
        self.spins = self._calibrate()
        self.reset()

    def field(self, name: str) -> ctypes.c_int32:
        return ctypes.c_int32.from_address(self.state + _FIELDS[name])

    def reset(self) -> None:
        """No workers, no loop, fresh locks: the state of a new process."""
        libc = ctypes.CDLL(None)
        ctypes.memset(self.state, 0, _SIZE)
        libc.pthread_mutex_init(ctypes.c_void_p(self.state + _FIELDS["mutex"]), None)
        for name in ("wake", "done"):
            libc.pthread_cond_init(ctypes.c_void_p(self.state + _FIELDS[name]), None)
        self.field("spins").value = self.spins
        self.field("limit").value = num_threads() - 1

    def _calibrate(self) -> int:
        """How many turns of the spinning loop SPIN_SECONDS are: a pause takes 5 to 150 cycles.

        The fastest of several samples counts. One that another process interrupts says too few
        turns, with which workers sleep between loops and come late to each, as long as the
        process lives.
        """
        spin = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.library.address("fg_pool_spin"))
        spin(10)
        fastest = math.inf
        for _ in range(SAMPLES):
            start = time.perf_counter()
            spin(SAMPLE)
            fastest = min(fastest, time.perf_counter() - start)
        return max(1, int(SAMPLE * SPIN_SECONDS / fastest))


def num_threads() -> int:
    """How many threads a parallel loop uses, its caller among them.

    The default is FUNCGRAD_NUM_THREADS from the environment, else the number of processors that
    this process may run on.

    >>> fg.num_threads() >= 1
    True
    """
    return _threads if _threads is not None else _default_threads()


def set_num_threads(n: int) -> None:
    """Use *n* threads in parallel loops from now on; 1 means no workers.

    Raises TypeError unless n is an integer, ValueError unless 1 ≤ n ≤ 4096.

    >>> before = fg.num_threads()
    >>> fg.set_num_threads(1)
    >>> fg.num_threads()
    1
    >>> fg.set_num_threads(before)
    """
    global _threads
    if not hasattr(n, "__index__"):
        raise TypeError(f"set_num_threads: n must be an integer, got {n!r}")
    count = operator.index(n)
    if not 1 <= count <= 4096:
        raise ValueError(f"set_num_threads: n must be between 1 and 4096, got {n}")
    with _lock:
        _threads = count
        if _pool is not None:
            _pool.field("limit").value = _threads - 1


def bind(target: Engine) -> None:
    """Let modules that *target* compiles use fg_parallel_for, fg_parallel_asking and fg_pool_limit.

    The last is an i32 in memory: the number of threads, less the caller's.

    >>> bind(here())
    """
    target.provide(NAME, parallel_for_address)
    target.provide(ASKING, lambda: _the_pool().library.address(ASKING))
    target.provide("fg_pool_limit", lambda: _the_pool().state + _FIELDS["limit"])


def parallel_for_address() -> int:
    """Address of fg_parallel_for; the pool is compiled at first use.

    >>> parallel_for_address() == parallel_for_address()
    True
    """
    return _the_pool().address


def _the_pool() -> _Pool:
    global _pool
    with _lock:
        if _pool is None:
            _pool = _Pool()
        return _pool


def _default_threads() -> int:
    text = os.environ.get("FUNCGRAD_NUM_THREADS", "")
    if not text:
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if not text.isdecimal() or not 1 <= int(text) <= 4096:
        raise ValueError(f"FUNCGRAD_NUM_THREADS must be an integer from 1 to 4096, got {text!r}")
    return int(text)


def _ir(target: Target) -> str:
    fields = {
        name: f"getelementptr (i8, ptr @fg_pool, i64 {offset})" for name, offset in _FIELDS.items()
    }
    declare, call = "", ""
    if target.triple.startswith("x86_64"):
        declare, call = "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"
    elif target.triple.startswith(("aarch64", "arm64")):
        declare, call = (
            "declare void @llvm.aarch64.hint(i32)",
            "call void @llvm.aarch64.hint(i32 1)",
        )
    fields |= {"size": str(_SIZE), "nanoseconds": str(int(run_code.ASK_SECONDS * 1e9))}
    text = _IR.substitute(fields, declare_pause=declare, pause=call)
    text += _LOOP.substitute(fields, name=NAME, more="", given="null")
    return text + _LOOP.substitute(fields, name=ASKING, more=", ptr %words", given="%words")


@fork.in_child
def _after_fork() -> None:
    """A forked child has none of the workers; the next loop starts its own."""
    if _pool is not None:
        _pool.reset()
