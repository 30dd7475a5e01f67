"""Words of tensor cores, each defined twice as those of `words` are: products of a warp.

`fg_mma_{kind}` multiplies 16 × 16 by 16 × 8 elements of bf16 or f16, or 16 × 8 by 8 × 8 of tf32,
and adds in float32: each lane holds fragments as PTX's `mma.m16n8k16`, `mma.m16n8k8` have them. The
simulator's lanes write theirs down, wait, and compute what theirs are of all. `fg_exp2`, `fg_log2`
are approximate on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from funcgrad.backends.llvm.emit.text import Function

HALVES = ("bf16", "f16")
_TERMS = {"bf16": 16, "f16": 16, "tf32": 8}
_FLOATS = "{float, float, float, float}"
_ARGS = ["i32"] * 6 + ["float"] * 4


def multiply(
    f: Function, kind: str, a: Sequence[str], b: Sequence[str], c: Sequence[str]
) -> list[str]:
    """c + a·b."""
    made = f.call(f"fg_mma_{kind}", _FLOATS, _ARGS, [*a, *b, *c])
    return [f.let(f"extractvalue {_FLOATS} {made}, {i}") for i in range(4)]


def pack(f: Function, kind: str, low: str, high: str) -> str:
    """Two floats, rounded, in a register."""
    return f.call(f"fg_pack_{kind}", "i32", ["float", "float"], [low, high])


def fast(f: Function, x: str) -> str:
    """A float rounded to TensorFloat-32, ties away from 0."""
    return f.call("fg_fast", "float", ["float"], [x])


def unpack(f: Function, kind: str, word: str, which: int) -> str:
    """The low (0) or the high (1) half of a register as a float."""
    if kind == "bf16":
        bits = f.let(f"and i32 {word}, -65536" if which else f"shl i32 {word}, 16")
        return f.let(f"bitcast i32 {bits} to float")
    moved = f.let(f"lshr i32 {word}, 16") if which else word
    half = f.let(f"bitcast i16 {f.let(f'trunc i32 {moved} to i16')} to half")
    return f.let(f"fpext half {half} to float")


def over_row(f: Function, x: str, how: str) -> str:
    """The maximum or the sum over the four lanes that hold a row."""
    for mask in (1, 2):
        bits = f.call(
            "fg_xor", "i32", ["i32", "i32"], [f.let(f"bitcast float {x} to i32"), str(mask)]
        )
        y = f.let(f"bitcast i32 {bits} to float")
        x = f.intrinsic("maxnum", "float", x, y) if how == "max" else f.let(f"fadd float {x}, {y}")
    return x


def exp2(f: Function, x: str) -> str:
    """2 to the power x."""
    return f.call("fg_exp2", "float", ["float"], [x])


def log(f: Function, x: str) -> str:
    """The natural logarithm."""
    return f.let(f"fmul float {f.call('fg_log2', 'float', ['float'], [x])}, 0x3FE62E4300000000")


def _params(count: int = 10) -> str:
    return ", ".join(f"{t} %x{i}" for i, t in enumerate(_ARGS[:count]))


def _on_device(kind: str) -> str:
    text = (
        f"mma.sync.aligned.m16n8k{_TERMS[kind]}.row.col.f32.{kind}.{kind}.f32 {{$0,$1,$2,$3}}, "
        "{$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    return f"""
define internal {_FLOATS} @fg_mma_{kind}({_params()}) alwaysinline convergent {{
  %r = call {_FLOATS} asm sideeffect "{text}", "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"({_params()})
  ret {_FLOATS} %r
}}
"""


def _packing(kind: str) -> str:
    return f"""
define internal i32 @fg_pack_{kind}(float %low, float %high) alwaysinline {{
  %r = call i32 asm "cvt.rn.{kind}x2.f32 $0, $1, $2;", "=r,f,f"(float %high, float %low)
  ret i32 %r
}}
"""


DEVICE = (
    "".join([*map(_on_device, _TERMS), *map(_packing, HALVES)])
    + """
define internal float @fg_fast(float %x) alwaysinline {
  %r = call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,f"(float %x)
  %y = bitcast i32 %r to float
  ret float %y
}
declare float @llvm.nvvm.ex2.approx.f(float)
declare float @llvm.nvvm.lg2.approx.f(float)
define internal float @fg_exp2(float %x) alwaysinline {
  %r = call float @llvm.nvvm.ex2.approx.f(float %x)
  ret float %r
}
define internal float @fg_log2(float %x) alwaysinline {
  %r = call float @llvm.nvvm.lg2.approx.f(float %x)
  ret float %r
}
"""
)

_WIDE = {
    "bf16": """  %up = shl i32 %bits, 16
  %value = bitcast i32 %up to float""",
    "f16": """  %short = trunc i32 %bits to i16
  %half = bitcast i16 %short to half
  %value = fpext half %half to float""",
    "tf32": "  %value = bitcast i32 %word to float",
}
# Of a term k: the lane in a group of four, the register, and the half of it.
_HALF_PLACES = """  %k7 = and i32 %k, 7
  %p = lshr i32 %k7, 1
  %k8 = lshr i32 %k, 3
  %odd = and i32 %k, 1"""
_PLACES = {
    **dict.fromkeys(HALVES, _HALF_PLACES),
    "tf32": """  %p = and i32 %k, 3
  %k8 = lshr i32 %k, 2
  %odd = and i32 %k, 0""",
}
_NARROW = {
    "bf16": """  %bits = bitcast float %x to i32
  %odd = lshr i32 %bits, 16
  %one = and i32 %odd, 1
  %more = add i32 %one, 32767
  %sum = add i32 %bits, %more
  %nan = fcmp uno float %x, %x
  %kept = select i1 %nan, i32 2143289344, i32 %sum
  %r = lshr i32 %kept, 16""",
    "f16": """  %half = fptrunc float %x to half
  %short = bitcast half %half to i16
  %r = zext i16 %short to i32""",
}


_SIMULATED_PACK = """
define internal i32 @fg_narrow_KIND(float %x) {
NARROW
  ret i32 %r
}

define internal i32 @fg_pack_KIND(float %low, float %high) {
  %l = call i32 @fg_narrow_KIND(float %low)
  %h = call i32 @fg_narrow_KIND(float %high)
  %u = shl i32 %h, 16
  %r = or i32 %u, %l
  ret i32 %r
}
"""
_SIMULATED = """
define internal float @fg_wide_KIND(i32 %word, i32 %odd) {
  %shift = shl i32 %odd, 4
  %moved = lshr i32 %word, %shift
  %bits = and i32 %moved, 65535
WIDE
  ret float %value
}

define internal float @fg_sum_KIND(float %start, i32 %row, i32 %column) {
entry:
  %t = load volatile i32, ptr @fg_thread_now
  %warp = and i32 %t, -32
  %r7 = and i32 %row, 7
  %r8 = lshr i32 %row, 3
  %lr = shl i32 %r7, 2
  %lc = shl i32 %column, 2
  br label %turn
turn:
  %k = phi i32 [0, %entry], [%next, %turn]
  %total = phi float [%start, %entry], [%more, %turn]
PLACES
  %la = add i32 %lr, %p
  %ta = add i32 %warp, %la
  %k82 = shl i32 %k8, 1
  %ra = add i32 %k82, %r8
  %ia0 = mul i32 %ta, 6
  %ia = add i32 %ia0, %ra
  %pa = getelementptr i32, ptr @fg_fragments, i32 %ia
  %wa = load volatile i32, ptr %pa
  %a = call float @fg_wide_KIND(i32 %wa, i32 %odd)
  %lb = add i32 %lc, %p
  %tb = add i32 %warp, %lb
  %ib0 = mul i32 %tb, 6
  %ib1 = add i32 %ib0, 4
  %ib = add i32 %ib1, %k8
  %pb = getelementptr i32, ptr @fg_fragments, i32 %ib
  %wb = load volatile i32, ptr %pb
  %b = call float @fg_wide_KIND(i32 %wb, i32 %odd)
  %product = fmul float %a, %b
  %more = fadd float %total, %product
  %next = add i32 %k, 1
  %go = icmp ult i32 %next, TERMS
  br i1 %go, label %turn, label %done
done:
  ret float %more
}

define internal FLOATS @fg_mma_KIND(PARAMS) noinline {
  %t = load volatile i32, ptr @fg_thread_now
  %first = mul i32 %t, 6
STORES
  call void @fg_sync()
  %lane = and i32 %t, 31
  %row = lshr i32 %lane, 2
  %below = add i32 %row, 8
  %p = and i32 %lane, 3
  %column = shl i32 %p, 1
  %beside = add i32 %column, 1
  %c0 = call float @fg_sum_KIND(float %x6, i32 %row, i32 %column)
  %c1 = call float @fg_sum_KIND(float %x7, i32 %row, i32 %beside)
  %c2 = call float @fg_sum_KIND(float %x8, i32 %below, i32 %column)
  %c3 = call float @fg_sum_KIND(float %x9, i32 %below, i32 %beside)
  call void @fg_sync()
  %r0 = insertvalue FLOATS undef, float %c0, 0
  %r1 = insertvalue FLOATS %r0, float %c1, 1
  %r2 = insertvalue FLOATS %r1, float %c2, 2
  %r3 = insertvalue FLOATS %r2, float %c3, 3
  ret FLOATS %r3
}
"""


def _simulated(kind: str) -> str:
    words = {
        "KIND": kind, "WIDE": _WIDE[kind], "NARROW": _NARROW.get(kind, ""), "FLOATS": _FLOATS,
        "PARAMS": _params(), "STORES": _stores(), "PLACES": _PLACES[kind],
        "TERMS": str(_TERMS[kind]),
    }  # fmt: skip
    text = _SIMULATED + _SIMULATED_PACK * (kind in HALVES)
    return re.sub("|".join(words), lambda m: words[m[0]], text)


def _stores() -> str:
    return "\n".join(
        f"  %i{i} = add i32 %first, {i}\n"
        f"  %p{i} = getelementptr i32, ptr @fg_fragments, i32 %i{i}\n"
        f"  store volatile i32 %x{i}, ptr %p{i}"
        for i in range(6)
    )


SIMULATOR = (
    "@fg_fragments = internal global [6144 x i32] zeroinitializer\n"
    + "".join(map(_simulated, _TERMS))
    + """
define internal float @fg_fast(float %x) {
  %bits = bitcast float %x to i32
  %up = add i32 %bits, 4096
  %cut = and i32 %up, -8192
  %nan = fcmp uno float %x, %x
  %r = select i1 %nan, i32 %bits, i32 %cut
  %y = bitcast i32 %r to float
  ret float %y
}
declare float @exp2f(float)
declare float @log2f(float)
define internal float @fg_exp2(float %x) {
  %r = call float @exp2f(float %x)
  ret float %r
}
define internal float @fg_log2(float %x) {
  %r = call float @log2f(float %x)
  ret float %r
}
"""
)
