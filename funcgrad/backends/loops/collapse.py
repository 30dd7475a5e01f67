"""Tidying a finished kernel: axes that every index runs through as one are joined.

Kernels are written on the axes of their arrays' shapes; where memory is read and written straight
through, two axes are one longer one, which makes better loops. What nobody reads is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.loops.ir import (
    Axis,
    Carry,
    Index,
    Kernel,
    Load,
    Loop,
    Op,
    Operand,
    Stmt,
    Store,
    Value,
    While,
    reads,
    rewritten,
    used_as_scalars,
    walk,
)
from funcgrad.core.record import replace


def collapse(kernel: Kernel) -> Kernel:
    """The same kernel on as few axes as possible, without unused statements."""
    kernel = replace(kernel, body=_used(kernel.body, set()))
    uses = _Uses(kernel.body)
    gone: set[Value] = set()
    axes: list[Axis] = []
    for axis in reversed(kernel.axes):
        inner = axes[-1] if axes else None
        if inner is not None and uses.joined(axis.value, inner.value, inner.size):
            axes[-1] = Axis(inner.value, inner.size * axis.size)
            gone.add(axis.value)
        else:
            axes.append(axis)
    body = rewritten(kernel.body, lambda s: _joined_loop(s, uses, gone))
    if gone:
        body = rewritten(body, lambda s: _without(s, gone))
    return replace(kernel, axes=tuple(axes[::-1]), body=body)


def _used(body: Sequence[Stmt], needed: set[Operand]) -> tuple[Stmt, ...]:
    """The statements that stores, or the values needed after them, depend on."""
    kept: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, Op | Load) and s.out not in needed:
            continue
        if isinstance(s, Loop | While) and not (_stores(s) or needed & {c.out for c in s.carries}):
            continue
        needed.update(reads(s))
        if isinstance(s, Loop | While):
            s = replace(s, body=_used(s.body, needed))
        if isinstance(s, While):
            s = replace(s, test=_used(s.test, needed))
        kept.append(s)
    return tuple(kept[::-1])


def _stores(s: Loop | While) -> bool:
    return any(isinstance(inner, Store) for inner in walk(s.body))


class _Uses:
    """How a body uses axes: its indices, and the values that ops read."""

    def __init__(self, body: Sequence[Stmt]):
        self.read = used_as_scalars(body)
        accesses = [s for s in walk(body) if isinstance(s, Load | Store)]
        self.indices = [{v: c for c, v in s.index.terms} for s in accesses]

    def joined(self, outer: Value, inner: Value, size: int) -> bool:
        """Whether `outer`, around `inner` of this size, only ever counts as size·outer + inner."""
        if outer in self.read or inner in self.read:
            return False
        return all(t.get(outer, 0) == size * t.get(inner, 0) for t in self.indices)


def _joined_loop(s: Stmt, uses: _Uses, gone: set[Value]) -> Stmt:
    inner = s.body[0] if isinstance(s, Loop) and len(s.body) == 1 else None
    if not isinstance(s, Loop) or not isinstance(inner, Loop) or s.parallel != inner.parallel:
        return s
    if not uses.joined(s.axis, inner.axis, inner.size):
        return s
    if len(s.carries) != len(inner.carries) or not all(
        a.next is b.out and b.start is a.inside and a.combine == b.combine
        for a, b in zip(s.carries, inner.carries, strict=True)
    ):
        return s
    gone.add(s.axis)
    carries = tuple(
        Carry(b.inside, a.start, b.next, a.out, a.combine)
        for a, b in zip(s.carries, inner.carries, strict=True)
    )
    return Loop(inner.axis, s.size * inner.size, inner.body, carries, s.parallel)


def _without(s: Stmt, gone: set[Value]) -> Stmt:
    """A statement with axes taken out of its index."""
    if not isinstance(s, Load | Store):
        return s
    terms = tuple((c, v) for c, v in s.index.terms if v not in gone)
    return replace(s, index=Index(s.index.const, terms))
