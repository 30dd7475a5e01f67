"""Training steps of a GPT with Adam: compiled, and the smaller one eagerly too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, integers, normal
from benchmarks.cases.reductions import cross_entropy, layer_norm, torch_layer_norm
from benchmarks.cases.training import adam, state_of, step
from benchmarks.libraries import training


@dataclass(frozen=True)
class Config:
    """The model's shape."""

    width: int
    layers: int
    heads: int
    context: int
    vocabulary: int = 256


def cases(full: bool) -> Iterator[Case]:
    """Two sizes; the smaller one is that of the demo."""
    tiny = Config(8, 1, 2, 4, 11)
    yield step_case(
        "width 256, 4 layers, 8×128 tokens", *(Config(256, 4, 8, 128), 8) if full else (tiny, 2)
    )
    yield step_case(
        "width 256, 4 layers, 8×128 tokens, bfloat16",
        *(Config(256, 4, 8, 128), 8) if full else (tiny, 2),
        loss=_narrow_loss,
        torch_loss=_torch_narrow_loss,
        tolerance=0.05,
    )
    yield step_case(
        "width 64, 4 layers, 8×64 tokens", *(Config(64, 4, 4, 64, 100), 8) if full else (tiny, 2)
    )
    yield step_case(
        "width 64, 4 layers, 8×64 tokens, eager",
        *(Config(64, 4, 4, 64, 100), 8) if full else (tiny, 2),
        jit=False,
    )


def step_case(
    name: str, cfg: Config, batch: int, family: str = "gpt", loss=None, torch_loss=None, **more
) -> Case:
    """A training step of a model; losses may be others than its own."""
    loss, torch_loss = loss or _loss, torch_loss or _torch_loss
    tokens = integers(0, cfg.vocabulary, batch, cfg.context)
    weights = cfg.layers * 12 * cfg.width**2 + cfg.width * cfg.vocabulary
    scores = cfg.layers * 2 * cfg.context * cfg.width
    return Case(
        family,
        name,
        draw(lambda rng: state_of(_params(rng, cfg), 2), tokens, tokens),
        step(partial(loss, cfg), partial(adam, rate=1e-3)),
        torch_make=training(partial(torch_loss, cfg), "Adam", lr=1e-3, fused=True),
        state=True,
        torch_long=True,
        flops=6.0 * batch * cfg.context * (weights + scores),
        **{"tolerance": 1e-3, **more},
    )


def _params(rng, cfg: Config):
    d = cfg.width

    def weight(*shape):
        return normal(*shape)(rng) * np.float32(0.02)

    def norm():
        return {"scale": np.ones(d, np.float32), "shift": np.zeros(d, np.float32)}

    blocks = [
        {
            "norm1": norm(),
            "qkv": weight(d, 3 * d),
            "out": weight(d, d),
            "norm2": norm(),
            "up": weight(d, 4 * d),
            "up_bias": np.zeros(4 * d, np.float32),
            "down": weight(4 * d, d),
            "down_bias": np.zeros(d, np.float32),
        }
        for _ in range(cfg.layers)
    ]
    return {
        "tokens": weight(cfg.vocabulary, d),
        "positions": weight(cfg.context, d),
        "blocks": blocks,
        "norm": norm(),
        "head": weight(d, cfg.vocabulary),
    }


def _loss(cfg: Config, lib, params, tokens, targets):
    np, nn = lib.np, lib.nn
    x = params["tokens"][tokens] + params["positions"]
    b, t, d = x.shape
    for p in params["blocks"]:
        qkv = layer_norm(lib, x, **p["norm1"]) @ p["qkv"]
        q, k, v = np.split(qkv.reshape(b, t, 3 * cfg.heads, d // cfg.heads), 3, axis=2)
        mixed = nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.reshape(b, t, d) @ p["out"]
        hidden = nn.gelu(layer_norm(lib, x, **p["norm2"]) @ p["up"] + p["up_bias"])
        x = x + hidden @ p["down"] + p["down_bias"]
    return cross_entropy(lib, layer_norm(lib, x, **params["norm"]) @ params["head"], targets)


def _narrow_loss(cfg: Config, lib, params, tokens, targets):
    return lib.autocast(partial(_loss, cfg, lib))(params, tokens, targets)


def _torch_narrow_loss(cfg: Config, t, params, tokens, targets):
    with t.autocast("cpu", t.bfloat16):
        return _torch_loss(cfg, t, params, tokens, targets)


def _torch_loss(cfg: Config, t, params, tokens, targets):
    functional = t.nn.functional
    x = params["tokens"][tokens] + params["positions"]
    b, length, d = x.shape
    for p in params["blocks"]:
        qkv = torch_layer_norm(t, x, **p["norm1"]) @ p["qkv"]
        qkv = qkv.reshape(b, length, 3 * cfg.heads, d // cfg.heads).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(b, length, d) @ p["out"]
        hidden = torch_layer_norm(t, x, **p["norm2"]) @ p["up"] + p["up_bias"]
        x = x + functional.gelu(hidden, approximate="tanh") @ p["down"] + p["down_bias"]
    logits = torch_layer_norm(t, x, **params["norm"]) @ params["head"]
    return functional.cross_entropy(logits.reshape(b * length, -1), targets.reshape(-1))
