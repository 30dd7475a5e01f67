"""What the tests of checkpoints run on ranks."""

import os
import signal

import numpy as np

from funcgrad.core.sharding import Device, Shard
from funcgrad.io.checkpoints import Checkpointer, contents
from funcgrad.parallel import process_count, process_index


class Rows:
    """An array of which each rank has some rows."""

    shape, dtype, weak_type = (6, 2), np.dtype("float32"), False

    def __init__(self, value):
        self.value = value

    @property
    def addressable_shards(self):
        rank, n = process_index(), 6 // process_count()
        index = (slice(rank * n, rank * n + n), slice(0, 2))
        return [Shard(Device(rank, rank, "rank"), index, 0, np.full((n, 2), self.value, "float32"))]


def run(folder, start=0):
    """Save four steps; the last one, and by how many processes it was saved."""
    with Checkpointer(folder, keep=2) as c:
        for step in range(start, start + 4):
            c.save(step, {"x": Rows(step), "step": step})
        c.wait()
        last = c.latest()
        found = c.restore({"x": np.zeros((6, 2), "float32"), "step": 0})
        assert found["step"] == last
        assert (found["x"] == last).all()
        return last, contents(folder).processes


def killed(folder):
    """Save steps, until rank 1 dies in the middle of one."""
    with Checkpointer(folder) as c:
        for step in range(100):
            c.save(step, {"x": Rows(step), "step": step})
            if step == 5 and process_index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
