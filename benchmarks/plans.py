"""How well `recsys.plan` predicts: the times of random plans' steps beside what was predicted.

    python -m benchmarks.plans [PLANS]

Plans are of random tables, cut in random ways over two virtual devices; what is measured is a
compiled step of lookups, gradients and row-wise Adagrad. Prints each plan's two times, and at last
Spearman's rank correlation.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, recsys, tree

DEVICES, KINDS = 2, ("data_parallel", "table_wise", "row_wise")


def main(plans: int) -> float:
    """Measure so many plans; Spearman's correlation of both times."""
    rng, speed = np.random.default_rng(0), recsys.measure_bandwidths()
    times = []
    for _ in range(plans):
        batch = int(2 ** rng.integers(7, 13))
        stats = {
            f"t{i}": recsys.TableStats(
                int(10 ** rng.uniform(2, 5)), int(2 ** rng.integers(3, 8)), int(rng.integers(1, 30))
            )
            for i in range(rng.integers(1, 4))
        }
        kinds = {k: [KINDS[rng.integers(len(KINDS))]] for k in stats}
        plan = recsys.plan(
            stats, DEVICES, memory=1e12, batch=batch, bandwidths=speed, allowed=kinds
        )
        # Virtual devices share the machine: their times add up.
        times.append((sum(plan.seconds), measured(plan, stats, batch, rng)))
        print(f"predicted {times[-1][0] * 1e3:9.3f} ms, measured {times[-1][1] * 1e3:9.3f} ms")
    ranks = [np.argsort(np.argsort(x)) for x in np.transpose(times)]
    found = float(np.corrcoef(*ranks)[0, 1])
    print(f"Spearman {found:.3f} over {plans} plans")
    return found


def measured(plan: recsys.Plan, stats: dict, batch: int, rng: np.random.Generator) -> float:
    """The least time of a few steps of a plan."""
    mesh = fg.make_mesh(DEVICES, "device")
    shapes = {k: (s.rows, s.dim) for k, s in stats.items()}
    layout = recsys.layout(shapes, plan.shardings, mesh)
    tables = recsys.shard_tables({k: np.ones(s, "float32") for k, s in shapes.items()}, layout)
    opt = recsys.rowwise_adagrad(0.1)
    zeros = tree.map(lambda x: fnp.zeros(x.shape, x.dtype), tables)
    state = recsys.put(opt.init(zeros), mesh)
    ids = {
        k: rng.integers(0, s.rows, (batch * DEVICES, int(s.pooling)), "int32")
        for k, s in stats.items()
    }
    offsets = {k: np.arange(batch * DEVICES + 1) * x.shape[1] for k, x in ids.items()}
    features = recsys.KeyedJaggedTensor.from_columns(
        {k: (x.ravel(), offsets[k]) for k, x in ids.items()}
    )
    rooms = {k: x.size // DEVICES for k, x in ids.items()}
    parts = recsys.split_batch(features, DEVICES, capacity=rooms)

    def step(tables: Any, state: Any, features: Any) -> tuple:
        def loss(tables: Any) -> Any:
            bags = recsys.embedding_bag(tables, tree.map(lambda x: x[0], features))
            return lax.pmean(sum(fnp.sum(x**2) for x in bags.values()), layout.axes)

        value, grads = recsys.value_and_sparse_grad(loss)(tables)
        updates, state = opt.update(grads, state, tables)
        return recsys.apply_updates(tables, updates), state, value

    specs = recsys.partition_specs((tables, state))
    mapped = fg.shard_map(
        step, mesh=mesh, in_specs=(*specs, fg.P("device")), out_specs=(*specs, fg.P())
    )
    run, best = fg.jit(mapped, donate_argnums=(0, 1)), np.inf
    for _ in range(6):
        start = time.perf_counter()
        tables, state, value = run(tables, state, parts)
        float(value)
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
