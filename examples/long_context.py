"""Train a small language model on texts that are cut over devices.

    python examples/long_context.py                 # four virtual devices
    mpiexec -n 4 python examples/long_context.py    # the same on four processes

Each device has a part of every text: attention sends keys round a ring, in zigzag order, so that
all devices have the same causal work; a mixture of experts sends tokens to the devices of their
experts, kept evenly loaded by a bias. The run ends with two pictures (long_context.png): how even
the experts' loads became, and which parts of a text meet at each turn of the ring.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gpt
import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, parallel, random, tree
from funcgrad.parallel import NamedSharding, P, zigzag


class Config(NamedTuple):
    """The model's shape."""

    vocabulary: int
    context: int = 256
    width: int = 32
    heads: int = 4
    layers: int = 2
    experts: int = 8
    top_k: int = 2


def init_params(key, cfg: Config):
    """Weights; those of all layers have the layers as first axis."""
    d, keys = cfg.width, iter(random.split(key, 7))

    def normal(*shape):
        return 0.1 * random.normal(next(keys), shape)

    experts = {"up": normal(cfg.layers, cfg.experts, d, 2 * d),
               "down": normal(cfg.layers, cfg.experts, 2 * d, d)}  # fmt: skip
    layers = {"qkv": normal(cfg.layers, d, 3 * d), "out": normal(cfg.layers, d, d),
              "router": normal(cfg.layers, d, cfg.experts), "experts": experts}  # fmt: skip
    return {"tokens": normal(cfg.vocabulary, d), "places": normal(cfg.context, d), "layers": layers}


def cuts_of(params):
    """Experts are cut over the devices, all else is whole on each."""
    specs = tree.map(lambda _: P(), params)
    specs["layers"]["experts"] = tree.map(lambda _: P(None, "cp"), params["layers"]["experts"])
    return specs


def layer(cfg: Config, x, p, bias):
    """A block on this device's part of the texts, and how its experts were chosen."""
    b, t, d = x.shape
    q, k, v = fnp.split((nn.standardize(x) @ p["qkv"]).reshape(b, t, cfg.heads, -1), 3, axis=3)
    mixed = parallel.ring_attention(q, k, v, axis="cp", is_causal=True, zigzag=True)
    x = x + mixed.reshape(b, t, d) @ p["out"]
    y, stats = parallel.moe(nn.standardize(x), p["router"], p["experts"], axis="cp",
                            top_k=cfg.top_k, bias=bias, normalize=True)  # fmt: skip
    return x + y, stats.load


def loss_of_part(cfg: Config, params, biases, inputs, targets, places):
    """The mean cross entropy of all devices' tokens, and the experts' loads (layers, experts)."""
    x = params["tokens"][inputs] + params["places"][places]
    x, loads = lax.scan(lambda x, at: layer(cfg, x, *at), x, (params["layers"], biases))
    log_probs = nn.log_softmax(nn.standardize(x) @ params["tokens"].T)
    picked = fnp.take_along_axis(log_probs, targets[..., None], axis=-1)
    return -lax.pmean(fnp.mean(picked), "cp"), loads


def make_step(cfg: Config, mesh, cuts, optimizer):
    """A training step: (params, moments, biases), inputs, targets → the same, loss, loads."""
    text = P(None, "cp")
    loss = parallel.shard_map(
        partial(loss_of_part, cfg), mesh=mesh,
        in_specs=(cuts, P(), text, text, P("cp")), out_specs=(P(), P()),
    )  # fmt: skip
    n = mesh.shape["cp"]

    @fg.jit
    def step(state, inputs, targets):
        params, moments, biases = state
        places = zigzag(fnp.arange(cfg.context), n, axis=0)
        parts = zigzag(inputs, n), zigzag(targets, n), places
        (value, loads), grads = fg.value_and_grad(loss, has_aux=True)(params, biases, *parts)
        updates, moments = optimizer.update(grads, moments, params)
        biases = fg.vmap(parallel.moe_bias_update, in_axes=(0, 0, None))(biases, loads, 0.01)
        return (optim.apply_updates(params, updates), moments, biases), value, loads

    return step


def draw(path: Path, loads: np.ndarray, devices: int) -> None:
    """The experts' share of tokens by step; which parts of a text meet at which turn."""
    import matplotlib.pyplot as plt

    _, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    share = loads / loads.sum(axis=1, keepdims=True) * loads.shape[1]
    image = left.imshow(share.T, aspect="auto", cmap="coolwarm", vmin=0, vmax=2)
    left.set(xlabel="step", ylabel="expert", title="load, 1 is even")
    plt.colorbar(image, ax=left)
    turns = np.full((2 * devices, 2 * devices), np.nan)
    for q in range(2 * devices):
        for k in range(q + 1):
            owner = [min(part, 2 * devices - 1 - part) for part in (q, k)]
            turns[q, k] = (owner[0] - owner[1]) % devices
    image = right.imshow(turns, cmap="viridis")
    right.set(xlabel="part of keys", ylabel="part of queries", title="turn of the ring")
    plt.colorbar(image, ax=right, ticks=range(devices))
    plt.savefig(path, dpi=120, bbox_inches="tight")


def main(arguments: list[str] | None = None) -> float:
    """Train; the last loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args(arguments)
    codes, _, alphabet = gpt.load_text()
    cfg = Config(len(alphabet), args.context)
    mesh = parallel.make_mesh(parallel.process_count() if parallel.process_count() > 1 else 4, "cp")
    params = init_params(random.key(0), cfg)
    cuts = cuts_of(params)
    params = fg.device_put(params, tree.map(partial(NamedSharding, mesh), cuts))
    optimizer = optim.adamw(3e-3)
    state = params, optimizer.init(params), fnp.zeros((cfg.layers, cfg.experts))
    step, loads = make_step(cfg, mesh, cuts, optimizer), []
    for i in range(args.steps):
        batch = gpt.batch_at(random.fold_in(random.key(1), i), codes, 4, cfg.context)
        state, value, load = step(state, *batch)
        loads.append(np.asarray(load)[0])
        if parallel.process_index() == 0 and (i % 10 == 0 or i == args.steps - 1):
            print(f"step {i:4d}  loss {float(value):.4f}", flush=True)
    if parallel.process_index() == 0:
        draw(args.out / "long_context.png", np.stack(loads), mesh.shape["cp"])
    return float(value)


if __name__ == "__main__":
    main()
