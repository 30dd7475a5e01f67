"""Train a small GPT, Llama-like model or mixture of experts on a mesh of any axes.

    python examples/any_mesh.py --model llama --mesh cp=2 pp=2            # four virtual devices
    mpiexec -n 4 python examples/any_mesh.py --model moe --mesh fsdp=2 ep=2
    python examples/any_mesh.py --mesh pp=4 fsdp=128 tp=8 --sp --paper    # what 4,096 would do

The axes: fsdp cuts the batch and the weights, tp heads and hidden units, cp the sequence, ep the
batch and the experts, pp the layers; with `--sp`, activations between blocks are cut over tp, too.
The model is the same on all of them: `specs` says how parameters are cut, `Model.cut` where
activations are; attention of cut sequences, gathers and sums follow from that.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import gpt

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, parallel, random, tree
from funcgrad.parallel import AbstractMesh, Mesh, NamedSharding, P

KINDS, AXES = ("gpt", "llama", "moe"), ("pp", "fsdp", "cp", "ep", "tp")


@dataclass(frozen=True)
class Config:
    """A model's shape. A "llama" has rotary embeddings, RMS norms, gates and half as many key
    heads; of a "moe"'s experts each token meets two."""

    kind: str
    vocabulary: int
    layers: int = 4
    width: int = 32
    heads: int = 4
    experts: int = 4
    context: int = 64

    @property
    def kv_width(self) -> int:
        """The width of all keys."""
        return self.width // 2 if self.kind == "llama" else self.width


def init_params(key: Any, cfg: Config) -> Any:
    """Parameters, the layers' with the layers as first axis."""
    keys, n, d = iter(random.split(key, 16)), cfg.layers, cfg.width

    def normal(*shape: int) -> Any:
        return random.normal(next(keys), shape) / math.sqrt(d)

    layers = {
        "q": normal(n, d, d),
        "k": normal(n, d, cfg.kv_width),
        "v": normal(n, d, cfg.kv_width),
    }
    layers |= {"o": normal(n, d, d), "norm1": 1 + normal(n, d), "norm2": 1 + normal(n, d)}
    experts = (cfg.experts,) if cfg.kind == "moe" else ()
    layers["up"], layers["down"] = normal(n, *experts, d, 2 * d), normal(n, *experts, 2 * d, d)
    if cfg.kind == "moe":
        layers["router"] = normal(n, d, cfg.experts)
    if cfg.kind == "llama":
        layers["gate"] = normal(n, d, 2 * d)
    params = {"embed": normal(cfg.vocabulary, d), "layers": layers, "norm": 1 + normal(d)}
    return params if cfg.kind == "llama" else params | {"places": normal(cfg.context, d)}


def specs(kind: str, axes: tuple[str, ...]) -> Any:
    """How parameters are cut over those axes that a mesh has."""
    fsdp, tp, ep, pp = (a if a in axes else None for a in ("fsdp", "tp", "ep", "pp"))
    columns, rows, vector = P(pp, fsdp, tp), P(pp, tp, fsdp), P(pp)
    layers = {"q": columns, "k": columns, "v": columns, "o": rows, "norm1": vector,
              "norm2": vector, "up": columns, "down": rows}  # fmt: skip
    if kind == "moe":
        layers |= {"up": P(pp, ep, fsdp, tp), "down": P(pp, ep, tp, fsdp), "router": P(pp)}
    if kind == "llama":
        layers["gate"] = columns
    found = {"embed": P(tp, fsdp), "layers": layers, "norm": P()}
    return found if kind == "llama" else found | {"places": P(None, fsdp)}


class Model:
    """The loss of a model on a mesh (None: one device)."""

    def __init__(self, cfg: Config, mesh: Mesh | None = None, sp: bool = False, microbatches=2):
        self.cfg, self.mesh, self.microbatches = cfg, mesh, microbatches
        axes = mesh.axis_names if mesh else ()
        self.pp = "pp" in axes
        self.batch = tuple(a for a in ("fsdp", "ep") if a in axes)
        self.length = tuple(a for a in ("cp",) if a in axes)
        self.between = self.length + (("tp",) if sp and "tp" in axes else ())

    def cut(self, x: Any) -> Any:
        """Activations between blocks."""
        if self.mesh is None:
            return x
        spec = P(self.batch or None, self.between or None)
        return parallel.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def norm(self, x: Any, gain: Any) -> Any:
        """Each position's features over their size; a GPT's are centred before."""
        if self.cfg.kind != "llama":
            x = x - fnp.mean(x, -1, keepdims=True)
        return x * lax.rsqrt(fnp.mean(x**2, -1, keepdims=True) + 1e-5) * gain

    def rotated(self, x: Any) -> Any:
        """Pairs of features turned by angles that grow with the place (Su et al., 2021)."""
        half = x.shape[3] // 2
        angles = fnp.arange(x.shape[1])[:, None] * 100.0 ** (-fnp.arange(half) / half)
        cos, sin = fnp.cos(angles)[:, None], fnp.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return fnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def block(self, w: Any, x: Any) -> Any:
        """Attention and a feed-forward part, each beside what it gets."""
        h = self.norm(x, w["norm1"])
        q, k, v = (fnp.matmul(h, w[n]) for n in "qkv")
        size = self.cfg.width // self.cfg.heads
        q, k, v = (y.reshape(*y.shape[:2], -1, size) for y in (q, k, v))
        if self.cfg.kind == "llama":
            q, k = self.rotated(q), self.rotated(k)
        mixed = nn.dot_product_attention(q, k, v, is_causal=True)
        x = self.cut(x + fnp.matmul(mixed.reshape(x.shape), w["o"]))
        return self.cut(x + self.feed_forward(w, self.norm(x, w["norm2"])))

    def feed_forward(self, w: Any, h: Any) -> Any:
        """Two layers, with a gate, or of experts."""
        if self.cfg.kind == "moe":
            return self.experts(w, h)
        up = fnp.matmul(h, w["up"])
        up = nn.silu(fnp.matmul(h, w["gate"])) * up if self.cfg.kind == "llama" else nn.gelu(up)
        return fnp.matmul(up, w["down"])

    def experts(self, w: Any, h: Any) -> Any:
        """Each token through two of the experts, which are on the devices of ep. A device routes
        its own tokens; what fsdp cuts is gathered before."""
        axes = (*self.batch, *self.length)
        ep, fsdp = (a if a in axes else None for a in ("ep", "fsdp"))

        def mixture(h: Any, router: Any, up: Any, down: Any) -> Any:
            if fsdp:
                up = lax.all_gather(up, fsdp, axis=1, tiled=True)
                down = lax.all_gather(down, fsdp, axis=2, tiled=True)
            return parallel.moe(h, router, {"up": up, "down": down}, axis=ep, top_k=2)[0]

        args = h, w["router"], w["up"], w["down"]
        if not axes:
            return mixture(*args)
        own = P(self.batch or None, self.length or None)
        spread = parallel.shard_map(
            mixture, mesh=self.mesh, in_specs=(own, P(), P(ep, fsdp), P(ep, None, fsdp)),
            out_specs=own, axis_names=set(axes),
        )  # fmt: skip
        return spread(*args)

    def loss(self, params: Any, tokens: Any, targets: Any) -> Any:
        """The mean cross entropy of the next tokens."""
        x = params["embed"][tokens]
        if self.cfg.kind != "llama":
            x = x + params["places"]
        x = self.cut(x)
        if self.pp:
            x = parallel.pipeline(
                self.block, params["layers"], x, mesh=self.mesh, microbatches=self.microbatches
            )
        else:
            x, _ = lax.scan(lambda x, w: (self.block(w, x), None), x, params["layers"])
        logits = fnp.matmul(self.norm(x, params["norm"]), params["embed"].T)
        picked = fnp.take_along_axis(nn.log_softmax(logits), targets[..., None], axis=-1)
        return -fnp.mean(picked)

    def shardings(self) -> tuple[Any, NamedSharding, NamedSharding]:
        """Of parameters, tokens and targets."""
        data = P(self.batch or None, self.length or None)
        cuts = (specs(self.cfg.kind, self.mesh.axis_names), data, data)
        return tree.map(partial(NamedSharding, self.mesh), cuts)


def on_paper(model: Model, batch: int) -> parallel.Analysis:
    """What each device keeps and sends for a loss and its gradient; no device is needed."""
    cuts = model.shardings()
    tokens = fg.ShapeDtypeStruct((batch, model.cfg.context), "int32")
    args = fg.eval_shape(partial(init_params, cfg=model.cfg), random.key(0)), tokens, tokens
    types = tree.map(lambda x, s: fg.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), args, cuts)
    step = fg.jit(fg.value_and_grad(model.loss), out_shardings=(None, cuts[0]))
    return step.lower(*types).device_analysis()


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, or other arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=KINDS, default="gpt")
    parser.add_argument("--mesh", nargs="+", default=["fsdp=2", "tp=2"], metavar="AXIS=SIZE")
    parser.add_argument("--sp", action="store_true", help="cut activations over tp, too")
    parser.add_argument("--paper", action="store_true", help="say what devices would do")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args(arguments)
    pairs = [text.partition("=")[::2] for text in args.mesh]
    if any(axis not in AXES or not size.isdigit() or not int(size) for axis, size in pairs):
        parser.error(f"--mesh takes AXIS=SIZE with axes {', '.join(AXES)}; got {args.mesh}")
    args.mesh = {axis: int(size) for axis, size in pairs}
    return args


def main(arguments: list[str] | None = None) -> list[float]:
    """Train; the losses."""
    args = parse_args(arguments)
    sizes, names = tuple(args.mesh.values()), tuple(args.mesh)
    if args.paper:
        large = Config(args.model, 32768, layers=32, width=4096, heads=32, context=4096)
        model = Model(large, AbstractMesh(sizes, names), args.sp, microbatches=8)
        print(on_paper(model, args.batch * math.prod(args.mesh[a] for a in model.batch)))
        return []
    text, _, alphabet = gpt.load_text()
    # More than there are, so that axes divide them.
    cfg = Config(args.model, vocabulary=-(-len(alphabet) // 64) * 64)
    codes, mesh = fnp.array(text), parallel.make_mesh(sizes, names)
    model = Model(cfg, mesh, args.sp)
    cuts, *rows = model.shardings()
    params = fg.device_put(init_params(random.key(0), cfg), cuts)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(3e-3))

    @fg.jit
    def step(params: Any, state: Any, key: Any) -> tuple[Any, Any, Any]:
        batch = gpt.batch_at(key, codes, args.batch, cfg.context)
        batch = parallel.with_sharding_constraint(batch, tuple(rows))
        value, grads = fg.value_and_grad(model.loss)(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        params = optim.apply_updates(params, updates)
        return parallel.with_sharding_constraint(params, cuts), state, value

    state, losses = fg.jit(optimizer.init)(params), []
    for i in range(args.steps):
        params, state, value = step(params, state, random.fold_in(random.key(1), i))
        losses.append(float(value))
        if parallel.process_index() == 0 and ((i + 1) % 20 == 0 or i + 1 == args.steps):
            print(f"step {i + 1}: loss {losses[-1]:.4f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
