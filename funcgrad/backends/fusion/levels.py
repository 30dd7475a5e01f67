"""In which loops a cluster's members are computed.

A member that is one element a row is a scalar. The others run in *nests*: loops over their part of
a row, which members share where each reads the others at the point it computes. A reduction's
result, or an element of another point, is there only after its nest: that is the next level.
"""

from __future__ import annotations

import math

from funcgrad.backends.fusion.clusters import Cluster, refine, same_point
from funcgrad.backends.fusion.roots import Access, Root
from funcgrad.backends.loops.ir import Buffer, Operand
from funcgrad.core.ir import Var
from funcgrad.core.record import Record, fresh


class Nest(Record, frozen=False, eq=False):
    """Loops that members share: the axes' sizes."""

    level: int
    sizes: list[int]
    members: list[Member] = fresh(factory=list)


class Member(Record, frozen=False, eq=False):
    """A root of a cluster: when it is computed, and where its value is while that is written.

    reads: other members that it reads, with whether their values are at hand
    read_later: whether somebody reads it whose values are not
    """

    root: Root
    rows: int
    level: int = 0
    nest: Nest | None = None
    buffer: Buffer | None = None
    scalar: Operand | None = None
    reads: list[tuple[Member, bool]] = fresh(factory=list)
    read_later: bool = False

    @property
    def width(self) -> int:
        """Elements of the result a row."""
        return self.root.size // self.rows

    @property
    def turns(self) -> int:
        """Points of the domain a row."""
        return self.width * math.prod(self.root.reduced_shape)

    @property
    def is_scalar(self) -> bool:
        """Whether it needs no loop."""
        return self.width == 1 and not self.root.reduces

    @property
    def own_loop(self) -> bool:
        """Whether it reduces for each of several results a row."""
        return self.root.reduces and self.width > 1

    @property
    def sizes(self) -> list[int]:
        """The sizes of its part of the row, axis by axis."""
        sizes, count = [*self.root.out_parts, *self.root.reduced_parts], self.rows
        while count > 1:
            count //= sizes.pop(0)
        return sizes


def arrange(cluster: Cluster, rows: int) -> dict[Var, Member]:
    """The members of a cluster, in levels and nests."""
    members: dict[Var, Member] = {}
    nests: list[Nest] = []
    for root in cluster.members:
        m = Member(root, rows)
        inner = [(members[a.leaf], a) for a in root.accesses if a.leaf in members]
        _set_level(m, inner, nests)
        for other, access in inner:
            here = other.width == 1 or (_at_point(m, other, access) and other.nest is m.nest)
            m.reads.append((other, here))
            other.read_later |= not here
        members[root.var] = m
    return members


def _at_point(m: Member, other: Member, access: Access) -> bool:
    """Whether a member reads another at the point it computes, if they share loops."""
    same = same_point(access, m.root, other.root.size) and not other.root.reduces
    return same and m.turns == other.width and not m.own_loop


def _set_level(m: Member, inner: list[tuple[Member, Access]], nests: list[Nest]) -> None:
    wanted: list[Nest] = []
    for other, access in inner:
        after = other.level + other.root.reduces
        if other.width > 1 or other.root.reduces:
            here = _at_point(m, other, access) and not m.is_scalar
            after = other.level + (not here)
            if here and other.nest is not None:
                wanted.append(other.nest)
        m.level = max(m.level, after)
    if m.is_scalar:
        return
    same_level = {n for n in wanted if n.level == m.level}
    if m.own_loop or len(same_level) > 1:
        m.level += bool(same_level)
        same_level = set()
    candidates = list(same_level) or [n for n in nests if n.level == m.level]
    for nest in [] if m.own_loop else candidates:
        common = _common(nest, m)
        if common is not None:
            nest.sizes = common
            break
    else:
        # Loops that don't fit: read what they computed from memory, one level later.
        m.level += bool(same_level)
        nest = Nest(m.level, m.sizes)
        nests.append(nest)
    nest.members.append(m)
    m.nest = nest


def _common(nest: Nest, m: Member) -> list[int] | None:
    if math.prod(nest.sizes) != m.turns or nest.members[0].own_loop:
        return None
    return refine(nest.sizes, m.sizes)
