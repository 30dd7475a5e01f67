"""C libraries: how large they are, how soon they load, and how long a run takes.

python -m benchmarks.native     # of the demo's GPT, untrained, and of an addition
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import funcgrad as fg
from funcgrad import export, random

ROOT = Path(__file__).parent.parent
ROUNDS = 31


def in_c(folder: Path, fun: Callable, types: tuple, turns: int) -> tuple[int, int, float, float]:
    """Bytes of a function's library without its weights, and of these; seconds to load it, and of
    a run."""
    made = export.aot(export.export(fg.jit(fun))(*types), folder, name="net")
    program = folder / "native"
    subprocess.run(["cc", "-O2", f"-I{folder}", str(Path(__file__).with_suffix(".c")), "-ldl",
                    "-o", str(program)], check=True)  # fmt: skip
    told = subprocess.run([program, made.library, str(turns)], check=True, capture_output=True,
                          text=True)  # fmt: skip
    load, run = map(float, told.stdout.split())
    weights = made.weights.stat().st_size
    return made.library.stat().st_size - weights, weights, load, run


def by_jit(fun: Callable, types: tuple, turns: int) -> float:
    """Seconds of a call of the compiled function in Python, on zeros."""
    f = fg.jit(fun)
    args = [fg.numpy.zeros(t.shape, t.dtype) for t in types]
    took = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(turns):
            f(*args)
        took.append((time.perf_counter() - start) / turns)
    return statistics.median(took[1:])


def gpt_step() -> tuple[Callable, tuple]:
    """The demo's step with a cache, of random weights."""
    sys.path.insert(0, str(ROOT / "examples"))
    import native_gpt

    alphabet = native_gpt.gpt.load_text()[2]
    cfg = native_gpt.gpt.Config(len(alphabet))
    params = native_gpt.gpt.init_params(random.key(0), cfg)
    return native_gpt.step_of(params, cfg, alphabet)


def main() -> None:
    """Print what was measured."""
    small = (lambda x: x + 1), (fg.ShapeDtypeStruct((8,), "float32"),)
    for name, (fun, types), turns in (("GPT", gpt_step(), 20), ("x + 1", small, 100_000)):
        with tempfile.TemporaryDirectory() as folder:
            code, weights, load, run = in_c(Path(folder), fun, types, turns)
        jit = by_jit(fun, types, min(turns, 10_000))
        print(
            f"{name}: {code / 1e3:.0f} kB and {weights / 1e3:.0f} kB of weights; loads in "
            f"{load * 1e3:.2f} ms; a run takes {run * 1e6:.3g} us, {run / jit:.2f} x jit's call"
        )


if __name__ == "__main__":
    main()
