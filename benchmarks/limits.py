"""What the machine can do at most, all threads: bytes read, copied and gathered, multiply-adds."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

BYTES = 1 << 27  # read, and written: far beyond any cache
CHAINS = 12  # independent sums: enough to hide the latency, few enough for AVX2's registers
# What is gathered: lines of 64 float32 out of so many, as the third cache holds; in rows of
# ascending places, as those of a sparse matrix; how far ahead a line is asked for.
LINE, LINES, ROW, SOON = 64, 20_000, 200, 16
GATHERED = 1 << 17  # lines, by each thread


class Limits(NamedTuple):
    """Bytes a second that are only read, that a large copy reads and writes; operations of float32,
    and of int8 whose sums are exact; bytes a second of lines that are added up, each from another
    place of an array that a cache holds."""

    reads: float
    copies: float
    flops: float
    int8: float
    lines: float = np.inf

    def seconds(
        self,
        flops: float,
        read: float,
        written: float,
        kind: str = "float32",
        gathered: float = 0.0,
    ) -> float:
        """The time below which no program can do so much, of a kind: float32, float64 at half its
        rate, or int8; and gather so many bytes.

        What a copy takes beyond reading its source counts as the time of writing.
        """
        writing = max(2 / self.copies - 1 / self.reads, 0.0)
        moving = read / self.reads + written * writing
        rates = {"float32": self.flops, "float64": self.flops / 2, "int8": self.int8}
        return max(flops / rates[kind], moving, gathered / self.lines)


def measure(threads: int, seconds: float = 0.5) -> Limits:
    """The machine's limits on some threads: the best seen, in five times `seconds`."""
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

    def bytewise(i: int) -> None:
        loops.int8(rounds, source[i].ctypes.data, sums[i].ctypes.data)

    rows = np.random.default_rng(0).integers(0, LINES, (threads, GATHERED // ROW + 1, ROW))
    places = 4 * LINE * np.sort(rows).reshape(threads, -1)

    def gather(i: int) -> None:
        loops.gather(GATHERED, source.ctypes.data, places[i].ctypes.data)

    with ThreadPoolExecutor(threads) as pool:
        return Limits(
            sums.nbytes * turns / _best(pool, read, threads, seconds),
            2 * source.nbytes / _best(pool, copy, threads, seconds),
            2.0 * sums.size * rounds / _best(pool, chain, threads, seconds),
            2.0 * loops.along * sums.size * rounds / _best(pool, bytewise, threads, seconds),
            4.0 * LINE * GATHERED * threads / _best(pool, gather, threads, seconds),
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
    """Loops as wide as this processor's registers: `(turns, source, sums)`, s ← s·a + a.

    In a turn each of CHAINS sums takes a step; `read` loads all of their a's from the source,
    one turn's behind the other, `chain` takes one that it has loaded before. `int8` is a chain of
    sums of `along` products each, by the exact instruction that multiplies most: fours of bytes, or
    pairs that were widened; where there is none, it is `chain`. `gather(turns, source, places)`
    adds up lines that lie so many bytes behind the source.
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
        name, self.along = _instruction(features, self.width)
        if name:
            text += _loop("int8", kind.replace("float", "i32"), loads=False, instruction=name)
        text += _gather(self.width)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
        self._engine.finalize_object()
        call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
        self.read = call(self._engine.get_function_address("read"))
        self.chain = call(self._engine.get_function_address("chain"))
        self.gather = call(self._engine.get_function_address("gather"))
        self.int8 = call(self._engine.get_function_address("int8")) if name else self.chain


def _instruction(features: Mapping[str, bool], width: int) -> tuple[str, int]:
    """LLVM's name of what multiplies pairs or fours of integers, and how many a lane."""
    if width == 16:
        vnni = "avx512.vpdpbusd.512", 4
        return vnni if features.get("avx512vnni") else ("avx512.pmaddw.d.512", 2)
    if width == 8:
        return ("avx512.vpdpbusd.256", 4) if features.get("avxvnni") else ("avx2.pmadd.wd", 2)
    return ("sse2.pmadd.wd", 2) if features.get("sse2") else ("", 1)


def _step(i: int, a: str, kind: str, name: str) -> str:
    """LLVM: sum i takes a step. Its products depend on it, lest they leave the loop."""
    lanes = int(kind[1:].split()[0])
    if not name:
        return f"  %t{i} = call {kind} @llvm.fma.v{lanes}f32({kind} %s{i}, {kind} {a}, {kind} {a})"
    if "dpbusd" in name:
        return f"  %t{i} = call {kind} @llvm.x86.{name}({kind} %s{i}, {kind} %s{i}, {kind} {a})"
    half = f"<{2 * lanes} x i16>"
    return (
        f"  %x{i} = bitcast {kind} %s{i} to {half}\n"
        f"  %m{i} = call {kind} @llvm.x86.{name}({half} %x{i}, {half} %half)\n"
        f"  %t{i} = add {kind} %m{i}, %s{i}"
    )


def _declaration(kind: str, name: str) -> str:
    """LLVM: what `_step` calls."""
    if not name:
        return ""
    half = f"<{2 * int(kind[1:].split()[0])} x i16>"
    takes = f"{kind}, {kind}, {kind}" if "dpbusd" in name else f"{half}, {half}"
    return f"declare {kind} @llvm.x86.{name}({takes})"


def _loop(name: str, kind: str, loads: bool, instruction: str = "") -> str:
    """LLVM: one of the loops."""
    names = range(CHAINS)
    starts = "\n".join(f"  %s{i} = phi {kind} [ %a, %entry ], [ %t{i}, %loop ]" for i in names)
    reads = "\n".join(
        f"  %p{i} = getelementptr [{CHAINS} x {kind}], ptr %source, i64 %i, i64 {i}\n"
        f"  %a{i} = load {kind}, ptr %p{i}, align 4"
        for i in names
    )
    steps = "\n".join(_step(i, f"%a{i}" if loads else "%a", kind, instruction) for i in names)
    stores = "\n".join(
        f"  %q{i} = getelementptr {kind}, ptr %sums, i64 {i}\n"
        f"  store {kind} %t{i}, ptr %q{i}, align 4"
        for i in names
    )
    half = f"  %half = bitcast {kind} %a to <{2 * int(kind[1:].split()[0])} x i16>"
    return f"""
{_declaration(kind, instruction)}
define void @{name}(i64 %turns, ptr %source, ptr %sums) {{
entry:
  %a = load {kind}, ptr %source, align 4
{half if instruction else ""}
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


def _gather(width: int) -> str:
    """LLVM: the loop that adds up lines."""
    kind, names = f"<{width} x float>", range(LINE // width)
    starts = "\n".join(f"  %s{i} = phi {kind} [ %first, %entry ], [ %t{i}, %loop ]" for i in names)
    asks = "\n".join(
        f"  %n{i} = getelementptr i8, ptr %later, i64 {64 * i}\n"
        f"  call void @llvm.prefetch.p0(ptr %n{i}, i32 0, i32 3, i32 1)"
        for i in range(4 * LINE // 64)
    )
    steps = "\n".join(
        f"  %p{i} = getelementptr {kind}, ptr %line, i64 {i}\n"
        f"  %a{i} = load {kind}, ptr %p{i}, align 4\n"
        f"  %t{i} = fadd {kind} %s{i}, %a{i}"
        for i in names
    )
    stores = "\n".join(f"  store volatile {kind} %t{i}, ptr %room, align 4" for i in names)
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @gather(i64 %turns, ptr %source, ptr %places) {{
entry:
  %room = alloca {kind}
  %first = load {kind}, ptr %source, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{starts}
  %soon = add i64 %i, {SOON}
  %q = getelementptr i64, ptr %places, i64 %i
  %r = getelementptr i64, ptr %places, i64 %soon
  %place = load i64, ptr %q
  %other = load i64, ptr %r
  %line = getelementptr i8, ptr %source, i64 %place
  %later = getelementptr i8, ptr %source, i64 %other
{asks}
{steps}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %turns
  br i1 %more, label %loop, label %done
done:
{stores}
  ret void
}}
"""
