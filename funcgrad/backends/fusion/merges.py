"""After fusion, which places one root after the other: clusters that had better be one.

A cluster whose members are rows of what an earlier one makes and reads joins it, if all else that
it reads is there by then. So do sums over rows: the gradients of a bias, of a norm's scale and
shift are sums of what another kernel has in registers, row by row. In it, each of some blocks of
rows gets sums of its own, and a small kernel adds these up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from funcgrad.backends.fusion.clusters import (
    Cluster,
    Entry,
    aligned,
    domain_size,
    is_column,
    join,
    refine,
    row_axes,
    same_point,
)
from funcgrad.backends.fusion.roots import Analysis, Root, Summand, domain
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn, Var

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def merge(entries: list[Entry], analysis: Analysis) -> list[Entry]:
    """The program's entries, in an order in which they can run, with clusters merged."""
    return _Merger(entries, analysis).run()


class _Merger:
    def __init__(self, entries: list[Entry], analysis: Analysis):
        self.entries = entries
        self.analysis, self.limits = analysis, analysis.limits
        self.position: dict[Var, int] = {}
        # Who reads a value; of those that became empty, numbers may stay.
        self.readers: dict[Var, list[int]] = {}
        for i, entry in enumerate(entries):
            made = entry.vars if isinstance(entry, Cluster) else entry.outs
            self.position.update(dict.fromkeys(made, i))
            self.note(self.read(entry), i)
        # What adds up the sums of blocks, by the number of the entry that it follows.
        self.after: dict[int, list[Cluster]] = {}

    def run(self) -> list[Entry]:
        for i, entry in enumerate(self.entries):
            if isinstance(entry, Cluster) and len(entry.members) == 1 and not entry.columns:
                self.pick(entry, i)
        for i, entry in enumerate(self.entries):
            if isinstance(entry, Cluster) and not entry.columns:
                self.merge_rows(entry, i)
        for i, entry in enumerate(self.entries):
            if isinstance(entry, Cluster) and entry.columns:
                left = [root for root in entry.members if not self.moved(root, i)]
                if len(left) < len(entry.members):
                    self.entries[i] = entry = Cluster([], entry.rows, True)
                    for root in left:
                        entry.add(root, entry.rows)
        found: list[Entry] = []
        for i, entry in enumerate(self.entries):
            if not isinstance(entry, Cluster) or entry.members:
                found.append(entry)
            found += self.after.get(i, [])
        return found

    def note(self, read: set[Var], at: int) -> None:
        """Note who reads some values."""
        for v in read:
            self.readers.setdefault(v, []).append(at)

    def clusters(self, read: Iterable[Var]) -> list[tuple[int, Cluster]]:
        """The clusters of rows that read one of some values: the first ones."""
        numbers = sorted({i for v in read for i in self.readers.get(v, ())})
        found = ((i, self.entries[i]) for i in numbers)
        return [
            (i, e) for i, e in found if isinstance(e, Cluster) and e.members and not e.columns
        ][: self.limits.merged]  # fmt: skip

    # ---- rows

    def pick(self, cluster: Cluster, at: int) -> None:
        """Where a reduction reads a few elements of an array whose rows another cluster goes
        through, let that one pick them: after it, nobody needs the array for them."""
        (root,) = cluster.members
        term = root.eqn.ins[0] if root.reduces else None
        inlined, uses = self.analysis.inlined, self.analysis.uses
        if type(term) is not Var or term not in inlined or uses.get(term, 0) != 1:
            return
        least = self.limits.picked * max(term.aval.size, 1)
        large = {v for v in cluster.leaves if v.aval.size >= least}
        if not large or term in self.analysis.forced:
            return
        picked = self.analysis.place(term)
        for i, host in self.clusters(large):
            if i >= at:
                return
            if self.there(cluster.leaves - host.vars, i):
                rows = join(host, picked, self.limits, bound=True)
                if rows:
                    host.add(picked, rows)
                    self.note({a.leaf for a in picked.accesses}, i)
                    self.position[term] = i
                    del inlined[term]
                    self.analysis.analyze(root)
                    for v in cluster.leaves:
                        self.readers[v].remove(at)
                    cluster.leaves = {a.leaf for a in root.accesses}
                    self.note(cluster.leaves, at)
                    return

    def there(self, read: set[Var], at: int) -> bool:
        """Whether all of some variables are there before the entry at a place."""
        bases = map(self.analysis.alias, read)
        return all(self.position.get(v, -1) < at for v in bases)  # type: ignore[arg-type]

    def merge_rows(self, cluster: Cluster, at: int) -> None:
        """Make the cluster at this place part of one that makes some of what it reads."""
        read = cluster.leaves - cluster.vars
        largest = max(map(domain_size, cluster.members))
        for i in sorted({self.position.get(v, at) for v in read}, reverse=True):
            host = self.entries[i]
            if i < 0 or not isinstance(host, Cluster) or host.columns or i >= at:
                continue
            shared = (host.leaves | host.vars) & read
            if not any(v.aval.size * 2 > largest for v in shared):
                continue
            both = self.together(host, cluster) if self.there(read - host.vars, i) else None
            if both is not None and not self.keeps(shared, i, at):
                self.entries[i], self.entries[at] = both, Cluster([], cluster.rows)
                self.position.update(dict.fromkeys(cluster.vars, i))
                self.note(read, i)
                return

    def keeps(self, shared: set[Var], to: int, at: int) -> bool:
        """Whether somebody between two places reads a large array after which its memory could be
        used for the results of the later one."""
        return any(
            to < i < at for v in shared - self.analysis.forced
            if v.aval.size > self.limits.small
            for i in self.readers.get(v, ())
        )  # fmt: skip

    def together(self, first: Cluster, second: Cluster) -> Cluster | None:
        """One cluster of the members of two, of which the second reads what the first makes."""
        both = Cluster([*first.members], first.rows, False, first.cost, {*first.leaves})
        for root in second.members:
            rows = join(both, root, self.limits, bound=True)
            if not rows:
                return None
            both.add(root, rows)
        return both

    # ---- sums over rows

    def blocks(self, root: Root) -> list[int] | None:
        """In how many blocks a sum over rows could be cut, best first; of one that is of blocks of
        rows already, in how many. None for what is no sum over rows."""
        shape, axes = root.eqn.ins[0].aval.shape, sorted(root.eqn.params["axes"])
        limits = self.limits.row_sums
        sums = root.eqn.prim.reduction == "sum" and root.var.aval.dtype in _DTYPES
        if limits is None or not sums:
            return None
        if not axes or axes not in ([*range(len(axes))], [*range(1, 1 + len(axes))]):
            return None
        rows, width = _rows(root)
        fits = limits.narrow <= width <= limits.wide and not width % self.limits.lanes
        if not fits or rows * width < limits.least:
            return None
        fewest, most = self.limits.tasks, rows // limits.rows
        if axes[0]:
            return [shape[0]] if fewest <= shape[0] <= most else None
        return [n for n in range(min(limits.blocks, most), fewest - 1, -1) if rows % n == 0]

    def moved(self, root: Root, at: int) -> bool:
        """Whether a sum of the entry at this place could be moved to another one."""
        blocks = self.blocks(root)
        if blocks is None:
            return False
        for i in self.candidates(root):
            cluster = self.entries[i]
            assert isinstance(cluster, Cluster)
            if self.in_order(root, at, i) and self.taken(root, blocks, cluster, i):
                return True
        return False

    def candidates(self, root: Root) -> Iterator[int]:
        """The clusters of rows that make what a sum reads, then those that read it, too."""
        terms = root.eqn.ins[0].aval.size
        large = {a.leaf for a in root.accesses if a.leaf.aval.size == terms}
        makes = {self.position[v] for v in large if v in self.position}
        for i in sorted(makes, reverse=True):
            entry = self.entries[i]
            if isinstance(entry, Cluster) and not entry.columns:
                yield i
        yield from (i for i, _ in self.clusters(large) if i not in makes)

    def in_order(self, root: Root, at: int, to: int) -> bool:
        """Whether a sum may be moved from one place to another."""
        if to < at:
            own = self.entries[to].vars  # type: ignore[union-attr]
            return self.there({a.leaf for a in root.accesses} - own, to)
        return not any(at <= i <= to for i in self.readers.get(root.var, ()))

    def read(self, entry: Entry) -> set[Var]:
        """What an entry reads."""
        if isinstance(entry, Cluster):
            return entry.leaves
        found: set[Var] = set()
        todo = list(entry.ins)
        while todo:
            a = todo.pop()
            if type(a) is Var and a not in found:
                found.add(a)
                todo += self.analysis.inlined[a].ins if a in self.analysis.inlined else ()
        return found

    def taken(self, root: Root, blocks: list[int], cluster: Cluster, at: int) -> bool:
        """Whether the sum could be made one of the entry's at this place."""
        held = [m.blocks for m in cluster.members if isinstance(m, Summand)]
        assert self.limits.row_sums is not None
        rows, most = _rows(root)[0], self.limits.row_sums.most
        for n in blocks:
            if held[:1] not in ([], [n]) or len(held) == most:
                continue
            axes = _cut(cluster, rows, n)
            if axes is None:
                continue
            summand, final = self.split(root, n)
            if self.joins(cluster, summand, rows):
                cluster.add(summand, {rows: axes})
                self.note({a.leaf for a in summand.accesses}, at)
                self.position[summand.var] = at
                if final is not None:
                    self.follow(final, at)
                return True
        return False

    def joins(self, cluster: Cluster, summand: Summand, rows: int) -> bool:
        """Whether a sum's terms are computed in a cluster's rows, of what it has there."""
        leaves = cluster.leaves | cluster.vars | {a.leaf for a in summand.accesses}
        fits = len(leaves) < self.limits.kernel_arrays
        if not fits or cluster.cost + summand.cost > self.limits.kernel_cost:
            return False
        sizes = {m.var: m.size for m in cluster.members if not isinstance(m, Summand)}
        inner = [a for a in summand.accesses if a.leaf in cluster.vars]
        if not all(a.leaf in sizes and aligned(a, summand, rows, sizes[a.leaf]) for a in inner):
            return False
        if refine(summand.out_parts, [rows, summand.size // rows]) is None:
            return False
        # It is worth it if an array is read once less.
        here = {a.leaf for a in summand.accesses if same_point(a, summand, summand.size)}
        return any(
            a.leaf in here and aligned(a, m, rows, summand.size)
            for m in cluster.members for a in m.accesses
        ) or not here.isdisjoint(sizes)  # fmt: skip

    def split(self, root: Root, blocks: int) -> tuple[Summand, Root | None]:
        """A sum over rows as one for each block of rows, and the sum of these; None if it is of
        blocks already."""
        eqn = root.eqn
        (terms,) = eqn.ins
        in_blocks = eqn.params["axes"][0] != 0
        aval = ShapedArray((blocks, *root.var.aval.shape), root.var.aval.dtype)
        part = root.var if in_blocks else Var(aval)
        part_eqn = Eqn(eqn.prim, [terms], (part,), eqn.params, eqn.source)
        summand = Summand(part_eqn, part, (), [[n] for n in terms.aval.shape], root.cost)
        self.analysis.analyze(summand)
        if in_blocks:
            return summand, None
        total = Eqn(eqn.prim, [part], (root.var,), {"axes": (0,)}, eqn.source)
        final = Root(total, root.var, *domain(total, root.var), 1)
        self.analysis.analyze(final)
        return summand, final

    def follow(self, root: Root, at: int) -> None:
        """Add up the sums of blocks after the entry at a place."""
        self.position[root.var] = at
        clusters = self.after.setdefault(at, [])
        for cluster in clusters:
            rows = join(cluster, root, self.limits)
            if rows:
                cluster.add(root, rows)
                return
        clusters.append(Cluster([], row_axes(root), is_column(root)))
        clusters[-1].add(root, clusters[-1].rows)


def _rows(root: Root) -> tuple[int, int]:
    """How many rows a sum over rows adds up, and how long they are."""
    shape, last = root.eqn.ins[0].aval.shape, max(root.eqn.params["axes"])
    return math.prod(shape[: last + 1]), math.prod(shape[last + 1 :])


def _cut(cluster: Cluster, rows: int, blocks: int) -> list[int] | None:
    """The axes of a cluster's rows, cut so that blocks of rows are some of them."""
    if rows not in cluster.rows or rows % blocks:
        return None
    return refine(cluster.rows[rows], [n for n in (blocks, rows // blocks) if n != 1])
