"""How the GPT of gpt.py is spread over devices: every recipe is a tree of shardings and no more.

`LAYOUTS[name](state, n)` takes the types of the training state and a number of devices:

    single     one device, or each device the same
    ddp        data parallel: the batch is cut, everything else whole
    zero1      ddp with the optimizer's state cut
    zero2      zero1 with the gradients cut as well
    fsdp       zero3: parameters too; gathered where they are used, freed after
    hsdp       fsdp within groups of devices, replicas of them across groups
    tensor     Megatron's: heads and hidden units cut, two all-reduces a block
    sequence   tensor, with the activations between blocks cut along the text
    fsdp_tensor, fsdp_sequence    on a 2-d mesh, both at once
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from funcgrad.parallel import Mesh, NamedSharding, P, by_path, fsdp, make_mesh, replicated


@dataclass(frozen=True)
class Layout:
    """What is cut, and over what. None leaves it to the compiler."""

    mesh: Mesh
    state: Any  # shardings of the training state
    batch: NamedSharding  # of inputs and targets, (batch, time)
    residual: NamedSharding | None = None  # of activations between blocks, (batch, time, width)
    grads: Any = None  # shardings of the gradients


# For each weight, which of its axes belongs to heads or hidden units. The optimizer's moments have
# the paths of their parameters inside theirs, so the same rules cut them.
TENSOR = {
    "*['qkv']": P(None, "tp"),
    "*['out']": P("tp", None),
    "*['up']": P(None, "tp"),
    "*['up_bias']": P("tp"),
    "*['down']": P("tp", None),
}


def single(state: Any, n: int) -> Layout:
    """Every device does the same."""
    mesh = make_mesh(n, "data")
    return Layout(mesh, replicated(state, mesh), NamedSharding(mesh, P()))


def ddp(state: Any, n: int) -> Layout:
    """Each device has its part of the batch; gradients are summed."""
    mesh = make_mesh(n, "data")
    return Layout(mesh, replicated(state, mesh), NamedSharding(mesh, P("data")))


def zero1(state: Any, n: int) -> Layout:
    """Each device updates its part of the parameters."""
    mesh = make_mesh(n, "data")
    cut = {**replicated(state, mesh), "optimizer": fsdp(state["optimizer"], mesh)}
    return Layout(mesh, cut, NamedSharding(mesh, P("data")))


def zero2(state: Any, n: int) -> Layout:
    """zero1, and each device keeps its part of the gradients alone."""
    mesh = make_mesh(n, "data")
    cut = {**replicated(state, mesh), "optimizer": fsdp(state["optimizer"], mesh)}
    grads = fsdp(state["params"], mesh)
    return Layout(mesh, cut, NamedSharding(mesh, P("data")), grads=grads)


def zero3(state: Any, n: int) -> Layout:
    """FSDP: each device keeps its part of everything."""
    mesh = make_mesh(n, "data")
    grads = fsdp(state["params"], mesh)
    return Layout(mesh, fsdp(state, mesh), NamedSharding(mesh, P("data")), grads=grads)


def hsdp(state: Any, n: int) -> Layout:
    """FSDP within pairs of devices."""
    mesh = make_mesh((n // 2, 2), ("replica", "shard"))
    grads = fsdp(state["params"], mesh, "shard")
    batch = NamedSharding(mesh, P(("replica", "shard")))
    return Layout(mesh, fsdp(state, mesh, "shard"), batch, grads=grads)


def tensor(state: Any, n: int) -> Layout:
    """Each device has its heads and its hidden units."""
    mesh = make_mesh(n, "tp")
    return Layout(
        mesh, by_path(state, mesh, TENSOR), NamedSharding(mesh, P()), NamedSharding(mesh, P())
    )


def sequence(state: Any, n: int) -> Layout:
    """tensor, but between blocks each device has its stretch of the text."""
    mesh = make_mesh(n, "tp")
    residual = NamedSharding(mesh, P(None, "tp"))
    return Layout(mesh, by_path(state, mesh, TENSOR), NamedSharding(mesh, P()), residual)


def fsdp_tensor(state: Any, n: int) -> Layout:
    """Pairs of devices share the heads; across pairs everything is cut once more."""
    mesh = make_mesh((n // 2, 2), ("data", "tp"))
    cut = fsdp(state, mesh, given=by_path(state, mesh, TENSOR))
    batch = NamedSharding(mesh, P("data"))
    return Layout(mesh, cut, batch, batch, grads=cut["params"])


def fsdp_sequence(state: Any, n: int) -> Layout:
    """fsdp_tensor, with the activations between blocks cut along the text."""
    mesh = make_mesh((n // 2, 2), ("data", "tp"))
    cut = fsdp(state, mesh, given=by_path(state, mesh, TENSOR))
    batch, residual = NamedSharding(mesh, P("data")), NamedSharding(mesh, P("data", "tp"))
    return Layout(mesh, cut, batch, residual, grads=cut["params"])


LAYOUTS = {
    "single": single, "ddp": ddp, "zero1": zero1, "zero2": zero2, "fsdp": zero3, "hsdp": hsdp,
    "tensor": tensor, "sequence": sequence, "fsdp_tensor": fsdp_tensor,
    "fsdp_sequence": fsdp_sequence,
}  # fmt: skip
