"""What the machine can do at most: bytes read and copied, multiply-adds a second, all threads."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

BYTES = 1 << 27  # read, and written: far beyond any cache
CHAINS = 12  # independent sums: enough to hide the latency, few enough for AVX2's registers


class Limits(NamedTuple):
    """Bytes a second that are only read, that a large copy reads and writes; float32 operations."""

    reads: float
    copies: float
    flops: float

    def seconds(self, flops: float, read: float, written: float, double: bool = False) -> float:
        """The time below which no program can do so much, in float64 at half the rate if double.

        What a copy takes beyond reading its source counts as the time of writing.
        """
        writing = max(2 / self.copies - 1 / self.reads, 0.0)
        moving = read / self.reads + written * writing
        return max(flops / self.flops * (2 if double else 1), moving)


def measure(threads: int, seconds: float = 0.5) -> Limits:
    """The machine's limits on some threads: the best of what was seen, thrice `seconds` long."""
    loops = _Loops()
    source = np.ones((threads, BYTES // threads // 4), np.float32)
    target = np.zeros_like(source)
    sums = np.ones((threads, CHAINS * loops.width), np.float32)
    turns = source[0].size // sums[0].size
    rounds = 1 << 22  # some 10 ms, beside which it is nothing to start them

    def read(i: int) -> None:
        loops.read(turns, source[i].ctypes.data, sums[i].ctypes.data)

    def copy(i: int) -> None:
        np.copyto(target[i], source[i])

    def chain(i: int) -> None:
        loops.chain(rounds, source[i].ctypes.data, sums[i].ctypes.data)

    with ThreadPoolExecutor(threads) as pool:
        return Limits(
            sums.nbytes * turns / _best(pool, read, threads, seconds),
            2 * source.nbytes / _best(pool, copy, threads, seconds),
            2.0 * sums.size * rounds / _best(pool, chain, threads, seconds),
        )


def _best(
    pool: ThreadPoolExecutor, work: Callable[[int], None], threads: int, seconds: float
) -> float:
    best, stop = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < stop or best == np.inf:
        start = time.perf_counter()
        list(pool.map(work, range(threads)))
        best = min(best, time.perf_counter() - start)
    return best


class _Loops:
    """Two loops as wide as this processor's registers: `(turns, source, sums)`, s ← s·a + a.

    In a turn each of CHAINS sums takes a step; `read` loads all of their a's from the source,
    one turn's behind the other, `chain` takes one that it has loaded before.
    """

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.width = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
        )
        kind = f"<{self.width} x float>"
        text = f"declare {kind} @llvm.fma.v{self.width}f32({kind}, {kind}, {kind})\n"
        text += _loop("read", kind, loads=True) + _loop("chain", kind, loads=False)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
        self._engine.finalize_object()
        call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
        self.read = call(self._engine.get_function_address("read"))
        self.chain = call(self._engine.get_function_address("chain"))


def _loop(name: str, kind: str, loads: bool) -> str:
    """LLVM: one of the loops."""
    names, suffix = range(CHAINS), f"v{kind[1:].split()[0]}f32"
    starts = "\n".join(f"  %s{i} = phi {kind} [ %a, %entry ], [ %t{i}, %loop ]" for i in names)
    reads = "\n".join(
        f"  %p{i} = getelementptr [{CHAINS} x {kind}], ptr %source, i64 %i, i64 {i}\n"
        f"  %a{i} = load {kind}, ptr %p{i}, align 4"
        for i in names
    )
    steps = "\n".join(
        f"  %t{i} = call {kind} @llvm.fma.{suffix}({kind} %s{i}, {kind} {a}, {kind} {a})"
        for i in names
        for a in [f"%a{i}" if loads else "%a"]
    )
    stores = "\n".join(
        f"  %q{i} = getelementptr {kind}, ptr %sums, i64 {i}\n"
        f"  store {kind} %t{i}, ptr %q{i}, align 4"
        for i in names
    )
    return f"""
define void @{name}(i64 %turns, ptr %source, ptr %sums) {{
entry:
  %a = load {kind}, ptr %source, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{starts}
{reads if loads else ""}
{steps}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %turns
  br i1 %more, label %loop, label %done
done:
{stores}
  ret void
}}
"""
