"""Train a DLRM on clicks with Criteo's schema, its tables cut over devices as a planner says.

    python examples/dlrm.py                  # about a minute on two cores
    python examples/dlrm.py --resume         # go on from the last checkpoint
    mpiexec -n 4 python examples/dlrm.py     # the same on four processes

The clicks are made up: 13 numbers and 26 ids each, as in Criteo's data, and labels drawn from a
planted signal that is known here, so that there is an AUC that no model can pass. They are written
to Parquet files first, and read from these beside the steps (needs pyarrow and tqdm). The tables
lie on four devices (virtual ones, where no launcher gives processes). The run ends with the AUC of
held-out clicks, the best ads for one user, and a checkpoint (a folder of safetensors files).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gpt import resume
from tqdm import tqdm

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, parallel, random, recsys, tree
from funcgrad.io.checkpoints import Checkpointer
from funcgrad.recsys import models

# ---- data: made up, with Criteo's schema and a planted signal

# How many values each of the 26 columns of ids has: a few large ones, many small.
SIZES = [3, 4, 5, 10, 10, 15, 20, 30, 50, 60, 100, 100, 150, 200, 300, 500, 600, 1000, 1500, 2000,
         3000, 5000, 8000, 10000, 20000, 50000]  # fmt: skip
ROWS = {f"C{i + 1}": n for i, n in enumerate(SIZES)}
DENSE, AD = 13, "C20"


class Batch(NamedTuple):
    """Clicks: numbers (batch, 13), ids by column, labels (batch,), and the labels' true logits."""

    dense: Any
    ids: recsys.KeyedJaggedTensor
    labels: Any
    logits: Any


class PlantedClicks:
    """Clicks whose logits are sums of effects of ids, of numbers, and of one pair of columns."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.seed = seed
        self.effects = {k: rng.normal(0, 0.35, n).astype("float32") for k, n in ROWS.items()}
        self.weights = rng.normal(0, 0.2, DENSE).astype("float32")
        self.pair = rng.normal(0, 0.6, (ROWS["C8"], ROWS["C9"])).astype("float32")

    def batch(self, part: int, number: int, size: int) -> Batch:
        """A batch by its number, of training (part 0) or held out (1): always the same one."""
        rng = np.random.default_rng((self.seed, part, number))
        # Few values are frequent, many are rare.
        ids = {k: (n * rng.random(size) ** 3).astype("int32") for k, n in ROWS.items()}
        dense = rng.normal(size=(size, DENSE)).astype("float32")
        logits = dense @ self.weights + self.pair[ids["C8"], ids["C9"]] - 1.0
        for k, i in ids.items():
            logits += self.effects[k][i]
        labels = rng.random(size) < 1 / (1 + np.exp(-logits))
        features = recsys.KeyedJaggedTensor.from_columns(ids)
        return Batch(dense, features, labels.astype("float32"), logits)


class ClickFiles:
    """The same from Parquet files, of which each has some batches, a row group for each."""

    PER_FILE = 100
    NUMBERS = tuple(f"I{i + 1}" for i in range(DENSE))

    def __init__(self, folder: Path, clicks: PlantedClicks, size: int):
        self.folder, self.clicks, self.size = folder / f"{clicks.seed}-{size}", clicks, size
        self._open: tuple[Path, Any] = (Path(), None)

    def write(self, part: int, batches: int) -> None:
        """Make the files of a part that aren't there; one process does, the others wait for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for first in range(0, batches, self.PER_FILE):
            path = self._path(part, first)
            while not path.exists():
                if parallel.process_index() == 0:
                    new = path.with_suffix(".new")
                    tables = (self._table(part, first + i) for i in range(self.PER_FILE))
                    start = next(tables)
                    with pq.ParquetWriter(new, start.schema) as file:
                        file.write_table(start)
                        for table in tables:
                            file.write_table(table)
                    os.replace(new, path)
                else:
                    time.sleep(0.05)

    def batch(self, part: int, number: int) -> Batch:
        """A batch by its number, of training (part 0) or held out (1)."""
        path = self._path(part, number)
        if self._open[0] != path:
            self._open = path, pq.ParquetFile(path)
        read = self._open[1].read_row_group(number % self.PER_FILE)
        ids = recsys.KeyedJaggedTensor.from_columns(read, list(ROWS))
        dense = np.stack([read[k].to_numpy() for k in self.NUMBERS], axis=1)
        return Batch(dense, ids, read["label"].to_numpy(), read["logit"].to_numpy())

    def _path(self, part: int, number: int) -> Path:
        return self.folder / f"{('train', 'held_out')[part]}-{number // self.PER_FILE:04}.parquet"

    def _table(self, part: int, number: int) -> pa.Table:
        made = self.clicks.batch(part, number, self.size)
        columns = {k: np.asarray(x.values) for k, x in made.ids.features().items()}
        columns |= dict(zip(self.NUMBERS, made.dense.T.copy(), strict=True))
        return pa.table({"label": made.labels, "logit": made.logits, **columns})


def parts_of(batch: Batch, devices: int) -> tuple:
    """Numbers, ids and labels of a batch; the ids of each device apart."""
    recsys.check_features(batch.ids, ROWS)
    ids = recsys.split_batch(batch.ids, devices, capacity=len(batch.labels) // devices)
    return batch.dense, ids, batch.labels


def placed(parts: tuple, mesh: Any) -> tuple:
    """What `parts_of` gives, cut over devices."""
    cut = fg.NamedSharding(mesh, fg.P(mesh.axis_names))
    return tree.map(lambda x: fg.device_put(x, cut), parts)


def ahead(make: Any, numbers: Iterator[int]) -> Iterator[Any]:
    """make(n) for each number, the next one in a thread beside the use of the last."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for n in numbers:
            following = pool.submit(make, n)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


# ---- training


def logits_of(tables, params, dense, ids, cfg):
    """The model: rows of tables, pooled, and all that is dense."""
    return models.dlrm(params, recsys.embedding_bag(tables, ids), dense, cfg)


def init_state(key, cfg, layout: recsys.Layout, optimizers) -> dict:
    """Tables, dense parameters, what both optimizers keep, and the number of steps done."""
    first, second = random.split(key)
    whole = models.init_tables(first, {k: (n, cfg.dim) for k, n in ROWS.items()})
    tables, params = recsys.shard_tables(whole, layout), models.dlrm_init(second, cfg)
    like = tree.map(lambda x: fnp.zeros(x.shape, x.dtype), tables)
    rest = {
        "params": params,
        "sums": optimizers[0].init(like),
        "moments": optimizers[1].init(params),
        "step": fnp.zeros((), "int32"),
    }
    return {"tables": tables, **recsys.put(rest, layout.mesh)}


def make_step(cfg, layout: recsys.Layout, optimizers, state):
    """The compiled training step, in the view of one device; the old state's memory is reused."""
    sparse, dense = optimizers
    axes = layout.axes

    def loss_of(tables, params, x, ids, labels):
        logits = logits_of(tables, params, x, ids, cfg)
        return lax.pmean(fnp.mean(optim.sigmoid_binary_cross_entropy(logits, labels)), axes)

    def step(state, x, ids, labels):
        ids = tree.map(lambda v: v[0], ids)
        grad = recsys.value_and_sparse_grad(loss_of, 1)
        loss, (rows, grads) = grad(state["tables"], state["params"], x, ids, labels)
        updates, sums = sparse.update(rows, state["sums"], state["tables"])
        changes, moments = dense.update(grads, state["moments"], state["params"])
        return {
            "tables": recsys.apply_updates(state["tables"], updates),
            "params": optim.apply_updates(state["params"], changes),
            "sums": sums, "moments": moments, "step": state["step"] + 1,
        }, loss  # fmt: skip

    specs, batch = recsys.partition_specs(state), fg.P(axes)
    mapped = fg.shard_map(
        step, mesh=layout.mesh, in_specs=(specs, batch, batch, batch), out_specs=(specs, fg.P())
    )
    return fg.jit(mapped, donate_argnums=0)


def evaluate(state, cfg, layout: recsys.Layout, clicks: ClickFiles, args) -> tuple:
    """The AUC and the normalized entropy of held-out clicks, and the AUC of their true logits."""
    metrics = (recsys.streaming_auc(), recsys.normalized_entropy())
    axes, best = layout.axes, recsys.streaming_auc()

    def sums(tables, params, x, ids, labels):
        logits = logits_of(tables, params, x, tree.map(lambda v: v[0], ids), cfg)
        return lax.psum([m.update(m.init(), logits, labels) for m in metrics], axes)

    given = (state["tables"], state["params"])
    cut = (*recsys.partition_specs(given), *[fg.P(axes)] * 3)
    update = fg.jit(fg.shard_map(sums, mesh=layout.mesh, in_specs=cut, out_specs=fg.P()))
    found, limit = None, best.init()
    for n in range(args.held_out):
        batch = clicks.batch(1, n)
        more = tree.map(
            np.asarray, update(*given, *placed(parts_of(batch, layout.mesh.size), layout.mesh))
        )
        found = more if found is None else tree.map(np.add, found, more)
        limit = best.update(limit, batch.logits, batch.labels)
    auc, entropy = (float(m.value(s)) for m, s in zip(metrics, found, strict=True))
    return auc, entropy, float(best.value(limit))


# ---- serving


def top_ads(tables, params, user: Batch, cfg, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """The k ads that the first user of a batch clicks most likely, and how likely.

    tables: whole ones by name, of any kind that `embedding_bag` takes
    """
    n = ROWS[AD]
    first = {key: np.full(n, x.values[0]) for key, x in user.ids.features().items()}
    ids = recsys.KeyedJaggedTensor.from_columns({**first, AD: np.arange(n)})
    score = fg.jit(logits_of, static_argnums=4)
    logits = score(tables, params, np.repeat(user.dense[:1], n, axis=0), ids, cfg)
    chances, found = lax.top_k(nn.sigmoid(logits), k)
    return np.asarray(found), np.asarray(chances)


# ---- the run


def train(args, step, state, losses: list[float], clicks: ClickFiles, mesh, save) -> Any:
    """The steps that are left, under a progress bar; `save(n, state)` after some of them."""
    begin, end = int(state["step"]), min(args.steps, args.stop_at or args.steps)

    def make(n: int) -> tuple:
        return parts_of(clicks.batch(0, n), mesh.size)

    batches = ahead(make, iter(range(begin, end)))
    quiet = parallel.process_index() != 0
    with tqdm(total=end, initial=begin, unit="step", mininterval=0.5, disable=quiet) as bar:
        for n, parts in enumerate(batches, begin + 1):
            state, loss = step(state, *placed(parts, mesh))
            losses.append(float(loss))
            bar.set_postfix_str(f"loss {losses[-1]:.3f}", refresh=False)
            bar.update()
            if n % args.save_every == 0 or n == end:
                save(n, state)
    return state


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, or other arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="steps of the whole run")
    parser.add_argument("--stop-at", type=int, help="save and stop after this many steps")
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=1024, help="clicks of all devices")
    parser.add_argument("--held-out", type=int, default=30, help="batches to evaluate on")
    parser.add_argument("--dim", type=int, default=16, help="columns of the tables")
    parser.add_argument("--cross-layers", type=int, default=0, help="in place of products")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="of the tables")
    parser.add_argument("--megabytes", type=float, default=64, help="of a device, for the planner")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--devices", type=int, default=4, help="virtual devices, where no launcher gives processes"
    )
    parser.add_argument("--out", type=Path, default=Path("examples/out/dlrm"))
    parser.add_argument("--data", type=Path, help="folder of Parquet files; OUT/clicks by default")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Plan, train, evaluate, save, serve."""
    args = parse_args(arguments)
    say = print if parallel.process_index() == 0 else lambda *_: None
    planted = PlantedClicks(args.seed)
    clicks = ClickFiles(args.data or args.out / "clicks", planted, args.batch)
    for part, batches in enumerate((args.steps, args.held_out)):
        clicks.write(part, batches)
    cfg = models.DLRMConfig(tuple(ROWS), DENSE, args.dim, cross_layers=args.cross_layers)
    devices = parallel.process_count() if parallel.process_count() > 1 else args.devices
    shapes = {k: (n, cfg.dim) for k, n in ROWS.items()}
    plan = recsys.plan(shapes, devices, memory=args.megabytes * 1e6, batch=args.batch // devices)
    say(plan)
    layout = recsys.layout(shapes, plan.shardings, fg.make_mesh(devices, "device"))
    optimizers = recsys.rowwise_adagrad(args.learning_rate), optim.adam(1e-3)
    state = init_state(random.key(args.seed), cfg, layout, optimizers)
    step = make_step(cfg, layout, optimizers, state)

    names = ("steps", "batch", "dim", "cross_layers", "learning_rate", "seed")
    run = {k: vars(args)[k] for k in names} | {"devices": devices}
    losses: list[float] = []
    with Checkpointer(args.out / "checkpoints") as checkpoints:
        if args.resume:
            state, losses = resume(checkpoints, state, run)
        state = train(
            args, step, state, losses, clicks, layout.mesh,
            lambda n, state: checkpoints.save(n, state, metadata={"run": run, "losses": losses}),
        )  # fmt: skip

    auc, entropy, limit = evaluate(state, cfg, layout, clicks, args)
    say(f"loss of step {len(losses)}: {losses[-1]:.6f}")
    say(f"held out: AUC {auc:.4f} (the true logits have {limit:.4f}), entropy {entropy:.4f}")
    tables = recsys.gather_tables(state["tables"])
    small = {k: recsys.quantize_rows(t) for k, t in tables.items()}
    params = tree.map(np.asarray, state["params"])
    ads, chances = top_ads(small, params, planted.batch(1, 0, 1), cfg)
    shown = ", ".join(f"{i} ({p:.0%})" for i, p in zip(ads, chances, strict=True))
    say(f"best ads of a user, from tables of 8 bits: {shown}")
    say(f"--- wrote {checkpoints.folder}")


if __name__ == "__main__":
    main()
