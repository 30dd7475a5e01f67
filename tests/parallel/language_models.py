"""Small language models for tests of layouts: the demo's GPT, one with a mixture of experts, one
like Llama; their parameters, and how these are cut over a mesh of any of the axes fsdp, tp, ep, pp.

Activations are cut along the sequence over cp, and with `sp` over tp, too, between the blocks.
"""

from functools import partial

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.parallel import (
    NamedSharding,
    P,
    expert_mlp,
    moe,
    pipeline,
    shard_map,
    with_sharding_constraint,
)

KINDS = ("gpt", "moe", "llama")
LAYERS, WIDTH, HEADS, VOCAB, EXPERTS = 2, 16, 4, 32, 4
BATCH, LENGTH = 8, 64  # longer than what attention does as plain products


def init(kind, seed=0):
    """Parameters, the layers' stacked; and a batch of tokens with the next ones."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: (rng.normal(size=shape) / 4).astype("float32")
    keys = HEADS // 2 if kind == "llama" else HEADS
    kv, n, d = WIDTH * keys // HEADS, LAYERS, WIDTH
    layers = {"q": normal(n, d, d), "k": normal(n, d, kv), "v": normal(n, d, kv)}
    layers |= {"o": normal(n, d, d), "norm1": 1 + normal(n, d), "norm2": 1 + normal(n, d)}
    experts = (EXPERTS,) if kind == "moe" else ()
    layers["up"], layers["down"] = normal(n, *experts, d, 2 * d), normal(n, *experts, 2 * d, d)
    if kind == "moe":
        layers["router"] = normal(n, d, EXPERTS)
    if kind == "llama":
        layers["gate"] = normal(n, d, 2 * d)
    params = {"embed": normal(VOCAB, d), "layers": layers, "norm": 1 + normal(d)}
    if kind != "llama":
        params["places"] = normal(LENGTH, d)
    codes = rng.integers(0, VOCAB, (BATCH, LENGTH + 1)).astype("int32")
    return params, codes[:, :-1], codes[:, 1:]


def specs(kind, axes):
    """How parameters are cut: a tree of specs."""
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
    """The loss of a kind of model on a mesh (None: one device)."""

    def __init__(self, kind, mesh=None, sp=False):
        self.kind, self.mesh = kind, mesh
        axes = mesh.axis_names if mesh else ()
        self.pp, self.ep = "pp" in axes, "ep" in axes and kind == "moe"
        self.batch = tuple(a for a in ("fsdp", "ep") if a in axes)
        self.length = tuple(a for a in ("cp",) if a in axes)
        self.between = self.length + (("tp",) if sp and "tp" in axes else ())

    def cut(self, x):
        """Activations between blocks."""
        if self.mesh is None:
            return x
        spec = P(self.batch or None, self.between or None)
        return with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def norm(self, x, gain):
        if self.kind != "llama":
            x = x - fnp.mean(x, -1, keepdims=True)
        return x * lax.rsqrt(fnp.mean(x**2, -1, keepdims=True) + 1e-5) * gain

    def rotated(self, x):
        half = x.shape[3] // 2
        angles = fnp.arange(LENGTH)[:, None] * 100.0 ** (-fnp.arange(half) / half)
        cos, sin = fnp.cos(angles)[:, None], fnp.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return fnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def block(self, w, x):
        h = self.norm(x, w["norm1"])
        q, k, v = (fnp.matmul(h, w[n]) for n in "qkv")
        q, k, v = (y.reshape(*y.shape[:2], -1, WIDTH // HEADS) for y in (q, k, v))
        if self.kind == "llama":
            q, k = self.rotated(q), self.rotated(k)
        mixed = nn.dot_product_attention(q, k, v, is_causal=True)
        x = self.cut(x + fnp.matmul(mixed.reshape(x.shape), w["o"]))
        return self.cut(x + self.mlp(w, self.norm(x, w["norm2"])))

    def mlp(self, w, h):
        if self.kind == "moe":
            return self.experts(w, h)
        up = fnp.matmul(h, w["up"])
        up = nn.silu(fnp.matmul(h, w["gate"])) * up if self.kind == "llama" else nn.gelu(up)
        return fnp.matmul(up, w["down"])

    def experts(self, w, h):
        weights = {"up": w["up"], "down": w["down"]}
        one = lambda h, router, weights, axis: moe(h, router, weights, axis=axis, top_k=2,
                                                   apply=expert_mlp)[0]  # fmt: skip
        if not self.ep:
            return one(h, w["router"], weights, None)
        return shard_map(partial(one, axis="ep"), mesh=self.mesh, in_specs=(P("ep"), P(), P("ep")),
                         out_specs=P("ep"), axis_names={"ep"})(h, w["router"], weights)  # fmt: skip

    def loss(self, params, tokens, targets):
        """The mean cross entropy of the next tokens."""
        x = params["embed"][tokens]
        if self.kind != "llama":
            x = x + params["places"]
        x = self.cut(x)
        if self.pp:
            x = pipeline(self.block, params["layers"], x, mesh=self.mesh, microbatches=2)
        else:
            x, _ = lax.scan(lambda x, w: (self.block(w, x), None), x, params["layers"])
        logits = fnp.matmul(self.norm(x, params["norm"]), params["embed"].T)
        picked = fnp.take_along_axis(nn.log_softmax(logits), targets[..., None], -1)
        return -fnp.mean(picked)

    def shardings(self):
        """Of parameters, tokens and targets."""
        data = P(self.batch or None, self.length or None)
        cuts = (specs(self.kind, self.mesh.axis_names), data, data)
        return fg.tree.map(partial(NamedSharding, self.mesh), cuts)
