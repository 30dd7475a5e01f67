"""The demo's training step: compiled against eager."""

from __future__ import annotations

import sys
from pathlib import Path

import funcgrad as fg
import funcgrad.numpy as fnp
from benchmarks.timing import interleaved, report
from funcgrad import random

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import gpt

BATCH = 8


def main() -> None:
    """Measure a step of the demo's model and batch."""
    train, _, alphabet = gpt.load_text()
    cfg = gpt.Config(len(alphabet))
    optimizer = gpt.make_optimizer(14000, 3e-3)
    params = gpt.init_params(random.key(0), cfg)
    state = {"params": params, "optimizer": optimizer.init(params), "step": fnp.zeros((), "int32")}
    step = gpt.make_step(cfg, optimizer, BATCH)
    codes, key = fnp.array(train), random.key(1)
    held = {"jit": fg.tree.map(fnp.array, state)}

    def compiled() -> None:
        held["jit"], _ = step(held["jit"], key, codes)

    def eager() -> None:
        with fg.disable_jit():
            step(state, key, codes)

    medians = interleaved({"jit": compiled, "eager": eager}, seconds=20.0)
    report(f"GPT training step, {cfg}, batch {BATCH}", medians, ours="jit")


if __name__ == "__main__":
    main()
