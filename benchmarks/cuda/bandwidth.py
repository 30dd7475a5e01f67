"""Bytes a second of elementwise kernels and of rows, by the shape of their launch, beside copies
and PyTorch.

python -m benchmarks.cuda --prepare DIR                 # here: the PTX texts
python -m benchmarks.cuda.bandwidth --ptx DIR --out DIR # on the machine with the GPU
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_ulonglong, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cuda import texts
from benchmarks.cuda.driver import Driver, Kernel
from benchmarks.cuda.scalars import device_text
from benchmarks.cuda.streams import Point, Row, RowWriter, point
from funcgrad.backends.llvm.emit.text import Definitions

try:
    import torch
except ImportError:  # where texts are prepared
    torch = None

POINTS = [
    *(Point(4, u, t) for u in (1, 2, 4) for t in (128, 256, 512, 1024)),
    *(Point(w, u, 256) for w in (1, 2) for u in (1, 2, 4)),
    *(Point(4, u, t, loop=True) for u in (1, 2, 4) for t in (256, 1024)),
    *(Point(4, u, 256, inputs=n) for u in (1, 2) for n in (2, 3)),
    *(Point(4, u, 256, op=op) for u in (1, 2) for op in ("exp", "tanh", "erf", "log")),
    *(Point(w, 1, 256, kind="bfloat") for w in (1, 2, 4, 8)),
    Point(8, 1, 256, inputs=2, kind="bfloat"), Point(8, 1, 256, op="tanh", kind="bfloat"),
    *(Point(w, 1, 256, kind="i8") for w in (4, 8, 16)),
    *(Point(4, 1, 256, inputs=n, hint="stream") for n in (1, 3)),
    Point(4, 1, 256, wide=True),
]  # fmt: skip
ROWS = [
    Row(size, threads)
    for size, ways in {
        128: [32], 512: [32, 128], 1024: [32, 128, 256], 4096: [128, 256, 512, 1024],
        16384: [256, 512, 1024], 65536: [1024],
    }.items()
    for threads in ways
] + [
    *(Row(size, threads, "softmax", "float", False, True)
      for size, threads in ((4096, 512), (16384, 512), (65536, 512), (65536, 1024))),
    *(Row(size, threads, "softmax", "bfloat")
      for size, threads in ((1024, 32), (1024, 128), (4096, 256), (4096, 512), (16384, 512))),
    *(Row(size, threads, op)
      for op in ("norm", "sum")
      for size, threads in ((512, 32), (1024, 32), (1024, 128), (4096, 256), (4096, 512),
                            (16384, 512))),
    *(Row(size, threads, "norm", "bfloat") for size, threads in ((1024, 32), (4096, 256))),
    Row(1024, 32, fast=True), Row(4096, 256, fast=True), Row(16384, 512, fast=True),
]  # fmt: skip
N = 1 << 28  # elements of a buffer: 1 GiB of float32
NODES = 32


def ptx_texts() -> dict[str, str]:
    """By name: the PTX of this module's kernels."""
    families: dict[str, list[Callable[[Definitions], str]]] = {
        "stream_points": [lambda m, p=p: point(m, p) for p in POINTS],  # type: ignore[misc]
        "stream_rows": [lambda m, r=r: RowWriter(m, r).text() for r in ROWS],  # type: ignore[misc]
    }
    made = {}
    for name, writers in families.items():
        module = Definitions()
        kernels = [write(module) for write in writers]
        made[name] = texts.ptx(device_text(module.text(kernels)))
    return made


class Bench:
    """Kernels of prepared PTX, and their rates; each kind of measurement is a method."""

    def __init__(self, driver: Driver, ptx: dict[str, str]) -> None:
        self.driver = driver
        self.modules = {name: driver.load(driver.link(text).image) for name, text in ptx.items()}

    def kernel(self, module: str, name: str) -> Kernel:
        """A kernel by its module and name."""
        return self.driver.kernel(self.modules[module], name)

    def runner(
        self, made: Kernel, grid: Sequence[int], block: Sequence[int], args: Sequence[Any],
        stream: int = 0,
    ) -> Callable[[int], None]:  # fmt: skip
        """A function that launches a kernel on tensors, which it keeps, and C values."""
        values = [c_void_p(x.data_ptr()) if hasattr(x, "data_ptr") else x for x in args]

        def run(_: int, kept: Sequence[Any] = args) -> None:
            self.driver.launch(made, grid, block, values, stream=stream)

        return run

    def rate(self, run: Callable[[int], None], nbytes: float, inner: int = 3) -> float:
        """GB/s."""
        return nbytes / self.driver.microseconds(run, repeats=7, inner=inner) / 1e3

    def measures(self) -> list[Callable[[], dict[str, Any]]]:
        """What is measured, the most important first."""
        raise NotImplementedError


class Streams(Bench):
    """Elementwise kernels and rows."""

    def __init__(self, driver: Driver, ptx: dict[str, str]) -> None:
        super().__init__(driver, ptx)
        floats = [torch.randn(N, device="cuda") for _ in range(3)]
        self.xs = {
            "float": floats,
            "bfloat": [x.bfloat16() for x in floats],
            "i8": [torch.randint(-128, 128, (N,), device="cuda", dtype=torch.int8)],
        }
        self.y = torch.empty(N, device="cuda")

    def out(self, kind: str) -> Any:
        """The results' buffer, all NaN."""
        self.y.fill_(float("nan"))
        return self.y.view(torch.bfloat16)[:N] if kind == "bfloat" else self.y

    def measures(self) -> list[Callable[[], dict[str, Any]]]:
        """All."""
        return [self.limits, self.sizes, self.rows, self.points]

    def limits(self) -> dict[str, Any]:
        """Copies and sums of 1 GiB."""
        x, y = self.xs["float"][0], self.y
        copy = lambda _: self.driver.check(  # noqa: E731
            "cuMemcpyDtoDAsync_v2", c_void_p(y.data_ptr()), c_void_p(x.data_ptr()),
            ctypes.c_size_t(4 * N), c_void_p(0),
        )  # fmt: skip
        return {
            "cuMemcpyDtoD": self.rate(copy, 8 * N),
            "torch copy_": self.rate(lambda _: y.copy_(x), 8 * N),
            "torch mul(out=)": self.rate(lambda _: torch.mul(x, 2.0, out=y), 8 * N),
            "torch sum": self.rate(lambda _: x.sum(), 4 * N),
        }

    def points(self) -> dict[str, Any]:
        """Elementwise kernels: GB/s, the largest relative error, registers."""
        found: dict[str, Any] = {}
        for p in POINTS:
            try:
                found[p.name] = self.point(p)
            except Exception as e:
                found[p.name] = f"{type(e).__name__}: {e}"
        return found

    def point(self, p: Point) -> tuple[float, float, int]:
        """One of them."""
        made, y = self.kernel("stream_points", p.name), self.out(p.out)
        each, vectors = p.threads * p.unroll, N // p.width
        grid = vectors // each
        if p.loop:
            grid = min(grid, 16 * self.driver.multiprocessors * 256 // p.threads)
            while vectors % (grid * each):
                grid -= 1
        xs = self.xs[p.kind][: p.inputs]
        count = c_ulonglong(vectors) if p.wide else c_int(vectors)
        run = self.runner(made, [grid], [p.threads], [*xs, y, count])
        run(0)
        at = torch.randint(0, N, (1 << min(20, N.bit_length() - 1),), device="cuda")
        wanted = reference(p, [x[at].double() for x in xs])
        away = (y[at].double() - wanted).abs() / wanted.abs().clamp(min=1.0)
        away[wanted.isnan() & y[at].isnan()] = 0.0
        worst = float(away.nan_to_num(float("inf")).max())
        return self.rate(run, p.nbytes * N), worst, made.registers

    def sizes(self) -> dict[str, Any]:
        """Of one elementwise kernel: microseconds a node of a graph, whose nodes take other data in
        turn, and GB/s, by bytes moved."""
        p, found, stream = Point(4, 1, 256), {}, c_void_p()
        self.driver.check("cuStreamCreate", byref(stream), ctypes.c_uint(1))
        made, x = self.kernel("stream_points", p.name), self.xs["float"][0]
        for bits in range(14, N.bit_length(), 2):
            n = 1 << bits
            runs = [
                self.runner(
                    made, [n // 1024], [256], [x[k:], self.y[k:], c_int(n // 4)], stream.value or 0
                )
                for k in (n * (i % (N // n)) for i in range(NODES))
            ]
            graph, ready = c_void_p(), c_void_p()
            self.driver.check("cuStreamBeginCapture_v2", stream, c_int(2))
            for run in runs:
                run(0)
            self.driver.check("cuStreamEndCapture", stream, byref(graph))
            self.driver.check("cuGraphInstantiateWithFlags", byref(ready), graph, c_ulonglong(0))
            replay = partial(self.driver.check, "cuGraphLaunch", ready, stream)
            whole = self.driver.microseconds(
                lambda _, replay=replay: replay(), repeats=7, inner=3, stream=stream.value or 0
            )
            found[f"{8 * n} bytes"] = (whole / NODES, 8 * n * NODES / whole / 1e3)
        return found

    def rows(self) -> dict[str, Any]:
        """Kernels of rows: GB/s, the largest error, registers; PyTorch's beside them."""
        found: dict[str, Any] = {}
        for r in ROWS:
            try:
                found[r.name] = self.row(r)
                peer = f"torch {r.op} {r.size} {r.kind}"
                if peer not in found:
                    run = partial(peer_of_rows, r, self.xs[r.kind][0].view(-1, r.size))
                    found[peer] = self.rate(lambda _, run=run: run(), r.nbytes * N)
            except Exception as e:
                found[r.name] = f"{type(e).__name__}: {e}"
        return found

    def row(self, r: Row) -> tuple[float, float, int]:
        """One of them."""
        made, count = self.kernel("stream_rows", r.name), N // r.size
        x, y = (
            self.xs[r.kind][0].view(count, r.size),
            self.out("float" if r.op == "sum" else r.kind),
        )
        run = self.runner(made, [count // r.rows], [r.rows * r.threads], [x, y])
        run(0)
        y = y[:count] if r.op == "sum" else y.view(count, r.size)
        worst = (y[-64:].double() - peer_of_rows(r, x[-64:].double())).abs().max()
        return self.rate(run, r.nbytes * N), float(worst), made.registers


def reference(p: Point, xs: list[Any]) -> Any:
    """An elementwise kernel's values, in float64."""
    return 2.0 * xs[0] + 1.0 + sum(xs[1:]) if p.op == "axpy" else getattr(torch, p.op)(xs[0])


def peer_of_rows(r: Row, x: Any) -> Any:
    """PyTorch's function of rows."""
    if r.op == "softmax":
        return torch.softmax(x, 1)
    return x.sum(1) if r.op == "sum" else torch.nn.functional.layer_norm(x, (r.size,))


def measure_all(kind: type[Bench], modules: str, file: str) -> None:
    """Measure by the command line's folders; a JSON file and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ptx", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.zeros(1, device="cuda")
    driver = Driver()
    bench = kind(driver, {p.stem: p.read_text() for p in options.ptx.glob(modules)})
    found: dict[str, Any] = {"device": driver.name, "driver": driver.version}
    for measure in bench.measures():
        name = measure.__name__
        try:
            found[name] = measure()
        except Exception as e:
            found[name] = {"error": f"{type(e).__name__}: {e}"}
        (options.out / file).write_text(json.dumps(found, indent=1))
        print(name)
        for what, value in found[name].items():
            print(f"  {what:44} {value}", flush=True)


if __name__ == "__main__":
    measure_all(Streams, "stream_*.ptx", "bandwidth.json")
