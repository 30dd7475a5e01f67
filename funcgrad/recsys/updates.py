"""Optimizers of tables: only rows that were read are updated, and what is kept of them.

They are transformations of gradients as in `optim`, whose leaves are `IndexedRows`. Duplicates are
summed first; all other rows, and what is kept of them, stay as they are, to the bit. With tables
and state donated, a step takes as long for a million rows as for a thousand. Adagrad: Duchi et al.,
2011; row-wise Adagrad: Gupta et al., "Training recommendation systems at scale", 2020; Adam: Kingma
and Ba, 2015, lazy as PyTorch's SparseAdam and FBGEMM's; LAMB: You et al., 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.errors import ArgumentError
from funcgrad.optim.base import GradientTransformation
from funcgrad.recsys.rows import IndexedRows
from funcgrad.recsys.tables import from_zero

LearningRate = float | Callable[[Any], Any]


class SparseState(NamedTuple):
    """What optimizers of tables keep: how many steps were done, and by name trees like the tables
    of (rows, dim) or (rows,) arrays."""

    count: Any
    slots: dict[str, Any]


def sgd(learning_rate: LearningRate, weight_decay: float = 0.0) -> GradientTransformation:
    """Stochastic gradient descent on the rows that were read: w -= lr · (g + weight_decay · w).

    learning_rate: a number, or a function of the number of steps done.

    >>> from funcgrad import recsys
    >>> opt, table = recsys.sgd(0.5), fnp.ones((3, 1))
    >>> g = recsys.IndexedRows([1, 1], [[0.25], [0.25]], 3)
    >>> updates, state = opt.update(g, opt.init(table), table)
    >>> recsys.apply_updates(table, updates)[:, 0]
    Array([1.  , 0.75, 1.  ], dtype=float32)
    """

    def step(g: Any, kept: dict, lr: Any, count: Any) -> tuple[Any, dict]:
        return -lr * g, {}

    return _rowwise("recsys.sgd", learning_rate, {}, step, l2=weight_decay)


def adagrad(
    learning_rate: LearningRate,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    initial: float = 0.0,
) -> GradientTransformation:
    """Adagrad on the rows that were read: s += g², w -= lr · g / (√s + eps).

    initial: of the sums s (rows, dim); weight_decay · w is added to g. See `sgd`.

    >>> from funcgrad import recsys
    >>> opt, table = recsys.adagrad(0.1, eps=0.0), fnp.ones((2, 1))
    >>> updates, state = opt.update(recsys.IndexedRows([1], [[3.0]], 2), opt.init(table), table)
    >>> state.slots["sum"][:, 0]
    Array([0., 9.], dtype=float32)
    """

    def step(g: Any, kept: dict, lr: Any, count: Any) -> tuple[Any, dict]:
        total = kept["sum"] + g * g
        return -lr * g / (fnp.sqrt(total) + eps), {"sum": total}

    slots = {"sum": lambda w: fnp.full(w.shape, initial, wide(w))}
    return _rowwise("recsys.adagrad", learning_rate, slots, step, l2=weight_decay)


def rowwise_adagrad(
    learning_rate: LearningRate,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    initial: float = 0.0,
) -> GradientTransformation:
    """Adagrad with one number a row: s += mean(g²), w -= lr · g / (√s + eps).

    The sums s are (rows,): 1/dim of the memory of Adagrad's. See `adagrad`.

    >>> from funcgrad import recsys
    >>> opt, table = recsys.rowwise_adagrad(0.1, eps=0.0), fnp.ones((2, 2))
    >>> g = recsys.IndexedRows([1], [[3.0, 1.0]], 2)
    >>> opt.update(g, opt.init(table), table)[1].slots["sum"]
    Array([0., 5.], dtype=float32)
    """

    def step(g: Any, kept: dict, lr: Any, count: Any) -> tuple[Any, dict]:
        total = kept["sum"] + fnp.mean(g * g, axis=1)
        return -lr * g / (fnp.sqrt(total) + eps)[:, None], {"sum": total}

    slots = {"sum": lambda w: fnp.full(w.shape[:1], initial, wide(w))}
    return _rowwise("recsys.rowwise_adagrad", learning_rate, slots, step, l2=weight_decay)


def adam(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> GradientTransformation:
    """Adam on the rows that were read, with the moments that it has of dense gradients.

    As `lazy_adam`, but the moments of a row that wasn't read for n steps are multiplied with b1ⁿ
    and b2ⁿ when it is read again: one whole number a row says when it was. Where all rows are read
    in each step, it is `optim.adam` (with weight decay `optim.adamw`).

    >>> from funcgrad import recsys
    >>> opt, table = recsys.adam(0.1, b1=0.5), fnp.ones((2, 1))
    >>> state = opt.init(table)
    >>> for row in (1, 0, 1):
    ...     _, state = opt.update(recsys.IndexedRows([row], [[8.0]], 2), state, table)
    >>> state.slots["mu"][:, 0], state.slots["last"]  # 8/2/2/2 + 8/2
    (Array([4., 5.], dtype=float32), Array([2, 3], dtype=int32))
    """

    def step(g: Any, kept: dict, lr: Any, count: Any) -> tuple[Any, dict]:
        missed = (count - kept["last"]).astype(g.dtype)[:, None]
        kept = {"mu": kept["mu"] * b1**missed, "nu": kept["nu"] * b2**missed}
        u, moments = _adam(g, kept, count, (b1, b2, eps))
        return -lr * u, {**moments, "last": fnp.full(g.shape[:1], count + 1)}

    slots = _moments() | {"last": lambda w: fnp.zeros(w.shape[:1], "int32")}
    return _rowwise("recsys.adam", learning_rate, slots, step, decoupled=weight_decay)


def lazy_adam(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> GradientTransformation:
    """Adam on the rows that were read; the moments of others don't decay meanwhile (see `adam`).

    m = b1·m + (1-b1)·g, v = b2·v + (1-b2)·g², w -= lr · (m̂ / (√v̂ + eps) + weight_decay · w), where
    m̂ = m / (1 - b1ᵗ) and v̂ = v / (1 - b2ᵗ) after t steps of the whole. See `sgd`.

    >>> from funcgrad import recsys
    >>> opt, table = recsys.lazy_adam(0.1), fnp.ones((2, 1))
    >>> updates, _ = opt.update(recsys.IndexedRows([1], [[3.0]], 2), opt.init(table), table)
    >>> print(f"{recsys.apply_updates(table, updates)[1, 0]:.4f}")
    0.9000
    """

    def step(g: Any, kept: dict, lr: Any, count: Any) -> tuple[Any, dict]:
        u, moments = _adam(g, kept, count, (b1, b2, eps))
        return -lr * u, moments

    return _rowwise("recsys.lazy_adam", learning_rate, _moments(), step, decoupled=weight_decay)


def lamb(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> GradientTransformation:
    """LAMB on the rows that were read, each with a trust ratio of its own, as FBGEMM's.

    u = m̂ / (√v̂ + eps) + weight_decay · w with the moments of `lazy_adam`, w -= lr · ‖w‖ / ‖u‖ · u;
    the ratio is 1 where one of the norms is 0. See `sgd`.

    >>> from funcgrad import recsys
    >>> opt, table = recsys.lamb(0.1), fnp.full((2, 1), 4.0)
    >>> updates, _ = opt.update(recsys.IndexedRows([1], [[3.0]], 2), opt.init(table), table)
    >>> print(f"{recsys.apply_updates(table, updates)[1, 0]:.4f}")
    3.6000
    """

    def step(g: Any, kept: dict, lr: Any, count: Any) -> tuple[Any, dict]:
        old = kept["weights"]
        u, moments = _adam(g, kept, count, (b1, b2, eps))
        u = u + weight_decay * old
        norms = [fnp.sqrt(fnp.sum(x * x, axis=1)) for x in (old, u)]
        whole = (norms[0] > 0) & (norms[1] > 0)
        ratio = fnp.where(whole, norms[0] / fnp.where(whole, norms[1], 1), 1)
        return -lr * ratio[:, None] * u, moments

    return _rowwise("recsys.lamb", learning_rate, _moments(), step, weights=True)


def _moments() -> dict[str, Callable]:
    """What Adam keeps for each element."""
    return dict.fromkeys(("mu", "nu"), lambda w: fnp.zeros(w.shape, wide(w)))


def _adam(g: Any, kept: dict, count: Any, how: tuple[float, float, float]) -> tuple[Any, dict]:
    """Adam's step of rows, without a learning rate, and the moments. how: b1, b2, eps."""
    b1, b2, eps = how
    m = b1 * kept["mu"] + (1 - b1) * g
    v = b2 * kept["nu"] + (1 - b2) * g * g
    t = (count + 1).astype(g.dtype)
    unbiased = fnp.sqrt(v / (1 - b2**t)) + eps
    return (m / (1 - b1**t)) / unbiased, {"mu": m, "nu": v}


def apply_updates(tables: Any, updates: Any) -> Any:
    """tables + updates, whose leaves are `IndexedRows`, in the tables' dtypes.

    Where tables are donated, as in a training step, rows are written in place.

    >>> from funcgrad import recsys
    >>> recsys.apply_updates(fnp.zeros((3, 1)), recsys.IndexedRows([2], [[1.0]], 3))[:, 0]
    Array([0., 0., 1.], dtype=float32)
    """
    leaves, structure = _leaves("recsys.apply_updates", updates, tables)
    return structure.unflatten([_added(w, u) for u, w in leaves])


def wide(x: Any) -> Any:
    """The dtype that rows are computed with: float32 or wider, or that of integers."""
    return fnp.float32 if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4 else x.dtype


# ---- what all of them do


def _rowwise(
    name: str,
    learning_rate: LearningRate,
    slots: dict[str, Callable],
    step: Callable,
    l2: float = 0.0,
    decoupled: float = 0.0,
    weights: bool = False,
) -> GradientTransformation:
    """An optimizer of a step(gradients, kept, lr, count) of rows that gives (updates, kept).

    slots: what is kept for a table at first, by name; weights: whether the step reads the rows
    themselves, as kept["weights"]
    """

    def init(tables: Any) -> SparseState:
        return SparseState(
            fnp.zeros((), "int32"), {k: tree.map(make, tables) for k, make in slots.items()}
        )

    def update(grads: Any, state: SparseState, tables: Any = None) -> tuple[Any, SparseState]:
        if not isinstance(state, SparseState) or set(state.slots) != set(slots):
            raise ArgumentError(
                f"{name}: update needs a state of init(tables) of the same, got {state!r}"
            )
        if tables is None:
            raise ArgumentError(f"{name}: update needs the tables: update(grads, state, tables)")
        leaves, structure = _leaves(name, grads, tables)
        lr = learning_rate(state.count) if callable(learning_rate) else learning_rate
        kept = {k: tree.leaves(v) for k, v in state.slots.items()}
        deltas = []
        for i, (g, w) in enumerate(leaves):
            g = g.summed()
            at = g.indices
            rows = g.rows.astype(wide(w))
            old = _rows(w, at) if l2 or decoupled or weights else 0.0
            rows = rows + l2 * old if l2 else rows
            now = {k: _rows(v[i], at) for k, v in kept.items()}
            if weights:
                now["weights"] = old
            delta, then = step(rows, now, lr, state.count)
            delta = delta - lr * decoupled * old if decoupled else delta
            deltas.append(IndexedRows(at, delta, g.count, True))
            for k, x in then.items():
                x = x.astype(kept[k][i].dtype)
                kept[k][i] = kept[k][i].at[at].set(x, mode="drop", unique_indices=True)
        put = {k: structure.unflatten(v) for k, v in kept.items()}
        return structure.unflatten(deltas), SparseState(state.count + 1, put)

    return GradientTransformation(init, update)


def _rows(x: Any, at: Any) -> Any:
    return x.at[at].get(mode="fill", fill_value=0).astype(wide(x))


def _added(w: Any, u: IndexedRows) -> Any:
    u = u.summed()
    at = from_zero(u.indices, u.count)
    if w.dtype == wide(w):
        return w.at[at].add(u.rows.astype(w.dtype), mode="drop", unique_indices=True)
    # Narrow rows are rounded once, after the sum.
    rows = (_rows(w, at) + u.rows).astype(w.dtype)
    return w.at[at].set(rows, mode="drop", unique_indices=True)


def _leaves(name: str, sparse: Any, tables: Any) -> tuple[list, Any]:
    """Pairs of gradients (updates) and tables, and the tables' structure."""
    found, structure = tree.flatten(sparse, is_leaf=lambda x: isinstance(x, IndexedRows))
    arrays, wanted = tree.flatten(tables)
    if structure != wanted:
        raise ArgumentError(f"{name}: gradients {structure} don't match the tables {wanted}")
    for x, w in zip(found, arrays, strict=True):
        if not isinstance(x, IndexedRows) or x.shape != w.shape:
            shape = getattr(x, "shape", None)
            raise ArgumentError(
                f"{name}: for a table {w.shape} need IndexedRows of that shape, got "
                f"{type(x).__name__} {shape}; optim has the optimizers of dense gradients"
            )
    return list(zip(found, arrays, strict=True)), wanted
