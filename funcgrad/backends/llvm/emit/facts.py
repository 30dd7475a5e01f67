"""What the emitter asks about the statements of a kernel before it writes them."""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.llvm.emit.text import BOOL
from funcgrad.backends.loops.ir import (
    INDEX,
    REDUCTIONS,
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


def indices_first(stmts: Sequence[Stmt]) -> list[Stmt]:
    """The statements, arithmetic on indices and guards in front.

    Behind a guard's branch LLVM may learn the index of a later guarded load at the edge. It then
    merges that with the index elsewhere, and its vectorizer takes the whole load's address from the
    first lane of the merged values, even where that lane is masked.
    """
    first: list[Stmt] = []
    rest: list[Stmt] = []
    later: set[Operand] = set()
    for s in stmts:
        if isinstance(s, Op) and s.out.dtype in (BOOL, INDEX) and later.isdisjoint(s.args):
            first.append(s)
            continue
        rest.append(s)
        if isinstance(s, Op | Load):
            later.add(s.out)
        elif isinstance(s, Loop | While):
            later.update(c.out for c in s.carries)
    return first + rest


def reassociable(body: Sequence[Stmt]) -> set[Value]:
    """The results of the floating-point ops by which reductions combine."""
    made = {s.out: s for s in walk(body) if isinstance(s, Op)}
    found: set[Value] = set()
    for s in walk(body):
        for c in s.carries if isinstance(s, Loop) else ():
            known = isinstance(c.next, Value) and c.combine in REDUCTIONS
            if known and c.next in made and made[c.next].name == c.combine:
                found.add(c.next)
    return found


def chained(body: Sequence[Stmt]) -> bool:
    """Whether what is loaded decides several times in a row what is loaded next: such chains wait
    for memory, so some should run side by side."""
    depth: dict[Value, int] = {}
    for s in body:
        if isinstance(s, Op):
            depth[s.out] = max((depth.get(a, 0) for a in s.args if isinstance(a, Value)), default=0)
        elif isinstance(s, Load):
            depth[s.out] = 1 + max((depth.get(v, 0) for _, v in s.index.terms), default=0)
        elif not isinstance(s, Store):
            return False
    return max(depth.values(), default=0) > 2
