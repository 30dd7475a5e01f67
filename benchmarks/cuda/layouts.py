"""Bytes a second of sums over columns, transposes, lookups and sums of scattered rows, beside
PyTorch's.

python -m benchmarks.cuda --prepare DIR               # here: the PTX texts
python -m benchmarks.cuda.layouts --ptx DIR --out DIR # on the machine with the GPU
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cuda import texts
from benchmarks.cuda.bandwidth import Bench, N, measure_all
from benchmarks.cuda.scalars import device_text
from benchmarks.cuda.tiles import (
    Columns,
    Turn,
    columns,
    gather,
    narrow_transpose,
    ordered,
    scatter,
    wide_transpose,
)
from funcgrad.backends.llvm.emit.text import Definitions

try:
    import torch
except ImportError:  # where texts are prepared
    torch = None

SHAPES = [(16, 16), (32, 8)]  # lanes and lines of a block, for 64 columns and for more
WAYS = [(4, "atomics"), (1, "atomic"), (4, "atomic"), (8, "atomic"), (4, "part"), (1, "part")]
COLUMNS = [Columns(*shape, *way) for shape in SHAPES for way in WAYS]
BLOCKS = (512, 1024, 4096)  # of sums over columns
TURNS = [Turn(size, threads) for size in (4, 2) for threads in (128, 256)]
GATHERS = [(16, 16, 10_000_000, 1 << 20), (128, 32, 1_000_000, 1 << 18)]
LINES, ADDED = 1_000_000, 1 << 20  # rows of the table that is added to, rows added


def ptx_texts() -> dict[str, str]:
    """By name: the PTX of this module's kernels."""
    writers: list[Callable[[Definitions], str]] = [
        *(lambda m, c=c: columns(m, c) for c in COLUMNS),  # type: ignore[misc]
        *(lambda m, r=r: narrow_transpose(m, r) for r in (4, 8)),  # type: ignore[misc]
        *(lambda m, t=t: wide_transpose(m, t) for t in TURNS),  # type: ignore[misc]
        *(lambda m, g=g: gather(m, *g[:2]) for g in GATHERS),  # type: ignore[misc]
        *(lambda m, w=w: scatter(m, w) for w in (False, True)),  # type: ignore[misc]
        ordered,
    ]
    module = Definitions()
    kernels = [write(module) for write in writers]
    return {"layouts": texts.ptx(device_text(module.text(kernels)), features="+ptx81")}


class Layouts(Bench):
    """What is measured here."""

    def measures(self) -> list[Callable[[], dict[str, Any]]]:
        """All."""
        return [self.limits, self.columns, self.transposes, self.scatters, self.gathers]

    def limits(self) -> dict[str, Any]:
        """A copy of 1 GiB."""
        x, y = (torch.empty(N, device="cuda") for _ in range(2))
        return {"copy": self.rate(lambda _: y.copy_(x), 8 * N)}

    def columns(self) -> dict[str, Any]:
        """Sums over the first axis of 512 MiB: GB/s, the largest error."""
        found: dict[str, Any] = {}
        for width in (64, 512, 4096):
            x = torch.randn(N // 2 // width, width, device="cuda")
            wanted = x.double().sum(0)
            for c in COLUMNS:
                if (c.lanes == 16) != (width == 64):
                    continue
                for blocks in BLOCKS:
                    run, result = self.column_sums(c, x, blocks)
                    run(0)
                    worst = float((result[:width].double() - wanted).abs().max())
                    found[f"{width}: {c.name}, {blocks} blocks"] = (self.rate(run, 2 * N), worst)
            peer = partial(torch.sum, x, 0)
            found[f"{width}: torch"] = self.rate(lambda _, peer=peer: peer(), 2 * N)
        return found

    def column_sums(self, c: Columns, x: Any, blocks: int) -> tuple[Callable[[int], None], Any]:
        """What adds up x's columns in some blocks, and where the sums are then."""
        lines, width = x.shape
        across = width // 4 // c.lanes
        parts, block = max(1, blocks // across), [c.lanes, c.lines]
        sums = torch.zeros(width * (parts if c.last == "part" else 1), device="cuda")
        vectors = c_int(width // 4)
        first = self.runner(
            self.kernel("layouts", c.name), [across, parts], block,
            [x, sums, c_int(lines // parts), vectors],
        )  # fmt: skip
        if c.last != "part":
            return first, sums
        result = torch.full((width,), float("nan"), device="cuda")
        second = self.runner(
            self.kernel("layouts", c._replace(unroll=1).name), [across, 1], block,
            [sums, result, c_int(parts), vectors],
        )  # fmt: skip

        def run(turn: int) -> None:
            first(turn)
            second(turn)

        return run, result

    def transposes(self) -> dict[str, Any]:
        """Of matrices and a batch of them: GB/s, whether the result is right."""
        found: dict[str, Any] = {}
        side = 1 << ((N >> 2).bit_length() - 1) // 2
        for shape, kind in (((1, side, side), torch.float32), ((1, side, side), torch.bfloat16),
                            ((64, side // 4, side // 8), torch.float32)):  # fmt: skip
            batch, rows, wide = shape
            x = torch.randn(shape, device="cuda").to(kind)
            y = torch.empty(batch, wide, rows, device="cuda", dtype=kind)
            ways: dict[str, tuple[list[int], list[int], list[Any]]] = {
                t.name: ([wide // 64, rows // 64, batch], [t.threads], [c_int(rows), c_int(wide)])
                for t in TURNS
                if t.nbytes == x.itemsize
            }
            if batch == 1 and x.itemsize == 4:
                for r in (4, 8):
                    ways[f"transpose_{r}"] = ([side // 32, side // 32], [32, r], [c_int(side)])
            what = f"{batch} x {rows} x {wide}, {x.itemsize} bytes"
            for name, (grid, block, sizes) in ways.items():
                run = self.runner(self.kernel("layouts", name), grid, block, [x, y, *sizes])
                y.fill_(float("nan"))
                run(0)
                right = bool(torch.equal(y, x.mT))
                found[f"{what}: {name}"] = (self.rate(run, 2 * x.nbytes), right)
            copy = partial(y.copy_, x.mT)
            found[f"{what}: torch"] = self.rate(lambda _, copy=copy: copy(), 2 * x.nbytes)
        return found

    def gathers(self) -> dict[str, Any]:
        """Random rows: GB/s read and written, whether the result is right."""
        found: dict[str, Any] = {}
        for vectors, lanes, lines, count in GATHERS:
            table = torch.randn(lines, 4 * vectors, device="cuda")
            ids = torch.randint(0, lines, (4, count), device="cuda", dtype=torch.int32)
            out = torch.full((count, 4 * vectors), float("nan"), device="cuda")
            made, grid = self.kernel("layouts", f"gather_{vectors}_{lanes}"), count * lanes // 256
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
        """Rows of 64 floats added to a table: GB/s of what is added, the largest error."""
        found: dict[str, Any] = {}
        rng = np.random.default_rng(0)
        draws = {"uniform": rng.integers(0, LINES, ADDED), "zipf": rng.zipf(1.2, ADDED) % LINES}
        for skew, drawn in draws.items():
            ids = torch.tensor(drawn.astype(np.int32), device="cuda")
            x, table = torch.randn(ADDED, 64, device="cuda"), torch.zeros(LINES, 64, device="cuda")
            wanted = table.double().index_add_(0, ids, x.double())
            ways = {
                name: self.runner(
                    self.kernel("layouts", name), [ADDED // 16], [256], [x, ids, table]
                )
                for name in ("scatter_1", "scatter_4")
            }
            for cut in (0, 32, 256):
                name = f"ordered, parts of {cut}" if cut else "ordered, whole"
                ways[name] = self.in_order(x, drawn, cut, table)
            for name, run in ways.items():
                table.zero_()
                run(0)
                worst = float((table.double() - wanted).abs().max())
                found[f"{skew}, {name}"] = (self.rate(run, x.nbytes, inner=1), worst)
            peer = partial(table.index_add_, 0, ids, x)
            found[f"{skew}, torch index_add_"] = self.rate(lambda _, peer=peer: peer(), x.nbytes)
            sort = partial(torch.sort, ids)
            taken = self.driver.microseconds(lambda _, sort=sort: sort(), repeats=7, inner=3)
            found[f"{skew}, µs to order the indices (torch.sort)"] = taken
        return found

    def in_order(self, x: Any, ids: np.ndarray, cut: int, table: Any) -> Callable[[int], None]:
        """What adds x's rows by an order of their indices: in one pass, or first parts of a
        segment that have `cut` rows at most, then the parts."""
        order = np.argsort(ids, kind="stable")
        rows, firsts = np.unique(ids[order], return_index=True)
        if not cut:
            return self.segments(x, order, rows, firsts, table)
        within = np.arange(len(ids)) - np.repeat(firsts, np.diff([*firsts, len(ids)]))
        starts = np.flatnonzero(within % cut == 0)
        parts = np.arange(len(starts))
        sums = torch.zeros(len(starts), 64, device="cuda")
        one = self.segments(x, order, parts, starts, sums)
        two = self.segments(sums, parts, rows, np.searchsorted(starts, firsts), table)

        def run(turn: int) -> None:
            sums.zero_()
            one(turn)
            two(turn)

        return run

    def segments(
        self, x: Any, order: np.ndarray, rows: np.ndarray, starts: np.ndarray, table: Any
    ) -> Callable[[int], None]:
        """The launch of one pass."""
        lists = [
            torch.tensor(numbers.astype(np.int32), device="cuda")
            for numbers in (order, rows, np.append(starts, len(order)))
        ]
        args = [x, *lists, c_int(len(rows)), table]
        return self.runner(self.kernel("layouts", "ordered"), [-(-len(rows) // 16)], [256], args)


if __name__ == "__main__":
    measure_all(Layouts, "layouts.ptx", "layouts.json")
