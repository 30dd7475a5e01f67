"""Kernels on the CPU, as a GPU would run them: threads of a block one at a time, from barrier to
barrier, in an order that a seed shuffles.

Shared memory is NaN at first, and accesses out of range are told. What a missing barrier or a race
on shared memory does differs from order to order. Weak memory, and races between blocks, aren't
seen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from funcgrad.backends.cuda.modules import Kernels, Launch
from funcgrad.backends.llvm.native.engine import engine


class OutOfRange(IndexError):
    """A simulated kernel that reads or writes outside of an array: a bug of whoever wrote it.

    >>> issubclass(OutOfRange, IndexError)
    True
    """


class Simulator:
    """The launches of a module, run on this processor.

    seed: shuffles the order of threads; None lets them run by their numbers
    """

    def __init__(self, kernels: Kernels, seed: int | None = 0):
        self.kernels = kernels
        self.seed = seed
        self.library = engine().compile(kernels.host_text, 0, links={})

    def launch(self, launch: Launch, addresses: Sequence[int]) -> None:
        """Run a launch on buffers at these addresses.

        Raises OutOfRange if it would access what isn't theirs.
        """
        order = np.arange(launch.plan.block, dtype=np.int32)
        if self.seed is not None:
            order = np.random.default_rng(self.seed).permutation(order)
        work = np.full(launch.workspace, 0xFF, np.uint8)
        every = [*addresses, work.ctypes.data]
        buffers = (ctypes.c_void_p * len(every))(*every)
        run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(
            self.library.address(f"run_{launch.name}")
        )
        faults = run(ctypes.addressof(buffers), order.ctypes.data)
        if faults:
            raise OutOfRange(f"{launch.name}: {faults} accesses outside of its arrays")
