"""What a planned program does: floating-point operations, and bytes read and written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from funcgrad.backends.loops import MATH, Kernel, Loop, Op, Stmt, While
from funcgrad.backends.program import (
    CondStep,
    CopyStep,
    GemmStep,
    HostStep,
    KernelStep,
    LoopStep,
    Step,
    WhileStep,
)

# Scalar ops that move or compare are not counted, an elementary function counts as ten.
_FREE = {"convert", "bitcast", "where"}


def measure(steps: Sequence[Step]) -> tuple[float, float]:
    """(operations, bytes): the dearest branch of each choice, one turn of a loop whose number of
    turns isn't known."""
    flops = moved = 0.0
    for step in steps:
        f, b = _step(step)
        flops += f
        moved += b
    return flops, moved


def _step(step: Step) -> tuple[float, float]:
    if isinstance(step, KernelStep):
        return kernel_flops(step.kernel), float(kernel_bytes(step.kernel))
    if isinstance(step, GemmStep):
        batch = math.prod(n for n, *_ in step.batch)
        m, n, k = step.m, step.n, step.k
        return 2.0 * batch * m * n * k, float(batch * (m * k + k * n + m * n) * step.dtype.itemsize)
    if isinstance(step, CopyStep):
        return 0.0, 2.0 * step.nbytes
    if isinstance(step, HostStep):
        return 0.0, float(sum(v.aval.nbytes for v in (*step.ins, *step.outs)))
    if isinstance(step, LoopStep):
        flops, moved = measure(step.body)
        return flops * step.length, moved * step.length
    if isinstance(step, CondStep):
        return max((measure(b) for b in step.branches), default=(0.0, 0.0))
    assert isinstance(step, WhileStep)
    return measure((*step.test, *step.body))


def kernel_bytes(kernel: Kernel) -> int:
    """Bytes of a kernel's parameters, those it reads and writes counted twice."""
    return sum(b.size * b.dtype.itemsize * (2 if b.role == "inout" else 1) for b in kernel.params)


def kernel_flops(kernel: Kernel) -> float:
    """Scalar operations on floating-point numbers."""
    return float(kernel.points) * _body_flops(kernel.body)


def _body_flops(body: Sequence[Stmt]) -> float:
    total = 0.0
    for s in body:
        if isinstance(s, Op):
            if s.out.dtype.kind == "f" and s.name not in _FREE:
                total += 10 if s.name in MATH else 1
        elif isinstance(s, Loop):
            total += s.size * _body_flops(s.body)
        elif isinstance(s, While):
            total += _body_flops(s.test) + _body_flops(s.body)
    return total
