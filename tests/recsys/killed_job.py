"""A job that trains a DLRM of raw ids, with rows on disk, and may kill itself at random times.

    python -m tests.recsys.killed_job FOLDER KILLS

A supervisor starts it again: it goes on from what was saved, and at last writes result.npz, with
the AUC of clicks held out and all that was trained.
"""

import os
import random as chance
import signal
import sys
import threading
from pathlib import Path

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import optim, recsys, tree
from funcgrad.recsys import models

STEPS, EVERY, BATCH, DIM, ROWS = 200, 5, 32, 4, 96
HASH = recsys.ZCHConfig(ROWS, buckets=8)
MODEL = models.DLRMConfig(("user", "ad"), 3, DIM, bottom=(8,), top=(8,))
TABLES, DENSE = recsys.rowwise_adagrad(0.1), optim.sgd(0.1)


def batch(number):
    """Raw ids of two columns, most of few values, numbers, and clicks that depend on both."""
    rng = np.random.default_rng(number)
    ids = (rng.zipf(1.3, (2, BATCH)) % 10**12).astype("int64") * 2 + np.array([[0], [1]])
    x = rng.normal(size=(BATCH, 3)).astype("float32")
    return ids, x, (np.sin(ids.sum(0)) + x[:, 0] > 0).astype("float32")


def logits_of(params, cache, slots, x):
    one = fnp.ones(BATCH, "int32")
    bags = {
        k: recsys.embedding_bag(cache["rows"], recsys.JaggedTensor(slots[i], one))
        for i, k in enumerate(MODEL.features)
    }
    return models.dlrm(params, bags, x, MODEL)


scores = fg.jit(logits_of)


@fg.jit
def train(params, cache, slots, x, labels):
    def loss(tables, params):
        return fnp.mean(optim.sigmoid_binary_cross_entropy(
            logits_of(params, tables, slots, x), labels
        ))  # fmt: skip

    rows = {"rows": cache["rows"]}
    grads, dense = recsys.value_and_sparse_grad(loss, 1)(rows, params)[1]
    state = recsys.SparseState(fnp.zeros((), "int32"), {"sum": {"rows": cache["sum"]}})
    updates, state = TABLES.update(grads, state, rows)
    changes, _ = DENSE.update(dense, DENSE.init(params), params)
    rows = recsys.apply_updates(rows, updates)["rows"]
    return optim.apply_updates(params, changes), {"rows": rows, "sum": state.slots["sum"]["rows"]}


look_up = fg.jit(recsys.zch_rows, static_argnums=2)
let_in = fg.jit(recsys.zch_update, static_argnums=2)


def run(folder, kills):
    """All steps that are left, then the result."""
    if not (folder / "table.json").exists():
        recsys.create_disk_table(folder, ROWS, {"rows": (DIM,), "sum": ()})
    table = recsys.DiskTable(folder, 80)
    like = {"hash": recsys.zch_init(HASH), "params": models.dlrm_init(fg.random.key(0), MODEL)}
    leaves, structure = tree.flatten(like)
    kept = table.state
    if kept:
        leaves = [fnp.asarray(kept[str(i)]) for i in range(len(leaves))]
    state = structure.unflatten(leaves)
    for n in range(int(kept.get("step", 0)), STEPS):
        ids, x, labels = batch(n)
        state["hash"], begun = let_in(state["hash"], ids.reshape(-1), HASH)
        begun = np.asarray(begun)[np.asarray(begun) < ROWS]
        if len(begun):
            at = table.slots(begun)
            table.cache = {k: v.at[at].set(0) for k, v in table.cache.items()}
        slots = table.slots(np.asarray(look_up(state["hash"], ids, HASH)))
        state["params"], table.cache = train(state["params"], table.cache, slots, x, labels)
        if n == 0 or (n + 1) % EVERY == 0:
            leaves = {str(i): v for i, v in enumerate(tree.leaves(state))}
            table.save({"step": n + 1, **leaves})
        strike(folder, kills)
    # A blow that is still to fall falls now.
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.join()
    finish(folder, table, state)


def strike(folder, kills):
    """Die at some time soon, unless that was done often enough."""
    marks = folder / "kills"
    done = len(marks.read_bytes()) if marks.exists() else 0
    if done < kills and not any(isinstance(t, threading.Timer) for t in threading.enumerate()):
        with marks.open("ab") as file:
            file.write(b".")
        die = threading.Timer(chance.uniform(0, 0.02), os.kill, (os.getpid(), signal.SIGKILL))
        die.start()


def finish(folder, table, state):
    auc = recsys.streaming_auc()
    seen = auc.init()
    for n in range(10):
        ids, x, labels = batch(10**6 + n)
        slots = table.slots(np.asarray(look_up(state["hash"], ids, HASH)))
        found = scores(state["params"], {"rows": table.cache["rows"]}, slots, x)
        seen = auc.update(seen, found, labels)
    leaves = {f"state{i}": np.asarray(v) for i, v in enumerate(tree.leaves(state))}
    rows = table.read(np.arange(ROWS))
    np.savez(folder / "result.npz", auc=np.asarray(auc.value(seen)), **rows, **leaves)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
