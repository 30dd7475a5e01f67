"""Run the measurements one after another, each in a process of its own that may fail or be ended.

python -m benchmarks.cuda --prepare DIR          # anywhere: PTX, and what the CPU computes
python -m benchmarks.cuda --ptx DIR --out DIR    # on a machine with a GPU, CuPy and PyTorch
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cuda import attention, bandwidth, bits, launching, layouts, texts

MODULES = ("bits", "launches", "products", "bandwidth", "layouts", "attention", "blocking")
NEEDS_PTX = ("bits", "launches", "bandwidth", "layouts", "attention")


def prepare(folder: Path) -> None:
    """Write all texts, with what ptxas says of them, and the CPU's results (some two minutes)."""
    folder.mkdir(parents=True, exist_ok=True)
    for module in (launching, bandwidth, layouts, attention):
        for name, text in module.ptx_texts().items():
            (folder / f"{name}.ptx").write_text(text)
            print(f"{name:34} {texts.assembled(text)}", flush=True)
    bits.prepare(folder)


def run(module: str, options: argparse.Namespace) -> None:
    """One measurement; what it prints lies beside its figures."""
    command = [sys.executable, "-u", "-m", f"benchmarks.cuda.{module}", "--out", options.out]
    if module in NEEDS_PTX:
        command += ["--ptx", options.ptx]
    start, log = time.perf_counter(), options.out / f"{module}.txt"
    status: int | str
    with log.open("w") as file:
        try:
            done = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, timeout=options.seconds,
                env={**os.environ, "CUDA_CACHE_DISABLE": "1"},  # else "link ms" is a file's reading
            )  # fmt: skip
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = "ended at its limit"
    print(f"=== {module}: {status}, {time.perf_counter() - start:.1f} s", flush=True)
    print(log.read_text(), flush=True)


def main() -> None:
    """Prepare, or run what `--only` names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--ptx", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", choices=MODULES, default=MODULES)
    parser.add_argument("--seconds", type=float, default=100.0, help="at most, for each of them")
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare)
        return
    if not (options.ptx and options.out):
        parser.error("either --prepare DIR, or --ptx DIR and --out DIR")
    options.out.mkdir(parents=True, exist_ok=True)
    for module in options.only:
        run(module, options)


if __name__ == "__main__":
    main()
