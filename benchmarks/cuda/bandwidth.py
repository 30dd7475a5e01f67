"""Bytes a second of kernels that stream, by the shape of their launch, beside copies and PyTorch.

python -m benchmarks.cuda.bandwidth --dry --ptx DIR     # here: the PTX texts
python -m benchmarks.cuda.bandwidth --ptx DIR --out DIR # on the machine with the GPU
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cuda import texts
from benchmarks.cuda.driver import Driver, Kernel
from benchmarks.cuda.scalars import device_text
from benchmarks.cuda.streams import (
    Point,
    Row,
    columns,
    gather,
    point,
    scatter,
    softmax,
    transpose,
)
from funcgrad.backends.llvm.emit.text import Definitions

torch: Any = None  # loaded by main: this machine may have none

POINTS = [
    *(Point(4, u, t) for u in (1, 2, 4) for t in (128, 256, 512, 1024)),
    *(Point(w, u, 256) for w in (1, 2) for u in (1, 2, 4)),
    *(Point(4, u, t, loop=True) for u in (1, 2, 4) for t in (256, 1024)),
    *(Point(4, u, 256, inputs=n) for u in (1, 2) for n in (2, 3)),
    *(Point(4, u, 256, op=op) for u in (1, 2) for op in ("exp", "tanh", "erf", "log")),
]
ROWS = [
    Row(size, threads)
    for size, ways in {
        128: [32], 512: [32, 128], 1024: [32, 128, 256], 4096: [128, 256, 512, 1024],
        16384: [256, 512, 1024],
    }.items()
    for threads in ways
]  # fmt: skip
FAST = [Row(1024, 32, True), Row(4096, 256, True), Row(16384, 512, True)]
N = 1 << 28  # floats of a buffer: 1 GiB


def ptx_texts() -> dict[str, str]:
    """By name: the PTX of this module's kernels."""
    families: dict[str, list[Callable[[Definitions], str]]] = {
        "points": [lambda m, p=p: point(m, p) for p in POINTS],  # type: ignore[misc]
        "rows": [lambda m, r=r: softmax(m, r) for r in (*ROWS, *FAST)],  # type: ignore[misc]
        "others": [
            lambda m: columns(m, 1), lambda m: columns(m, 4), lambda m: columns(m, 8),
            lambda m: transpose(m, 4), lambda m: transpose(m, 8), lambda m: transpose(m, 16),
            lambda m: gather(m, 16, 16), lambda m: gather(m, 128, 32),
            lambda m: scatter(m, False),
        ],
        "wide": [lambda m: scatter(m, True)],
    }  # fmt: skip
    made = {}
    for name, writers in families.items():
        module = Definitions()
        kernels = [write(module) for write in writers]
        features = "+ptx81" if name == "wide" else "+ptx80"
        made[f"stream_{name}"] = texts.ptx(device_text(module.text(kernels)), features=features)
    return made


class Streams:
    """The kernels, and buffers in PyTorch's tensors."""

    def __init__(self, driver: Driver, ptx: dict[str, str]) -> None:
        self.driver = driver
        self.modules = {name: driver.load(driver.link(text).image) for name, text in ptx.items()}
        self.xs = [torch.randn(N, device="cuda") for _ in range(3)]
        self.y = torch.empty(N, device="cuda")

    def kernel(self, family: str, name: str) -> Kernel:
        """A kernel by its family and name."""
        return self.driver.kernel(self.modules[f"stream_{family}"], name)

    def runner(
        self, made: Kernel, grid: list[int], block: list[int], tensors: list[Any], *ints: int
    ) -> Callable[[int], None]:
        """A function that launches a kernel on tensors and integers, whichever turn it is."""
        args = [*(ctypes.c_void_p(t.data_ptr()) for t in tensors), *map(ctypes.c_int, ints)]
        return lambda _: self.driver.launch(made, grid, block, args)

    def rate(self, run: Callable[[int], None], nbytes: float, inner: int = 3) -> float:
        """GB/s."""
        return nbytes / self.driver.microseconds(run, repeats=7, inner=inner) / 1e3

    # ---- measurements

    def limits(self) -> dict[str, Any]:
        """Copies and sums of 1 GiB."""
        x, y = self.xs[0], self.y
        copy = lambda _: self.driver.check(  # noqa: E731
            "cuMemcpyDtoDAsync_v2", ctypes.c_void_p(y.data_ptr()), ctypes.c_void_p(x.data_ptr()),
            ctypes.c_size_t(4 * N), ctypes.c_void_p(0),
        )  # fmt: skip
        return {
            "cuMemcpyDtoD": self.rate(copy, 8 * N),
            "torch copy_": self.rate(lambda _: y.copy_(x), 8 * N),
            "torch mul(out=)": self.rate(lambda _: torch.mul(x, 2.0, out=y), 8 * N),
            "torch sum": self.rate(lambda _: x.sum(), 4 * N),
        }

    def points(self) -> dict[str, Any]:
        """Elementwise kernels: GB/s, the largest error, registers."""
        found = {}
        for p in POINTS:
            made = self.kernel("points", p.name)
            each, vectors = p.threads * p.unroll, N // p.width
            grid = vectors // each
            if p.loop:
                grid = min(grid, 16 * self.driver.multiprocessors * 256 // p.threads)
                while vectors % (grid * each):
                    grid -= 1
            run = self.runner(made, [grid], [p.threads], [*self.xs[: p.inputs], self.y], vectors)
            self.y.fill_(float("nan"))
            run(0)
            at = torch.randint(0, N, (1 << 20,), device="cuda")
            away = (self.y[at].double() - reference(p, [x[at].double() for x in self.xs])).abs()
            worst = away.nan_to_num(0.0 if p.op == "log" else float("inf")).max()
            found[p.name] = (self.rate(run, 4 * N * (p.inputs + 1)), float(worst), made.registers)
        return found

    def sizes(self) -> dict[str, Any]:
        """Microseconds of one elementwise kernel, and GB/s, by bytes moved."""
        p, found = Point(4, 1, 256), {}
        made = self.kernel("points", p.name)
        for bits in range(14, 29, 2):
            n = 1 << bits
            run = self.runner(made, [n // 1024], [256], [self.xs[0], self.y], n // 4)
            taken = self.driver.microseconds(run, repeats=7, inner=20)
            found[f"{8 * n} bytes"] = (taken, 8 * n / taken / 1e3)
        return found

    def rows(self) -> dict[str, Any]:
        """Softmax of rows: GB/s, the largest error, registers; PyTorch's beside it."""
        found: dict[str, Any] = {}
        for r in (*ROWS, *FAST):
            made, count = self.kernel("rows", r.name), N // r.size
            run = self.runner(made, [count // r.rows], [r.rows * r.threads], [self.xs[0], self.y])
            self.y.fill_(float("nan"))
            run(0)
            x, y = self.xs[0].view(count, r.size), self.y.view(count, r.size)
            some = slice(count - 64, count)
            worst = (y[some].double() - torch.softmax(x[some].double(), 1)).abs().max()
            found[r.name] = (self.rate(run, 8 * N), float(worst), made.registers)
            peer = partial(torch.softmax, x, 1, out=y)
            found[f"torch {r.size}"] = self.rate(lambda _, peer=peer: peer(), 8 * N)
        return found

    def columns(self) -> dict[str, Any]:
        """Sums over the first axis of 512 MiB: GB/s, the largest error."""
        found: dict[str, Any] = {}
        for width in (512, 4096):
            lines = N // 2 // width
            x = self.xs[0][: N // 2].view(lines, width)
            wanted = x.double().sum(0)
            for unroll, blocks in itertools.product((1, 4, 8), (1024, 4096)):
                parts, y = blocks // (width // 128), torch.zeros_like(x[0])
                made, grid = self.kernel("others", f"columns_{unroll}"), [width // 128, parts]
                run = self.runner(made, grid, [32, 8], [x, y], lines // parts, width // 4)
                run(0)
                worst = float((y.double() - wanted).abs().max())
                rate = self.rate(run, 2 * N)
                found[f"{width} unroll {unroll}, {blocks} blocks"] = (rate, worst)
            peer = partial(torch.sum, x, 0)
            found[f"torch {width}"] = self.rate(lambda _, peer=peer: peer(), 2 * N)
        return found

    def transposes(self) -> dict[str, Any]:
        """Of 8192 × 8192 floats: GB/s, whether the result is right."""
        n, found = 8192, {}
        x, y = self.xs[0][: n * n].view(n, n), self.y[: n * n].view(n, n)
        for rows in (4, 8, 16):
            made = self.kernel("others", f"transpose_{rows}")
            run = self.runner(made, [n // 32, n // 32], [32, rows], [x, y], n)
            y.fill_(float("nan"))
            run(0)
            right = bool(torch.equal(y, x.t()))
            found[f"32 x {rows} threads"] = (self.rate(run, 8 * n * n), right)
        found["torch"] = self.rate(lambda _: y.copy_(x.t()), 8 * n * n)
        return found

    def gathers(self) -> dict[str, Any]:
        """Random rows: GB/s read and written, whether the result is right."""
        found: dict[str, Any] = {}
        for vectors, lanes, lines, count in (
            (16, 16, 10_000_000, 1 << 20), (128, 32, 1_000_000, 1 << 18),
        ):  # fmt: skip
            table = torch.randn(lines, 4 * vectors, device="cuda")
            ids = torch.randint(0, lines, (4, count), device="cuda", dtype=torch.int32)
            out = torch.empty(count, 4 * vectors, device="cuda")
            made, grid = self.kernel("others", f"gather_{vectors}_{lanes}"), count * lanes // 256
            runs = [self.runner(made, [grid], [256], [table, part, out]) for part in ids]
            runs[0](0)
            right = bool(torch.equal(out, table[ids[0].long()]))
            name, moved = f"rows of {16 * vectors} bytes", 32 * vectors * count
            found[name] = (self.rate(lambda i, runs=runs: runs[i % 4](i), moved), right)
            peer = partial(torch.index_select, table, 0, out=out)
            peer_rate = self.rate(lambda i, peer=peer, ids=ids: peer(index=ids[i % 4]), moved)
            found[f"{name}, torch"] = peer_rate
        return found

    def scatters(self) -> dict[str, Any]:
        """Rows of 64 floats added by atomics: GB/s of what is added, the largest error."""
        found: dict[str, Any] = {}
        rng, count, lines = np.random.default_rng(0), 1 << 20, 1_000_000
        draws = {"uniform": rng.integers(0, lines, count), "zipf": rng.zipf(1.2, count) % lines}
        for skew, drawn in draws.items():
            ids = torch.tensor(drawn.astype(np.int32), device="cuda")
            x = torch.randn(count, 64, device="cuda")
            table = torch.zeros(lines, 64, device="cuda")
            wanted = table.double().index_add_(0, ids, x.double())
            for family, name in (("others", "scatter_1"), ("wide", "scatter_4")):
                run = self.runner(self.kernel(family, name), [1 << 16], [256], [x, ids, table])
                table.zero_()
                run(0)
                worst = float((table.double() - wanted).abs().max())
                found[f"{skew}, {name}"] = (self.rate(run, x.nbytes), worst)
            peer = partial(table.index_add_, 0, ids, x)
            found[f"{skew}, torch index_add_"] = self.rate(lambda _, peer=peer: peer(), x.nbytes)
        return found


def reference(p: Point, xs: list[Any]) -> Any:
    """An elementwise kernel's values, in float64."""
    return (
        2.0 * xs[0] + 1.0 + sum(xs[1 : p.inputs]) if p.op == "axpy" else getattr(torch, p.op)(xs[0])
    )


def main() -> None:
    """Measure all; a JSON file and a table."""
    global torch
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ptx", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import torch as loaded

    torch = loaded
    torch.zeros(1, device="cuda")
    driver = Driver()
    streams = Streams(driver, {p.stem: p.read_text() for p in options.ptx.glob("stream_*.ptx")})
    found: dict[str, Any] = {"device": driver.name, "driver": driver.version}
    for measure in (streams.limits, streams.points, streams.sizes, streams.rows, streams.columns,
                    streams.transposes, streams.gathers, streams.scatters):  # fmt: skip
        name = measure.__name__
        try:
            found[name] = measure()
        except Exception as e:
            found[name] = {"error": f"{type(e).__name__}: {e}"}
        (options.out / "bandwidth.json").write_text(json.dumps(found, indent=1))
        print(name)
        for what, value in found[name].items():
            print(f"  {what:34} {value}")


if __name__ == "__main__":
    main()
