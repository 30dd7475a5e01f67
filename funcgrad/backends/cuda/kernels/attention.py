"""Attention on tensor cores, of bfloat16 and float16: which has kernels, and what these get.

Forward is one kernel (`attention_forward`). Backward is two (`attention_backward`): one for the
cotangents of queries and of a bias, which leaves each row's sum of cotangent times result for the
other, of keys and values. So no two warps add to the same place, and bits don't vary. Of many
features keys and values have a kernel each. What has few places, or other sizes, goes by its
formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.cuda.schedule import WARP, Schedule
from funcgrad.backends.drafts import steps
from funcgrad.backends.drafts.drafter import BlockDrafter
from funcgrad.backends.llvm.emit.text import FLOAT32
from funcgrad.backends.loops.ir import Buffer, Kernel
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.lower.attention import given_numbers, kind_of, sizes_of
from funcgrad.backends.program import AttentionStep, KernelStep, Ref, Strided
from funcgrad.backends.rewrites.normalize import by_formula
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Var
from funcgrad.core.record import replace
from funcgrad.dtypes import BOOL
from funcgrad.ops.base import sum_p

TILE, WARPS = 16, 4
FEW, MOST_FEATURES = 32, 128
TOGETHER = 64  # features, up to which sums of keys and of values fit a thread's 255 registers
_INT32 = np.dtype(np.int32)
_OPERANDS = {
    "attention": ("q", "k", "v", "out"),
    "attention_backward": ("q", "k", "v", "out", "ct", "dq", "dk", "dv"),
}
_OF_KEYS = ("k", "v", "dk", "dv")
# What each kernel reads and writes of them, and of what there is for pairs of queries and keys.
_USES = {
    "attention": (("q", "k", "v"), ("out",)),
    "queries": (("q", "k", "v", "out", "ct"), ("dq", "dbias")),
    "keys and values": (("q", "k", "v", "ct"), ("dk", "dv")),
    "keys": (("q", "k", "v", "ct"), ("dk",)),
    "values": (("q", "k", "ct"), ("dv",)),
}


def rewrite(flat: Any, eqn: Eqn, ins: list[Atom]) -> Any:
    """Attention by its formula; None for what has kernels."""
    if kind_of(eqn) not in ("attention", "attention_backward"):
        return by_formula(flat, eqn, ins)
    n = sizes_of(eqn)
    fits = n.features % TILE == 0 and n.features <= MOST_FEATURES
    if not (fits and min(n.queries, n.keys) >= FEW and eqn.ins[0].aval.dtype in HALVES):
        return by_formula(flat, eqn, ins)
    return _of_whole_bias(flat, eqn, ins) if eqn.params.get("bias_too") else None


def _of_whole_bias(flat: Any, eqn: Eqn, ins: list[Atom]) -> list[Atom] | None:
    """The cotangent of a bias that broadcasts, as a sum of that of all logits; None for others."""
    n, number = sizes_of(eqn), given_numbers(eqn).bias
    assert number is not None, eqn
    shape, whole = ins[number].aval.shape, (n.batch, n.heads, n.queries, n.keys)
    if shape == whole:
        return None
    operands, outs = [*ins], [Var(v.aval) for v in eqn.outs[:3]]
    operands[number] = flat.broadcast(ins[number], whole, range(4))
    outs.append(change := Var(ShapedArray(whole, FLOAT32)))
    flat.append(Eqn(eqn.prim, operands, outs, eqn.params, eqn.source, eqn.scopes))
    axes = [i for i in range(4) if shape[i] != whole[i]]
    return [*outs[:3], flat.reshape(flat.reduce(sum_p, change, axes), shape)]


def draft(d: BlockDrafter, eqn: Eqn) -> bool:
    """Attention as a step; backward with room for a number a row."""
    if kind_of(eqn) != "attention_backward":
        return steps.attend(d, eqn)
    n = sizes_of(eqn)
    return steps.attend(d, eqn, n.batch * n.heads * n.queries, lambda room: room)


class Placed(NamedTuple):
    """An array of a kernel: from where its memory begins, where its first element is, strides."""

    ref: Ref
    start: int
    strides: tuple[int, ...]


class AttentionKernel(Kernel, eq=False):
    """A kernel of a step.

    part: "attention", "queries" or "keys": forward, or whose cotangents it computes
    arrays: the parameters that have strides, by name
    """

    step: AttentionStep  # type: ignore[misc]  # all are given
    part: str  # type: ignore[misc]
    arrays: dict[str, Placed]  # type: ignore[misc]

    @property
    def plan(self) -> Schedule:
        """Which warps there are: one for each tile of places."""
        return Schedule("rows", WARP, WARP * WARPS, -(-self.units // WARPS))

    @property
    def units(self) -> int:
        """How many tiles there are."""
        n = self.step.sizes
        heads, places = (n.key_heads, n.keys) if self.part == "keys" else (n.heads, n.queries)
        return n.batch * heads * -(-places // TILE)


def kernel_steps(s: AttentionStep) -> tuple[KernelStep, ...]:
    """An attention as the steps of its kernels."""
    if s.op == "attention":
        names = ["attention"]
    else:
        together = s.sizes.features <= TOGETHER
        names = ["queries", *(["keys and values"] if together else ["keys", "values"])]
    return tuple(_kernel_step(s, name) for name in names)


def _kernel_step(s: AttentionStep, name: str) -> KernelStep:
    n, ours = s.sizes, []
    queries = (n.batch, n.queries, n.heads, n.features)
    keys = (n.batch, n.keys, n.key_heads, n.features)
    pairs = (n.batch, n.heads, n.queries, n.keys)
    operands, (reads, writes) = _OPERANDS[s.op], _USES[name]
    arrays = dict(zip(operands, (*s.ins, *s.outs), strict=True)) | s.pairs
    placed = {}
    for used in (*reads, "bias", "mask", *writes):
        if used not in arrays:
            continue
        role = "out" if used in writes else "in"
        shape = keys if used in _OF_KEYS else queries if used in operands else pairs
        dtype = s.dtype if used in operands else BOOL if used == "mask" else FLOAT32
        x, size = _placed(shape, arrays[used], dtype)
        placed[used] = x
        ours.append((x.ref, (used, dtype, size, role)))
    rows = n.batch * n.heads * n.queries
    assert s.stats is not None, s
    ours.append((s.stats, ("stats", FLOAT32, 2 * rows, "out" if name == "attention" else "in")))
    if name not in ("attention", "values"):
        ours.append((s.cut, ("means", FLOAT32, rows, "out" if name == "queries" else "in")))
    for used, ref in zip(("queries", "keys"), s.lengths, strict=False):
        ours.append((ref, (used, _INT32, n.batch, "in")))
    buffers = tuple(Buffer(*about) for _, about in ours)  # type: ignore[arg-type]  # roles are text
    full = name if name == "attention" else f"attention_of_{name}"
    part = "keys" if name in ("keys and values", "values") else name
    kernel = AttentionKernel(full, buffers, (), (), (), s, part, placed)
    return KernelStep(kernel, tuple(ref for ref, _ in ours))


def _placed(shape: Sequence[int], x: Strided, dtype: np.dtype) -> tuple[Placed, int]:
    """An array by its lowest element, and how many there are from that to the highest."""
    reaches = [(n - 1) * stride for n, stride in zip(shape, x.strides, strict=True)]
    low = sum(min(r, 0) for r in reaches)
    ref = replace(x.ref, offset=x.ref.offset + low * dtype.itemsize)
    return Placed(ref, -low, x.strides), 1 + sum(map(abs, reaches))
