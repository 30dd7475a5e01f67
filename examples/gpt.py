"""Train a character-level GPT on the language reference inside Python's standard library.

    python examples/gpt.py                  # about two minutes on two cores
    python examples/gpt.py --resume         # go on from the last checkpoint
    mpiexec -n 4 python examples/gpt.py     # the same on four processes

The model and its optimizer's state are spread over four devices (virtual ones, where no launcher
gives processes) as `--layout` says: see layouts.py. The text is `pydoc_data.topics`, some 700 kB of
English; a tenth is held out. The run ends with the validation loss, a sample of text, a loss curve
(loss.png) and a checkpoint (a folder of safetensors files).
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from layouts import LAYOUTS, Layout
from tqdm import tqdm

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, parallel, random, tree
from funcgrad.io.checkpoints import Checkpointer
from funcgrad.parallel import with_sharding_constraint

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
    """Causal self-attention; the columns of qkv are in the order of heads."""
    b, t, d = x.shape
    q, k, v = fnp.split((x @ p["qkv"]).reshape(b, t, heads, 3 * (d // heads)), 3, axis=-1)
    mixed = nn.dot_product_attention(q, k, v, is_causal=True)
    return mixed.reshape(b, t, d) @ p["out"]


def logits_of(params, tokens, cfg: Config, residual=None):
    """(batch, time) integers to (batch, time, vocabulary) logits of the next character.

    residual: how activations between blocks are cut over devices
    """
    x = params["tokens"][tokens] + params["positions"][: tokens.shape[1]]
    for p in params["blocks"]:
        x = with_sharding_constraint(x, residual)
        x = x + attention(p, layer_norm(p["norm1"], x), cfg.heads)
        x = with_sharding_constraint(x, residual)
        hidden = nn.gelu(layer_norm(p["norm2"], x) @ p["up"] + p["up_bias"])
        x = x + hidden @ p["down"] + p["down_bias"]
    x = with_sharding_constraint(x, residual)
    return layer_norm(params["norm"], x) @ params["head"]


def loss_of(params, inputs, targets, cfg: Config, residual=None):
    """Mean cross entropy, in nats a character."""
    log_probs = nn.log_softmax(logits_of(params, inputs, cfg, residual))
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


def init_state(key, cfg: Config, optimizer):
    """Parameters, the optimizer's moments, and the number of steps done."""
    params = init_params(key, cfg)
    return {"params": params, "optimizer": optimizer.init(params), "step": fnp.zeros((), "int32")}


def make_step(cfg: Config, optimizer, batch: int, layout: Layout):
    """The compiled training step; the old state's memory becomes the new one's."""
    whole = fg.NamedSharding(layout.mesh, fg.P())

    @partial(fg.jit, donate_argnums=0, out_shardings=(layout.state, whole))
    def step(state, key, codes):
        batch_now = batch_at(key, codes, batch, cfg.context)
        inputs, targets = with_sharding_constraint(batch_now, layout.batch)
        loss, grads = fg.value_and_grad(loss_of)(
            state["params"], inputs, targets, cfg, layout.residual
        )
        grads = with_sharding_constraint(grads, layout.grads)
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


def resume(checkpoints: Checkpointer, like, run: dict):
    """The last saved state, cut as `like` is, whatever devices saved it, and the losses so far."""
    if checkpoints.latest() is None:
        raise SystemExit(f"--resume: {checkpoints.folder} has no checkpoint; start without it")
    saved = checkpoints.contents().metadata
    was = saved["run"]
    changed = [f"{k} {was.get(k)} (now {v})" for k, v in run.items() if was.get(k) != v]
    if changed:
        raise SystemExit(
            f"--resume: {checkpoints.folder} is of another run, with {', '.join(changed)}"
        )
    return checkpoints.restore(like), saved["losses"]


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
    parser.add_argument("--steps", type=int, default=11000, help="steps of the whole run")
    parser.add_argument("--stop-at", type=int, help="save and stop after this many steps")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=Config.width)
    parser.add_argument("--layers", type=int, default=Config.layers)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", choices=LAYOUTS, default="fsdp", help="see layouts.py")
    parser.add_argument(
        "--devices", type=int, default=4, help="virtual devices, where no launcher gives processes"
    )
    parser.add_argument("--out", type=Path, default=Path("examples/out"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args(arguments)


def train(args, step, state, losses: list[float], codes, key, save) -> Any:
    """The steps that are left, under a progress bar; `save(n, state)` after some of them."""
    context, chief = Config.context, parallel.process_index() == 0
    begin, end = int(state["step"]), min(args.steps, args.stop_at or args.steps)
    start = time.perf_counter()
    with tqdm(total=end, initial=begin, unit="step", mininterval=0.5, disable=not chief) as bar:
        for i in range(begin, end):
            state, loss = step(state, random.fold_in(key, i), codes)
            losses.append(float(loss))
            rate = (i + 1 - begin) * args.batch * context / (time.perf_counter() - start)
            bar.set_postfix_str(f"loss {losses[-1]:.3f}, {rate / 1e3:.1f}k tokens/s", refresh=False)
            bar.update()
            if (i + 1) % args.save_every == 0 or i + 1 == end:
                save(i + 1, state)
    return state


def main(arguments: list[str] | None = None) -> None:
    """Train, evaluate, sample, plot, save."""
    args = parse_args(arguments)
    say = print if parallel.process_index() == 0 else lambda *_: None
    training, held_out, alphabet = load_text()
    cfg = Config(len(alphabet), width=args.width, layers=args.layers)
    run = asdict(cfg) | {k: vars(args)[k] for k in ("steps", "batch", "learning_rate", "seed")}
    root = random.key(args.seed)
    optimizer = make_optimizer(args.steps, args.learning_rate)

    # No device ever holds more of the state than its part: it is made where it belongs.
    init = partial(init_state, cfg=cfg, optimizer=optimizer)
    key = random.fold_in(root, 0)
    devices = parallel.process_count() if parallel.process_count() > 1 else args.devices
    layout = LAYOUTS[args.layout](fg.eval_shape(init, key), devices)
    state = fg.jit(init, out_shardings=layout.state)(key)
    count = sum(x.size for x in tree.leaves(state["params"]))
    say(f"{count / 1e6:.2f}M parameters, {len(training) / 1e3:.0f}k characters, {cfg}")
    say(f"layout {args.layout} on {layout.mesh}")

    losses: list[float] = []
    with Checkpointer(args.out / "checkpoints") as checkpoints:
        if args.resume:
            state, losses = resume(checkpoints, state, run)
        state = train(
            args, make_step(cfg, optimizer, args.batch, layout), state, losses,
            fnp.array(training), random.fold_in(root, 1),
            lambda n, state: checkpoints.save(n, state, metadata={"run": run, "losses": losses}),
        )  # fmt: skip

    params = fg.device_put(state["params"], fg.NamedSharding(layout.mesh, fg.P()))
    validation = evaluate(params, held_out, cfg)
    sample = generate(params, random.fold_in(root, 2), 400, cfg)
    say(f"loss of step {len(losses)}: {losses[-1]:.6f}")
    say(f"validation loss: {validation:.4f} nats a character")
    say("--- a sample ---")
    say("".join(alphabet[i] for i in np.asarray(sample)))
    if parallel.process_index() == 0:
        plot(losses, args.out / "loss.png")
    say(f"--- wrote {checkpoints.folder} and {args.out / 'loss.png'}")


if __name__ == "__main__":
    main()
