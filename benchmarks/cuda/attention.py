"""Attention's forward pass by a generated kernel, beside PyTorch's, in TFLOP/s.

python -m benchmarks.cuda --prepare DIR                 # here: the PTX texts, registers, spills
python -m benchmarks.cuda.attention --ptx DIR --out DIR # on the machine with the GPU
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cuda import texts
from benchmarks.cuda.driver import Driver, Kernel
from benchmarks.cuda.flash import Flash, Writer
from benchmarks.cuda.scalars import device_text
from funcgrad.backends.llvm.emit.text import Definitions

torch: Any = None  # loaded by main: this machine may have none

KERNELS = [
    Flash(d, warps, tiles, keys, shared_q)
    for d, warps, tiles, keys, shared_q in [
        (64, 4, 1, 64, False), (64, 8, 1, 64, False), (64, 4, 2, 64, False),
        (64, 4, 1, 128, True), (64, 8, 1, 128, True), (64, 4, 2, 64, True),
        (128, 4, 1, 64, False), (128, 8, 1, 64, False), (128, 4, 1, 32, False),
        (128, 4, 1, 64, True), (128, 8, 1, 64, True), (128, 4, 1, 128, True),
        (128, 8, 1, 128, True), (128, 4, 2, 32, True),
    ]
]  # fmt: skip
KERNELS += [
    flash._replace(causal=True)
    for flash in KERNELS
    if flash[1:5] in ((4, 2, 64, False), (4, 1, 128, True), (8, 1, 128, True), (4, 2, 32, True),
                     (4, 1, 64, True))
]  # fmt: skip
SIZES = [(4, 16, 4096), (1, 16, 16384), (16, 16, 1024)]


def ptx_texts() -> dict[str, str]:
    """By name: the PTX of each kernel."""
    made = {}
    for flash in KERNELS:
        module = Definitions()
        kernel = Writer(module, flash).text()
        made[flash.name] = texts.ptx(device_text(module.text([kernel])))
    return made


def run(driver: Driver, made: Kernel, flash: Flash, tensors: list[Any]) -> None:
    """Start the kernel on (heads, keys, d)."""
    heads, keys, _ = tensors[0].shape
    args = [*(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_int(keys)]
    driver.launch(made, [keys // flash.queries, heads], [32 * flash.warps], args,
                  shared=flash.shared)  # fmt: skip


def measured(driver: Driver, flash: Flash, ptx: str, sizes: list) -> dict[str, Any]:
    """Registers, link time, the error of one size, TFLOP/s of some."""
    linked = driver.link(ptx)
    made = driver.kernel(driver.load(linked.image), flash.name, flash.shared)
    found: dict[str, Any] = {
        "registers": made.registers, "local bytes": made.local_bytes,
        "link ms": linked.milliseconds,
    }  # fmt: skip
    found["error"] = error(driver, made, flash)
    for batch, heads, keys in sizes:
        q, k, v = drawn(batch * heads, keys, flash.d)
        out = torch.empty_like(q)
        taken = driver.microseconds(lambda _: run(driver, made, flash, [q, k, v, out]),  # noqa: B023
                                    repeats=5, inner=3)  # fmt: skip
        found[f"{batch} x {heads} x {keys}"] = rate(
            batch * heads, keys, flash.d, taken, flash.causal
        )
    return found


def rate(heads: int, keys: int, d: int, taken: float, causal: bool) -> float:
    """TFLOP/s; half the products count if later keys are masked."""
    return 4 * heads * keys**2 * d / taken / 1e6 / (2 if causal else 1)


def drawn(heads: int, keys: int, d: int) -> list[Any]:
    """Random queries, keys and values."""
    return [torch.randn(heads, keys, d, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def error(driver: Driver, made: Kernel, flash: Flash) -> float:
    """The relative error beside float64, in the Frobenius norm."""
    tensors = drawn(3, 1024, flash.d)
    out = torch.full_like(tensors[0], float("nan"))
    run(driver, made, flash, [*tensors, out])
    driver.synchronize()
    q, k, v = (x.double() for x in tensors)
    logits = q @ k.mT / math.sqrt(flash.d)
    if flash.causal:
        later = torch.ones_like(logits, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(later, float("-inf"))
    wanted = torch.softmax(logits, -1) @ v
    return float((out.double() - wanted).norm() / wanted.norm())


def peers(driver: Driver) -> dict[str, Any]:
    """PyTorch's attention by its backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend, found = torch.nn.functional.scaled_dot_product_attention, {}
    backends = ("FLASH_ATTENTION", "CUDNN_ATTENTION")
    for d, name, causal in itertools.product((64, 128), backends, (False, True)):
        for batch, heads, keys in SIZES:
            what = f"{d} {name}{' causal' if causal else ''} {batch} x {heads} x {keys}"
            q, k, v = (x.view(batch, heads, keys, d) for x in drawn(batch * heads, keys, d))
            run = partial(attend, q, k, v, is_causal=causal)
            try:
                with sdpa_kernel(getattr(SDPBackend, name)):
                    taken = driver.microseconds(lambda _, r=run: r(), repeats=5, inner=3)
                found[what] = rate(batch * heads, keys, d, taken, causal)
            except Exception as e:
                found[what] = str(e)[:200]
    return found


def main() -> None:
    """Measure all; a JSON file and a table."""
    global torch
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ptx", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", action="store_true", help="errors alone, as for a sanitizer")
    options = parser.parse_args()
    import torch as loaded

    torch = loaded
    torch.zeros(1, device="cuda")
    driver = Driver()
    found: dict[str, Any] = {"device": driver.name, "driver": driver.version}
    for flash in KERNELS:
        try:
            ptx = (options.ptx / f"{flash.name}.ptx").read_text()
            found[flash.name] = measured(driver, flash, ptx, [] if options.check else SIZES)
        except Exception as e:
            found[flash.name] = {"error": f"{type(e).__name__}: {e}"}
        print(flash.name, found[flash.name], flush=True)
        (options.out / "attention.json").write_text(json.dumps(found, indent=1))
    found["peers"] = {} if options.check else peers(driver)
    (options.out / "attention.json").write_text(json.dumps(found, indent=1))
    for what, value in found["peers"].items():
        print(f"  {what:44} {value}")


if __name__ == "__main__":
    main()
