"""Fusion: which roots share a kernel.

The program becomes a list of entries that run in order: clusters of roots, and ops that are steps
of their own. A root may join any cluster that stands no earlier than what it reads, so no cycle can
arise. It joins one with which it shares data, if both fall into the same *rows*: a number R such
that each member is R equal contiguous pieces, and row r of a member reads row r of others alone.
With one row an element that is plain elementwise fusion; with longer ones, softmax in one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from funcgrad.backends.fusion.roots import Access, Analysis, Root
from funcgrad.backends.loops.builder import strides_of
from funcgrad.backends.loops.ir import Index
from funcgrad.backends.target import Limits
from funcgrad.core.ir import Eqn, Var
from funcgrad.core.record import Record, fresh


class Cluster(Record, frozen=False, eq=False):
    """Roots computed by one kernel.

    rows: the possible numbers of rows, each with the row axes' sizes, largest first
    columns: the members reduce over leading axes and keep the fast one; they share their loops
    """

    members: list[Root]
    rows: dict[int, list[int]]
    columns: bool = False
    cost: int = 0
    leaves: set[Var] = fresh(factory=set)

    @property
    def vars(self) -> set[Var]:
        """The values that the kernel computes."""
        return {m.var for m in self.members}

    def add(self, root: Root, rows: dict[int, list[int]]) -> None:
        """Take a root in."""
        self.members.append(root)
        self.rows = rows
        self.cost += root.cost
        self.leaves |= {a.leaf for a in root.accesses}


Entry = Cluster | Eqn


def fuse(analysis: Analysis) -> list[Entry]:
    """The program as clusters and other equations, in an order in which they can run."""
    return _Fuser(analysis).entries


class _Fuser:
    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self.entries: list[Entry] = []
        self.position: dict[Var, int] = {}
        self.readers: dict[Var, list[int]] = {}
        for eqn in analysis.eqns:
            if analysis.costs[eqn] is None:
                self.position.update(dict.fromkeys(eqn.outs, len(self.entries)))
                self.entries.append(eqn)
                continue
            for var in eqn.outs:
                if var in analysis.roots:
                    self.place(analysis.roots[var])

    def place(self, root: Root) -> None:
        """Put a root into a cluster, or into a new one at the end."""
        leaves = {a.leaf for a in root.accesses}
        earliest = max((self.position.get(self.base(v), -1) for v in leaves), default=-1)
        for at in self.candidates(root, leaves, earliest):
            cluster = self.entries[at]
            assert isinstance(cluster, Cluster)
            rows = join(cluster, root, self.analysis.limits)
            if rows:
                cluster.add(root, rows)
                break
        else:
            at = len(self.entries)
            cluster = Cluster([], row_axes(root), is_column(root))
            cluster.add(root, cluster.rows)
            self.entries.append(cluster)
        self.position[root.var] = at
        for v in leaves:
            known = self.readers.setdefault(v, [])
            if not known or known[-1] != at:
                known.append(at)

    def base(self, v: Var) -> Var:
        return self.analysis.alias(v)  # type: ignore[return-value]

    def candidates(self, root: Root, leaves: set[Var], earliest: int) -> list[int]:
        found = []
        if earliest >= 0 and isinstance(self.entries[earliest], Cluster):
            found.append(earliest)
        others = {
            at for v in leaves if v.aval.size * 2 > root.size for at in self.readers.get(v, ())
            if at > earliest
        }  # fmt: skip
        return found + sorted(others, reverse=True)[: self.analysis.limits.tries]


# ---- rows


def row_axes(root: Root) -> dict[int, list[int]]:
    """For each number of rows that a root can be cut into, the sizes of the row axes."""
    rows: dict[int, list[int]] = {1: []}
    count = 1
    sizes: list[int] = []
    for n in root.out_parts:
        count *= n
        sizes = [*sizes, n]
        rows[count] = sizes
    return dict(sorted(rows.items(), reverse=True))


def refine(a: Sequence[int], b: Sequence[int]) -> list[int] | None:
    """The coarsest axes that both lists of axes of the same total size are made of."""
    if list(a) == list(b):
        return list(a)
    cuts = sorted({s for sizes in (a, b) for s in strides_of(sizes)})
    total = math.prod(a)
    out = []
    for low, high in zip(cuts, [*cuts[1:], total], strict=True):
        if high % low:
            return None
        out.append(high // low)
    return [n for n in reversed(out) if n != 1]


def aligned(access: Access, root: Root, rows: int, size: int) -> bool:
    """Whether row r of the root reads only row r of an array of this size."""
    if size % rows:
        return False
    width = size // rows
    count, done = rows, 0
    terms = {v: c for c, v in access.at.terms}
    for v, n in root.axes:
        if count == 1:
            break
        count //= n
        done += 1
        if terms.pop(v, 0) != width * count:
            return False
    rest = Index(access.at.const, tuple((c, v) for v, c in terms.items()))
    own = {v for v, _ in root.axes[:done]}
    low, high = root.builder.index_bounds(rest)
    return low >= 0 and high < width and not own & set(terms)


def same_point(access: Access, root: Root, size: int) -> bool:
    """Whether the root reads an array of its domain's size at the point it computes."""
    if access.at.const or math.prod(n for _, n in root.axes) != size:
        return False
    terms = {v: c for c, v in access.at.terms}
    steps = strides_of([n for _, n in root.axes])
    return len(terms) == len(steps) and all(
        terms.get(v) == s for (v, _), s in zip(root.axes, steps, strict=True)
    )


def join(
    cluster: Cluster, root: Root, limits: Limits, bound: bool = False
) -> dict[int, list[int]] | None:
    """The numbers of rows with which a root could be a member of a cluster; None if it can't.

    bound: whether the root comes with others that read what the cluster makes
    """
    if cluster.cost + root.cost > limits.kernel_cost or not root.size:
        return None
    touched = cluster.leaves | cluster.vars | {a.leaf for a in root.accesses}
    if len(touched) >= limits.kernel_arrays:
        return None
    if cluster.columns or is_column(root):
        return _join_columns(cluster, root)
    sizes = {m.var: m.size for m in cluster.members}
    inner = [(a, sizes[a.leaf]) for a in root.accesses if a.leaf in sizes]
    own = row_axes(root)
    found = {}
    for rows, axes in cluster.rows.items():
        if rows not in own or not all(aligned(a, root, rows, n) for a, n in inner):
            continue
        common = refine(axes, own[rows])
        if common is not None:
            found[rows] = common
    dependent = bound or bool(inner)
    pays = found and _worthwhile(cluster, root, max(found), limits, dependent)
    return found if pays else None


def _worthwhile(cluster: Cluster, root: Root, rows: int, limits: Limits, dependent: bool) -> bool:
    largest = max(domain_size(m) for m in (*cluster.members, root))
    if largest <= limits.small:
        return True
    # Those that only read the same data share loops just where these are the same.
    if not dependent and any(m.size != root.size for m in cluster.members):
        return False
    return rows >= limits.tasks and largest // rows <= limits.row


def domain_size(root: Root) -> int:
    """The number of points at which a root is evaluated."""
    return root.size * math.prod(root.reduced_shape)


# ---- columns


def is_column(root: Root) -> bool:
    """Whether a root reduces over slow axes only: the fast one of what it reads is the result's
    last."""
    if not root.reduces or not root.out_parts or not root.reduced_parts:
        return False
    last = len(root.out_parts) - 1
    score = {True: 0, False: 0}
    for access in root.accesses:
        steps = {v: abs(c) for c, v in access.at.terms}
        fast = [i for i, (v, _) in enumerate(root.axes) if steps.get(v) == 1]
        if fast:
            score[fast[0] == last] += access.leaf.aval.size
    return score[True] > score[False]


def _join_columns(cluster: Cluster, root: Root) -> dict[int, list[int]] | None:
    """Column reductions share their loops if their domains are the same."""
    first = cluster.members[0]
    if not (cluster.columns and is_column(root)) or first.parts != root.parts:
        return None
    if first.shape != root.shape or cluster.vars & {a.leaf for a in root.accesses}:
        return None
    return cluster.rows
