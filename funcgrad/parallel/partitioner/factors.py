"""What of an equation may be cut: its factors, and the choice of mesh axes for them.

A factor is an index that several array axes of an equation share (`core.dims`). An assignment cuts
factors over mesh axes. Where values are cut in ways that don't go together, the assignment is taken
that shares the work among most devices, and of those the one that moves the fewest bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.ir import Eqn
from funcgrad.core.sharding import Cuts
from funcgrad.parallel.partitioner.localize import RULES
from funcgrad.parallel.partitioner.reshard import Sizes, extent

Names = tuple[str, ...]
Assignment = dict[str, Names]
MOST_CHOICES = 4096


@dataclass(frozen=True)
class Factors:
    """The factors of one equation: the names of each operand's and result's axes, the sizes of
    those that may be cut, and how contracted ones are combined; instead, follows: as in
    `localize.Rule`."""

    ins: tuple[Names, ...]
    outs: tuple[Names, ...]
    sizes: dict[str, int]
    contracted: frozenset[str]
    reduction: str
    instead: tuple[str, ...] = ()
    follows: Mapping[str, str] = field(default_factory=dict)

    def fitting(self, factor: str, axes: Names, sizes: Sizes) -> Names:
        """The leading mesh axes that a factor can be cut over."""
        n = self.sizes.get(factor, 0)
        while axes and not (n and n % extent(axes, sizes) == 0):
            axes = axes[:-1]
        return axes

    def of_result(self, cuts: Cuts, sizes: Sizes) -> Assignment:
        """The assignment that gives the one result these cuts, as far as one can."""
        pairs = zip(self.outs[0], cuts, strict=True)
        found = {f: self.fitting(f, axes, sizes) for f, axes in pairs}
        return {f: axes for f, axes in found.items() if axes}

    def contracted_axes(self, assigned: Assignment) -> Names:
        """The mesh axes over which results are still to be combined."""
        return tuple(a for f in sorted(self.contracted) for a in assigned.get(f, ()))


def restrict(names: Names, assigned: Assignment) -> Cuts:
    """How a value with these factors is cut."""
    return tuple(assigned.get(f, ()) for f in names)


def factors_of(eqn: Eqn) -> Factors | None:
    """The factors of an equation; None where its operands must be whole."""
    rule = RULES.get(eqn.prim)
    mapping = rule.dims if rule and rule.dims else eqn.prim.dims
    if not callable(mapping):
        return None
    dims = mapping(*(a.aval for a in eqn.ins), **eqn.params)
    dims = dims_.parse(dims) if isinstance(dims, str) else dims
    ins = dims.ins if eqn.ins else ()
    kept = {f for names in dims.outs for f in names}
    sizes: dict[str, int] = {}
    values = zip((*ins, *dims.outs), (*eqn.ins, *eqn.outs), strict=True)
    for names, value in values:
        for f, n in zip(names, value.aval.shape, strict=True):
            if f != "." and f not in dims.whole:
                sizes[f] = math.gcd(sizes.get(f, n), n)
    follows = rule.follows if rule else {}
    contracted = frozenset(f for f in sizes if f not in kept and f not in follows)
    # A product of booleans says whether there is a pair.
    logical = dims.reduction == "sum" and eqn.outs[0].aval.dtype == dtypes.BOOL
    reduction = "or" if logical else dims.reduction
    if contracted and not _combines(reduction, eqn):
        sizes = {f: n for f, n in sizes.items() if f in kept or f in follows}
        contracted = frozenset()
    instead = rule.instead if rule else ()
    return Factors(ins, dims.outs, sizes, contracted, reduction, instead, follows)


def _combines(reduction: str, eqn: Eqn) -> bool:
    """Whether there is a collective for a contraction."""
    dtype = eqn.outs[0].aval.dtype
    if reduction in ("and", "or"):
        return dtype == dtypes.BOOL
    return reduction == "sum" or (reduction in ("max", "min") and not dtypes.is_complex(dtype))


def choose(
    factors: Factors,
    seen: Iterable[tuple[Names, Cuts]],
    sizes: Sizes,
    cost: Callable[[Assignment], float],
) -> Assignment:
    """The assignment for an equation whose values are cut as `seen`.

    >>> from funcgrad.parallel.partitioner.factors import Factors
    >>> f = Factors(
    ...     (("i", "k"), ("k", "j")), (("i", "j"),), dict(i=8, j=8, k=8), frozenset("k"), "sum"
    ... )
    >>> choose(f, [(("i", "k"), (("x",), ()))], {"x": 2}, lambda a: 0.0)
    {'i': ('x',)}
    """
    wishes: dict[str, list[Names]] = {}
    for names, cuts in seen:
        for f, axes in zip(names, cuts, strict=True):
            if axes and (fits := factors.fitting(f, axes, sizes)):
                wish = wishes.setdefault(f, [])
                if fits not in wish:
                    wish.append(fits)
    wishes = {f: w for f, w in wishes.items() if factors.follows.get(f, f) in wishes}
    longest = {f: max(w, key=len) for f, w in wishes.items()}
    used = [a for axes in longest.values() for a in axes]
    if len(used) == len(set(used)) and all(len(w) == 1 for w in wishes.values()):
        return longest
    disputed = _disputed(wishes, longest)
    settled = {f: axes for f, axes in longest.items() if f not in disputed}
    open_ = {f: wishes[f] for f in wishes if f in disputed}
    return _cheapest(settled, open_, factors.follows, sizes, cost)


def _disputed(wishes: Mapping[str, Sequence[Names]], longest: Assignment) -> set[str]:
    """The factors that are wanted over different axes, or over an axis that another one is."""
    users: dict[str, set[str]] = {}
    found = set()
    for f, wish in wishes.items():
        for axes in wish:
            if axes != longest[f][: len(axes)]:
                found.add(f)
            for a in axes:
                users.setdefault(a, set()).add(f)
    return found.union(*(fs for fs in users.values() if len(fs) > 1))


def _cheapest(
    settled: Assignment,
    wishes: Mapping[str, Sequence[Names]],
    follows: Mapping[str, str],
    sizes: Sizes,
    cost: Callable[[Assignment], float],
) -> Assignment:
    """The best of all combinations of wishes, of their leading axes, or of none."""
    if not wishes:
        return settled
    options = []
    for wish in wishes.values():
        parts = dict.fromkeys(axes[:k] for axes in wish for k in range(len(axes), 0, -1))
        options.append([*parts, ()])
    best, best_key = settled, (1.0, 0.0)
    for chosen in islice(product(*options), MOST_CHOICES):
        found = {f: axes for f, axes in zip(wishes, chosen, strict=True) if axes}
        used = [a for f, axes in found.items() if f not in follows for a in axes]
        astray = any(f in found and found[f] != found.get(g) for f, g in follows.items())
        if astray or len(set(used)) < len(used):
            continue
        assigned = settled | found
        parts_of_work = -float(extent(used, sizes))
        if parts_of_work > best_key[0]:
            continue
        key = (parts_of_work, cost(assigned))
        if key < best_key:
            best, best_key = assigned, key
    return best
