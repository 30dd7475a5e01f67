"""What a program's host function calls and writes to, told from its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from funcgrad.backends.late import Late
from funcgrad.backends.program import (
    AttentionStep,
    CopyStep,
    ExchangeStep,
    GemmStep,
    HostStep,
    KernelStep,
    LaneStep,
    LoopStep,
    Program,
    Ref,
    Step,
    blocks,
    walk,
)

attention = Late("funcgrad.backends.llvm.attention.functions")
copies = Late("funcgrad.backends.llvm.routines.copies")
gemm_steps = Late("funcgrad.backends.llvm.gemm.steps")
routines = Late("funcgrad.backends.llvm.routines.table")

_COPY_BYTES = 1 << 19  # from which on threads share a copy


def needs(program: Program) -> list[Callable[[], Any]]:
    """What compiles the functions that a host function calls beside kernels."""
    found: dict[tuple, Callable[[], Any]] = {}
    for s in walk(program.steps):
        if isinstance(s, GemmStep):
            found |= gemm_steps.product_needs(s)
        elif isinstance(s, AttentionStep):
            form = s.dtype.name, s.op, bool(s.pairs)
            found[form] = partial(attention.install, *form)
        elif isinstance(s, HostStep):
            call = routines.routine(s)
            found |= {(call.symbol, i): need for i, need in enumerate(call.needs)} if call else {}
        elif isinstance(s, CopyStep) and is_large(s):
            found[(copies.SYMBOL,)] = copies.install
    return list(found.values())


def host_steps(steps: Sequence[Step]) -> list[HostStep]:
    """The steps that run in Python, in the order in which the host function numbers them."""
    hosted = [s for s in _written_steps(steps) if isinstance(s, HostStep)]
    return [s for s in hosted if routines.routine(s) is None]


def exchange_steps(steps: Sequence[Step]) -> list[ExchangeStep]:
    """The exchanges, in the order in which the host function numbers them."""
    return [s for s in _written_steps(steps) if isinstance(s, ExchangeStep)]


def is_large(s: CopyStep) -> bool:
    """Whether threads share a copy."""
    return s.nbytes >= _COPY_BYTES and s.source != s.to


def _written_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Each step in the order in which it is written; a loop of no turns is not."""
    for s in steps:
        yield s
        if not (isinstance(s, LoopStep) and not s.length):
            for inner in blocks(s):
                yield from _written_steps(inner)


def written_inputs(steps: Sequence[Step]) -> set[int]:
    """The numbers of the inputs that a program writes to."""
    return {r.number for s in walk(steps) for r in _written(s) if r.space == "input"}


def _written(s: Step) -> list[Ref]:
    if isinstance(s, KernelStep):
        pairs = zip(s.args, s.kernel.params, strict=True)
        return [ref for ref, b in pairs if b.role != "in"]
    if isinstance(s, HostStep):
        return [v.ref for v in s.outs]
    if isinstance(s, CopyStep | ExchangeStep | LaneStep):
        return [s.to]
    if isinstance(s, AttentionStep):
        places = [x.ref for x in (*s.outs, *([s.dbias] if s.dbias else []))]
        more = (s.cut.scratch, s.stats if s.op == "attention" else None)
        return [*places, *(ref for ref in more if ref is not None)]
    return [s.c] if isinstance(s, GemmStep) else []
