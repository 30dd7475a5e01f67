"""Optimizers of tables against loops over the rows that were read; others keep their bits."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import optim, recsys
from funcgrad.errors import ArgumentError
from funcgrad.recsys import IndexedRows

LR, DECAY = 0.1, 0.01
OPTIMIZERS = {
    "sgd": (recsys.sgd, {}),
    "adagrad": (recsys.adagrad, {"initial": 0.1}),
    "rowwise_adagrad": (recsys.rowwise_adagrad, {}),
    "adam": (recsys.adam, {}),
    "lazy_adam": (recsys.lazy_adam, {}),
    "lamb": (recsys.lamb, {}),
}


def by_loop(name, w, state, ids, rows, t, decay, initial=0.0):
    """One step on a table, row by row."""
    total = {}
    for i, g in zip(ids, rows, strict=True):
        total[i] = total.get(i, 0) + g.astype("float64")
    for i, g in total.items():
        old = w[i].copy()
        if name not in ("adam", "lazy_adam", "lamb"):
            g = g + decay * old
        if name == "sgd":
            w[i] -= LR * g
        elif name in ("adagrad", "rowwise_adagrad"):
            s = state.setdefault(i, initial) + (g * g if name == "adagrad" else np.mean(g * g))
            state[i] = s
            w[i] -= LR * g / (np.sqrt(s) + 1e-8)
        else:
            m, v, last = state.get(i, (0, 0, 0))
            missed = t - 1 - last if name == "adam" else 0
            m, v = 0.9 ** (missed + 1) * m + 0.1 * g, 0.999 ** (missed + 1) * v + 0.001 * g * g
            state[i] = m, v, t
            u = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay * old
            trust = np.linalg.norm(old) / np.linalg.norm(u) if name == "lamb" else 1.0
            w[i] -= LR * trust * u


@pytest.mark.sampled(4)
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("compiled", [False, True])
def test_steps_are_those_of_a_loop(rng, name, decay, compiled):
    make, options = OPTIMIZERS[name]
    opt = make(LR, weight_decay=decay, **options)
    start = rng.normal(size=(20, 3)).astype("float32")
    want, kept = start.astype("float64"), {}
    tables, touched = {"a": fnp.array(start)}, set()
    state = first = opt.init(tables)

    def step(tables, state, g):
        updates, state = opt.update({"a": g}, state, tables)
        return recsys.apply_updates(tables, updates), state

    for t in range(1, 6):
        ids = rng.integers(0, 12, 15)
        rows = rng.normal(size=(15, 3)).astype("float32")
        g = IndexedRows(np.append(ids, 20), np.append(rows, rows[:1], axis=0), 20)
        tables, state = (fg.jit(step) if compiled else step)(tables, state, g)
        by_loop(name, want, kept, ids.tolist(), rows, t, decay, options.get("initial", 0.0))
        touched |= set(ids.tolist())
    np.testing.assert_allclose(tables["a"], want, rtol=2e-4, atol=2e-5)
    others = [i for i in range(20) if i not in touched]
    np.testing.assert_array_equal(np.asarray(tables["a"])[others], start[others])
    for slot, x in state.slots.items():
        before = np.asarray(first.slots[slot]["a"])
        np.testing.assert_array_equal(np.asarray(x["a"])[others], before[others])
    assert int(state.count) == 5


def test_moments_are_those_of_dense_gradients(rng):
    """Of rows that are read again after some steps, too."""
    sparse, dense = recsys.adam(LR, weight_decay=DECAY), optim.adamw(LR, weight_decay=DECAY)
    table = whole = fnp.asarray(rng.normal(size=(6, 3)), "float32")
    state, full = sparse.init(table), dense.init(whole)
    for ids in ([0, 1], [0, 1, 2], [0], [0, 5], [0, 2]):
        g = IndexedRows(np.array(ids), rng.normal(size=(len(ids), 3)).astype("float32"), 6)
        updates, state = sparse.update(g, state, table)
        table = recsys.apply_updates(table, updates)
        changes, full = dense.update(g.to_dense(), full, whole)
        whole = optim.apply_updates(whole, changes)
    for slot in ("mu", "nu"):
        np.testing.assert_allclose(
            state.slots[slot][[0, 2]], getattr(full[0], slot)[[0, 2]], rtol=1e-5
        )
    np.testing.assert_allclose(table[0], whole[0], atol=1e-5)  # it was read in each step
    assert state.slots["last"].tolist() == [5, 2, 5, 0, 0, 4]


def trained(opt):
    def loss(tables, kjt):
        return fnp.sum(recsys.embedding_bag(tables, kjt)["a"] ** 2)

    @partial(fg.jit, donate_argnums=(0, 1))
    def step(tables, state, kjt):
        _, grads = recsys.value_and_sparse_grad(loss)(tables, kjt)
        updates, state = opt.update(grads, state, tables)
        return recsys.apply_updates(tables, updates), state

    return step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_in_place(name):
    """What it needs beside the tables does not depend on how many rows they have."""
    opt = OPTIMIZERS[name][0](LR, weight_decay=DECAY)
    kjt = recsys.KeyedJaggedTensor.from_lists({"a": [[1, 2], [2], []]}, capacity=9)
    sizes = []
    for rows in (100, 10_000):
        tables = {"a": fnp.ones((rows, 8))}
        lowered = trained(opt).lower(tables, opt.init(tables), kjt)
        memory = lowered.compile().memory_analysis()
        sizes.append(memory["temp_size_in_bytes"])
        kept = memory["argument_size_in_bytes"] - kjt.values.nbytes - kjt.lengths.nbytes
        assert memory["alias_size_in_bytes"] >= kept - 4
    assert sizes[0] == sizes[1]


def test_narrow_tables_and_schedules(rng):
    opt = recsys.sgd(lambda count: 0.5 * (count + 1))
    table = fnp.ones((4, 2), "bfloat16")
    g = IndexedRows([1, 1], np.full((2, 2), 0.25, "float32"), 4)
    updates, state = opt.update(g, opt.init(table), table)
    table = recsys.apply_updates(table, updates)
    assert table.dtype == "bfloat16"
    assert table[:, 0].tolist() == [1, 0.75, 1, 1]
    updates, state = opt.update(g, state, table)
    assert recsys.apply_updates(table, updates)[1, 0] == 0.25


def test_refused():
    opt, tables = recsys.adagrad(0.1), {"a": fnp.ones((3, 2))}
    state, g = opt.init(tables), IndexedRows([1], [[1.0, 1.0]], 3)
    with pytest.raises(ArgumentError, match="update needs the tables"):
        opt.update({"a": g}, state)
    with pytest.raises(ArgumentError, match="update needs a state of init"):
        opt.update({"a": g}, recsys.sgd(0.1).init(tables), tables)
    with pytest.raises(ArgumentError, match="don't match the tables"):
        opt.update({"b": g}, state, tables)
    with pytest.raises(ArgumentError, match="need IndexedRows of that shape, got Array"):
        opt.update(tables, state, tables)
    with pytest.raises(ArgumentError, match="IndexedRows \\(4, 2\\)"):
        opt.update({"a": IndexedRows([1], [[1.0, 1.0]], 4)}, state, tables)
