"""A program for ranks that goes wrong on rank 1 as its argument says."""

import os
import signal
import sys
import time

import numpy as np

import funcgrad.parallel
from funcgrad.parallel.communicators import mpi, watchdog

how = sys.argv[1]
world = mpi.world()
comm = mpi.communicator({"data": world.size}, ("data",))
x = np.ones(3, "float32")
for _ in range(5):
    comm.all_reduce(x)
if how == "late":
    # Only now, as on a busy machine a rank may be late already while it starts.
    os.environ[watchdog.VARIABLE] = "2"
    watchdog.start(world)
if comm.rank == 1:
    if how == "raise":
        raise ValueError("as the test wants it")
    if how == "exit":
        sys.exit(3)
    if how == "late":
        time.sleep(100)
    if how == "kill" and os.environ["FUNCGRAD_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
comm.all_reduce(x)
if comm.rank == 0:
    print(f"done on {world.size} ranks, {funcgrad.parallel.process_count()} processes")
