"""The first half hour of the backend on a GPU: what is there, bits, times, then all tests that need
one, line by line.

python -m benchmarks.cuda.first [--out FILE]     # with NVIDIA's driver, and pytest for the tests

Each part stands for itself: one that fails says so, and the next one begins. Nothing here has run
on a GPU yet.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.backends.cuda import streams
from funcgrad.backends.cuda.cubins import Functions
from funcgrad.backends.cuda.device_program import DeviceProgram
from funcgrad.backends.cuda.devices import device
from funcgrad.backends.cuda.devices.gpu import Gpu
from funcgrad.backends.cuda.devices.gpu import gpu as find_gpu
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.backends.cuda.executable import SimulatedProgram
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.plan import plan
from funcgrad.transforms.passes.simplify import simplify

BYTES = 1 << 28


def softmax(x):
    """A row's kernel of several passes."""
    e = fnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numbers(*shape: int) -> np.ndarray:
    """Normally distributed float32."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def attention(x):
    """A product, attention on tensor cores and its gradients, and a sum over rows."""

    def loss(q):
        out = nn.dot_product_attention(q, q, q[:, ::-1], is_causal=True)
        return (out.astype("float32") ** 2).sum()

    q = (x @ x.T)[:256, :256].reshape(2, 128, 4, 64) / 32
    return fg.grad(loss)(q.astype("bfloat16")).astype("float32")


PROGRAMS = {
    "exp": (fnp.exp, True),
    "tanh": (fnp.tanh, True),
    "erf": (lax.erf, True),
    "sin of large angles": (lambda x: fnp.sin(x * 1e6), True),
    "remainder": (lambda x: fnp.remainder(x, 0.3), True),
    "rows": (softmax, False),
    "columns": (lambda x: x.sum(0), False),
    "attention": (attention, False),
    "convolution": (
        lambda x: lax.conv(x[None, None], x[:3, :3][None, None], (1, 1), "SAME"),
        False,
    ),
    "sort": (lambda x: fnp.sort(x, -1), True),
    "decomposition": (lambda x: fnp.linalg.eigvalsh(x[:64] @ x[:64].T), False),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, v: softmax(v) + v, x), False),
}


def what_is_there() -> Iterator[dict]:
    """The driver, the device."""
    lacks = device.missing()
    if lacks:
        raise SystemExit(f"first: {lacks}")
    yield {"arch": device.Driver().arch, "devices": device.count()}


def results() -> Iterator[dict]:
    """Programs beside the CPU's: equal bits where they are promised."""
    x = numbers(333, 1024)
    for name, (f, equal) in PROGRAMS.items():
        got = np.asarray(fg.jit(f, backend="cuda")(x))
        want = np.asarray(fg.jit(f)(x))
        same = bool(np.array_equal(got, want, equal_nan=True))
        off = float(np.nanmax(np.abs(got - want)))
        yield {"program": name, "equal": same, "must be": equal, "most off": off}


def one_by_one() -> Iterator[dict]:
    """Operations on arrays of the device, and what other libraries' arrays become."""
    x = numbers(333, 1024)
    there = fg.device_put(x, "cuda:0")
    equal = bool(np.array_equal(fnp.tanh(there) + 1, fg.jit(lambda x: fnp.tanh(x) + 1)(x)))
    yield {"operations": "tanh, add", "equal": equal, "must be": True}
    same = fnp.from_dlpack(there).buffer.address == there.buffer.address
    yield {"from_dlpack": "the same memory", "equal": same, "must be": True}


def beside() -> Iterator[dict]:
    """Copies beside kernels: how long both take at once, of what one after the other takes."""
    x = np.ones(BYTES // 4, np.float32)
    there = fg.device_put(numbers(4096, 4096), "cuda:0")
    work = fg.jit(lambda x: lax.fori_loop(0, 20, lambda i, v: fnp.tanh(v @ x), x))

    def computed():
        return work(there)

    def read_before_it_is_done():
        first = computed()
        computed()
        np.asarray(first)

    both = {
        "kernels": lambda: computed().block_until_ready(),
        "an upload": lambda: fg.device_put(x, "cuda:0").block_until_ready(),
        "both": lambda: (computed(), fg.device_put(x, "cuda:0").block_until_ready()),
        "the first of two results": read_before_it_is_done,
    }
    yield {name: _seconds(f) for name, f in both.items()}
    large, usual = fg.device_put(x, "cuda:0"), streams.LEAST_COPY
    try:
        for least in (usual, 1 << 60):
            streams.LEAST_COPY = least
            kept = fg.jit(lambda x, y, least=least: (work(y), x))  # a program of its own each time
            yield {
                "copies from": least,
                "s": _seconds(lambda f=kept: f(large, there)[1].block_until_ready()),
            }
    finally:
        streams.LEAST_COPY = usual


def other_gpus() -> Iterator[dict]:
    """From GPU to GPU, if there are two: the values, and bytes a second."""
    x = fg.device_put(np.arange(BYTES // 4, dtype=np.float32), "cuda:0")
    for i in range(1, device.count()):
        copied = fg.device_put(x, f"cuda:{i}")
        yield {"copy to": i, "equal": bool(np.array_equal(copied, x)), "must be": True}
        seconds = _seconds(lambda i=i: fg.device_put(x, f"cuda:{i}").block_until_ready())
        yield {"copy to": i, "GB/s": BYTES / seconds / 1e9}


def profiled() -> Iterator[dict]:
    """Milliseconds of each step, by a profile's events."""
    f, x = fg.jit(softmax), fg.device_put(numbers(1 << 14, 4096), "cuda:0")
    f(x).block_until_ready()
    with tempfile.TemporaryDirectory() as folder:
        with fg.profiler.trace(folder):
            for _ in range(5):
                f(x)
        (path,) = Path(folder).rglob("*.trace.json.gz")
        found = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    for event in found:
        if event.get("cat") == "cuda":
            yield {"step": event["name"], "ms": event["dur"] / 1e3}


def _seconds(f: Callable) -> float:
    """The median time of a call."""
    f()
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        f()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def suite() -> Iterator[dict]:
    """All ops, transforms and random programs: the tests that need a GPU."""
    asked = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    yield {"pytest -m gpu": done.returncode, "said": done.stdout[-4000:]}


def times() -> Iterator[dict]:
    """Kernels on memory of the device: microseconds, and bytes a second of reads and writes."""
    driver = device.Driver()
    for name, rows, width in (
        ("exp", BYTES >> 12, 1024), ("rows", BYTES >> 12, 1024), ("rows", BYTES >> 14, 4096),
        ("columns", BYTES >> 12, 1024), ("exp", 1, 1024),
    ):  # fmt: skip
        f, _ = PROGRAMS[name]
        aval = fg.ShapeDtypeStruct((rows, width), "float32")
        made = fg.make_jaxpr(f)(aval)
        program = SimulatedProgram(plan(simplify(made.jaxpr), [False], "timed", CUDA))
        begun = time.perf_counter()
        functions = Functions(program.kernels.launches, driver)
        linking = time.perf_counter() - begun
        for launch in program.kernels.launches:
            found = _microseconds(driver, launch, functions.handles[launch.name])
            moved = sum(b.size * b.dtype.itemsize for b in launch.kernel.params)
            yield {"kernel": launch.name, "shape": [rows, width], "link ms": 1e3 * linking,
                   "us": found, "TB/s": moved / found / 1e6}  # fmt: skip


def convolutions(images: int = 32, channels: int = 64, size: int = 56) -> Iterator[dict]:
    """A convolution's gradients by cuDNN, if it is there, and by kernels: how far they are from the
    CPU's, of the largest of these, and microseconds a call."""
    mine = find_gpu()
    own = Gpu(mine.driver, mine.blas)  # knows of no cuDNN
    shapes = {
        ("NCHW", "OIHW", "NCHW"): ((images, channels, size, size), (channels, channels, 3, 3)),
        ("NHWC", "HWIO", "NHWC"): ((images, size, size, channels), (3, 3, channels, channels)),
    }
    for dtype, precision in (("float32", None), ("float32", "high"), ("bfloat16", None)):
        for axes, (left, right) in shapes.items():

            def f(x, w, axes=axes, precision=precision):
                y, pull = fg.vjp(
                    lambda x, w: lax.conv_general_dilated(
                        x, w, (1, 1), "SAME", dimension_numbers=axes, precision=precision
                    ), x, w,
                )  # fmt: skip
                return (y, *pull(y))

            args = [np.asarray(fnp.asarray(numbers(*s)).astype(dtype)) for s in (left, right)]
            wants = [np.asarray(y).astype("float32") for y in fg.jit(f)(*args)]
            made = plan(simplify(fg.make_jaxpr(f)(*args).jaxpr), [False] * 2, "timed", CUDA)
            for who, device_ in (("cuDNN" if mine.cudnn else "kernels", mine), ("kernels", own)):
                program = DeviceProgram(made, device_)
                given = [DeviceBuffer.of(device_, x) for x in args]
                found = [y.get().astype("float32") for y in program(given)]
                off = max(float(np.abs(y - want).max() / np.abs(want).max())
                          for y, want in zip(found, wants, strict=True))  # fmt: skip
                mine.driver.synchronize()
                begun = time.perf_counter()
                for _ in range(20):
                    program(given)
                mine.driver.synchronize()
                yield {"convolution and gradients": who, "dtype": dtype, "precision": precision,
                       "axes": axes[0], "most off": off,
                       "us": 1e6 * (time.perf_counter() - begun) / 20}  # fmt: skip


def _microseconds(driver: device.Driver, launch, function: int, inner: int = 20) -> float:
    """The median time of a launch, of runs of some of them, by the host's clock."""
    buffers = [driver.allocate(b.size * b.dtype.itemsize) for b in launch.kernel.params]
    buffers += [driver.allocate(launch.workspace)] if launch.workspace else []
    found = []
    for _ in range(9):
        driver.synchronize()
        begun = time.perf_counter()
        for _ in range(inner):
            driver.launch(function, launch.plan.grid, launch.plan.block, buffers)
        driver.synchronize()
        found.append(1e6 * (time.perf_counter() - begun) / inner)
    for address in buffers:
        driver.free(address)
    return statistics.median(found)


def main() -> None:
    """Run all parts; each line is a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("first.jsonl"))
    out = parser.parse_args().out
    parts: list[Callable[[], Iterator[dict]]] = [
        what_is_there, results, one_by_one, times, convolutions, beside, other_gpus, profiled,
        suite,
    ]  # fmt: skip
    with out.open("a") as file:
        for part in parts:
            try:
                for line in part():
                    print(line, flush=True)
                    print(json.dumps(line), file=file, flush=True)
            except Exception:  # the next part may still work
                print(json.dumps({part.__name__: traceback.format_exc()}), file=file, flush=True)
                traceback.print_exc()


if __name__ == "__main__":
    main()
