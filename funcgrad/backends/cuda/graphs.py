"""Programs as CUDA graphs: what was launched once is replayed by one call of the driver's.

A graph holds the addresses that it was captured with. So it is known by those of the program's
arguments and results, and keeps the temporary memory. From a program's second call on, what meets
no graph is captured; where as many are there as are kept, the one used longest ago is updated as a
whole. A program that waits for the device, or for Python, is none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from ctypes import byref, c_int, c_uint64, c_void_p
from weakref import finalize

from funcgrad.backends.cuda.devices.device import CudaError, Driver
from funcgrad.backends.cuda.devices.pool import Block
from funcgrad.backends.cuda.loaded import Loaded

MOST = 4
_THIS_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: others may allocate meanwhile
Key = tuple[int, ...]


class Graphs:
    """The graphs of a program.

    temporary: the memory that they hold
    captures, updates: how often a graph was made, and made another's
    """

    def __init__(self, loaded: Loaded):
        self.loaded = loaded
        self.temporary: tuple[Block, ...] = ()
        self.captures = self.updates = 0
        self._kept: OrderedDict[Key, _Executable] = OrderedDict()
        self._calls = 0
        self._none = loaded.waits

    def run(self, external: Sequence[int], sizes: Sequence[int]) -> bool:
        """Run the program by a graph; False if it is none, or not yet.

        external: the addresses of arguments and results; sizes: of temporary memory
        """
        self._calls += 1
        if self._none or self._calls == 1:
            return False
        key = tuple(external)
        found = self._kept.get(key)
        if found is None:
            found = self._made(key, sizes)
            if found is None:
                return False
        self._kept[key] = found
        self._kept.move_to_end(key)
        driver = self.loaded.gpu.driver
        driver.started.append(self.loaded.name)
        driver.call("cuGraphLaunch", found.handle, driver.stream)
        return True

    def clear(self) -> None:
        """Give the graphs and their memory up."""
        self._kept.clear()
        self.temporary = ()

    def _made(self, key: Key, sizes: Sequence[int]) -> _Executable | None:
        """A graph for these addresses; None if the driver can't make one."""
        driver = self.loaded.gpu.driver
        if not self.temporary:
            self.temporary = tuple(self.loaded.gpu.take(n) for n in sizes)
        try:
            graph = self._captured(key)
        except CudaError:
            self._none = True
            self.clear()
            return None
        try:
            if len(self._kept) >= MOST:
                _, oldest = self._kept.popitem(last=False)
                if oldest.update(graph):
                    self.updates += 1
                    return oldest
            return _Executable(driver, graph)
        finally:
            driver.call("cuGraphDestroy", graph)

    def _captured(self, key: Key) -> c_void_p:
        """What the program launches, in streams of its own: what other threads start meanwhile, in
        the device's, is none of it."""
        driver = self.loaded.gpu.driver
        streams: list[c_void_p] = []
        try:
            for _ in range(2):  # the second may fail
                streams.append(driver.another_stream())
            return self._captured_in(streams, key)
        finally:
            for stream in streams:
                driver.end_stream(stream)

    def _captured_in(self, streams: Sequence[c_void_p], key: Key) -> c_void_p:
        driver, graph, stream = self.loaded.gpu.driver, c_void_p(), streams[0]
        driver.call("cuStreamBeginCapture_v2", stream, c_int(_THIS_THREAD))
        try:
            self.loaded.run([*key, *(block.address for block in self.temporary)], streams)
        except BaseException:
            driver.lib.cuStreamEndCapture(stream, byref(graph))
            if graph:  # what failed was no call of the driver's
                driver.call("cuGraphDestroy", graph)
            raise
        driver.call("cuStreamEndCapture", stream, byref(graph))
        self.captures += 1
        return graph


class _Executable:
    """A graph that can be launched."""

    def __init__(self, driver: Driver, graph: c_void_p):
        self.driver = driver
        self.handle = c_void_p()
        driver.call("cuGraphInstantiateWithFlags", byref(self.handle), graph, c_uint64(0))
        finalize(self, _destroy, driver, self.handle).atexit = False

    def update(self, graph: c_void_p) -> bool:
        """Let this be a graph of the same nodes with other parameters; False if they differ."""
        told = (c_void_p * 8)()
        return not self.driver.lib.cuGraphExecUpdate_v2(self.handle, graph, told)


def _destroy(driver: Driver, handle: c_void_p) -> None:
    with driver.inside():
        driver.call("cuGraphExecDestroy", handle)
