"""A program for ranks that share work, of which one fails: `failures.py rank where how`."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np

import funcgrad as fg
from funcgrad import lax

RANK = int(os.environ["PMI_RANK"])
who, where, how = sys.argv[1:]


def fail():
    if how == "raise":
        raise ValueError("as the test wants it")
    if how == "exit":
        sys.exit(3)
    if how == "vanish":
        os._exit(3)
    if how == "return":
        sys.exit()
    time.sleep(100)


def here(place):
    if (int(who), where) == (RANK, place):
        fail()


def summed(x):
    here("tracing")
    return (x + fg.pure_callback(called, fg.ShapeDtypeStruct((), "float32"))).sum()


def endless(x):
    return lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0], c[1] + c[1].sum()), (1, x))


def called():
    here("running")
    return np.float32(1)


here("before the import")
from funcgrad.parallel import NamedSharding, P, make_mesh, process_count  # noqa: E402

here("after the import")
if where == "beside":
    # What a rank starts is no rank: it neither joins the others nor ends them.
    code = "import funcgrad.parallel; raise ValueError('of a child')"
    subprocess.run([sys.executable, "-c", code], check=False)
    child = os.fork()
    if not child:
        raise ValueError("of a fork")
    os.waitpid(child, 0)
mesh = make_mesh(process_count(), "d")
x = fg.device_put(np.ones((6, 3), "float32"), NamedSharding(mesh, P("d")))
here("before the first call")
step = fg.jit(summed)
print(f"{RANK} {float(step(x))}\n", end="", flush=True)  # one write, which no other cuts
if where == "interrupted":
    # While this one waits for the others, or all of them are in a loop that never ends.
    if int(who) == RANK:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    elif how == "waiting":
        time.sleep(100)
    while True:
        if how == "waiting":
            step(x)
        else:
            fg.jit(endless)(x)
if where == "on a thread" and int(who) == RANK:
    threading.Thread(target=fail).start()
    time.sleep(100)
here("after a call")
for _ in range(3):
    step(x)
