"""Rows of arrays from rank to rank: each rank has as many, before and after.

Any such rearrangement is as many permutations of ranks as a rank has rows: the rows are edges from
rank to rank, of a graph in which each rank sends and gets equally many, and such a graph is a union
of perfect matchings (König, 1916). So no rank ever holds more than its own rows, twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.sharding import Mesh, P
from funcgrad.parallel.mapping.shard_map import shard_map


class Round(NamedTuple):
    """One permutation: for each rank the row it sends, to whom, and where the one it gets goes."""

    sends: np.ndarray
    to: tuple[int, ...]
    puts: np.ndarray


def moved(x: Any, order: Sequence[int], mesh: Mesh, axis: str) -> Any:
    """Each leaf with its rows in another order: row i is what row order[i] was. Leaves are cut over
    a mesh axis along their rows, before and after; over other axes they may be cut anyhow.

    >>> from funcgrad.parallel import make_mesh
    >>> moved(fnp.arange(4), [0, 2, 1, 3], make_mesh(2, "pp"), "pp").value
    array([0, 2, 1, 3], dtype=int32)
    """
    if list(order) == sorted(order):
        return x
    rounds = plan_rounds(order, mesh.shape[axis])

    def body(leaves: list) -> list:
        rank = lax.axis_index(axis)
        return [_rearranged(leaf, rounds, rank, axis) for leaf in leaves]

    leaves, structure = tree.flatten(x)
    move = shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P(axis), axis_names={axis})
    return structure.unflatten(move(leaves))


def _rearranged(leaf: Any, rounds: Sequence[Round], rank: Any, axis: str) -> Any:
    out = fnp.zeros_like(leaf)
    for sends, to, puts in rounds:
        row = lax.dynamic_index_in_dim(leaf, fnp.take(sends, rank))
        if any(source != target for source, target in enumerate(to)):
            row = lax.ppermute(row, axis, list(enumerate(to)))
        out = lax.dynamic_update_slice_in_dim(out, row, fnp.take(puts, rank), 0)
    return out


def plan_rounds(order: Sequence[int], ranks: int) -> list[Round]:
    """Permutations of ranks that bring rows into an order.

    >>> [r.to for r in plan_rounds([0, 2, 1, 3], 2)]
    [(1, 0), (0, 1)]
    """
    each = len(order) // ranks
    # For each pair of ranks the rows that go from the one to the other: (row, row) within them.
    edges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for there, here in enumerate(order):
        (source, row), (target, place) = divmod(here, each), divmod(there, each)
        edges.setdefault((source, target), []).append((row, place))
    rounds = []
    for _ in range(each):
        to = _matching([[t for t in range(ranks) if edges.get((s, t))] for s in range(ranks)])
        sends, puts = np.zeros(ranks, np.int32), np.zeros(ranks, np.int32)
        for source, target in enumerate(to):
            sends[source], puts[target] = edges[source, target].pop(0)
        rounds.append(Round(sends, tuple(to), puts))
    return rounds


def _matching(choices: Sequence[Sequence[int]]) -> list[int]:
    """For each source a target of its choices, no two alike: by augmenting paths (Kuhn, 1955)."""
    source_of: dict[int, int] = {}

    def place(source: int, seen: set[int]) -> bool:
        for target in choices[source]:
            if target not in seen:
                seen.add(target)
                if target not in source_of or place(source_of[target], seen):
                    source_of[target] = source
                    return True
        return False

    for source in range(len(choices)):
        found = place(source, set())
        assert found, "each rank sends and gets as many rows"
    return sorted(source_of, key=lambda target: source_of[target])
