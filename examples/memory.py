"""What a device keeps and sends when a GPT is trained, on paper: no device is needed.

    python examples/memory.py               # on 8, 64 and 4096 devices

Parameters and Adam's two moments, all float32, make 12 bytes a parameter (Ψ of them). On R devices:
DDP keeps 12Ψ, ZeRO-1 4Ψ + 8Ψ/R, FSDP (ZeRO-3) 12Ψ/R. (With float16 parameters and gradients, and
float32 copies of the parameters, it is 16Ψ: Rajbhandari et al., ZeRO, 2020.)
"""

from __future__ import annotations

import argparse
from functools import partial

import gpt
from layouts import LAYOUTS

import funcgrad as fg
from funcgrad import random, tree
from funcgrad.parallel import Analysis

LARGE = gpt.Config(vocabulary=32768, context=1024, width=4096, heads=32, layers=4)


def on_paper(layout: str, devices: int, cfg: gpt.Config, batch: int) -> tuple[Analysis, int, int]:
    """A training step's analysis, the bytes of a device's part of the state, and Ψ."""
    optimizer = gpt.make_optimizer(100, 1e-3)
    init = partial(gpt.init_state, cfg=cfg, optimizer=optimizer)
    key = random.key(0)
    types = fg.eval_shape(init, key)
    found = LAYOUTS[layout](types, devices)
    state = tree.map(
        lambda t, s: fg.ShapeDtypeStruct(t.shape, t.dtype, sharding=s), types, found.state
    )
    codes = fg.ShapeDtypeStruct((1_000_000,), "int32")
    step = gpt.make_step(cfg, optimizer, batch, found)
    analysis = step.lower(state, key, codes).device_analysis()
    kept = sum(
        fg.ShapeDtypeStruct(s.shard_shape(t.shape), t.dtype).aval.nbytes
        for t, s in zip(tree.leaves(types), tree.leaves(found.state), strict=True)
    )
    return analysis, kept, sum(t.size for t in tree.leaves(types["params"]))


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 64, 4096])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["ddp", "zero1", "fsdp"])
    args = parser.parse_args(arguments)
    print(f"{LARGE}, one text a device")
    print(f"{'layout':<8} {'devices':>7} {'state':>10} {'of Ψ':>9} {'temporary':>10} {'sent':>10}")
    for layout in args.layouts:
        for n in args.devices:
            found, kept, parameters = on_paper(layout, n, LARGE, batch=n)
            print(
                f"{layout:<8} {n:>7} {kept / 1e9:>7.3f} GB {kept / parameters:>7.3f} Ψ "
                f"{found.temporary_bytes / 1e9:>7.2f} GB {found.bytes_sent / 1e9:>7.2f} GB"
            )


if __name__ == "__main__":
    main()
