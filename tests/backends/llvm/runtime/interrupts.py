"""Programs that run until a signal ends them, in a process of their own: `interrupts.py test`."""

import gc
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax


def forever(turn, start, done=lambda c: False):
    return lax.while_loop(lambda c: ~done(c), turn, start)


def collatz(n):
    """Goes on for ever, and LLVM doesn't know."""
    return fnp.where(n % 2 == 0, n // 2, 3 * n + 1)


SMALL, SQUARE = fnp.arange(300.0), fnp.eye(300)
ENDLESS = {
    "numbers": (lambda x: forever(lambda n: collatz(n), x, lambda n: n == 0), fnp.int32(7)),
    "numbers in numbers": (
        lambda x: forever(lambda n: forever(collatz, n + 1, lambda n: n == 1), x, lambda n: n < 0),
        fnp.int32(7),
    ),
    "many turns": (lambda x: lax.fori_loop(0, 2**62, lambda i, n: collatz(n), x), fnp.int32(7)),
    "numbers on threads": (
        lambda x: lax.map(lambda n: forever(collatz, n, lambda n: n == 0), x),
        fnp.arange(1, 65, dtype="int32"),
    ),
    "small arrays": (lambda x: forever(lambda c: (c[0], fnp.sin(c[1])), (1, x),
                                       lambda c: c[0] < 0), SMALL),
    "loops in loops": (
        lambda x: forever(lambda c: (c[0], lax.fori_loop(0, 9, lambda i, y: y @ y, c[1])), (1, x),
                          lambda c: c[0] < 0),
        SQUARE[:9, :9],
    ),
    "large arrays": (lambda x: forever(lambda c: (c[0], fnp.sin(c[1] @ c[1])), (1, x),
                                       lambda c: c[0] < 0), SQUARE),
    "a long scan": (lambda x: lax.scan(lambda c, i: (fnp.sin(c + i), None), x,
                                       fnp.arange(2**24))[0], fnp.ones((200, 200))),
    "steps in Python": (
        lambda x: forever(lambda y: fg.pure_callback(
            lambda v: v + 1, fg.ShapeDtypeStruct((300,), "float32"), y), x,
            lambda y: (y < 0).all()), SMALL),
    "branches": (
        lambda x: forever(lambda c: lax.cond(c[0] > 0, lambda: (c[0], c[1] * 2), lambda: c), (1, x),
                          lambda c: c[0] < 0), SMALL),
}  # fmt: skip


def alarm(delay):
    """SIGINT for this process, so many seconds from now."""
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def interrupted(call, delay=0.3):
    """Whether a call was over before SIGINT came, which is waited for."""
    over = False
    try:
        alarm(delay)
        call()
        over = True
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        return over


def endless(name):
    fun, x = ENDLESS[name]
    step, plus = fg.jit(fun), fg.jit(lambda x: x + 1)
    compiled = step.lower(x).compile()
    for call in (compiled, step, step):
        assert not interrupted(lambda call=call: call(x))
        np.testing.assert_array_equal(plus(x), np.asarray(x) + 1)
        assert float(fnp.sum(fnp.ones((200, 200)) @ fnp.ones((200, 200)))) == 8e6


def at_random_times():
    """Each call is right or interrupted, while it is traced, compiled, or runs; so is the next."""
    rng = random.Random(0)
    x = SQUARE[:40, :40]
    for k in range(15):

        @fg.jit
        def f(x, n, k=k):
            def turn(i, y):
                return fnp.sin(y @ y) + lax.fori_loop(0, 3, lambda i, z: z * 0.5 + k, y)

            return lax.fori_loop(0, n, turn, x)

        got = []
        for n in (30, 3000, 30):
            over = interrupted(lambda n=n: got.append((n, f(x, n))), rng.uniform(0, 0.4))
            assert not over or got[-1][0] == n
        for n, y in got:
            np.testing.assert_array_equal(y, f(x, n))


def memory():
    """What an interrupted program took is given back: temporaries, results, scratch memory."""
    fun, x = ENDLESS["large arrays"]
    step, x = fg.jit(lambda x: (fun(x), fnp.cos(x))), fnp.eye(500)
    step.lower(x).compile()
    for k in range(4):
        assert not interrupted(lambda: step(x), 0.25)
        gc.collect()
        if k == 1:
            used = fg.memory_summary().in_use
    assert fg.memory_summary().in_use == used


def donated():
    """What an interrupted call was given is gone: it may have been written to."""
    rng = random.Random(1)
    step = fg.jit(lambda x, n: lax.fori_loop(0, n, lambda i, y: y + 1, x), donate_argnums=0)
    compiled = step.lower(SMALL, 1).compile()
    for call in (step, compiled) * 20:
        x, got = SMALL + 0, []
        interrupted(
            lambda x=x, got=got, call=call: got.append(call(x, 300_000)), rng.uniform(0, 0.1)
        )
        if not x.is_deleted():
            np.testing.assert_array_equal(x, SMALL)
        for y in got:
            np.testing.assert_array_equal(y, SMALL + 300_000)
    x = SMALL + 0
    fails = fg.jit(lambda x: fg.pure_callback(raises, x, x + 1), donate_argnums=0)
    with pytest.raises(ZeroDivisionError):
        fails(x)
    assert x.is_deleted()


def raises(x):
    raise ZeroDivisionError


def handlers():
    """A program's own handlers run meanwhile, may use compiled functions, and decide what ends."""
    fun, x = ENDLESS["small arrays"]
    step, calls = fg.jit(fun), []
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGALRM)}

    def handler(number, frame):
        calls.append(float(fg.jit(lambda x: lax.fori_loop(0, 9, lambda i, y: y * 2, x))(1.0)))
        if len(calls) == 3:
            raise LookupError("mine")
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    signal.signal(signal.SIGALRM, handler)
    assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for call in (step, step.lower(x).compile(), step):
        calls.clear()
        alarm(0.1)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(LookupError, match="mine"):
            call(x)
        assert calls == [512.0] * 3
    assert signal.getsignal(signal.SIGALRM) is handler


def other_threads():
    """Ctrl-C is the main thread's; what others run goes on."""
    step = fg.jit(lambda x, n: lax.fori_loop(0, n, lambda i, y: y + 1, x))
    for size in (1, 300, 300_000):
        results, n = [], 30_000_000 // (size + 100)
        x = fnp.zeros(size)

        def work(x=x, n=n, results=results):
            results.append(step(x, n))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        interrupted(threads[0].join, 0.2)
        for t in threads:
            t.join()
        for y in results:
            np.testing.assert_array_equal(y, np.full(size, n, np.float32))
        assert len(results) == 3


def children():
    """A forked child is interrupted as its parent is, also one that another thread forked."""
    fun, x = ENDLESS["numbers"]
    step = fg.jit(fun)
    assert not interrupted(lambda: step(x))

    def fork():
        child = os.fork()
        if not child:
            over = interrupted(lambda: step(x))
            os._exit(0 if over is False else 1)
        statuses.append(os.waitpid(child, 0)[1])

    statuses = []
    fork()
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert statuses == [0, 0]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    print("done")
