"""Panels of what processors multiply best, and how long they are."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions, pack
from funcgrad.backends.llvm.gemm.kernels import Kernels, Micro
from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile, constant
from funcgrad.backends.llvm.gemm.registers import Registers
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.compiler import compiled
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.core.record import replace


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
def test_pairs_of_bfloat16_where_they_are_quick(cpu):
    """Widened numbers below the least normal one count, those of pairs are taken as 0."""
    host = engine().target
    if not host.has("avx512bf16"):
        pytest.skip("this processor has no products of pairs of bfloat16")
    target = engine(replace(host, cpu=cpu))
    address = functions.install("bfloat16", "float32", target)
    a, b = (
        np.full(s, x, ml_dtypes.bfloat16) for s, x in (((140, 150), 2.0**-130), ((150, 99), 0.5))
    )
    c = np.empty((140, 99), np.float32)
    call = functions._words(a, b, c, False)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(call))
    assert (c == (0 if cpu == "znver4" else 75 * 2.0**-130)).all()


def test_panels_of_float64_are_long_where_they_are_fetched_ahead():
    for cpu, depth in (("znver4", 384), ("sapphirerapids", 1024)):
        target = Target("x86_64-unknown-linux-gnu", cpu, "+avx512f")
        assert Tile.of(target, FORMATS["float64"]).kc == depth


# Order and number of the features tell their compiled code apart from that of other tests.
FOURS = [
    ("avx512.vpdpbusd.512", "znver4", "+avx512bw,+avx512f,+avx512vl,+avx512vnni,+avx2,+avx,+fma"),
    ("avx512.vpdpbusd.256", "alderlake", "+avx2,+avx,+fma,+avxvnni"),
]


@pytest.mark.parametrize(("instruction", "cpu", "features"), FOURS)
def test_processors_with_the_instruction_multiply_fours_of_bytes(instruction, cpu, features):
    """Their kernel holds it for each vector of the tile, and for the sums of B's columns."""
    target = Target("x86_64-unknown-linux-gnu", cpu, features)
    tile = Tile.of(target, FORMATS["int8"])
    assert (tile.pairs, tile.along, tile.biased) == (instruction, 4, True)
    module = ir.Module("fours")
    kernels = Kernels(module, FORMATS["int8"], tile, target)
    kernels.write(Micro("packed", tile.rows, tile.vectors), "kernel").linkage = "external"
    text = compiled(target, str(module), 1, lambda m: m.code(assembly=True).decode())
    loop = max(text.split("\n.LBB"), key=lambda part: part.count("vpdpbusd"))
    assert loop.count("vpdpbusd") == (tile.rows + 1) * tile.vectors
    assert loop.count("(%rsp)") == 0  # nothing leaves the registers


def test_fours_of_bytes_are_summed_exactly(monkeypatch):
    """The panels and the sums of columns, by an instruction that is written out."""
    host = engine().target
    if not (host.triple.startswith("x86_64") and host.has("avx2")):
        pytest.skip("this processor does not run the code")

    def fours(self, code, z, x, y):
        b, total = code.b, z
        for i in range(4):
            shift = constant(z.type, 24 - 8 * i)
            high = b.ashr(b.shl(y, shift), constant(z.type, 24))
            low = b.and_(b.lshr(x, constant(z.type, 8 * i)), constant(z.type, 255))
            total = b.add(total, b.mul(low, high))
        return total

    monkeypatch.setattr(Registers, "fours", fours)
    monkeypatch.setattr(pack, "pair_instruction", lambda target, fmt: FOURS[1][0])
    target = engine(Target(host.triple, "haswell", "+f16c,+fma,+avx2,+avx"))
    address = functions.install("int8", "int32", target)
    rng = np.random.default_rng(9)
    for m, n, k in [(13, 37, 130), (64, 48, 7), (5, 16, 2500), (310, 197, 213)]:
        for low, high in ((-128, 128), (-128, -127), (127, 128)):
            a, b = (rng.integers(low, high, s, np.int8) for s in ((m, k), (k, n)))
            b = np.asfortranarray(b) if n % 2 else b
            c = np.empty((m, n), np.int32)
            call = functions._words(a, b, c, False)
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(call))
            assert (c == a.astype(np.int64) @ b.astype(np.int64)).all()


def test_pairs_of_bfloat16_have_their_instruction():
    target = Target(
        "x86_64-unknown-linux-gnu", "znver4", "+avx512bf16,+avx512bw,+avx512f,+avx512vl"
    )
    tile = Tile.of(target, FORMATS["bfloat16"])
    module = ir.Module("pairs")
    kernels = Kernels(module, FORMATS["bfloat16"], tile, target)
    kernels.write(Micro("packed", tile.rows, tile.vectors), "kernel").linkage = "external"
    text = compiled(target, str(module), 1, lambda m: m.code(assembly=True).decode())
    assert text.count("vdpbf16ps") >= tile.rows * tile.vectors
