"""What a cluster's kernel depends on, as a key: clusters of equal keys have equal kernels.

Repeated layers give the same clusters on other variables. So a kernel is written for the first of
them, and for the others it is only told what its parameters stand for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from funcgrad.backends.fusion.clusters import Cluster
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.core.primitive import exact_params

if TYPE_CHECKING:
    from funcgrad.backends.fusion.joins import Place


def signature(
    cluster: Cluster,
    inlined: dict[Var, Eqn],
    kept: set[Var],
    places: Mapping[Var, Place],
    wholes: Mapping[Var, Var],
) -> tuple[tuple, list[Var]] | None:
    """The key, and the cluster's variables in the order that it numbers them: its members, then
    what alternating pieces are of, then what they read. None where a parameter of an equation has
    no hash.
    """
    rows = max(cluster.rows)
    walk = _Walk([*(m.var for m in cluster.members), *dict.fromkeys(wholes.values())], inlined)
    words: list[Any] = [cluster.columns, rows, tuple(cluster.rows[rows])]
    words += [(walk.numbers[v], walk.numbers[w], places[v].start) for v, w in wholes.items()]
    for m in cluster.members:
        parts = tuple(map(tuple, m.parts))
        form = places[m.var].form if m.var in places else None
        words += [m.var in kept, form, type(m), m.reduced, parts, m.cost]
        words.append(walk.equation(m.eqn, m.var))
    key = (*words, *walk.words)
    try:
        hash(key)
    except TypeError:
        return None
    return key, walk.variables


class _Walk:
    """Numbers the values that are met, and notes what they are."""

    def __init__(self, members: Sequence[Var], inlined: dict[Var, Eqn]):
        self.inlined = inlined
        self.variables = list(members)
        self.numbers: dict[Var, Any] = {v: i for i, v in enumerate(members)}
        self.words: list[Any] = [(v.aval.shape, v.aval.dtype) for v in members]

    def equation(self, eqn: Eqn, out: Var) -> tuple:
        """An equation with numbers in place of its operands."""
        ins = tuple([self.number(a) for a in eqn.ins])
        return eqn.prim, exact_params(eqn.params), ins, eqn.outs.index(out)

    def number(self, atom: Atom) -> Any:
        if type(atom) is Literal:
            return atom.aval.dtype, atom.value.dtype, atom.value.tobytes()
        known = self.numbers.get(atom)  # type: ignore[arg-type]
        if known is None:
            var: Any = atom
            eqn = self.inlined.get(var)
            if eqn is None:
                known = len(self.variables)
                self.variables.append(var)
                self.words.append((var.aval.shape, var.aval.dtype))
            else:
                # Inlined values are numbered apart, after what they read.
                self.words.append((var.aval.shape, var.aval.dtype, self.equation(eqn, var)))
                known = "inlined", len(self.words)
            self.numbers[var] = known
        return known
