"""A data-parallel step on two ranks of one thread against one process of two threads.

    python -m benchmarks.data_parallel     # medians of interleaved rounds, and ratios

Both train the GPT of examples/gpt.py in the same total batch, so they do the same work; the ranks
also sum their gradients. Also: what a call with sharded arrays costs beside one with plain ones.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import random
from funcgrad.parallel import NamedSharding, P, make_mesh, process_count, process_index
from funcgrad.parallel.supervise import mpiexec

ROOT = Path(__file__).parent.parent
BATCH = 8
# About what a step takes: ranks must agree on how many they make.
STEP = 0.06


def steps(width: int, layers: int, context: int, seconds: float) -> float:
    """Seconds a step, the best of ten bursts, on all ranks of this job (or this process alone)."""
    sys.path.insert(0, str(ROOT / "examples"))
    import gpt
    from layouts import LAYOUTS

    cfg = gpt.Config(96, context=context, width=width, heads=8, layers=layers)
    optimizer = gpt.make_optimizer(100, 1e-3)
    init = partial(gpt.init_state, cfg=cfg, optimizer=optimizer)
    key = random.key(0)
    layout = LAYOUTS["ddp"](fg.eval_shape(init, key), process_count())
    state = fg.jit(init, out_shardings=layout.state)(key)
    step = gpt.make_step(cfg, optimizer, BATCH, layout)
    codes = fnp.array(np.random.default_rng(0).integers(0, 96, 50000, np.int32))
    state, _ = step(state, key, codes)
    turns = max(1, round(seconds / 10 / STEP))
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        for _ in range(turns):
            state, loss = step(state, key, codes)
        float(loss)
        best = min(best, (time.perf_counter() - started) / turns)
    return best


def dispatch() -> tuple[float, float]:
    """Seconds a call of a compiled function of one array: a plain one, and a sharded one."""
    f = fg.jit(lambda x: x + 1)
    mesh = make_mesh(4, "data") if process_count() == 1 else make_mesh(-1, "data")
    plain = fnp.arange(64.0)
    sharded = fg.device_put(plain, NamedSharding(mesh, P("data")))
    found = []
    for x in (plain, sharded):
        f(x)
        best = float("inf")
        for _ in range(30):
            started = time.perf_counter()
            for _ in range(1000):
                f(x)
            best = min(best, (time.perf_counter() - started) / 1000)
        found.append(best)
    return found[0], found[1]


def main() -> None:
    """Measure in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inside", action="store_true", help="measure here, and print seconds")
    args = parser.parse_args()
    if args.inside:
        best = steps(args.width, args.layers, args.context, args.seconds)
        if process_index() == 0:
            print(best)
        return
    found: dict[str, list[float]] = {"1 process × 2 threads": [], "2 ranks × 1 thread": []}
    inside = [sys.executable, "-m", "benchmarks.data_parallel", "--inside"]
    for name in ("width", "layers", "context", "seconds"):
        inside += [f"--{name}", str(getattr(args, name))]
    for _ in range(args.rounds):
        for (name, times), start, threads in zip(
            found.items(), ([], [mpiexec(), "-n", "2"]), ("2", "1"), strict=True
        ):
            env = os.environ | {"FUNCGRAD_NUM_THREADS": threads}
            done = subprocess.run([*start, *inside], env=env, cwd=ROOT, capture_output=True,
                                  text=True, check=True)  # fmt: skip
            times.append(float(done.stdout.split()[-1]))
            print(f"{name}: {times[-1] * 1e3:.2f} ms", flush=True)
    one, two = (statistics.median(t) for t in found.values())
    print(f"medians: {one * 1e3:.2f} ms and {two * 1e3:.2f} ms, ratio {two / one:.3f}")
    plain, sharded = dispatch()
    print(f"a call: {plain * 1e6:.2f} µs plain, {sharded * 1e6:.2f} µs sharded")


if __name__ == "__main__":
    main()
