"""`fmod` in exact steps, for floats whose remainder by LLVM isn't exact on this target.

Both numbers become integers of one scale, and the divisor is subtracted from the dividend bit by
bit (as in musl's fmod.c): the result is exact, as IEEE 754 and the C library have it.
"""

from __future__ import annotations

import re

from funcgrad.backends.llvm.emit.text import Function

_WORD = re.compile(r"(?<![\w.@%])[A-Z]+(?![\w.])")
_FREM = re.compile(r"  (%\S+) = frem (\w+) (\S+), (\S+)$")

# T: the float's type, I: the integer's of its bits, M: bits of the fraction, E: the exponent of
# infinity, S: all bits but the sign's, F: the fraction's, ONE: the implicit bit, LEAD: zeros
# before it
_TEXT = """define internal T @fg_fmod(T %x, T %y) nounwind noinline {
entry:
  %ux = bitcast T %x to I
  %uy = bitcast T %y to I
  %ax = and I %ux, S
  %ay = and I %uy, S
  %sign = xor I %ux, %ax
  %ex0 = lshr I %ax, M
  %ey0 = lshr I %ay, M
  %zero = icmp eq I %ay, 0
  %nan = fcmp uno T %y, %y
  %huge = icmp eq I %ex0, E
  %bad0 = or i1 %zero, %nan
  %bad = or i1 %bad0, %huge
  br i1 %bad, label %invalid, label %valid
invalid:
  %product = fmul T %x, %y
  %none = fdiv T %product, %product
  ret T %none
valid:
  %less = icmp ult I %ax, %ay
  br i1 %less, label %same, label %scale
same:
  ret T %x
scale:
  %fx = and I %ax, F
  %fy = and I %ay, F
  %zx = call I @llvm.ctlz(I %fx, i1 false)
  %zy = call I @llvm.ctlz(I %fy, i1 false)
  %sx0 = sub I %zx, LEAD
  %sy0 = sub I %zy, LEAD
  %dx = icmp eq I %ex0, 0
  %dy = icmp eq I %ey0, 0
  %sx = select i1 %dx, I %sx0, I 0
  %sy = select i1 %dy, I %sy0, I 0
  %gx = or I %fx, ONE
  %gy = or I %fy, ONE
  %hx = shl I %fx, %sx
  %hy = shl I %fy, %sy
  %mx0 = select i1 %dx, I %hx, I %gx
  %my = select i1 %dy, I %hy, I %gy
  %nx = sub I 1, %sx
  %ny = sub I 1, %sy
  %ex = select i1 %dx, I %nx, I %ex0
  %ey = select i1 %dy, I %ny, I %ey0
  br label %turn
turn:
  %e = phi I [%ex, %scale], [%lower, %next]
  %m = phi I [%mx0, %scale], [%twice, %next]
  %d = sub I %m, %my
  %fits = icmp sge I %d, 0
  %rest = select i1 %fits, I %d, I %m
  %more = icmp sgt I %e, %ey
  br i1 %more, label %next, label %done
next:
  %twice = shl I %rest, 1
  %lower = sub I %e, 1
  br label %turn
done:
  %empty = icmp eq I %rest, 0
  br i1 %empty, label %null, label %pack
null:
  %nullbits = bitcast I %sign to T
  ret T %nullbits
pack:
  %zr = call I @llvm.ctlz(I %rest, i1 false)
  %up = sub I %zr, LEAD
  %mr = shl I %rest, %up
  %er = sub I %ey, %up
  %normal = icmp sgt I %er, 0
  %ebits = shl I %er, M
  %fr = and I %mr, F
  %big = or I %fr, %ebits
  %down0 = sub I 1, %er
  %down = select i1 %normal, I 0, I %down0
  %small = lshr I %mr, %down
  %size = select i1 %normal, I %big, I %small
  %bits = or I %size, %sign
  %result = bitcast I %bits to T
  ret T %result
}"""


def exact(f: Function, start: int) -> None:
    """Let the remainders (`frem`) in a function's lines from `start` on be exact."""
    for i in range(start, len(f.lines)):
        found = _FREM.match(f.lines[i])
        if found:
            result, type_, a, b = found.groups()
            f.lines[i] = f"  {result} = call {type_} @{_define(f, type_)}({type_} {a}, {type_} {b})"


def _define(f: Function, type_: str) -> str:
    """The name of fmod for a type, which the module then has."""
    name, bits, fraction = f"fg_fmod_{type_}", *((32, 23) if type_ == "float" else (64, 52))
    if name not in f.module.needed:
        one, kind = 1 << fraction, f"i{bits}"
        words = {
            "T": type_, "I": kind, "M": fraction, "F": one - 1, "ONE": one,
            "E": (1 << (bits - 1 - fraction)) - 1, "S": (1 << (bits - 1)) - 1,
            "LEAD": bits - 1 - fraction,
        }  # fmt: skip
        text = _WORD.sub(lambda m: str(words[m[0]]), _TEXT)
        f.module.needed[name] = text.replace("@fg_fmod", f"@{name}").replace("ctlz", f"ctlz.{kind}")
        f.module.declare(f"llvm.ctlz.{kind}", kind, [kind, "i1"])
    return name
