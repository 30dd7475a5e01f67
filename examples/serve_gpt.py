"""Serve the GPT that gpt.py trained: its step with a cache of keys and values, as a file.

    python examples/gpt.py && python examples/serve_gpt.py
    python -m funcgrad.serve examples/out/served --port 8000
    curl -N localhost:8000/v2/models/gpt/generate_stream \\
        -d '{"text_input": "The ", "parameters": {"max_tokens": 60, "temperature": 0.8}}'
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path

import gpt
import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn, random, tree
from funcgrad.io.checkpoints import Checkpointer
from funcgrad.serve import save_generator


def empty_cache(cfg: gpt.Config, slots: int):
    """Keys and values of each layer: (slots, context, heads, width of a head)."""
    shape = (slots, cfg.context, cfg.heads, cfg.width // cfg.heads)
    return [{"k": np.zeros(shape, "f4"), "v": np.zeros(shape, "f4")} for _ in range(cfg.layers)]


def decode(params, cache, tokens, positions, cfg: gpt.Config):
    """Logits of what follows each slot's token, and the cache with its keys and values."""
    slots, new = fnp.arange(tokens.shape[0]), []
    seen = fnp.arange(cfg.context) <= positions[:, None]
    x = params["tokens"][tokens] + params["positions"][positions]
    for p, past in zip(params["blocks"], cache, strict=True):
        h = gpt.layer_norm(p["norm1"], x) @ p["qkv"]
        q, k, v = fnp.split(h.reshape(len(h), cfg.heads, -1), 3, axis=-1)
        keys = past["k"].at[slots, positions].set(k)
        values = past["v"].at[slots, positions].set(v)
        new.append({"k": keys, "v": values})
        scores = fnp.einsum("shd,sthd->sht", q, keys) / (cfg.width // cfg.heads) ** 0.5
        weights = nn.softmax(fnp.where(seen[:, None], scores, -fnp.inf))
        x = x + fnp.einsum("sht,sthd->shd", weights, values).reshape(x.shape) @ p["out"]
        hidden = nn.gelu(gpt.layer_norm(p["norm2"], x) @ p["up"] + p["up_bias"])
        x = x + hidden @ p["down"] + p["down_bias"]
    return gpt.layer_norm(params["norm"], x) @ params["head"], new


def prefill(params, cache, slot, tokens, length, cfg: gpt.Config):
    """Logits of what follows a prompt, and the cache with its keys and values in a slot."""
    n, new = tokens.shape[0], []
    x = params["tokens"][tokens] + params["positions"][:n]
    for p, past in zip(params["blocks"], cache, strict=True):
        h = gpt.layer_norm(p["norm1"], x) @ p["qkv"]
        q, k, v = fnp.split(h.reshape(n, cfg.heads, -1), 3, axis=-1)
        new.append({"k": past["k"].at[slot, :n].set(k), "v": past["v"].at[slot, :n].set(v)})
        mixed = nn.dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + mixed.reshape(x.shape) @ p["out"]
        hidden = nn.gelu(gpt.layer_norm(p["norm2"], x) @ p["up"] + p["up_bias"])
        x = x + hidden @ p["down"] + p["down_bias"]
    return gpt.layer_norm(params["norm"], x[length - 1]) @ params["head"], new


def save(folder, params, cfg: gpt.Config, alphabet: str, slots: int = 8) -> None:
    """Write what the server reads; the weights go along."""
    params = tree.map(fnp.asarray, params)
    save_generator(
        folder, lambda cache, tokens, positions: decode(params, cache, tokens, positions, cfg),
        empty_cache(cfg, slots), slots=slots, context=cfg.context, vocabulary=alphabet,
        prefill=lambda cache, *prompt: prefill(params, cache, *prompt, cfg),
    )  # fmt: skip


def trained(out: Path):
    """The parameters of the last checkpoint, and the model's shape."""
    with Checkpointer(out / "checkpoints") as checkpoints:
        if checkpoints.latest() is None:
            raise SystemExit(f"{out} has no checkpoint: run gpt.py first")
        run = checkpoints.contents().metadata["run"]
        cfg = gpt.Config(**{f.name: run[f.name] for f in fields(gpt.Config)})
        like = {"params": fg.eval_shape(partial(gpt.init_params, cfg=cfg), random.key(0))}
        return checkpoints.restore(like, partial=True)["params"], cfg


def main(arguments: list[str] | None = None) -> None:
    """Read the last checkpoint, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("examples/out"))
    parser.add_argument("--slots", type=int, default=8, help="sequences at a time")
    args = parser.parse_args(arguments)
    params, cfg = trained(args.out)
    save(args.out / "served" / "gpt", params, cfg, gpt.load_text()[2], args.slots)
    print(f"wrote {args.out / 'served'}")


if __name__ == "__main__":
    main()
