"""A device's memory, kept for the next who asks: the driver's own calls take longer than a kernel.

Blocks have one of eight sizes an octave. A block that is given back goes to the next who wants its
size, even while what was started still works on it, as all work is in order of one stream. A block
knows the event from which on other streams may write to it. Where the driver has no more, what is
kept is given back to it first.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from weakref import finalize

from funcgrad.backends.cuda.devices.device import Driver, Event, OutOfDeviceMemory

LEAST = 512


class Block:
    """Memory of a device, given back with its last reference.

    free: when all is done that was started for who had it before; None: when all is done
    """

    def __init__(self, pool: Pool, address: int, size: int, free: Event | None = None):
        self.pool = pool
        self.address = address
        self.size = size
        self.free = free
        # Finalizers may run within anything: this one only notes what the next `take` finds.
        finalize(self, pool.returned.append, (address, size)).atexit = False


class Foreign:
    """Memory of another library, given back with its last reference, when all that was started is
    done. Nobody here is to write to it."""

    def __init__(self, driver: Driver, address: int, give_back: Callable[[], None]):
        self.address = address
        finalize(self, _given_back, driver, give_back).atexit = False


def _given_back(driver: Driver, give_back: Callable[[], None]) -> None:
    with driver.inside():
        driver.synchronize()  # the other library's next owner may use another stream
        give_back()


class Pool:
    """The memory of a driver's device.

    in_use, kept: bytes that someone holds, and that no one does; peak: the most in use so far
    """

    def __init__(self, driver: Driver):
        self.driver = driver
        self.returned: deque[tuple[int, int]] = deque()
        self.in_use = self.kept = self.peak = 0
        self._free: dict[int, list[tuple[int, Event | None]]] = defaultdict(list)
        self._lock = threading.RLock()
        finalize(self, _end, driver, self.returned, self._free).atexit = False

    def take(self, nbytes: int) -> Block:
        """A block of so many bytes, at least.

        Raises OutOfDeviceMemory if the device has none.
        """
        size = rounded(nbytes)
        with self._lock:
            # Other threads may give more back after the event, which doesn't cover the use of that.
            if count := len(self.returned):
                with self.driver.inside():
                    self._collect(count, self.driver.record())
            if self._free[size]:
                address, free = self._free[size].pop()
                self.kept -= size
            else:
                address, free = self._allocate(size), None
            self.in_use += size
            self.peak = max(self.peak, self.in_use)
            return Block(self, address, size, free)

    def release(self) -> None:
        """Give what no one holds back to the driver."""
        with self._lock:
            self._collect(len(self.returned))
            with self.driver.inside():
                for blocks in self._free.values():
                    while blocks:
                        self.driver.free(blocks.pop()[0])
            self.kept = 0

    def summary(self) -> dict[str, int]:
        """Bytes in use, kept for the next who asks, and the most in use so far."""
        with self._lock:
            self._collect(len(self.returned))
            return {"in use": self.in_use, "kept": self.kept, "peak": self.peak}

    def _allocate(self, size: int) -> int:
        self.driver.enter()
        try:
            return self.driver.allocate(size)
        except OutOfDeviceMemory:
            if not self.kept:
                raise
        self.release()
        return self.driver.allocate(size)

    def _collect(self, count: int, free: Event | None = None) -> None:
        for _ in range(count):
            address, size = self.returned.popleft()
            self._free[size].append((address, free))
            self.in_use -= size
            self.kept += size


def _end(
    driver: Driver, returned: deque[tuple[int, int]],
    free: dict[int, list[tuple[int, Event | None]]],
) -> None:  # fmt: skip
    with driver.inside():
        for address, _ in (*returned, *(block for some in free.values() for block in some)):
            driver.free(address)


def rounded(nbytes: int) -> int:
    """The size of the block that holds so many bytes: an eighth more at most, or 512.

    >>> rounded(1), rounded(4096), rounded(4097)
    (512, 4096, 4608)
    """
    if nbytes <= LEAST:
        return LEAST
    step = max(LEAST, 1 << ((nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step
