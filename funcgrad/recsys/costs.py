"""What a table costs, cut in each of the ways there are: seconds of a step and bytes, a device.

A lookup moves ids, rows and sums through memory; its backward pass takes twice as long; what is
exchanged goes over links. The formulas are those of TorchRec's planner (Ivchenko et al., 2022).
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.errors import ArgumentError
from funcgrad.recsys.layouts import KINDS, OF_NODES, TableSharding
from funcgrad.recsys.tables import BITS, QuantizedTable, row_bytes

# How many numbers an optimizer keeps for each of a table's, and how many for each row.
OPTIMIZERS = {
    "sgd": (0, 0), "adagrad": (1, 0), "rowwise_adagrad": (0, 1), "adam": (2, 1),
    "lazy_adam": (2, 0), "lamb": (2, 0),
}  # fmt: skip
# How a table is trained: by the rows that were read; by gradients of its shape; or by those rows in
# a cache of a part of them, with all rows in a file.
KERNELS = ("fused", "dense", "cached")
ID_BYTES = 4  # of an id, and of how many a bag has
LINE = 64  # bytes of a cache's line, which memory gives at once


@dataclass(frozen=True)
class TableStats:
    """A table and how it is used: its shape, how many ids a bag has on average, and its dtype.
    Those of "int8" and "int4" have a scale a row (`quantize_rows`), and are read only. cache: which
    part of its rows a cache holds, where it has the kernel "cached".

    >>> from funcgrad import recsys
    >>> recsys.TableStats(1000, 16, pooling=20.0)
    TableStats(rows=1000, dim=16, pooling=20.0, dtype='float32', cache=0.2)
    """

    rows: int
    dim: int
    pooling: float = 1.0
    dtype: str = "float32"
    cache: float = 0.2


@dataclass(frozen=True)
class Bandwidths:
    """Bytes a second: of memory, of a link between devices (of a node), of one between nodes, and
    of files.

    >>> from funcgrad import recsys
    >>> recsys.Bandwidths(link=1e9).memory
    10000000000.0
    """

    memory: float = 10e9
    link: float = 2e9
    between_nodes: float = 1e9
    disk: float = 0.5e9


def measure_bandwidths(megabytes: int = 64) -> Bandwidths:
    """Of this machine, where devices are virtual ones or ranks: reading random rows, and copies.

    Links are taken to copy twice, into shared memory and out of it; a file for temporary ones is
    written, to the medium.

    >>> from funcgrad import recsys
    >>> recsys.measure_bandwidths(1).memory > 0
    True
    """
    rows = megabytes * 2**20 // 256
    table = np.ones((rows, 64), np.float32)
    ids = np.random.default_rng(0).permutation(rows)
    read = _seconds(lambda: table.take(ids, axis=0))
    copied = _seconds(table.copy)
    link = table.nbytes / copied / 2
    with tempfile.TemporaryFile() as file:

        def written() -> None:
            file.seek(0)
            file.write(table.data)
            file.flush()
            os.fsync(file.fileno())

        disk = table.nbytes / _seconds(written)
    return Bandwidths(2 * table.nbytes / read, link, link, disk)


def _seconds(f: Any) -> float:
    """The least of three runs, after one."""
    f()
    found = []
    for _ in range(3):
        start = time.perf_counter()
        f()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-9)


@dataclass(frozen=True)
class Job:
    """What plans are for: (nodes, devices of each), bags a device has in a step, and speeds."""

    nodes: int
    local: int
    batch: int
    optimizer: str
    speed: Bandwidths

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return self.nodes * self.local


@dataclass(frozen=True)
class Option:
    """A way to cut a table, and what it costs each place that has a block of it.

    unit: what a block is put on: "device", "node" or "all"; same_node: whether all blocks must be
    on devices of one node; seconds and bytes: of each device that takes part in a block; kernel:
    one of `KERNELS`.
    """

    kind: str
    columns: int
    unit: str
    same_node: bool
    seconds: float
    bytes: float
    kernel: str = "fused"

    def sharding(self, places: Sequence[int]) -> TableSharding:
        """As the annotation that it stands for."""
        return TableSharding(self.kind, tuple(places) or None, self.columns)


def options(
    name: str,
    table: TableStats,
    job: Job,
    allowed: Sequence[str],
    kernels: Sequence[str] = KERNELS[:1],
) -> list[Option]:
    """The ways to cut and to train a table on the devices of a job."""
    found = []
    for kernel in kernels:
        if kernel not in KERNELS:
            raise ArgumentError(
                f"recsys.plan: table {name!r}: kernels must be of {KERNELS}, got {kernel!r}"
            )
    for kind in allowed:
        if kind not in KINDS:
            raise ArgumentError(f"recsys.plan: table {name!r}: there is no sharding {kind!r}")
        if kind in OF_NODES and job.nodes == 1:
            continue
        for columns in _columns(kind, table, job):
            for kernel in kernels:
                # Dense gradients can be summed over devices, but aren't exchanged by rows.
                dense = KINDS[kind] == "whole" and table.dtype not in BITS
                if kernel != "dense" or dense:
                    found.append(_option(kind, columns, table, job, kernel))
    if not found:
        raise ArgumentError(
            f"recsys.plan: table {name!r} may be {list(allowed)}, none of which fits "
            f"{job.nodes} × {job.local} devices"
        )
    return found


def _columns(kind: str, table: TableStats, job: Job) -> Iterator[int]:
    """Into how many blocks of columns a table may be cut: powers of two that leave 4 of them."""
    most = {"column_wise": job.devices, "table_column_wise": job.local, "grid": job.nodes}
    if kind not in most:
        yield 1
        return
    n = 2
    while n <= min(most[kind], table.dim // 4) and table.dim % n == 0:
        yield n
        n *= 2


def _option(kind: str, columns: int, table: TableStats, job: Job, kernel: str) -> Option:
    """The cost of one of a table's blocks, to each of its devices."""
    exchange = KINDS[kind]
    among = {"whole": 1, "table": 1, "row": job.devices, "node": job.local}[exchange]
    width = table.dim / columns
    bags = job.batch * (1 if exchange == "whole" else job.devices)
    ids = bags * table.pooling / among
    row, trained = row_bytes(table.dtype, width), table.dtype not in BITS
    state = _state(job.optimizer, width) * 4 * trained
    read = ids * max(row, LINE)
    out = bags * width * 4
    arriving = 0 if exchange == "whole" else bags * (table.pooling + 1) * ID_BYTES
    # Of each id that arrives, whoever's it is, its place is looked at.
    local = (max(ids * ID_BYTES, arriving) + read + out) / job.speed.memory
    rows = math.ceil(table.rows / among)
    kept = rows * (row + state)
    seconds = (3 if trained else 1) * local
    seconds += _exchange(exchange, out, arriving, table, job) if trained or arriving else 0
    if kernel == "dense":
        # The gradient is begun and read, the table and its state are read and written.
        size = rows * width * 4
        seconds += (4 * size + 2 * rows * state) / job.speed.memory
        kept += size
    elif kernel == "cached":
        # Rows come in and go out with their state, where the cache hasn't got them.
        both = 2 if trained else 1
        seconds += both * ids * (1 - _hits(table)) * (row + state) / job.speed.disk
        kept *= table.cache
    unit = {"whole": "all", "row": "all", "table": "device", "node": "node"}[exchange]
    taken = kept + 2 * out + arriving
    return Option(kind, columns, unit, kind == "table_column_wise", seconds, taken, kernel)


def _hits(table: TableStats) -> float:
    """The part of ids whose rows a cache of the most frequent ones has, by Zipf's law."""
    return math.log1p(table.cache * table.rows) / math.log1p(table.rows)


def _state(optimizer: str, width: float) -> float:
    """Numbers kept for a row."""
    each, row = OPTIMIZERS[optimizer]
    return each * width + row


def _exchange(exchange: str, out: float, arriving: float, table: TableStats, job: Job) -> float:
    """Seconds for ids, results, and results' cotangents over the links."""
    across, ways = job.nodes > 1, 1 if table.dtype in BITS else 2
    slow = job.speed.between_nodes if across else job.speed.link
    others = 1 - 1 / job.devices
    if exchange == "whole":
        return 2 * table.rows * table.dim * 4 * others / slow
    if exchange == "node":
        inside = out * (1 - 1 / job.local) / job.speed.link
        between = out / job.local * (1 - 1 / job.nodes) / slow
        return arriving * others / slow + ways * (inside + between)
    return (arriving + ways * out) * others / slow


def as_stats(name: str, table: Any) -> TableStats:
    """A table given by its statistics, by its shape, or as an array."""
    if isinstance(table, TableStats):
        stats = table
    elif isinstance(table, Mapping):
        stats = TableStats(**table)
    else:
        shape = tuple(getattr(table, "shape", table))
        if len(shape) != 2:
            raise ArgumentError(f"recsys.plan: table {name!r} must be (rows, dim), got {shape}")
        quantized = isinstance(table, QuantizedTable)
        dtype = f"int{table.bits}" if quantized else str(getattr(table, "dtype", "float32"))
        stats = TableStats(*shape, dtype=dtype)
    bad = min(stats.rows, stats.dim) < 1 or stats.pooling < 0
    if bad or not 0 < stats.cache <= 1:
        raise ArgumentError(f"recsys.plan: table {name!r} has {stats}")
    return stats
