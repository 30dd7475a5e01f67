"""Rings, pipelines, experts and deep models against what they could take at best.

    python -m benchmarks.sequences     # ratios, each of two measurements in turn

A ring of two ranks of one thread against attention of the whole on two threads; a pipeline of four
stages on two ranks against its schedule's ideal, once of one rank that has the machine for itself,
and once of two that do all of the work each at the same time, without a word to each other; each
schedule on four ranks with actions that only sleep, so that other work on the machine hardly
matters: the share of time in which ranks wait; a layer of tensor parallelism with its products
round rings against gathers and scatters of all; an expert layer's grouped products against one
product of the same arithmetic; the first call of 48 scanned layers against that of 4; a model on
paper for 16,384 devices against 64.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.parallel import (
    AbstractMesh,
    NamedSharding,
    P,
    make_mesh,
    pipeline_value_and_grad,
    process_count,
    process_index,
    sequence_attention,
    tensor_products,
    with_sharding_constraint,
)
from funcgrad.parallel.pipelines import Timeline, make_schedule, simulate
from funcgrad.parallel.supervise import mpiexec

ROOT = Path(__file__).parent.parent
STAGES, MICROBATCHES, RANKS = 4, 8, 4
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
UNIT = 200  # milliseconds


def normal(*shape: int) -> np.ndarray:
    """Small numbers, the same on all ranks."""
    return (np.random.default_rng(0).normal(size=shape) / 8).astype(np.float32)


def best(run: Callable[[], Any], turns: int = 5) -> float:
    """Seconds of the quickest of some calls, after a first one."""
    fg.block_until_ready(run())
    times = []
    for _ in range(turns):
        started = time.perf_counter()
        fg.block_until_ready(run())
        times.append(time.perf_counter() - started)
    return min(times)


# ---- on ranks, or on one process


def ring(length: int) -> float:
    """Attention of a sequence and its gradient, cut over the ranks there are."""
    x = fnp.array(normal(1, length, 8, 64))
    if process_count() > 1:
        x = fg.device_put(x, NamedSharding(make_mesh(-1, "cp"), P(None, "cp")))
    attend = fg.jit(fg.grad(lambda x: fnp.sum(nn.dot_product_attention(x, x, x) ** 2)))
    with sequence_attention("ring"):
        return best(lambda: attend(x))


def piped(width: int) -> float:
    """A step of four stages on two ranks; on one process the same actions, one after the other:
    microbatch by microbatch, gradients of weights and of inputs."""
    return _pipeline(width, process_count() > 1)


def apart(width: int) -> float:
    """All of the step on each rank, at the same time."""
    return _pipeline(width, False)


def _pipeline(width: int, over_ranks: bool) -> float:
    layers = STAGES, width, 4 * width
    w = {"up": fnp.array(normal(*layers)), "down": fnp.array(normal(STAGES, 4 * width, width))}
    x = fnp.array(normal(MICROBATCHES * 512, width))

    def stage(w: Any, h: Any) -> Any:
        return h + nn.gelu(h @ w["up"]) @ w["down"]

    def loss(y: Any, t: Any) -> Any:
        return fnp.mean((y - t) ** 2)

    def in_a_row(w: Any, x: Any, t: Any) -> Any:
        return loss(lax.scan(lambda h, w: (stage(w, h), None), x, w)[0], t)

    def alone(w: Any, *batch: Any) -> Any:
        def one(total: Any, batch: Any) -> Any:
            value, (grads, dx) = fg.value_and_grad(in_a_row, (0, 1))(w, *batch)
            return fg.tree.map(fnp.add, total, (value, grads)), dx

        start = fnp.zeros(()), fg.tree.map(fnp.zeros_like, w)
        return lax.scan(one, start, [v.reshape(MICROBATCHES, -1, width) for v in batch])

    step: Any = alone
    if over_ranks:
        mesh = make_mesh(-1, "pp")
        step = pipeline_value_and_grad(stage, loss, mesh=mesh, microbatches=MICROBATCHES)
        w = fg.device_put(w, NamedSharding(mesh, P("pp")))
    run = fg.jit(step)
    return best(lambda: run(w, x, x))


def idle(milliseconds: int) -> list[float]:
    """Of a step by each schedule, whose F, I and W sleep so long, the share in which the first rank
    does nothing."""
    mesh, naps = make_mesh(-1, "pp"), list[float]()

    def slept(x: Any) -> Any:
        def wait(value: Any) -> Any:
            started = time.perf_counter()
            time.sleep(milliseconds / 1000)
            naps.append(time.perf_counter() - started)
            return value

        return fg.pure_callback(wait, fg.ShapeDtypeStruct(x.shape, x.dtype), x)

    @fg.custom_vjp
    def stage(w: Any, h: Any) -> Any:
        return slept(h * w)

    def back(kept: Any, ct: Any) -> Any:
        w, h = kept
        return fnp.sum(slept(ct * h), 0), slept(ct * w)

    stage.defvjp(lambda w, h: (slept(h * w), (w, h)), back)
    found = []
    for timeline in timelines(mesh.shape["pp"]):
        schedule = timeline.schedule
        step = pipeline_value_and_grad(
            stage, lambda y, t: fnp.mean((y - t) ** 2), mesh=mesh, microbatches=MICROBATCHES,
            schedule=schedule,
        )  # fmt: skip
        run, w, x = fg.jit(step), normal(schedule.stages, 4), normal(MICROBATCHES, 4)
        fg.block_until_ready(run(w, x, x))
        naps.clear()
        started = time.perf_counter()
        fg.block_until_ready(run(w, x, x))
        found.append(1 - sum(naps) / (time.perf_counter() - started))
    return found


def timelines(ranks: int) -> list[Timeline]:
    """Each schedule on paper."""
    return [simulate(make_schedule(name, ranks, MICROBATCHES, 2)) for name in SCHEDULES]


def products(width: int) -> float:
    """A layer of tensor parallelism on two ranks and its gradient, activations cut along the
    sequence: products round rings against gathers and scatters of all."""
    mesh = make_mesh(-1, "tp")
    rows, columns, cut = P(None, "tp"), P("tp"), NamedSharding(mesh, P(None, "tp"))
    shapes = (1, width, width), (width, 4 * width), (4 * width, width)
    xs = [
        fg.device_put(normal(*shape), NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, (rows, rows, columns), strict=True)
    ]

    def layer(x: Any, up: Any, down: Any) -> Any:
        return with_sharding_constraint(fnp.tanh(nn.standardize(x) @ up) @ down, cut)

    def found(way: Any) -> float:
        with tensor_products(way):
            run = fg.jit(fg.grad(lambda *xs: fnp.sum(layer(*xs) ** 2), (0, 1, 2)))
            return best(lambda: run(*xs))

    return found("ring") / found("whole")


INSIDE = {"ring": ring, "piped": piped, "apart": apart, "idle": idle, "products": products}


def elsewhere(subject: str, size: int, ranks: int, threads: int) -> list[float]:
    """A subject's figures from a job of its own."""
    start = [mpiexec(), "-n", str(ranks)] if ranks > 1 else []
    command = [*start, sys.executable, "-m", "benchmarks.sequences", "--inside", subject]
    env = os.environ | {"FUNCGRAD_NUM_THREADS": str(threads)}
    done = subprocess.run([*command, "--size", str(size)], env=env, cwd=ROOT, capture_output=True,
                          text=True, check=True)  # fmt: skip
    return [float(text) for text in done.stdout.splitlines()[-1].split()]


# ---- here


def grouped(rows: int = 4096, width: int = 512, experts: int = 8) -> tuple[float, float]:
    """Products of rows that are grouped by expert: their speed as a share of that of one product,
    and of that of a product for each expert, which reads as many weights."""
    x, w = fnp.array(normal(rows, width)), fnp.array(normal(experts, width, width))
    sizes, blocks = fnp.full(experts, rows // experts, "int32"), x.reshape(experts, -1, width)
    many, product = fg.jit(lax.ragged_dot), fg.jit(fnp.matmul)
    runs = [lambda: many(x, w, sizes), lambda: product(x, w[0]), lambda: product(blocks, w)]
    ours, one, each = np.min([[best(run, 5) for run in runs] for _ in range(5)], axis=0)
    return float(one / ours), float(each / ours)


def deep() -> float:
    """The first call of 48 scanned layers beside that of 4."""

    def loss(w: Any, x: Any) -> Any:
        return fnp.mean(lax.scan(lambda h, w: (nn.gelu(h @ w), None), x, w)[0] ** 2)

    def first(layers: int) -> float:
        w, x = fnp.array(normal(layers, 64, 64)), fnp.array(normal(32, 64))
        step = fg.jit(fg.grad(loss))
        fg.clear_caches()
        started = time.perf_counter()
        step.lower(w, x).compile()
        return time.perf_counter() - started

    first(3)
    return first(48) / first(4)


def paper() -> float:
    """Lowering for 16,384 devices beside that for 64."""
    sys.path.append(str(ROOT / "examples"))
    import any_mesh

    cfg = any_mesh.Config("llama", 32768, layers=32, width=4096, heads=32, context=1024)

    def lowered(fsdp: int) -> float:
        mesh = AbstractMesh((4, fsdp, 4), ("pp", "fsdp", "tp"))
        started = time.perf_counter()
        any_mesh.on_paper(any_mesh.Model(cfg, mesh), 2 * fsdp)
        return time.perf_counter() - started

    lowered(2)
    return lowered(1024) / lowered(4)


def shared_work(args: argparse.Namespace) -> None:
    """Rings and pipelines on two ranks."""
    figures = []
    # Two ranks share the work; what the schedule leaves idle comes on top.
    timeline = simulate(make_schedule("1f1b", ranks=2, microbatches=MICROBATCHES))
    busy = 1 - max(timeline.idle) / timeline.length
    for _ in range(args.rounds):
        (cut,), (whole,) = (elsewhere("ring", args.length, *on) for on in ((2, 1), (1, 2)))
        (alone,), (piped,) = (elsewhere("piped", args.width, n, 1) for n in (1, 2))
        (both,) = elsewhere("apart", args.width, 2, 1)
        figures.append((cut / whole, 2 * busy * piped / alone, 2 * busy * piped / both))
    ring, one, two = (statistics.median(column) for column in zip(*figures, strict=True))
    print(f"a ring of two ranks: {ring:.2f} × one process of two threads")
    print(f"a pipeline's step: {one:.2f} × the schedule's ideal by one rank's speed alone, "
          f"{two:.2f} × by that of two at the same time")  # fmt: skip


def main() -> None:
    """Measure in turn, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["shared", "idle", "products", "grouped", "deep"])
    parser.add_argument("--inside", choices=list(INSIDE), help="measure here, on the ranks it has")
    parser.add_argument("--size", type=int, default=0)
    args = parser.parse_args()
    if args.inside:
        figures = INSIDE[args.inside](args.size)
        if process_index() == 0:
            print(*figures if isinstance(figures, list) else [figures])
        return
    if args.only in (None, "shared"):
        shared_work(args)
    if args.only in (None, "idle"):
        measured = elsewhere("idle", UNIT, RANKS, 1)
        for timeline, share in zip(timelines(RANKS), measured, strict=True):
            formula = timeline.idle[0] / timeline.length
            print(f"{timeline.schedule.name} on {RANKS} ranks: waiting for {share:.3f} of a step, "
                  f"{formula:.3f} by the formula")  # fmt: skip
    if args.only in (None, "products"):
        (rounds,) = elsewhere("products", 2 * args.width, 2, 1)
        print(f"products round a ring: {rounds:.2f} × gathers and scatters of all")
    if args.only in (None, "grouped"):
        for width in (512, 1024):
            one, each = grouped(width=width)
            print(f"grouped products, width {width}: {one:.2f} of one product's speed, "
                  f"{each:.2f} of one's an expert")  # fmt: skip
    if args.only in (None, "deep"):
        print(f"the first call of 48 layers: {deep():.2f} × that of 4")
        print(f"lowering for 16,384 devices: {paper():.2f} × that for 64")


if __name__ == "__main__":
    main()
