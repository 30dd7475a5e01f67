"""Tidying a finished kernel: axes that every index runs through as one are joined.

Kernels are written on the axes of their arrays' shapes; where memory is read and written straight
through, two axes are one longer one, which makes better loops. What nobody reads is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    body = tuple(_nested(kernel.body, uses, gone))
    if gone:
        body = tuple(_without(body, gone))
    return replace(kernel, axes=tuple(axes[::-1]), body=body)


def _used(body: Sequence[Stmt], needed: set[Operand]) -> tuple[Stmt, ...]:
    """The statements that stores, or the values needed after them, depend on."""
    kept: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, Op | Load) and s.out not in needed:
            continue
        if isinstance(s, Op):
            needed.update(s.args)
        elif isinstance(s, Load | Store):
            needed.update(v for _, v in s.index.terms)
            needed.update([s.guard] if s.guard is not None else [])
            if isinstance(s, Store):
                needed.add(s.value)
        else:
            if not any(c.out in needed for c in s.carries) and not _stores(s):
                continue
            needed.update(v for c in s.carries for v in (c.start, c.next))
            s = replace(s, body=_used(s.body, needed))
            if isinstance(s, While):
                needed.add(s.condition)
                s = replace(s, test=_used(s.test, needed))
        kept.append(s)
    return tuple(kept[::-1])


def _stores(s: Loop | While) -> bool:
    return any(isinstance(inner, Store) for inner in walk(s.body))


class _Uses:
    """How a body uses axes: its indices, and the values that ops read."""

    def __init__(self, body: Sequence[Stmt]):
        self.read: set[Operand] = set()
        self.indices: list[dict[Value, int]] = []
        for s in walk(body):
            if isinstance(s, Op):
                self.read.update(s.args)
            elif isinstance(s, Load | Store):
                self.indices.append({v: c for c, v in s.index.terms})
                if isinstance(s, Store):
                    self.read.add(s.value)
            else:
                for c in s.carries:
                    self.read.update((c.start, c.next))

    def joined(self, outer: Value, inner: Value, size: int) -> bool:
        """Whether `outer`, around `inner` of this size, only ever counts as size·outer + inner."""
        if outer in self.read or inner in self.read:
            return False
        return all(t.get(outer, 0) == size * t.get(inner, 0) for t in self.indices)


def _nested(body: Sequence[Stmt], uses: _Uses, gone: set[Value]) -> Iterator[Stmt]:
    for s in body:
        if isinstance(s, While):
            test = tuple(_nested(s.test, uses, gone))
            yield replace(s, test=test, body=tuple(_nested(s.body, uses, gone)))
        elif isinstance(s, Loop):
            yield _joined_loop(replace(s, body=tuple(_nested(s.body, uses, gone))), uses, gone)
        else:
            yield s


def _joined_loop(s: Loop, uses: _Uses, gone: set[Value]) -> Loop:
    inner = s.body[0] if len(s.body) == 1 else None
    if not isinstance(inner, Loop) or s.parallel != inner.parallel:
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


def _without(body: Sequence[Stmt], gone: set[Value]) -> Iterator[Stmt]:
    """The statements with axes taken out of indices."""
    for s in body:
        if isinstance(s, Load | Store):
            terms = tuple((c, v) for c, v in s.index.terms if v not in gone)
            yield replace(s, index=Index(s.index.const, terms))
        elif isinstance(s, Loop):
            yield replace(s, body=tuple(_without(s.body, gone)))
        elif isinstance(s, While):
            test = tuple(_without(s.test, gone))
            yield replace(s, test=test, body=tuple(_without(s.body, gone)))
        else:
            yield s
