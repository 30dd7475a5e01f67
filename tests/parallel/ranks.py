"""A pool of ranks: processes under mpiexec that run functions the tests name.

`mpiexec -n N` starts once for a test session; its ranks connect to a socket of the test process,
which sends them jobs ("module:function" and arguments) and gets their results. When a job fails on
a rank, or takes too long, all ranks are ended and the next job gets new ones.
"""

import contextlib
import importlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing import connection
from pathlib import Path

from funcgrad.parallel.launch import leftovers

ROOT = Path(__file__).parent.parent.parent
# Seconds for a job, also on a machine that does ten other things; and for what jobs leave to go.
TIMEOUT, PATIENCE = 240, 20


def mpiexec():
    """The path of mpiexec beside this Python, or on PATH; None without one."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which("mpiexec", path=search)


def missing():
    """Why there can be no ranks here, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install funcgrad[mpi])"
    if mpiexec() is None:
        return "no mpiexec beside Python or on PATH (pip install mpich)"
    return None


def environment(**changes):
    """The environment of ranks: the package under test, one thread each."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": path, "FUNCGRAD_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
           "MPIR_CVAR_POLLS_BEFORE_YIELD": "100"}  # fmt: skip
    return {**os.environ, **own, **changes}


class Traces:
    """What jobs leave in /dev/shm from now on."""

    def __init__(self):
        self.names, self.older = leftovers.names(), leftovers.processes()

    def left(self):
        """Names that no process holds, and nobody removes: what other jobs of this machine leave
        is gone as soon as their supervisors sweep."""
        end = time.monotonic() + PATIENCE
        while left := leftovers.unheld(leftovers.names() - self.names, self.older):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        return left


class RankError(AssertionError):
    """A job failed on some rank."""


class Pool:
    """N ranks, started when first needed."""

    def __init__(self, size, **env):
        self.size, self.env = size, env
        self.process = None
        self.connections = []

    def run(self, job, *args, timeout=TIMEOUT):
        """The results of a function ("tests.parallel.jobs:name") on each rank, in their order."""
        try:
            if self.process is None:
                self.start()
            for c in self.connections:
                c.send((job, args))
            return self.results(job, time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise

    def results(self, job, end):
        found = {}
        while len(found) < self.size:
            waiting = [c for r, c in enumerate(self.connections) if r not in found]
            ready = connection.wait(waiting, max(0, end - time.monotonic()))
            if not ready:
                late = sorted(set(range(self.size)) - set(found))
                raise RankError(f"{job}: ranks {late} are late")
            for c in ready:
                rank = self.connections.index(c)
                try:
                    good, value = c.recv()
                except EOFError:
                    raise RankError(f"{job}: rank {rank} has ended") from None
                if not good:
                    raise RankError(f"{job} failed on rank {rank}:\n{value}")
                found[rank] = value
        return [found[r] for r in range(self.size)]

    def start(self):
        key = secrets.token_bytes(16)
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            address = os.path.join(folder, "socket")
            with connection.Listener(
                address, "AF_UNIX", authkey=key, backlog=self.size
            ) as listener:
                command = [mpiexec(), "-n", str(self.size), sys.executable, "-m",
                           "tests.parallel.ranks", address, key.hex()]  # fmt: skip
                self.process = subprocess.Popen(
                    command, cwd=ROOT, env=environment(**self.env), start_new_session=True,
                    stdin=subprocess.DEVNULL,
                )  # fmt: skip
                listener._listener._socket.settimeout(TIMEOUT)
                found = {}
                for _ in range(self.size):
                    c = listener.accept()
                    found[c.recv()] = c
        self.connections = [found[r] for r in range(self.size)]

    def stop(self):
        """End the ranks."""
        process, self.process = self.process, None
        for c in self.connections:
            c.close()
        self.connections = []
        if process is None:
            return
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Pools:
    """`ranks(4).run("tests.parallel.jobs:function", *args)`: a pool for each number of ranks."""

    def __init__(self):
        self.pools = {}

    def __call__(self, size, **env):
        """The pool of this size whose ranks have these variables in their environment."""
        key = (size, *sorted(env.items()))
        if key not in self.pools:
            self.pools[key] = Pool(size, **env)
        return self.pools[key]

    def stop(self):
        for pool in self.pools.values():
            pool.stop()


def work(address, key):
    """What a rank of a pool does: jobs, until the test process hangs up."""
    rank = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
    with connection.Client(address, authkey=bytes.fromhex(key)) as c:
        c.send(rank)
        while True:
            try:
                job, args = c.recv()
            except (EOFError, OSError):
                os._exit(0)
            module, name = job.split(":")
            try:
                answer = True, getattr(importlib.import_module(module), name)(*args)
            except BaseException:
                answer = False, traceback.format_exc()
            try:
                c.send(answer)
            except OSError:
                os._exit(1)


if __name__ == "__main__":
    work(*sys.argv[1:])
