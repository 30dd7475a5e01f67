"""Lookups and training steps of embedding tables against memory's limits and against PyTorch.

    python -m benchmarks.recommenders [--rows 100000] [--turns 20]    # ratios, each of two in turn

26 tables of 64 columns are looked up in batches of 2048 bags of 1 to 20 ids, and trained by
row-wise Adagrad; a DLRM of them is trained; the same batch on tables of 10⁴ to 10⁷ rows shows what
a step's time depends on, beside a plain copy of the same rows; and last, how much of a loader's
time is hidden behind steps. Where fbgemm-gpu-cpu is installed, its kernel looks rows up, too.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import optim, random, recsys, tree
from funcgrad.recsys import models

TABLES, DIM, BATCH, MOST, DENSE = 26, 64, 2048, 20, 13
LOADER = 8  # batches that a loader makes for one
NAMES = tuple(f"t{i:02}" for i in range(TABLES))
Step = Callable[[], Any]
Clock = Callable[[], float]
_FBGEMM = "fbgemm_gpu.split_table_batched_embeddings_ops"


def in_turn(turns: int, *runs: Step, clock: Clock = time.perf_counter) -> list[float]:
    """Seconds of the quickest call of each, called by turns, after a first one."""
    for run in runs:
        run()
    times = [float("inf")] * len(runs)
    for _ in range(turns):
        for i, run in enumerate(runs):
            started = clock()
            run()
            times[i] = min(times[i], clock() - started)
    return times


def batch_of(rng: np.random.Generator, rows: int, names: tuple[str, ...] = NAMES) -> Any:
    """Ids of all features: in each as many in every bag."""
    lengths = rng.integers(1, MOST + 1, BATCH).astype("int32")
    return recsys.KeyedJaggedTensor.from_features({
        k: recsys.JaggedTensor(rng.integers(0, rows, lengths.sum(), np.int32), lengths)
        for k in names
    })  # fmt: skip


def tables_of(rng: np.random.Generator, rows: int, dim: int, names: Any = NAMES) -> dict:
    """Tables of random numbers."""
    return {k: fnp.asarray(rng.standard_normal((rows, dim), np.float32)) for k in names}


class Trained:
    """Tables, what optimizers keep, and a compiled step that writes into both."""

    def __init__(self, tables: Any, features: Any, loss: Callable, params: Any = ()):
        sparse, dense = recsys.rowwise_adagrad(0.01), optim.sgd(0.01)
        self.state = tables, sparse.init(tables), params, dense.init(params)
        self.features = features

        @partial(fg.jit, donate_argnums=0)
        def step(state: Any, features: Any) -> Any:
            tables, sums, params, moments = state
            grad = recsys.value_and_sparse_grad(loss, 1)
            value, (rows, grads) = grad(tables, params, features)
            updates, sums = sparse.update(rows, sums, tables)
            changes, moments = dense.update(grads, moments, params)
            tables = recsys.apply_updates(tables, updates)
            return (tables, sums, optim.apply_updates(params, changes), moments), value

        self._step = step

    def __call__(self) -> None:
        self.state, value = self._step(self.state, self.features)
        float(value)


def sum_of_bags(weights: Any, tables: Any, params: Any, features: Any) -> Any:
    """A loss of which all rows have other gradients."""
    return sum(fnp.sum(x * weights) for x in recsys.embedding_bag(tables, features).values())


# ---- the same in PyTorch


class TorchTables:
    """EmbeddingBags with sparse gradients, and row-wise Adagrad of what these have."""

    def __init__(self, torch: Any, tables: dict, features: Any):
        self.torch, self.bags, self.ids = torch, [], []
        for k, x in features.features().items():
            # In memory as PyTorch takes it.
            rows = torch.from_numpy(np.asarray(tables[k])).clone()
            bag = torch.nn.EmbeddingBag(*rows.shape, mode="sum", sparse=True, _weight=rows)
            lengths = np.asarray(x.lengths)
            offsets = torch.from_numpy(np.cumsum(lengths) - lengths).long()
            self.bags.append(bag)
            self.ids.append((torch.from_numpy(np.array(x.values)).long(), offsets))
        self.sums = [torch.zeros(b.weight.shape[0]) for b in self.bags]

    def look_up(self) -> list:
        """Pooled rows of all features."""
        return [bag(*ids) for bag, ids in zip(self.bags, self.ids, strict=True)]

    def copied(self) -> None:
        """The rows themselves, side by side."""
        with self.torch.no_grad():
            for bag, (ids, _) in zip(self.bags, self.ids, strict=True):
                self.torch.index_select(bag.weight, 0, ids)

    def by_fbgemm(self) -> Step:
        """Pooled rows of all features by one call of FBGEMM's kernel."""
        training = importlib.import_module(f"{_FBGEMM}_training")
        common = importlib.import_module(f"{_FBGEMM}_common")
        shapes = [tuple(bag.weight.shape) for bag in self.bags]
        device, place = training.ComputeDevice.CPU, common.EmbeddingLocation.HOST
        kernel = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(*shape, place, device) for shape in shapes], pooling_mode=common.PoolingMode.SUM
        )
        for rows, bag in zip(kernel.split_embedding_weights(), self.bags, strict=True):
            rows.data.copy_(bag.weight.data)
        ids = self.torch.cat([ids for ids, _ in self.ids])
        ends = np.cumsum([len(ids) for ids, _ in self.ids])
        starts = [o + int(n) for (_, o), n in zip(self.ids, [0, *ends], strict=False)]
        offsets = self.torch.cat([*starts, self.torch.tensor(ends[-1:])])
        return partial(kernel, ids, offsets)

    def update(self) -> None:
        """Row-wise Adagrad."""
        with self.torch.no_grad():
            for bag, sums in zip(self.bags, self.sums, strict=True):
                g = bag.weight.grad.coalesce()
                at, rows = g.indices()[0], g.values()
                sums.index_add_(0, at, (rows * rows).mean(1))
                bag.weight.index_add_(0, at, -0.01 * rows / (sums[at].sqrt() + 1e-8)[:, None])
                bag.weight.grad = None

    def step(self, weights: Any) -> None:
        """Lookups, their gradients, and the update."""
        sum((x * weights).sum() for x in self.look_up()).backward()
        self.update()

    def dlrm(self, cfg: models.DLRMConfig, dense: Any, labels: Any) -> Step:
        """A step of a DLRM with products of features."""
        nn = self.torch.nn

        def layers(*sizes: int) -> Any:
            made = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
            return nn.Sequential(*made[:-1])

        count = TABLES + 1
        bottom = nn.Sequential(layers(DENSE, *cfg.bottom, DIM), nn.ReLU())
        top = layers(DIM + count * (count - 1) // 2, *cfg.top, 1)
        first, second = self.torch.tril_indices(count, count, -1)
        descent = self.torch.optim.SGD([*bottom.parameters(), *top.parameters()], 0.01)

        def step() -> None:
            x = bottom(dense)
            t = self.torch.stack([x, *self.look_up()], 1)
            pairs = (t @ t.transpose(1, 2))[:, first, second]
            logits = top(self.torch.cat([x, pairs], 1))[:, 0]
            descent.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
            descent.step()
            self.update()

        return step


# ---- what is measured

Timed = Callable[..., list[float]]


def against_torch(rows: int, timed: Timed) -> Iterator[str]:
    """Lookups, steps of tables, and steps of a DLRM."""
    import torch

    torch.set_num_threads(int(os.environ.get("FUNCGRAD_NUM_THREADS", "2")))
    rng = np.random.default_rng(0)
    tables, features = tables_of(rng, rows, DIM), batch_of(rng, rows)
    theirs = TorchTables(torch, tables, features)
    look_up = fg.jit(recsys.embedding_bag)

    def ours() -> None:
        fg.block_until_ready(look_up(tables, features))

    with torch.no_grad():
        a, b, c = timed(ours, theirs.look_up, theirs.copied)
    read = sum(x.capacity for x in features.features().values()) * DIM * 4
    # A copy writes what it reads.
    rate, copy = (read + TABLES * BATCH * DIM * 4) / a, 2 * read / c
    yield (
        f"pooled lookups, {rows} rows: {b / a:.2f} × PyTorch, {c / a:.2f} × a copy of the rows; "
        f"{rate / copy:.0%} of its bytes a second"
    )
    if importlib.util.find_spec("fbgemm_gpu"):
        with torch.no_grad():
            a, b = timed(ours, theirs.by_fbgemm())
        yield f"pooled lookups, {rows} rows: {b / a:.2f} × FBGEMM"
    weights = rng.standard_normal((BATCH, DIM), np.float32)
    trained = Trained(tables, features, partial(sum_of_bags, fnp.asarray(weights)))
    a, b = timed(trained, partial(theirs.step, torch.from_numpy(weights)))
    yield f"lookups, gradients, row-wise Adagrad: {b / a:.2f} × PyTorch's sparse gradients"
    cfg = models.DLRMConfig(NAMES, DENSE, DIM, bottom=(512, 256), top=(512, 256))
    x = rng.standard_normal((BATCH, DENSE), np.float32)
    labels = rng.integers(0, 2, BATCH).astype("float32")

    def loss(tables: Any, params: Any, features: Any) -> Any:
        logits = models.dlrm(params, recsys.embedding_bag(tables, features), x, cfg)
        return fnp.mean(optim.sigmoid_binary_cross_entropy(logits, labels))

    trained = Trained(trained.state[0], features, loss, models.dlrm_init(random.key(0), cfg))
    other = theirs.dlrm(cfg, torch.from_numpy(x), torch.from_numpy(labels))
    a, b = timed(trained, other)
    yield f"DLRM step: {b / a:.2f} × PyTorch"


def of_many_rows(timed: Timed, sizes: tuple[int, ...] = (10**4, 10**5, 10**6, 10**7)) -> str:
    """One table's step, beside that of the smallest, and the same of a plain copy of its rows by
    NumPy: memory's caches alone make a difference."""
    rng, dim, runs, copies = np.random.default_rng(0), 16, [], []
    weights = fnp.asarray(rng.standard_normal((BATCH, dim), np.float32))
    for rows in sizes:
        features = batch_of(np.random.default_rng(1), rows, ("t",))
        tables = {"t": fnp.zeros((rows, dim)) + 1}
        runs.append(Trained(tables, features, partial(sum_of_bags, weights)))
        ids, table = np.asarray(features.values), np.ones((rows, dim), np.float32)
        copies.append(partial(np.take, table, ids, 0, np.empty((len(ids), dim), np.float32)))
    times = timed(*runs, *copies)
    n = len(sizes)
    parts = (
        f"{rows:.0e}: {t / times[0]:.2f} ({c / times[n]:.2f})"
        for rows, t, c in zip(sizes, times[:n], times[n:], strict=True)
    )
    return f"step by rows (a copy of the same rows), beside the first: {', '.join(parts)}"


def loaded(number: int, rows: int) -> Any:
    """As long as a loader that reads and decodes: about half of a step. One batch of several."""
    made = [batch_of(np.random.default_rng(number + i), rows, NAMES[:8]) for i in range(LOADER)]
    return tree.map(np.asarray, made[1])


def hidden(timed: Timed, rows: int = 100_000) -> Iterator[str]:
    """How much of the time to make batches passes behind steps, which leave it a processor: in a
    thread, and in a process."""
    fg.set_num_threads(max(1, fg.num_threads() - 1))
    rng = np.random.default_rng(0)
    weights = fnp.asarray(rng.standard_normal((BATCH, DIM), np.float32))
    tables = tables_of(rng, rows, DIM, NAMES[:8])
    trained = Trained(tables, loaded(0, rows), partial(sum_of_bags, weights))
    make = partial(loaded, 1, rows)

    def one_after_the_other() -> None:
        trained.features = make()
        trained()

    def beside(pool: Executor) -> None:
        coming = pool.submit(make)
        trained()
        trained.features = coming.result()

    spawn = multiprocessing.get_context("spawn")
    for pool in (ThreadPoolExecutor(1), ProcessPoolExecutor(1, spawn)):
        with pool:
            alone, both, overlapped = timed(trained, one_after_the_other, partial(beside, pool))
        loader = max(both - alone, 1e-9)
        yield (
            f"of a loader's time ({loader / alone:.2f} steps) {(both - overlapped) / loader:.0%} "
            f"is hidden by a {type(pool).__name__}"
        )


def main() -> None:
    """Measure, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="of each of 26 tables")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--cpu", action="store_true", help="count processors' time")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    timed = partial(in_turn, args.turns, clock=clock)
    print(of_many_rows(timed), flush=True)
    for line in against_torch(args.rows, timed):
        print(line, flush=True)
    for line in hidden(partial(in_turn, args.turns)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
