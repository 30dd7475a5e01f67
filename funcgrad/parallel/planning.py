"""`plan`: sizes of a mesh for the training of a transformer, on paper, and why.

All sizes whose product is the number of devices are costed: the bytes that a device keeps, its
work, what its collectives send over which links, and the pipeline's idle time. The fastest that
fits is proposed; for each of its axes it is told what would be without it. Parameters, gradients
and Adam's state are 16 bytes a parameter (Rajbhandari et al., ZeRO, 2020), activations those of
Korthikanti et al., Reducing Activation Recomputation, 2022, with attention that keeps no weights.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from funcgrad.core.display.array_html import size_text
from funcgrad.core.display.jaxpr_html import page
from funcgrad.core.sharding import AbstractMesh
from funcgrad.errors import ArgumentError

AXES = ("pp", "dp", "fsdp", "cp", "ep", "tp")
# Bytes a parameter: weights and gradients in 16 bits; masters and two moments in 32.
_WEIGHT, _STATE = 2, 16
# Bytes that a layer keeps for each token and unit of width, without and with checkpoints.
_KEPT, _KEPT_CHECKPOINTED = 34, 2


def _check_counts(what: str, owner: object, names: Sequence[str]) -> None:
    for name in names:
        n = getattr(owner, name)
        if type(n) is not int or n < 1:
            raise ArgumentError(f"{what}: {name} must be an integer ≥ 1, got {n!r}")


@dataclass(frozen=True)
class ModelShape:
    """A transformer and its batch, as far as costs go.

    heads, kv_heads: of queries, and of keys and values (as many by default). hidden: of the
    feed-forward part, 4 × width by default; gated: whether it has a third matrix. experts, top_k:
    how many there are, and how many a token meets. batch: texts of `sequence` tokens in a step.
    """

    layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    batch: int
    hidden: int | None = None
    kv_heads: int | None = None
    gated: bool = False
    experts: int = 1
    top_k: int = 1

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        _check_counts("ModelShape", self, [name for name in given if name != "gated"])
        if self.width % self.heads:
            raise ArgumentError(f"ModelShape: heads={self.heads} don't divide width={self.width}")
        if self.heads % (self.kv_heads or 1):
            raise ArgumentError(
                f"ModelShape: kv_heads={self.kv_heads} don't divide heads={self.heads}"
            )
        if self.top_k > self.experts:
            raise ArgumentError(f"ModelShape: top_k={self.top_k} of experts={self.experts}")

    @property
    def kv_width(self) -> int:
        """The width of all keys."""
        return self.width // self.heads * (self.kv_heads or self.heads)

    @property
    def attention(self) -> int:
        """A layer's parameters of attention."""
        return self.width * 2 * (self.width + self.kv_width)

    @property
    def feed_forward(self) -> int:
        """A layer's parameters of one expert."""
        return self.width * (self.hidden or 4 * self.width) * (3 if self.gated else 2)

    @property
    def parameters(self) -> int:
        """All parameters; embedding and head are tied."""
        layer = self.attention + self.experts * self.feed_forward
        return self.layers * layer + self.vocabulary * self.width

    @property
    def flops(self) -> float:
        """Floating-point operations of a step: 6 a token and parameter that it meets, and causal
        attention's."""
        met = self.layers * (self.attention + self.top_k * self.feed_forward)
        met += self.vocabulary * self.width
        return 6.0 * self.batch * self.sequence * met + self.attention_flops

    @property
    def attention_flops(self) -> float:
        """Those of causal attention itself."""
        return 6.0 * self.layers * self.batch * self.sequence**2 * self.width


@dataclass(frozen=True)
class Cluster:
    """Devices and their links, as of a current GPU by default.

    flops: floating-point operations a second of large products; rows: of a product that reaches
    half of that. node: devices of a node; inside, across: bytes a second that a device sends inside
    of a node, and to others
    """

    flops: float = 5e14
    rows: float = 256.0
    node: int = 8
    inside: float = 3e11
    across: float = 4e10


@dataclass(frozen=True)
class Plan:
    """Sizes of a mesh's axes, what each device keeps and how long a step takes on paper.

    sizes: of "pp" (pipeline), "dp" (replicas), "fsdp", "cp" (the sequence), "ep" (experts; the
        batch is cut over it, too) and "tp" (heads and hidden units), from the outermost
    microbatches: of the pipeline, or of accumulated gradients. checkpoint: whether layers compute
        their activations again
    memory: bytes a device by what they are. seconds: of a step by what they go to; what is hidden
        behind work is left out. reasons: what there would be without each axis
    """

    shape: ModelShape
    cluster: Cluster
    devices: int
    sizes: dict[str, int]
    microbatches: int
    checkpoint: bool
    memory: dict[str, float]
    seconds: dict[str, float]
    reasons: tuple[str, ...] = ()

    @cached_property
    def bytes(self) -> float:
        """What a device keeps, at most."""
        return sum(self.memory.values())

    @cached_property
    def step(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def utilization(self) -> float:
        """The operations that the model needs, of those that products could do in the time."""
        return self.shape.flops / (self.devices * self.cluster.flops * self.step)

    @property
    def mesh(self) -> AbstractMesh:
        """The mesh, without axes of size 1."""
        used = {a: n for a, n in self.sizes.items() if n > 1} or {"dp": 1}
        return AbstractMesh(tuple(used.values()), tuple(used))

    def rows(self) -> list[tuple[str, str]]:
        """The table: what, and how much or why."""
        kept = [(k, size_text(round(v))) for k, v in self.memory.items() if v]
        times = [(k, f"{v:.3g} s") for k, v in self.seconds.items() if v]
        return [
            ("mesh", " × ".join(f"{a} {n}" for a, n in self.sizes.items() if n > 1) or "one"),
            ("microbatches", str(self.microbatches)),
            ("checkpoints", "each layer" if self.checkpoint else "none"),
            ("a device keeps", size_text(round(self.bytes))),
            *((f"  {k}", v) for k, v in kept),
            ("a step takes", f"{self.step:.3g} s, {self.utilization:.0%} of the products' speed"),
            *((f"  {k}", v) for k, v in times),
            *(("why" if i == 0 else "", r) for i, r in enumerate(self.reasons)),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(k) for k, _ in rows)
        return "\n".join(f"{k:<{width}}  {v}" for k, v in rows)

    def _repr_html_(self) -> str:
        cells = [(html.escape(k), html.escape(v)) for k, v in self.rows()]
        body = "".join(f"<tr><td>{k}</td><td>{v}</td></tr>" for k, v in cells)
        title = f"{self.shape.parameters / 1e9:.3g} G parameters on {self.devices} devices"
        return page(f"<div><b>{title}</b></div><table>{body}</table>")


def plan(
    shape: ModelShape, devices: int, memory: float, *, cluster: Cluster | None = None,
    **sizes: int,
) -> Plan:  # fmt: skip
    """Sizes of a mesh's axes for the training of a transformer, with reasons: see `Plan`.

    memory: bytes of a device. cluster: the devices and their links. sizes: axes whose size is
    given, as `tp=8`

    No device is needed, and nothing is measured: links and products are taken to reach what
    `cluster` says, pipelines run 1F1B, and weights are gathered for each microbatch. What is sent
    of keys is hidden behind attention, and what is sent of weights and gradients behind all work,
    as far as that goes.

    Raises ArgumentError where numbers are none, and where nothing fits.

    >>> from funcgrad.parallel import ModelShape, plan
    >>> small = ModelShape(
    ...     layers=32, width=4096, heads=32, sequence=4096, vocabulary=32768, batch=256
    ... )
    >>> found = plan(small, 64, 80e9)
    >>> found.mesh, found.microbatches
    (AbstractMesh('fsdp': 64), 1)
    >>> print(plan(small, 64, 80e9, tp=8, fsdp=8).sizes)
    {'pp': 1, 'dp': 1, 'fsdp': 8, 'cp': 1, 'ep': 1, 'tp': 8}
    """
    cluster = Cluster() if cluster is None else cluster
    if not isinstance(shape, ModelShape):
        raise ArgumentError(f"plan: shape must be a ModelShape, got {shape!r}")
    for name, n in (("devices", devices), *sizes.items()):
        if name not in ("devices", *AXES):
            raise ArgumentError(f"plan: there is no axis {name!r}; there are {', '.join(AXES)}")
        if type(n) is not int or n < 1:
            raise ArgumentError(f"plan: {name} must be an integer ≥ 1, got {n!r}")
    if not memory > 0:
        raise ArgumentError(f"plan: memory must be bytes of a device, got {memory!r}")
    every = list(_candidates(shape, devices, cluster, sizes))
    if not every:
        raise ArgumentError(
            f"plan: no sizes of {', '.join(AXES)} make {devices} devices for {shape}"
            + (f" with {sizes}" if sizes else "")
        )
    fit = [c for c in every if c.bytes <= memory]
    if not fit:
        least = min(every, key=lambda c: c.bytes)
        raise ArgumentError(
            f"plan: nothing fits in {size_text(round(memory))} of {devices} devices; "
            f"{least.sizes} needs least, {size_text(round(least.bytes))}"
        )
    best = min(fit, key=_rank)
    reasons = tuple(_reasons(best, every, fit, sizes))
    return Plan(**{f.name: getattr(best, f.name) for f in fields(best)} | {"reasons": reasons})


def _rank(found: Plan) -> tuple:
    """The fastest first; of equally fast ones that of fewer axes and less memory."""
    return round(found.step, 9), sum(n > 1 for n in found.sizes.values()), found.bytes


def _reasons(best: Plan, every: list[Plan], fit: list[Plan], given: dict) -> Iterator[str]:
    """For each axis what there would be without it."""
    for axis, n in best.sizes.items():
        if n == 1 or axis in given:
            if axis in given:
                yield f"{axis} {n}: as given"
            continue
        without = [c for c in fit if c.sizes[axis] == 1]
        if without:
            other = min(without, key=_rank)
            yield (
                f"{axis} {n}: without it a step takes {other.step / best.step:.3g} times as long "
                f"({_named(other.sizes)})"
            )
            continue
        least = min((c for c in every if c.sizes[axis] == 1), key=lambda c: c.bytes, default=None)
        if least is None:
            yield f"{axis} {n}: without it the devices aren't used up"
        else:
            yield f"{axis} {n}: without it a device needs {size_text(round(least.bytes))} at least"
    if best.checkpoint:
        least = min((c for c in every if c.sizes == best.sizes and not c.checkpoint),
                    key=lambda c: c.bytes)  # fmt: skip
        yield f"checkpoints: without them a device needs {size_text(round(least.bytes))} at least"


def _named(sizes: dict[str, int]) -> str:
    return " × ".join(f"{a} {n}" for a, n in sizes.items() if n > 1) or "one"


# ---- what there is to choose from


def _candidates(
    shape: ModelShape, devices: int, cluster: Cluster, given: dict[str, int]
) -> Iterator[Plan]:
    for numbers in _products(devices, len(AXES)):
        sizes = dict(zip(AXES, numbers, strict=True))
        if any(sizes[a] != n for a, n in given.items()) or not _divides(shape, sizes, cluster):
            continue
        texts = shape.batch // (sizes["dp"] * sizes["fsdp"] * sizes["ep"])
        for microbatches in _divisors(texts):
            for checkpoint in (False, True):
                yield _costed(shape, cluster, devices, sizes, microbatches, checkpoint)


def _divisors(n: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})


def _products(n: int, count: int) -> Iterator[tuple[int, ...]]:
    """All so many numbers whose product is n."""
    if count == 1:
        yield (n,)
        return
    for d in _divisors(n):
        for rest in _products(n // d, count - 1):
            yield (d, *rest)


def _divides(shape: ModelShape, sizes: dict[str, int], cluster: Cluster) -> bool:
    """Whether axes divide what they cut; heads aren't cut over several nodes."""
    return (
        shape.layers % sizes["pp"] == 0
        and shape.batch % (sizes["dp"] * sizes["fsdp"] * sizes["ep"]) == 0
        and (sizes["cp"] == 1 or shape.sequence % (2 * sizes["cp"]) == 0)
        and (shape.kv_heads or shape.heads) % sizes["tp"] == 0
        and sizes["tp"] <= cluster.node
        and shape.experts % sizes["ep"] == 0
    )


# ---- what a choice costs


def _costed(
    shape: ModelShape, cluster: Cluster, devices: int, sizes: dict[str, int], microbatches: int,
    checkpoint: bool,
) -> Plan:  # fmt: skip
    kept = _memory(shape, sizes, microbatches, checkpoint)
    seconds = _seconds(shape, cluster, devices, sizes, microbatches, checkpoint)
    return Plan(shape, cluster, devices, sizes, microbatches, checkpoint, kept, seconds)


def _tokens(shape: ModelShape, sizes: dict[str, int], microbatches: int) -> float:
    """A device's tokens of a microbatch, whose units are cut over "tp"."""
    texts = shape.batch / (sizes["dp"] * sizes["fsdp"] * sizes["ep"] * microbatches)
    return texts * shape.sequence / sizes["cp"]


def _held(shape: ModelShape, sizes: dict[str, int]) -> tuple[float, float]:
    """A device's parameters before "fsdp" cuts them: of all of its layers, and of one."""
    layer = shape.attention + shape.feed_forward * shape.experts / sizes["ep"]
    layer /= sizes["tp"]
    embedding = shape.vocabulary * shape.width / sizes["tp"]
    return shape.layers / sizes["pp"] * layer + embedding, layer


def _memory(
    shape: ModelShape, sizes: dict[str, int], microbatches: int, checkpoint: bool
) -> dict[str, float]:
    held, layer = _held(shape, sizes)
    tokens = _tokens(shape, sizes, microbatches)
    unit = tokens * shape.width / sizes["tp"]
    layers, live = shape.layers / sizes["pp"], min(sizes["pp"], microbatches)
    each = _KEPT_CHECKPOINTED if checkpoint else _KEPT
    # Two layers at a time: one in use, one on its way.
    gathered = 2 * _WEIGHT * layer if sizes["fsdp"] > 1 else 0.0
    # Scores of the vocabulary and their cotangents, in float32, of one microbatch.
    scores = 8 * tokens * shape.vocabulary / sizes["tp"]
    return {
        "parameters and optimizer": _STATE * held / sizes["fsdp"],
        "gathered layers": gathered,
        "activations": unit * each * layers * live,
        "a layer's activations again": unit * _KEPT if checkpoint else 0.0,
        "scores": scores,
    }


def _link(cluster: Cluster, sizes: dict[str, int], axis: str) -> float:
    """Bytes a second along an axis: inside of a node, if its groups are."""
    inner = math.prod(sizes[a] for a in AXES[AXES.index(axis) :])
    return cluster.inside if inner <= cluster.node else cluster.across


def _seconds(
    shape: ModelShape, cluster: Cluster, devices: int, sizes: dict[str, int], microbatches: int,
    checkpoint: bool,
) -> dict[str, float]:  # fmt: skip
    layers, stages = shape.layers / sizes["pp"], sizes["pp"]
    held, _ = _held(shape, sizes)
    tokens = _tokens(shape, sizes, microbatches)
    message = 2 * tokens * shape.width  # of a layer's input
    again, passes = (4 / 3, 3) if checkpoint else (1.0, 2)
    met = tokens * (shape.top_k / shape.experts * sizes["ep"] if shape.experts > 1 else 1)
    slow = 1 + cluster.rows / min(tokens, met)
    work = again * slow * shape.flops / devices / cluster.flops
    attention = again * shape.attention_flops / devices / cluster.flops

    def time(axis: str, nbytes: float, n: int = 0) -> float:
        """Of bytes that n devices share: each sends all but its own part."""
        n = n or sizes[axis]
        return nbytes * (n - 1) / n / _link(cluster, sizes, axis)

    turns = microbatches * layers
    # Two gathers and two scatters a pass and layer.
    tensor = time("tp", 4 * passes * turns * message)
    routed = shape.top_k if shape.experts > 1 else 0
    experts = time("ep", 2 * passes * turns * message / sizes["tp"] * routed)
    keys = 2 * message * shape.kv_width / shape.width / sizes["tp"] * sizes["cp"]
    ring = time("cp", (passes + 1) * turns * keys)
    gathers = time("fsdp", (passes + 1) * microbatches * _WEIGHT * held)
    sums = time("dp", 2 * _WEIGHT * held / sizes["fsdp"], sizes["dp"] * sizes["cp"])
    sends = 2 * microbatches * message / sizes["tp"] / _link(cluster, sizes, "pp")
    return {
        "work": work,
        "idle in the pipeline": work * (stages - 1) / microbatches,
        "pipeline's messages": sends if stages > 1 else 0.0,
        "tensor parallelism": tensor,
        "experts": experts,
        "the ring of keys, not hidden": max(0.0, ring - attention),
        "weights and gradients, not hidden": max(0.0, gathers + sums - work),
    }
