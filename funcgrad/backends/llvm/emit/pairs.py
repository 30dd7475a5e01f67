"""Kernels of bfloat16 alone, two elements at a time: each access is one of a word of 32 bits.

A vector of words gives the even elements by a shift and the odd ones by a mask, and takes both
again. Elements by themselves would be spread out and packed, which takes longer than arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from funcgrad.backends.llvm.emit.schedule import Level, coefficient
from funcgrad.backends.llvm.emit.text import BFLOAT16
from funcgrad.backends.loops.ir import Kernel, Load, Op, Store, Value


def fits(kernel: Kernel, level: Level, fixed: Collection[Value]) -> bool:
    """Whether a kernel with this one loop around its body, axes of one point (`fixed`) aside,
    consists of pairs."""
    if level.size % 2 or any(b.dtype != BFLOAT16 for b in kernel.params):
        return False
    for s in kernel.body:
        if isinstance(s, Load | Store):
            step = coefficient(s.index, level.axis)
            others = any(v is not level.axis and v not in fixed for _, v in s.index.terms)
            if s.guard is not None or s.buffer.role == "scratch" or others:
                return False
            if step not in ((1,) if isinstance(s, Store) else (0, 1)):
                return False
        elif not isinstance(s, Op):
            return False
    return True


def emit_pairs(e: Any, axis: Value, first: str) -> None:
    """Write the body for the elements number `first` and the one after it."""
    f, shared = e.f, dict(e.env)
    envs = [{**shared, axis: first}, {**shared, axis: f.let(f"add nuw nsw i64 {first}, 1")}]
    for s in e.kernel.body:
        e.env = envs[0]
        if isinstance(s, Op):
            for env in envs:
                e.env = env
                env[s.out] = e.op(s)
        elif isinstance(s, Store):
            place = e.address(s.buffer, s.index)
            low, high = (f.let(f"zext i16 {_value(e, env, s)} to i32") for env in envs)
            word = f.let(f"or i32 {low}, {f.let(f'shl i32 {high}, 16')}")
            f.do(f"store i32 {word}, ptr {place}, align 2{e.group()}")
        elif coefficient(s.index, axis):
            place = e.address(s.buffer, s.index)
            word = f.let(f"load i32, ptr {place}, align 2{e.group()}")
            envs[0][s.out] = f.let(f"trunc i32 {word} to i16")
            envs[1][s.out] = f.let(f"trunc i32 {f.let(f'lshr i32 {word}, 16')} to i16")
        else:
            envs[0][s.out] = envs[1][s.out] = e.load(s)
    e.env = shared


def _value(e: Any, env: dict[Value, str], s: Store) -> str:
    e.env = env
    return str(e.read(s.value))
