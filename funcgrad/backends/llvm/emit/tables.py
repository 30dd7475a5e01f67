"""Numbers from tables of 16 floats, such as codes of 4 bits stand for: found in registers.

LLVM reads a table's elements one by one. A function with variants for vectors (see `vecmath.rare`)
takes as many at once by the instructions that permute a register's lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.llvm.emit.text import FLOAT32, Definitions
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.loops.ir import Load, Value

ENTRIES = 16
LANES = (8, 16, 32)  # there are variants for
NAME = "fg.table"


def from_table(s: Load, axes: frozenset[Value], target: Target) -> bool:
    """Whether a load reads a table at a place that is computed, which is no axis."""
    whole = s.buffer.dtype == FLOAT32 and s.buffer.size == ENTRIES and s.buffer.role == "in"
    computed = len(s.index.terms) == 1 and s.index.terms[0][0] == 1 and not s.index.const
    known = target.triple.startswith("x86_64") and target.has("avx2")
    return whole and computed and known and s.index.terms[0][1] not in axes


def define(module: Definitions, target: Target) -> None:
    """Define float fg.table(ptr table, i32 place), for places in the table."""
    if NAME in module.needed:
        return
    names = ",".join(f"_ZGV_LLVM_N{n}uv_{NAME}({NAME}.x{n})" for n in LANES)
    module.needed[NAME] = f"""\
define linkonce_odr hidden float @{NAME}(ptr %t, i32 %i) noinline memory(none) nounwind \
willreturn "vector-function-abi-variant"="{names}" {{
  %p = getelementptr inbounds float, ptr %t, i32 %i
  %x = load float, ptr %p, align 4
  ret float %x
}}"""
    piece = _of_512(module) if target.has("avx512f") else _of_256(module)
    for n in LANES:
        module.needed[f"{NAME}.x{n}"] = _variant(n, piece)


def _of_256(module: Definitions) -> int:
    """The function of 8 lanes: a lookup in either half, of which bit 3 says which counts."""
    permute = "llvm.x86.avx2.permps"
    module.declare(permute, "<8 x float>", ["<8 x float>", "<8 x i32>"])
    module.needed[f"{NAME}.part"] = f"""\
define internal <8 x float> @{NAME}.part(ptr %t, <8 x i32> %i) alwaysinline nounwind {{
  %p = getelementptr inbounds float, ptr %t, i32 8
  %low = load <8 x float>, ptr %t, align 4
  %high = load <8 x float>, ptr %p, align 4
  %x = call <8 x float> @{permute}(<8 x float> %low, <8 x i32> %i)
  %y = call <8 x float> @{permute}(<8 x float> %high, <8 x i32> %i)
  %bit = shl <8 x i32> %i, splat (i32 28)
  %is = icmp slt <8 x i32> %bit, zeroinitializer
  %z = select <8 x i1> %is, <8 x float> %y, <8 x float> %x
  ret <8 x float> %z
}}"""
    return 8


def _of_512(module: Definitions) -> int:
    """The function of 16 lanes, whose register holds the table."""
    permute = "llvm.x86.avx512.permvar.sf.512"
    module.declare(permute, "<16 x float>", ["<16 x float>", "<16 x i32>"])
    module.needed[f"{NAME}.part"] = f"""\
define internal <16 x float> @{NAME}.part(ptr %t, <16 x i32> %i) alwaysinline nounwind {{
  %table = load <16 x float>, ptr %t, align 4
  %x = call <16 x float> @{permute}(<16 x float> %table, <16 x i32> %i)
  ret <16 x float> %x
}}"""
    return 16


def _variant(lanes: int, piece: int) -> str:
    """The function of so many lanes, by parts of `piece`: the last may have less."""
    width = max(lanes, piece)
    lines, parts = [], []
    index, vector = f"<{piece} x i32>", f"<{piece} x float>"
    for at in range(0, width, piece):
        places = [min(at + i, lanes - 1) for i in range(piece)]
        lines.append(f"%i{at} = {_shuffle(f'<{lanes} x i32>', '%i', '%i', places)}")
        lines.append(f"%x{at} = call {vector} @{NAME}.part(ptr %t, {index} %i{at})")
        parts.append(f"%x{at}")
    size = piece
    while len(parts) > 1:
        joined = []
        for x, y in zip(parts[::2], parts[1::2], strict=True):
            name = f"{x}.{2 * size}"
            lines.append(f"{name} = {_shuffle(f'<{size} x float>', x, y, range(2 * size))}")
            joined.append(name)
        parts, size = joined, 2 * size
    lines.append(f"%z = {_shuffle(f'<{size} x float>', parts[0], parts[0], range(lanes))}")
    body = "\n  ".join(lines)
    return f"""\
define weak_odr hidden <{lanes} x float> @{NAME}.x{lanes}(ptr %t, <{lanes} x i32> %i) \
alwaysinline memory(none) nounwind willreturn {{
  {body}
  ret <{lanes} x float> %z
}}"""


def _shuffle(kind: str, x: str, y: str, places: Sequence[int]) -> str:
    """The instruction that puts lanes of two vectors in these places."""
    listed = ", ".join(f"i32 {p}" for p in places)
    return f"shufflevector {kind} {x}, {kind} {y}, <{len(places)} x i32> <{listed}>"
