"""Which of CuPy's functions wait for the device, and which a stream's capture takes.

A kernel that spins for some 30 ms is queued first: a function that doesn't wait returns before it
has ended.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}"""


def functions(cupy: Any) -> dict[str, Callable[[], Any]]:
    """By name: calls on operands that are there."""
    x = cupy.asarray(np.random.default_rng(0).standard_normal((256, 256)), "float32")
    flat, ids = x.ravel(), cupy.arange(1000, dtype="int32")
    spd = x @ x.T + 300 * cupy.eye(256, dtype="float32")
    out, mask = cupy.zeros(1 << 16, "float32"), flat > 0
    return {
        "zeros": lambda: cupy.zeros(1000), "arange": lambda: cupy.arange(1000),
        "asarray of NumPy's": lambda: cupy.asarray(np.ones(1000)),
        "x + x": lambda: x + x, "exp": lambda: cupy.exp(x), "sum": lambda: x.sum(),
        "max": lambda: x.max(axis=0), "argmax": lambda: x.argmax(axis=1),
        "cumsum": lambda: cupy.cumsum(flat), "sort": lambda: cupy.sort(flat),
        "sort rows": lambda: cupy.sort(x, axis=1), "argsort": lambda: cupy.argsort(flat),
        "take": lambda: cupy.take(flat, ids), "x[mask]": lambda: flat[mask],
        "where": lambda: cupy.where(x > 0, x, 0), "nonzero": lambda: cupy.nonzero(flat),
        "unique": lambda: cupy.unique(ids), "concatenate": lambda: cupy.concatenate([x, x]),
        "add.at": lambda: cupy.add.at(out, ids, 1.0), "matmul": lambda: x @ x,
        "einsum": lambda: cupy.einsum("ij,kj->ik", x, x), "fft": lambda: cupy.fft.fft(x),
        "cholesky": lambda: cupy.linalg.cholesky(spd), "qr": lambda: cupy.linalg.qr(x),
        "svd": lambda: cupy.linalg.svd(x), "eigh": lambda: cupy.linalg.eigh(spd),
        "solve": lambda: cupy.linalg.solve(spd, x), "inv": lambda: cupy.linalg.inv(spd),
        "slogdet": lambda: cupy.linalg.slogdet(spd), "item": lambda: flat[0].item(),
        "asnumpy": lambda: cupy.asnumpy(ids), "alloc 1 MB": lambda: cupy.cuda.alloc(1 << 20),
        "toDlpack": lambda: x.__dlpack__(), "reshape": lambda: x.reshape(-1),
        "copy of a transpose": lambda: cupy.ascontiguousarray(x.T),
        "random.normal": lambda: cupy.random.standard_normal(1000),
        "searchsorted": lambda: cupy.searchsorted(ids, ids),
        "bincount": lambda: cupy.bincount(ids), "histogram": lambda: cupy.histogram(flat),
    }  # fmt: skip


def measure() -> dict[str, dict[str, Any]]:
    """By function: whether it waits, whether it is captured, microseconds of a call."""
    import cupy

    spin = cupy.RawKernel(_SPIN, "spin")
    found: dict[str, dict[str, Any]] = {}
    for name, call in functions(cupy).items():
        row: dict[str, Any] = {}
        try:
            for _ in range(2):
                call()
            cupy.cuda.Device().synchronize()
            spin((1,), (1,), (np.int64(50_000_000),))
            start = time.perf_counter()
            kept = call()
            row["waits"] = time.perf_counter() - start > 0.015
            cupy.cuda.Device().synchronize()
            del kept
            start = time.perf_counter()
            for _ in range(20):
                call()
            row["host µs"] = 1e6 * (time.perf_counter() - start) / 20
        except Exception as e:
            row["error"] = f"{type(e).__name__}: {e}"[:150]
        found[name] = row
    for name, call in functions(cupy).items():
        found[name]["captured"] = captured(cupy, call)
    return found


def captured(cupy: Any, call: Callable[[], Any]) -> Any:
    """Whether a stream that is captured takes the call, or why not."""
    stream = cupy.cuda.Stream(non_blocking=True)
    try:
        with stream:
            call()
            stream.synchronize()
            stream.begin_capture()
            try:
                kept = call()
            finally:
                graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
            del kept
        return True
    except Exception as e:
        return f"{type(e).__name__}: {e}"[:120]


def main() -> None:
    """Measure all; a JSON file and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = measure()
    (options.out / "blocking.json").write_text(json.dumps(found, indent=1))
    for name, row in found.items():
        print(f"  {name:24} {row}")


if __name__ == "__main__":
    main()
