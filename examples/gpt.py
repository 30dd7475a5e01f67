"""Train a character-level GPT on the language reference inside Python's standard library.

    python examples/gpt.py                  # about two minutes on two cores
    python examples/gpt.py --resume         # go on from the last checkpoint

The text is `pydoc_data.topics`, some 700 kB of English; a tenth is held out. The run ends with the
validation loss, a sample of text, a loss curve (loss.png) and a checkpoint (gpt.safetensors).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from tqdm import tqdm

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, random, tree

# ---- data


def load_text() -> tuple[np.ndarray, np.ndarray, str]:
    """Training and validation characters as integers, and the alphabet."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    codes = np.array([alphabet.index(c) for c in text], np.int32)
    cut = len(codes) * 9 // 10
    return codes[:cut], codes[cut:], alphabet


def batch_at(key, codes, batch: int, length: int):
    """Random stretches of text: inputs and, one character on, targets."""
    starts = random.randint(key, (batch,), 0, len(codes) - length)
    windows = codes[starts[:, None] + fnp.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]


# ---- model


@dataclass(frozen=True)
class Config:
    """The model's shape."""

    vocabulary: int
    context: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 4


def init_params(key, cfg: Config):
    """Weights: normal with deviation 0.02, smaller where a residual branch ends."""
    d = cfg.width
    keys = iter(random.split(key, 3 + 4 * cfg.layers))

    def normal(*shape, scale=0.02):
        return scale * random.normal(next(keys), shape)

    def norm():
        return {"scale": fnp.ones(d), "shift": fnp.zeros(d)}

    end = 0.02 / math.sqrt(2 * cfg.layers)
    blocks = [
        {
            "norm1": norm(),
            "qkv": normal(d, 3 * d),
            "out": normal(d, d, scale=end),
            "norm2": norm(),
            "up": normal(d, 4 * d),
            "up_bias": fnp.zeros(4 * d),
            "down": normal(4 * d, d, scale=end),
            "down_bias": fnp.zeros(d),
        }
        for _ in range(cfg.layers)
    ]
    return {
        "tokens": normal(cfg.vocabulary, d),
        "positions": normal(cfg.context, d),
        "blocks": blocks,
        "norm": norm(),
        "head": normal(d, cfg.vocabulary),
    }


def layer_norm(p, x):
    """Standardize each position's features, then scale and shift."""
    return nn.standardize(x) * p["scale"] + p["shift"]


def attention(p, x, heads: int):
    """Causal self-attention."""
    b, t, d = x.shape
    q, k, v = fnp.split((x @ p["qkv"]).reshape(b, t, 3 * heads, d // heads), 3, axis=2)
    mixed = nn.dot_product_attention(q, k, v, is_causal=True)
    return mixed.reshape(b, t, d) @ p["out"]


def logits_of(params, tokens, cfg: Config):
    """(batch, time) integers to (batch, time, vocabulary) logits of the next character."""
    x = params["tokens"][tokens] + params["positions"][: tokens.shape[1]]
    for p in params["blocks"]:
        x = x + attention(p, layer_norm(p["norm1"], x), cfg.heads)
        hidden = nn.gelu(layer_norm(p["norm2"], x) @ p["up"] + p["up_bias"])
        x = x + hidden @ p["down"] + p["down_bias"]
    return layer_norm(params["norm"], x) @ params["head"]


def loss_of(params, inputs, targets, cfg: Config):
    """Mean cross entropy, in nats a character."""
    log_probs = nn.log_softmax(logits_of(params, inputs, cfg))
    return -fnp.mean(fnp.take_along_axis(log_probs, targets[..., None], axis=-1))


# ---- training


def make_optimizer(steps: int, peak: float):
    """AdamW with clipping, warm-up and a cosine down to a tenth; only matrices decay."""
    schedule = optim.warmup_cosine_decay_schedule(0.0, peak, steps // 20, steps, peak / 10)
    matrices = partial(tree.map, lambda p: p.ndim >= 2)
    return optim.chain(
        optim.clip_by_global_norm(1.0),
        optim.adamw(schedule, b2=0.99, weight_decay=0.1, mask=matrices),
    )


def make_step(cfg: Config, optimizer, batch: int):
    """The compiled training step; the old state's memory becomes the new one's."""

    @partial(fg.jit, donate_argnums=0)
    def step(state, key, codes):
        inputs, targets = batch_at(key, codes, batch, cfg.context)
        loss, grads = fg.value_and_grad(loss_of)(state["params"], inputs, targets, cfg)
        updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
        params = optim.apply_updates(state["params"], updates)
        return {"params": params, "optimizer": moments, "step": state["step"] + 1}, loss

    return step


def evaluate(params, codes: np.ndarray, cfg: Config, batch: int = 32) -> float:
    """The mean loss over all of a text, in windows side by side."""
    loss = fg.jit(loss_of, static_argnums=3)
    n = (len(codes) - 1) // cfg.context
    inputs = codes[: n * cfg.context].reshape(n, cfg.context)
    targets = codes[1 : n * cfg.context + 1].reshape(n, cfg.context)
    losses = [
        float(loss(params, inputs[i : i + batch], targets[i : i + batch], cfg))
        for i in range(0, n - batch + 1, batch)
    ]
    return sum(losses) / len(losses)


@partial(fg.jit, static_argnums=(2, 3))
def generate(params, key, length: int, cfg: Config):
    """Sample characters one by one: the whole loop is one native program."""

    def draw(window, key):
        logits = logits_of(params, window[None], cfg)[0, -1]
        code = random.categorical(key, logits / 0.8)
        return fnp.append(window[1:], code.astype(window.dtype)), code

    start = fnp.zeros(cfg.context, fnp.int32)
    return lax.scan(draw, start, random.split(key, length))[1]


# ---- checkpoints


def save(path: Path, state, run: dict, losses: list[float]) -> None:
    """Write the state as safetensors, with the run's settings: complete, or not at all."""
    tensors = {tree.keystr(p): np.asarray(x) for p, x in tree.leaves_with_path(state)}
    tensors["losses"] = np.asarray(losses, np.float32)
    partial_file = path.with_suffix(".partial")
    save_file(tensors, partial_file, metadata={"run": json.dumps(run)})
    os.replace(partial_file, path)


def load(path: Path, state, run: dict):
    """The saved state, in the structure of `state`, and the losses so far."""
    if not path.exists():
        raise SystemExit(f"--resume: there is no checkpoint {path}; start without --resume")
    with safe_open(path, framework="numpy") as file:
        saved = json.loads((file.metadata() or {}).get("run", "{}"))
        changed = [f"{k} {saved.get(k)} (now {v})" for k, v in run.items() if saved.get(k) != v]
        if changed:
            raise SystemExit(f"--resume: {path} is of another run, with {', '.join(changed)}")
        restored = tree.map_with_path(
            lambda p, _: fnp.array(file.get_tensor(tree.keystr(p))), state
        )
        return restored, file.get_tensor("losses").tolist()


# ---- the run


def plot(losses: list[float], path: Path) -> None:
    """The loss curve as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    window = max(1, len(losses) // 100)
    smooth = np.convolve(losses, np.ones(window) / window, "valid")
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(losses, color="0.8", linewidth=0.8)
    axes.plot(np.arange(len(smooth)) + window / 2, smooth, color="tab:blue")
    axes.set(xlabel="step", ylabel="loss (nats a character)", title="character-level GPT")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, or other arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=14000, help="steps of the whole run")
    parser.add_argument("--stop-at", type=int, help="save and stop after this many steps")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=Config.width)
    parser.add_argument("--layers", type=int, default=Config.layers)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("examples/out"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Train, evaluate, sample, plot, save."""
    args = parse_args(arguments)
    train, held_out, alphabet = load_text()
    cfg = Config(len(alphabet), width=args.width, layers=args.layers)
    run = asdict(cfg) | {k: vars(args)[k] for k in ("steps", "batch", "learning_rate", "seed")}
    root = random.key(args.seed)
    optimizer = make_optimizer(args.steps, args.learning_rate)
    params = init_params(random.fold_in(root, 0), cfg)
    state = {"params": params, "optimizer": optimizer.init(params), "step": fnp.zeros((), "int32")}
    losses: list[float] = []
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "gpt.safetensors"
    if args.resume:
        state, losses = load(checkpoint, state, run)
    count = sum(x.size for x in tree.leaves(state["params"]))
    print(f"{count / 1e6:.2f}M parameters, {len(train) / 1e3:.0f}k characters, {cfg}")

    step = make_step(cfg, optimizer, args.batch)
    codes, data_key = fnp.array(train), random.fold_in(root, 1)
    begin, end = int(state["step"]), min(args.steps, args.stop_at or args.steps)
    start = time.perf_counter()
    with tqdm(total=end, initial=begin, unit="step", mininterval=0.5) as bar:
        for i in range(begin, end):
            state, loss = step(state, random.fold_in(data_key, i), codes)
            losses.append(float(loss))
            rate = (i + 1 - begin) * args.batch * cfg.context / (time.perf_counter() - start)
            bar.set_postfix_str(f"loss {losses[-1]:.3f}, {rate / 1e3:.1f}k tokens/s", refresh=False)
            bar.update()
            if (i + 1) % args.save_every == 0 or i + 1 == end:
                save(checkpoint, state, run, losses)

    print(f"loss of step {end}: {losses[-1]:.6f}")
    print(f"validation loss: {evaluate(state['params'], held_out, cfg):.4f} nats a character")
    sample = generate(state["params"], random.fold_in(root, 2), 400, cfg)
    print("--- a sample ---")
    print("".join(alphabet[i] for i in np.asarray(sample)))
    plot(losses, args.out / "loss.png")
    print(f"--- wrote {checkpoint} and {args.out / 'loss.png'}")


if __name__ == "__main__":
    main()
