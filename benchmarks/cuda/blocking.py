"""Which of CuPy's functions wait for the device, and which a stream's capture takes.

A kernel that spins for some 100 ms is queued first, an event behind it: what returns while the
event is pending has not waited. A capture is tried on a stream of its own, after a call that fills
the pool and the caches.

python -m benchmarks.cuda.blocking --out DIR
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
CYCLES = 200_000_000  # some 100 ms: more than any of these calls takes by itself


def functions(cupy: Any, cupyx: Any) -> dict[str, Callable[[], Any]]:
    """By name: calls on operands that are there."""
    x = cupy.asarray(np.random.default_rng(0).standard_normal((256, 256)), "float32")
    flat, ids = x.ravel(), cupy.arange(1000, dtype="int32")
    spd = x @ x.T + 300 * cupy.eye(256, dtype="float32")
    out, mask, host = cupy.zeros(1 << 16, "float32"), flat > 0, np.ones(1000)
    linalg = cupy.linalg
    return {
        "zeros": lambda: cupy.zeros(1000), "arange": lambda: cupy.arange(1000),
        "asarray of NumPy's": lambda: cupy.asarray(host), "copy": lambda: x.copy(),
        "x + x": lambda: x + x, "x + 1": lambda: x + 1, "exp": lambda: cupy.exp(x),
        "astype": lambda: x.astype("float16"), "sum": lambda: x.sum(),
        "max": lambda: x.max(axis=0), "argmax": lambda: x.argmax(axis=1),
        "cumsum": lambda: cupy.cumsum(flat), "sort": lambda: cupy.sort(flat),
        "sort rows": lambda: cupy.sort(x, axis=1), "argsort": lambda: cupy.argsort(flat),
        "partition": lambda: cupy.partition(flat, 10), "take": lambda: cupy.take(flat, ids),
        "x[mask]": lambda: flat[mask], "where": lambda: cupy.where(x > 0, x, 0),
        "nonzero": lambda: cupy.nonzero(flat), "unique": lambda: cupy.unique(ids),
        "concatenate": lambda: cupy.concatenate([x, x]),
        "add.at": lambda: cupy.add.at(out, ids, 1.0),
        "scatter_add": lambda: cupyx.scatter_add(out, ids, 1.0), "matmul": lambda: x @ x,
        "einsum": lambda: cupy.einsum("ij,kj->ik", x, x), "fft": lambda: cupy.fft.fft(x),
        "fft2": lambda: cupy.fft.fft2(x), "cholesky": lambda: linalg.cholesky(spd),
        "qr": lambda: linalg.qr(x), "svd": lambda: linalg.svd(x),
        "eigh": lambda: linalg.eigh(spd), "solve": lambda: linalg.solve(spd, x),
        "inv": lambda: linalg.inv(spd), "slogdet": lambda: linalg.slogdet(spd),
        "item": lambda: flat[0].item(), "asnumpy": lambda: cupy.asnumpy(ids),
        "alloc 1 MB, free": lambda: cupy.cuda.alloc(1 << 20) and None,
        "reshape": lambda: x.reshape(-1),
        "copy of a transpose": lambda: cupy.ascontiguousarray(x.T),
        "random.normal": lambda: cupy.random.standard_normal(1000),
        "searchsorted": lambda: cupy.searchsorted(ids, ids),
        "bincount": lambda: cupy.bincount(ids), "histogram": lambda: cupy.histogram(flat),
        "__dlpack__()": lambda: x.__dlpack__(),
        "__dlpack__(stream=-1)": lambda: x.__dlpack__(stream=-1),
    }  # fmt: skip


def exchanges(cupy: Any) -> dict[str, Callable[[], Any]]:
    """What is shared with PyTorch, both ways."""
    import torch

    ours, theirs = cupy.ones((256, 256), "float32"), torch.ones(256, 256, device="cuda")
    return {
        "cupy.from_dlpack(torch's)": lambda: cupy.from_dlpack(theirs),
        "torch.from_dlpack(cupy's)": lambda: torch.from_dlpack(ours),
        "cupy.asarray(torch's)": lambda: cupy.asarray(theirs),
        "torch.as_tensor(cupy's)": lambda: torch.as_tensor(ours, device="cuda"),
    }


def decompositions(cupy: Any) -> dict[str, Callable[[], Any]]:
    """LU, of a package that needs SciPy."""
    import cupyx.scipy.linalg as linalg

    x = cupy.eye(256, dtype="float32")
    return {"lu_factor": lambda: linalg.lu_factor(x), "lu": lambda: linalg.lu(x)}


def waiting(cupy: Any, spin: Any, call: Callable[[], Any]) -> dict[str, Any]:
    """Whether a call waits for what was queued before it, and the host's microseconds of a call."""
    row: dict[str, Any] = {}
    try:
        for _ in range(2):
            call()
        cupy.cuda.Device().synchronize()
        spin((1,), (1,), (np.int64(CYCLES),))
        spun = cupy.cuda.Event(disable_timing=True)
        spun.record()
        kept = call()
        row["waits"] = bool(spun.done)
        cupy.cuda.Device().synchronize()
        del kept
        start = time.perf_counter()
        for _ in range(10):
            call()
        row["host µs"] = round(1e5 * (time.perf_counter() - start), 1)
        cupy.cuda.Device().synchronize()
    except Exception as e:
        row["error"] = f"{type(e).__name__}: {e}"[:150]
    return row


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


def measure(save: Callable[[dict[str, Any]], None]) -> dict[str, dict[str, Any]]:
    """By function: whether it waits, whether it is captured, microseconds of a call."""
    import cupy
    import cupyx

    spin = cupy.RawKernel(_SPIN, "spin")
    calls = functions(cupy, cupyx)
    found: dict[str, dict[str, Any]] = {}
    for more in (exchanges, decompositions):
        try:
            calls |= more(cupy)
        except Exception as e:
            found[more.__name__] = {"error": f"{type(e).__name__}: {e}"[:150]}
    for name, call in calls.items():
        found[name] = waiting(cupy, spin, call)
    save(found)
    # Last, as a capture that fails may leave a stream unfit for what follows.
    for name, call in calls.items():
        found[name]["captured"] = captured(cupy, call)
    save(found)
    return found


def main() -> None:
    """Measure all; a JSON file and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    file = options.out / "blocking.json"
    found = measure(lambda rows: file.write_text(json.dumps(rows, indent=1)) and None)
    for name, row in found.items():
        print(f"  {name:26} {row}")


if __name__ == "__main__":
    main()
