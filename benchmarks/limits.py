"""What the machine can do at most: copied bytes and fused multiply-adds a second, all threads."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

COPIED = 1 << 27  # bytes each way: far beyond any cache
CHAINS = 12  # independent sums: enough to hide the latency, few enough for AVX2's registers


class Limits(NamedTuple):
    """Bytes a second, read and written, of a large copy; float32 operations a second."""

    bandwidth: float
    flops: float

    def seconds(self, flops: float, moved: float, double: bool = False) -> float:
        """The time below which no program can do so much, in float64 at half the rate if double."""
        return max(flops / self.flops * (2 if double else 1), moved / self.bandwidth)


def measure(threads: int, seconds: float = 0.5) -> Limits:
    """The machine's limits on some threads: the best of what was seen in twice `seconds`."""
    with ThreadPoolExecutor(threads) as pool:
        return Limits(_bandwidth(pool, threads, seconds), _fma_rate(pool, threads, seconds))


def _best(
    pool: ThreadPoolExecutor, work: Callable[[int], None], threads: int, seconds: float
) -> float:
    best, stop = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < stop or best == np.inf:
        start = time.perf_counter()
        list(pool.map(work, range(threads)))
        best = min(best, time.perf_counter() - start)
    return best


def _bandwidth(pool: ThreadPoolExecutor, threads: int, seconds: float) -> float:
    source = np.ones((threads, COPIED // threads // 4), np.float32)
    target = np.zeros_like(source)
    best = _best(pool, lambda i: np.copyto(target[i], source[i]), threads, seconds)
    return 2 * source.nbytes / best


def _fma_rate(pool: ThreadPoolExecutor, threads: int, seconds: float) -> float:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    width = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_chains(width)), machine)
    engine.finalize_object()
    fma = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(
        engine.get_function_address("fma_chains")
    )
    places = np.ones((threads, 64), np.float32)
    rounds = 1 << 22  # some 10 ms, beside which it is nothing to start them
    best = _best(pool, lambda i: fma(rounds, places[i].ctypes.data), threads, seconds)
    return 2.0 * width * CHAINS * rounds * threads / best


def _chains(width: int) -> str:
    """LLVM: sums s ← s·a + b in registers, as many as hide the latency."""
    kind = f"<{width} x float>"
    names = range(CHAINS)
    starts = "\n".join(f"  %s{i} = phi {kind} [ %a, %entry ], [ %t{i}, %loop ]" for i in names)
    steps = "\n".join(
        f"  %t{i} = call {kind} @llvm.fma.v{width}f32({kind} %s{i}, {kind} %a, {kind} %a)"
        for i in names
    )
    stores = "\n".join(f"  store volatile {kind} %t{i}, ptr %p, align 4" for i in names)
    return f"""
declare {kind} @llvm.fma.v{width}f32({kind}, {kind}, {kind})
define void @fma_chains(i64 %n, ptr %p) {{
entry:
  %a = load {kind}, ptr %p, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{starts}
{steps}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
{stores}
  ret void
}}
"""
