"""Ranks as threads: a communicator in Python, to test programs without processes."""

import threading

import numpy as np

from funcgrad.parallel.communicators.communicator import PythonCommunicator

# Seconds: others may compile meanwhile, on a machine that does ten other things.
PATIENCE = 240


class Group:
    """What threads share. Each exchange is an all-gather of whole arrays."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size, timeout=PATIENCE)
        self.values = [None] * size


class ThreadCommunicator(PythonCommunicator):
    def __init__(self, group, rank):
        super().__init__(rank, group.size)
        self.group = group

    def everything(self, what, x):
        g = self.group
        g.values[self.rank] = what, np.array(x)
        g.barrier.wait()
        values = list(g.values)
        g.barrier.wait()
        assert all(w == what for w, _ in values), [w for w, _ in values]
        return [v for _, v in values]

    def all_reduce(self, x, op="sum"):
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
        values = self.everything(("all_reduce", op), x)
        wide = np.float32 if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x.dtype
        total = values[0].astype(wide)
        for v in values[1:]:
            total = combine(total, v.astype(wide))
        return total.astype(x.dtype)

    def all_gather(self, x):
        return np.stack(self.everything("all_gather", x))

    def reduce_scatter(self, x, op="sum"):
        self.check_rows("reduce_scatter", x)
        return self.all_reduce(x, op)[self.rank]

    def all_to_all(self, x):
        self.check_rows("all_to_all", x)
        return np.stack([v[self.rank] for v in self.everything("all_to_all", x)])

    def permute(self, x, perm):
        values = self.everything(("permute", tuple(perm)), x)
        source = {b: a for a, b in perm}
        return values[source[self.rank]] if self.rank in source else np.zeros_like(x)

    def barrier(self):
        self.everything("barrier", 0)


class Ranks:
    """The devices of a mesh (name → size) as threads."""

    def __init__(self, **mesh):
        self.mesh = mesh
        self.size = int(np.prod(list(mesh.values())))
        self.groups = {}
        self.lock = threading.Lock()

    def lookup(self, rank):
        """From axis names to the communicator over them, for a rank."""
        names = list(self.mesh)
        at = dict(zip(names, np.unravel_index(rank, tuple(self.mesh.values())), strict=True))

        def communicator(axes):
            rest = tuple((n, int(at[n])) for n in names if n not in axes)
            sizes = [self.mesh[n] for n in axes]
            with self.lock:
                key = (tuple(axes), rest)
                group = self.groups.setdefault(key, Group(int(np.prod(sizes))))
            return ThreadCommunicator(
                group, int(np.ravel_multi_index([at[n] for n in axes], sizes))
            )

        return communicator

    def run(self, fun):
        """fun(rank, lookup) on all ranks at once; the results in their order."""
        results = [None] * self.size

        def work(rank):
            try:
                results[rank] = fun(rank, self.lookup(rank))
            except BaseException as error:
                results[rank] = error
                for g in self.groups.values():
                    g.barrier.abort()

        threads = [threading.Thread(target=work, args=(r,)) for r in range(self.size)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(PATIENCE)
        for r in results:
            if isinstance(r, BaseException) and not isinstance(r, threading.BrokenBarrierError):
                raise r
        return results
