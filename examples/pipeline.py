"""Train the GPT of gpt.py with its blocks in a pipeline, by any schedule.

    python examples/pipeline.py                             # four virtual devices
    mpiexec -n 4 python examples/pipeline.py --schedule zb-v
    python examples/pipeline.py --schedule interleaved --data 2    # two pipelines of two devices

Blocks are stages; the embedding comes before the first and, tied, the head after the last one. The
schedule is printed as it runs, with what it costs on paper. With `--data`, the batch is cut over
pipelines side by side. Losses are those of `--schedule none`, which has no pipeline.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import gpt
from gpt import Config

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, parallel, random, tree
from funcgrad.parallel import NamedSharding, P, accumulate_gradients, pipeline_value_and_grad
from funcgrad.parallel.pipelines import make_schedule, simulate

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")


def init_params(key: Any, cfg: Config) -> tuple[Any, Any]:
    """The blocks, one after the other along a first axis, and what comes before and after."""
    params = gpt.init_params(key, cfg)
    stages = tree.map(lambda *blocks: fnp.stack(blocks), *params.pop("blocks"))
    del params["head"]  # the embedding is the head, too
    return stages, params


def block(p: Any, x: Any, heads: int) -> Any:
    """A stage: attention and a feed-forward part, each beside what it gets."""
    x = x + gpt.attention(p, gpt.layer_norm(p["norm1"], x), heads)
    hidden = nn.gelu(gpt.layer_norm(p["norm2"], x) @ p["up"] + p["up_bias"])
    return x + hidden @ p["down"] + p["down_bias"]


def first(shared: Any, tokens: Any) -> Any:
    """Characters and places as vectors."""
    return shared["tokens"][tokens] + shared["positions"][: tokens.shape[1]]


def last(shared: Any, x: Any) -> Any:
    """Scores of the next character."""
    return gpt.layer_norm(shared["norm"], x) @ shared["tokens"].T


def entropy(logits: Any, targets: Any) -> Any:
    """Mean cross entropy, in nats a character."""
    log_probs = nn.log_softmax(logits)
    return -fnp.mean(fnp.take_along_axis(log_probs, targets[..., None], axis=-1))


def on_one_device(stage: Any) -> Any:
    """The function that gives the loss and its gradient without a pipeline."""

    def loss(model: Any, tokens: Any, targets: Any) -> Any:
        stages, shared = model
        x = lax.scan(lambda x, p: (stage(p, x), None), first(shared, tokens), stages)[0]
        return entropy(last(shared, x), targets)

    return fg.value_and_grad(loss)


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, or other arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", choices=(*SCHEDULES, "none"), default="1f1b")
    parser.add_argument("--devices", type=int, default=4, help="virtual ones, without a launcher")
    parser.add_argument("--data", type=int, default=1, help="pipelines side by side")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=Config.width)
    parser.add_argument("--layers", type=int, default=8)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> list[float]:
    """Train; the losses."""
    args = parse_args(arguments)
    say = print if parallel.process_index() == 0 else lambda *_: None
    text, _, alphabet = gpt.load_text()
    codes = fnp.array(text)
    cfg = Config(len(alphabet), width=args.width, layers=args.layers)
    devices = parallel.process_count() if parallel.process_count() > 1 else args.devices
    ranks = devices // args.data
    mesh = fg.make_mesh((ranks, args.data), ("pp", "data"))
    stage = fg.checkpoint(partial(block, heads=cfg.heads))
    if args.schedule == "none":
        both = accumulate_gradients(on_one_device(stage), args.microbatches)
    else:
        chunks = args.layers // ranks if args.schedule == "interleaved" else 1
        schedule = make_schedule(args.schedule, ranks, args.microbatches, chunks)
        timeline = simulate(schedule)
        say(timeline)
        say(f"idle {timeline.bubble:.1%} of work, activations kept {timeline.peak}")
        both = pipeline_value_and_grad(
            stage, entropy, mesh=mesh, microbatches=args.microbatches, schedule=schedule,
            first=first, last=last,
        )  # fmt: skip

    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(3e-3))
    model = init_params(random.key(0), cfg)
    cut = tree.map(lambda _: NamedSharding(mesh, P("pp")), model[0])
    whole = tree.map(lambda _: NamedSharding(mesh, P()), model[1])
    model = fg.device_put(model, (cut, whole))
    rows = NamedSharding(mesh, P("data"))

    @fg.jit
    def step(model: Any, state: Any, key: Any) -> tuple[Any, Any, Any]:
        batch = gpt.batch_at(key, codes, args.batch, cfg.context)
        value, grads = both(model, *parallel.with_sharding_constraint(batch, (rows, rows)))
        updates, state = optimizer.update(grads, state, model)
        model = optim.apply_updates(model, updates)
        return parallel.with_sharding_constraint(model, (cut, whole)), state, value

    state, losses = fg.jit(optimizer.init)(model), []
    for i in range(args.steps):
        model, state, value = step(model, state, random.fold_in(random.key(1), i))
        losses.append(float(value))
        if (i + 1) % 20 == 0:
            say(f"step {i + 1}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
