"""Rings, pipelines, experts and deep models against what they could take at best.

    python -m benchmarks.sequences     # ratios, each of two measurements in turn

A ring of two ranks of one thread against attention of the whole on two threads; a pipeline of four
stages on two ranks against its schedule's ideal; the same of actions that only sleep, so that other
work on the machine hardly matters: what sending costs, and the share of time in which ranks wait;
a layer of tensor parallelism with its products round rings against gathers and scatters of all;
an expert layer's grouped products against one product of the same arithmetic; the first call of 48
scanned layers against that of 4.
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
from funcgrad.parallel.pipelines import make_schedule, simulate
from funcgrad.parallel.supervise import mpiexec

ROOT = Path(__file__).parent.parent
STAGES, MICROBATCHES = 4, 8
UNIT = 50  # milliseconds


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


def pipeline(width: int) -> float:
    """A step of four stages on two ranks; without ranks the same actions, one after the other:
    microbatch by microbatch, gradients of weights and of inputs."""
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
    if process_count() > 1:
        mesh = make_mesh(-1, "pp")
        step = pipeline_value_and_grad(stage, loss, mesh=mesh, microbatches=MICROBATCHES)
        w = fg.device_put(w, NamedSharding(mesh, P("pp")))
    run = fg.jit(step)
    return best(lambda: run(w, x, x))


def waits(milliseconds: int) -> float:
    """A step of a stage a rank whose forward passes sleep so long, and backward passes twice."""
    unit = milliseconds / 1000

    def slept(x: Any, seconds: float) -> Any:
        def wait(value: Any) -> Any:
            time.sleep(seconds)
            return value

        return fg.pure_callback(wait, fg.ShapeDtypeStruct(x.shape, x.dtype), x)

    @fg.custom_vjp
    def sleeping(h: Any) -> Any:
        return slept(h, unit)

    sleeping.defvjp(lambda h: (slept(h, unit), None), lambda _, ct: (slept(ct, 2 * unit),))
    mesh = make_mesh(-1, "pp")
    step = pipeline_value_and_grad(
        lambda w, h: sleeping(h) * w, lambda y, t: fnp.mean((y - t) ** 2), mesh=mesh,
        microbatches=MICROBATCHES,
    )  # fmt: skip
    run, w, x = fg.jit(step), normal(mesh.shape["pp"], 4), normal(MICROBATCHES, 4)
    return best(lambda: run(w, x, x))


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


INSIDE = {"ring": ring, "pipeline": pipeline, "waits": waits, "products": products}


def elsewhere(subject: str, size: int, ranks: int, threads: int) -> float:
    """A subject's seconds in a job of its own."""
    start = [mpiexec(), "-n", str(ranks)] if ranks > 1 else []
    command = [*start, sys.executable, "-m", "benchmarks.sequences", "--inside", subject]
    env = os.environ | {"FUNCGRAD_NUM_THREADS": str(threads)}
    done = subprocess.run([*command, "--size", str(size)], env=env, cwd=ROOT, capture_output=True,
                          text=True, check=True)  # fmt: skip
    return float(done.stdout.split()[-1])


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


def main() -> None:
    """Measure in turn, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--inside", choices=list(INSIDE), help="measure here, on ranks or on one process"
    )
    parser.add_argument("--size", type=int, default=0)
    args = parser.parse_args()
    if args.inside:
        seconds = INSIDE[args.inside](args.size)
        if process_index() == 0:
            print(seconds)
        return
    rings, pipes = [], []
    # Two ranks share the work; what the schedule leaves idle comes on top.
    timeline = simulate(make_schedule("1f1b", ranks=2, microbatches=MICROBATCHES))
    busy = 1 - max(timeline.idle) / timeline.length
    for _ in range(args.rounds):
        rings.append(elsewhere("ring", args.length, 2, 1) / elsewhere("ring", args.length, 1, 2))
        alone = elsewhere("pipeline", args.width, 1, 1)
        pipes.append(elsewhere("pipeline", args.width, 2, 1) / (alone / 2 / busy))
    slept = elsewhere("waits", UNIT, 2, 1) * 1000 / UNIT
    idle, formula = 1 - (timeline.length - max(timeline.idle)) / slept, 1 - busy
    print(f"a ring of two ranks: {statistics.median(rings):.2f} × one process of two threads")
    print(f"a pipeline's step: {statistics.median(pipes):.2f} × the schedule's ideal")
    print(f"one of sleeping actions: {slept / timeline.length:.3f} × the ideal; "
          f"waiting for {idle:.3f} of it, {formula:.3f} by the formula")  # fmt: skip
    rounds = elsewhere("products", 4 * args.width, 2, 1)
    print(f"products round a ring: {rounds:.2f} × gathers and scatters of all")
    one, each = grouped()
    print(f"grouped products: {one:.2f} of one product's speed, {each:.2f} of one's an expert")
    print(f"the first call of 48 layers: {deep():.2f} × that of 4")


if __name__ == "__main__":
    main()
