"""Values that are computed again rather than kept, from what is in memory then anyway.

What a forward pass leaves for the backward pass goes to memory and comes back from there. Where the
argument of an activation is kept, too, for the derivative, or a row that is normalized, computing
the value again takes less time than that, and no memory. (Griewank and Walther, "Evaluating
Derivatives", 2008, call it checkpointing; here its steps are single operations.)
"""

from __future__ import annotations

from funcgrad.backends.fusion.clusters import domain_size, same_point
from funcgrad.backends.fusion.roots import Analysis, Root
from funcgrad.backends.loops.builder import index_key
from funcgrad.backends.target import Limits
from funcgrad.core.ir import Var


def recompute(analysis: Analysis) -> None:
    """Inline roots that are computed from one array and separated from some reader by a step of its
    own, such as a product: if all readers read that array, too, or, of what is cheap even for each
    of them, one that comes no earlier."""
    readers: dict[Var, list[Root]] = {}
    for root in analysis.roots.values():
        for v in {a.leaf for a in root.accesses}:
            readers.setdefault(v, []).append(root)
    steps, stage = 0, {}
    for eqn in analysis.eqns:
        steps += analysis.costs[eqn] is None
        stage[eqn] = steps

    def last(var: Var) -> int:
        return max((stage[r.eqn] for r in readers.get(var, ())), default=0)

    for var, root in list(analysis.roots.items()):
        source = None if var in analysis.forced else _source(root, analysis.limits)
        if source is None or last(var) <= stage[root.eqn]:
            continue
        users = readers[var]
        cheap = root.cost * len(users) <= analysis.limits.again_cost and last(source) >= last(var)
        if all(_once(r, var) and (cheap or _alike(r, var, source)) for r in users):
            analysis.inline(root)
            for r in users:
                r.cost += root.cost
                analysis.analyze(r)
            readers[source] += users


def _source(root: Root, limits: Limits) -> Var | None:
    """The one large array that a large value is computed from, element by element, if that is
    cheap."""
    large = root.var.aval.nbytes >= limits.again_bytes
    if root.cost > limits.again_cost or not large or root.reduces:
        return None
    found = [a for a in root.accesses if a.leaf.aval.size * 2 > root.size]
    sources = {a.leaf for a in found}
    alike = all(same_point(a, root, root.size) and not a.guarded for a in found)
    return sources.pop() if alike and len(sources) == 1 else None


def _once(reader: Root, var: Var) -> bool:
    """Whether a root reads a value once for each of its elements."""
    places = {index_key(a.at) for a in reader.accesses if a.leaf is var}
    return len(places) == 1 and domain_size(reader) == var.aval.size


def _alike(reader: Root, var: Var, source: Var) -> bool:
    """Whether a root reads a value where it reads another."""
    at = {v: {index_key(a.at) for a in reader.accesses if a.leaf is v} for v in (source, var)}
    return at[var] <= at[source]
