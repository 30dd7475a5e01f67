"""Children forked while other threads hold locks."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

HELD = """
import gc, os, threading
from funcgrad.core.process import fork, gc_pause

order, lock = [], fork.lock()
fork.in_child(lambda: order.append(lock.locked()))
inside, over = threading.Event(), threading.Event()

def hold():
    with lock, gc_pause.no_collections():
        inside.set()
        over.wait()

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    free = lock.acquire(timeout=5)
    with gc_pause.no_collections():
        rests = not gc.isenabled()
    os._exit(0 if free and rests and gc.isenabled() and order == [False] else 1)
still = lock.locked() and not gc.isenabled() and not order
over.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert still and not lock.locked() and gc.isenabled()
"""


def test_a_child_finds_locks_free_and_garbage_collected():
    # A process of its own: from 3.12 on Python warns of a fork beside threads.
    command = [sys.executable, "-W", "ignore", "-c", HELD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


SLOW = """
import os, sys, threading, time
from funcgrad.core.process import fork

sys.path.insert(0, sys.argv[1])
thread = threading.Thread(target=fork.import_module, args=("slow_to_import",))
thread.start()
while "slow_to_import" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    os._exit(0 if fork.import_module("slow_to_import").done else 1)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_child_can_import_what_another_thread_was_importing(tmp_path):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\ndone = True\n")
    command = [sys.executable, "-W", "ignore", "-c", SLOW, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


BESIDE = """
import os, threading, time
from funcgrad.core.process import fork

seen = []

def work():
    seen.append(threading.get_ident())
    time.sleep(0.2)
    seen.append("over")

fork.beside(work)
child = os.fork()
if child == 0:
    os._exit(0 if seen[1:] == ["over"] and not fork._undivided else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert seen[0] != threading.get_ident()

start = threading.Thread.start
def no_more(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = no_more
seen.clear()
fork.beside(work)
assert seen == [threading.get_ident(), "over"] and not fork._undivided
threading.Thread.start = start

def fail():
    raise ValueError("it is shown")
fork.beside(fail)
# Threads inherit from who begins them that nobody waits for them, unless they are told otherwise.
last = lambda: (time.sleep(0.1), print("last"))
threading.Thread(target=fork.beside, args=(last,), daemon=True).start()
time.sleep(0.05)
"""


def test_forks_and_the_end_wait_for_what_threads_do_beside():
    command = [sys.executable, "-W", "ignore", "-c", BESIDE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "last\n"
    assert "ValueError: it is shown" in done.stderr
