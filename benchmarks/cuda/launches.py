"""What a launch, a graph's node, a loop's turn and a copied flag cost a native host function.

python -m benchmarks.cuda --prepare DIR                 # anywhere: the PTX texts
python -m benchmarks.cuda.launches --ptx DIR --out DIR  # on the machine with the GPU
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_longlong, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from benchmarks.cuda.driver import Driver, Kernel
from benchmarks.cuda.launching import HOST

GRID, BLOCK, NODES = 64, 256, 80
HELD = 2_000_000  # nanoseconds: longer than the host takes for all launches of a measurement


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("sizes", c_uint * 6), ("shared", c_uint), ("stream", c_void_p), ("attributes", c_void_p),
        ("count", c_uint),
    )  # fmt: skip


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_int * 16))


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p), ("sizes", c_uint * 6), ("shared", c_uint), ("params", c_void_p),
        ("extra", c_void_p), ("kernel", c_void_p), ("context", c_void_p),
    )  # fmt: skip


class _Conditional(ctypes.Structure):
    """CUgraphNodeParams of a conditional node."""

    _fields_ = (
        ("type", c_int), ("reserved", c_int * 3), ("handle", c_ulonglong), ("kind", c_int),
        ("size", c_uint), ("bodies", ctypes.POINTER(c_void_p)), ("context", c_void_p),
        ("rest", c_longlong * 25), ("reserved2", c_longlong),
    )  # fmt: skip


class Launches:
    """The kernels, a stream, and the native loop."""

    def __init__(self, driver: Driver, ptx: dict[str, str]) -> None:
        self.driver, self.stream = driver, c_void_p()
        driver.check("cuStreamCreate", byref(self.stream), c_uint(1))
        self.modules = {}
        for name, text in ptx.items():
            try:
                self.modules[name] = driver.load(driver.link(text).image)
            except Exception as e:
                print(name, e)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(HOST), machine)
        self.engine.finalize_object()
        self.many = self._native(
            "many", c_void_p, c_void_p, c_uint, c_uint, c_void_p, c_void_p, c_uint
        )
        self.many_ex = self._native("many_ex", *[c_void_p] * 4, c_uint)
        self.copied = self._native("copied", *[c_void_p] * 8, c_uint)
        self.polled = self._native("polled", *[c_void_p] * 5, c_uint)
        self.memory = [driver.allocate(1 << 16) for _ in range(16)]
        self.params = (c_void_p * 16)(*(ctypes.addressof(m) for m in self.memory))

    def _native(self, name: str, *types: Any) -> Callable[..., int]:
        return ctypes.CFUNCTYPE(c_int, *types)(self.engine.get_function_address(name))

    def kernel(self, module: str, name: str) -> Kernel:
        """A kernel by its module's name and its own."""
        return self.driver.kernel(self.modules[module], name)

    def launch(self, made: Kernel, n: int, grid: int = GRID) -> None:
        """n launches by the native loop."""
        status = self.many(
            self.driver.address("cuLaunchKernel"), made.handle, grid, BLOCK, self.stream,
            self.params, n,
        )  # fmt: skip
        assert not status, status

    def synchronize(self) -> None:
        """Wait for the stream."""
        self.driver.check("cuStreamSynchronize", self.stream)

    def on_host(self, run: Callable[[], None], repeats: int = 30) -> float:
        """Microseconds on the host's clock until run returns, with nothing queued before."""
        times = []
        for _ in range(repeats):
            self.synchronize()
            start = time.perf_counter()
            run()
            times.append(1e6 * (time.perf_counter() - start))
        self.synchronize()
        return statistics.median(times)

    def on_device(self, run: Callable[[int], None], inner: int = 1) -> float:
        """The device's microseconds of run."""
        stream = int(self.stream.value or 0)
        return self.driver.microseconds(run, repeats=20, inner=inner, stream=stream)

    def queued(self, run: Callable[[], None], repeats: int = 20) -> float:
        """The device's microseconds of run if all of it is queued before its first kernel starts.

        Otherwise kernels shorter than their launch take the time that the host's calls take.
        """
        check, start, end = self.driver.check, self.driver.event(), self.driver.event()
        hold, elapsed, times = self.kernel("launch_hold", "hold"), c_float(), []
        for _ in range(repeats):
            self.driver.launch(
                hold, [1], [1], [c_ulonglong(HELD)], stream=int(self.stream.value or 0)
            )
            check("cuEventRecord", start, self.stream)
            run()
            check("cuEventRecord", end, self.stream)
            check("cuEventSynchronize", end)
            check("cuEventElapsedTime_v2", byref(elapsed), start, end)
            times.append(1e3 * elapsed.value)
        return statistics.median(times)

    # ---- measurements

    def plain(self) -> dict[str, float]:
        """Microseconds a launch on the host, by parameters and by how many are queued."""
        found = {}
        for params in (1, 3, 8, 16):
            made = self.kernel("launch_empty", f"empty{params}")
            for n in (1, 10, 80, 1000):
                total = self.on_host(lambda m=made, n=n: self.launch(m, n, 1))
                found[f"{params} params, {n} launches"] = total / n
        made = self.kernel("launch_empty", "empty3")

        def there_and_back() -> None:
            self.launch(made, 1, 1)
            self.synchronize()

        found["launch and synchronize"] = self.on_host(there_and_back)
        small = self.kernel("launch_small", "small")
        found["80 small kernels: device, each"] = self.on_device(
            lambda _: self.launch(small, NODES)
        ) / NODES  # fmt: skip
        found["80 small kernels, queued: device, each"] = self.queued(
            lambda: self.launch(small, NODES)
        ) / NODES  # fmt: skip
        found["by ctypes"] = self.on_host(
            lambda: self.driver.launch(
                small, [GRID], [BLOCK], [self.memory[0]], stream=int(self.stream.value or 0)
            )
        )
        return found

    def dependent(self) -> dict[str, float]:
        """The device's microseconds a kernel, of 80 that each wait for the one before."""
        attribute = _Attribute(6, 0)  # programmatic stream serialization
        attribute.value[0] = 1
        config = _Config((c_uint * 6)(GRID, 1, 1, BLOCK, 1, 1), 0, self.stream.value)
        launch, found = self.driver.address("cuLaunchKernelEx"), {}
        for module in ("launch_small", "launch_waits"):
            made = self.kernel(module, "small")
            for count in (0, 1):
                config.attributes, config.count = ctypes.addressof(attribute), count

                def run(made: Kernel = made) -> None:
                    status = self.many_ex(launch, ctypes.addressof(config), made.handle,
                                          self.params, NODES)  # fmt: skip
                    assert not status, status

                if module == "launch_waits" or not count:
                    what = f"{module[7:]}, {'programmatic' if count else 'plain'}"
                    found[f"{what}, queued: device"] = self.queued(run) / NODES
                    found[f"{what}: host"] = self.on_host(run) / NODES
                    _, graph, _ = self.capture(run)
                    replay = partial(self.driver.check, "cuGraphLaunch", graph, self.stream)
                    found[f"{what}, graph: device"] = self.queued(replay) / NODES
        return found

    def capture(self, run: Callable[[], None]) -> tuple[c_void_p, c_void_p, dict[str, float]]:
        """A graph of what run launches, its executable, and what they took (milliseconds)."""
        check, graph, made = self.driver.check, c_void_p(), c_void_p()
        start = time.perf_counter()
        check("cuStreamBeginCapture_v2", self.stream, c_int(2))
        run()
        check("cuStreamEndCapture", self.stream, byref(graph))
        captured = time.perf_counter()
        check("cuGraphInstantiateWithFlags", byref(made), graph, c_ulonglong(0))
        ready = time.perf_counter()
        check("cuGraphUpload", made, self.stream)
        self.synchronize()
        times = {
            "capture ms": 1e3 * (captured - start),
            "instantiate ms": 1e3 * (ready - captured),
            "upload ms": 1e3 * (time.perf_counter() - ready),
        }
        return graph, made, times

    def graphs(self) -> dict[str, float]:
        """Graphs of 80 and 400 kernels: making, replaying and changing them."""
        check, found = self.driver.check, {}
        small = self.kernel("launch_small", "small")
        for n in (NODES, 400):
            launches = partial(self.launch, small, n)
            graph, made, times = self.capture(launches)
            found |= {f"{n}: {k}": v for k, v in times.items()}

            def replay(_: int = 0, made: c_void_p = made) -> None:
                check("cuGraphLaunch", made, self.stream)

            found[f"{n}: host µs a replay"] = self.on_host(replay)
            found[f"{n}: device µs a node"] = self.on_device(replay) / n
            found[f"{n}: µs to change a node"] = self._change(graph, made)
            again, _, _ = self.capture(launches)
            info = (c_void_p * 8)()
            found[f"{n}: µs to update the whole"] = self.on_host(
                partial(check, "cuGraphExecUpdate_v2", made, again, info)
            )
        return found

    def _change(self, graph: c_void_p, made: c_void_p) -> float:
        count, nodes = c_size_t(1), (c_void_p * 1)()
        self.driver.check("cuGraphGetNodes", graph, nodes, byref(count))
        small = self.kernel("launch_small", "small")
        params = _KernelNode(
            small.handle, (c_uint * 6)(GRID, 1, 1, BLOCK, 1, 1), 0, ctypes.addressof(self.params)
        )
        return self.on_host(
            lambda: self.driver.check(
                "cuGraphExecKernelNodeSetParams_v2", made, c_void_p(nodes[0]), byref(params)
            )
        )

    def loops(self) -> dict[str, float]:
        """Microseconds a turn: a graph's WHILE node, and a flag that is copied to the host."""
        turns = 1000
        found = self._flags(200)
        made = self._while()
        left = self.memory[0]

        def run(_: int) -> None:
            check = self.driver.check
            check("cuMemsetD32Async", left, c_uint(turns), c_size_t(1), self.stream)
            check("cuGraphLaunch", made, self.stream)

        found["conditional node"] = self.on_device(run) / turns
        found["conditional node: left over"] = float(self.driver.get(left, [1], "int32")[0])
        return found

    def _while(self) -> c_void_p:
        check, graph, handle, node = self.driver.check, c_void_p(), c_ulonglong(), c_void_p()
        check("cuGraphCreate", byref(graph), c_uint(0))
        check("cuGraphConditionalHandleCreate", byref(handle), graph, self.driver.context,
              c_uint(1), c_uint(1))  # fmt: skip
        params = _Conditional(13, (c_int * 3)(), handle.value, 1, 1)
        params.context = self.driver.context.value
        check("cuGraphAddNode_v2", byref(node), graph, None, None, c_size_t(0), byref(params))
        turn = self.kernel("launch_turn", "turn")
        args = (c_void_p * 2)(ctypes.addressof(handle), ctypes.addressof(self.memory[0]))
        inner = _KernelNode(turn.handle, (c_uint * 6)(1, 1, 1, 1, 1, 1), 0, ctypes.addressof(args))
        check("cuGraphAddKernelNode_v2", byref(node), c_void_p(params.bodies[0]), None,
              c_size_t(0), byref(inner))  # fmt: skip
        made = c_void_p()
        check("cuGraphInstantiateWithFlags", byref(made), graph, c_ulonglong(0))
        return made

    def _flags(self, turns: int) -> dict[str, float]:
        """A turn's microseconds if native code copies the flag, and if it reads the device's."""
        check, pinned = self.driver.check, c_void_p()
        check("cuMemAllocHost_v2", byref(pinned), c_size_t(4))
        made, launch = self.kernel("launch_small", "count"), self.driver.address("cuLaunchKernel")
        copy = self.driver.address("cuMemcpyDtoHAsync_v2")
        wait = self.driver.address("cuStreamSynchronize")
        on_host = (c_void_p * 1)(ctypes.addressof(pinned))

        def copied() -> None:
            status = self.copied(launch, copy, wait, made.handle, self.stream, self.params, pinned,
                                 self.memory[0], turns)  # fmt: skip
            assert not status, status

        def polled() -> None:
            c_int.from_address(int(pinned.value or 0)).value = turns
            status = self.polled(launch, made.handle, self.stream, on_host, pinned, turns)
            assert not status, status

        return {
            "copied flag": self.on_host(copied, 5) / turns,
            "flag in the host's memory, polled": self.on_host(polled, 5) / turns,
        }

    def memory_calls(self) -> dict[str, float]:
        """Microseconds of the driver's calls beside launches."""
        check, event, pointer = self.driver.check, self.driver.event(), c_void_p()
        found = {
            "event record": self.on_host(lambda: check("cuEventRecord", event, self.stream)),
            "stream synchronize, idle": self.on_host(self.synchronize),
            "4 bytes to the host": self.on_host(lambda: self.driver.get(self.memory[0], [1], "i4")),
        }

        memory_pool, all_of_it = c_void_p(), c_ulonglong(2**64 - 1)
        check("cuDeviceGetDefaultMemPool", byref(memory_pool), c_int(self.driver.device))
        # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: else each synchronization gives the memory back.
        check("cuMemPoolSetAttribute", memory_pool, c_int(4), byref(all_of_it))

        def pool() -> None:
            check("cuMemAllocAsync", byref(pointer), c_size_t(1 << 20), self.stream)
            check("cuMemFreeAsync", pointer, self.stream)

        found["allocate and free 1 MB, stream-ordered"] = self.on_host(pool)
        found["allocate and free 1 MB"] = self.on_host(
            lambda: self.driver.free(self.driver.allocate(1 << 20))
        )
        return found


def peers() -> dict[str, float]:
    """Microseconds on the host of CuPy's and PyTorch's launches, and of CuPy's pool."""
    import cupy
    import torch

    found, x, y = {}, cupy.zeros(1024, "f"), torch.zeros(1024, device="cuda")
    raw = cupy.RawKernel('extern "C" __global__ void k(float* x) {}', "k")

    def clock(run: Callable[[], object], n: int = 300) -> float:
        run()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            run()
        taken = 1e6 * (time.perf_counter() - start) / n
        torch.cuda.synchronize()
        return taken

    found["cupy RawKernel"] = clock(lambda: raw((1,), (32,), (x,)))
    found["cupy x + x"] = clock(lambda: x + x)
    found["torch y.add_(1)"] = clock(lambda: y.add_(1))
    found["torch y + y"] = clock(lambda: y + y)
    found["cupy pool, 1 MB"] = clock(lambda: cupy.cuda.alloc(1 << 20))
    return found


def main() -> None:
    """Measure all; a JSON file and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ptx", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    driver = Driver()
    ptx = {p.stem: p.read_text() for p in options.ptx.glob("launch_*.ptx")}
    launches, found = Launches(driver, ptx), {"device": driver.name, "driver": driver.version}
    measurements: dict[str, Callable[[], Any]] = {
        "launches": launches.plain, "graphs": launches.graphs, "dependent": launches.dependent,
        "calls": launches.memory_calls, "peers": peers, "loops": launches.loops,
    }  # fmt: skip
    for name, measure in measurements.items():
        try:
            found[name] = measure()
        except Exception as e:
            found[name] = {"error": f"{type(e).__name__}: {e}"}
        (options.out / "launches.json").write_text(json.dumps(found, indent=1))
        print(name)
        for what, value in found[name].items():
            print(f"  {what:40} {value if isinstance(value, str) else round(value, 3)}")


if __name__ == "__main__":
    main()
