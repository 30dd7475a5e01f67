"""The native code of direct calls is made beside calls, when they show that it is worth it."""

import os
import subprocess
import sys
import tempfile

import pytest

from funcgrad.backends.llvm.calls import direct

pytestmark = pytest.mark.skipif(not direct.available(), reason="another Python or NumPy")

MADE = """
import threading
import funcgrad as fg, funcgrad.numpy as fnp
from funcgrad.backends.llvm.calls import direct
from funcgrad.core.process import fork

begun = []
beside = fork.beside
fork.beside = lambda work: (begun.append(work), beside(work))
x = fnp.ones(3)
for number in range(direct.PATIENCE + 20):
    f = fg.jit(lambda x: x + 1) if number % 2 else f if number else fg.jit(fnp.sin)
    f(x)
    if direct._method is not None or direct.available in begun:
        break
print(number, begun.count(direct.available))
for thread in threading.enumerate():
    if not thread.daemon and thread is not threading.main_thread():
        thread.join()
f(x)
assert f._entries and begun.count(direct.available) < 2
"""


def run(program, folder):
    """What a process prints whose code is on disk in a folder."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "FUNCGRAD_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    ).stdout


def test_native_code_is_made_beside_calls_when_they_show_its_worth():
    with tempfile.TemporaryDirectory() as folder:
        assert run(MADE, folder) == f"{direct.PATIENCE} 1\n"
        assert run(MADE, folder) == "0 0\n"


CALLED = """
import os, sys, threading, time
import funcgrad as fg, funcgrad.numpy as fnp
from funcgrad.backends.llvm.calls import direct

load, inside = direct._load, threading.Event()

def slowly():
    inside.set()
    time.sleep(0.3)
    {instead}
    return load()

direct._load = slowly
f, x = fg.jit(lambda x: x + 1), fnp.ones(3)

def work():
    while not inside.is_set() or direct._lock.locked():
        assert f(x).tolist() == [2, 2, 2]

threads = [threading.Thread(target=work) for _ in range(3)]
[t.start() for t in threads]
inside.wait()
before = f.cache_info().hits
f(x)
assert direct._method is None
{then}
[t.join() for t in threads]
assert f.cache_info().hits > before + 1
for _ in range(3):
    f(x)
print(len(f._entries), direct._failed)
"""
CHILD = """
child = os.fork()
if child == 0:
    f(x)
    os._exit(0 if direct._method is not None and f._entries else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize(
    ("instead", "then", "printed"),
    [
        ("", "", "1 False"),
        ("raise LookupError", "", "0 True"),
        ("raise OSError", "", "0 False"),
        ("", CHILD, "1 False"),
        ("", "threads.clear(); print('over'); sys.exit()", "over"),
    ],
    ids=["made", "cannot be made", "fails", "forked", "over"],
)
def test_nobody_waits_for_native_code_but_forks_and_the_end(instead, then, printed):
    program = CALLED.format(instead=instead, then=then)
    assert run(program, "") == f"{printed}\n"
