"""The meaning of planned programs: an interpreter in NumPy, on real memory.

It runs each step on the bytes its refs name, so that a plan that reuses memory too early gives a
wrong result here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.loops import interpret as loops_interpret
from funcgrad.backends.lower.primitives import NARROW_SUMS
from funcgrad.backends.program import (
    AttentionStep,
    CondStep,
    CopyStep,
    ExchangeStep,
    GemmStep,
    HostStep,
    KernelStep,
    LaneStep,
    LoopStep,
    Program,
    Ref,
    Strided,
    View,
    WhileStep,
)
from funcgrad.backends.rewrites.attention_joint import attention_joint_p
from funcgrad.backends.rewrites.exchanges import exchange_arrays
from funcgrad.backends.walker import Walker
from funcgrad.core import context
from funcgrad.transforms.attention.attention import attention_backward_p, attention_p
from funcgrad.transforms.attention.operands import wide_dtype

BYTE = np.dtype(np.uint8)


def run(
    program: Program,
    values: Sequence[np.ndarray],
    communicators: Callable[[tuple], Any] | None = None,
    machine: Callable[..., Machine] | None = None,
) -> list[np.ndarray]:
    """The results of a program on arrays of its inputs' types; donated ones are copied first.

    communicators: gives the communicator over named axes, for programs that exchange
    machine: makes what runs the steps of a program on arrays for its inputs and outputs
    """
    ins = [np.array(v, dtype=a.dtype, order="C") for v, a in zip(values, program.ins, strict=True)]
    outs = [
        ins[program.aliases[i]] if i in program.aliases else np.empty(a.shape, a.dtype)
        for i, a in enumerate(program.outs)
    ]
    runs = (machine or Machine)(program, ins, outs)
    if program.comms:
        assert communicators is not None, program.comms
        runs.comms = [communicators(c.axes) for c in program.comms]
    with context.scoped(communicators=communicators):
        runs.steps(program.steps)
    return outs


class Machine(Walker):
    """Runs a program's steps on memory that stands for what its refs name."""

    def __init__(self, program: Program, ins: list[np.ndarray], outs: list[np.ndarray]):
        self.bands: dict[int, np.ndarray] = {}  # by the number of their loop
        self.spaces: dict[str, Any] = {
            "input": [_bytes(x) for x in ins],
            "output": [_bytes(x) for x in outs],
            "constant": [_bytes(x.copy()) for x in program.constants],
            # Bytes that look like nothing sensible, lest somebody reads them unwritten.
            "arena": [np.full(program.arena_bytes, 0xCB, BYTE)],
            "band": self.bands,
        }
        self.counters: dict[int, int] = {}
        self.comms: list[Any] = []

    def memory(self, ref: Ref, nbytes: int) -> np.ndarray:
        """The bytes at an address."""
        at = ref.offset + sum(self.counters[n] * s for n, s in ref.strides)
        space = self.spaces[ref.space][ref.number]
        assert 0 <= at <= at + nbytes <= space.size, (ref, nbytes, space.size)
        return space[at : at + nbytes]

    def array(self, view: View) -> np.ndarray:
        """The array that a view shows."""
        aval = view.aval
        return self.memory(view.ref, aval.nbytes).view(aval.dtype).reshape(aval.shape)

    def kernel(self, s: KernelStep) -> None:
        """Run loops."""
        arrays = [
            self.memory(ref, b.size * b.dtype.itemsize).view(b.dtype)
            for ref, b in zip(s.args, s.kernel.params, strict=True)
        ]
        loops_interpret.run(s.kernel, arrays)

    def gemm(self, s: GemmStep) -> None:
        """Multiply matrices."""
        sizes, frame = [n for n, *_ in s.batch], s.frame

        def memory(ref: Ref, dtype: np.dtype, operand: int | None) -> np.ndarray:
            at = ref.offset + sum(self.counters[n] * d for n, d in ref.strides)
            flat = self.spaces[ref.space][ref.number][at:]
            flat = flat[: flat.size // dtype.itemsize * dtype.itemsize].view(dtype)
            if frame is None or operand != frame.operand:
                return flat
            shape = (frame.planes, *(n for n, _, _ in frame.axes))
            config = [(0, 0), *((low, high) for _, low, high in frame.axes)]
            x = flat[: math.prod(shape)].reshape(shape)
            return np.pad(x, config).ravel()[frame.start :]

        def matrix(
            operand: int | None, shape: tuple, strides: tuple, batch: list[int]
        ) -> np.ndarray:
            ref, dtype = (s.c, s.out) if operand is None else ((s.a, s.b)[operand], s.dtype)
            steps = [n * dtype.itemsize for n in (*batch, *strides)]
            return np.lib.stride_tricks.as_strided(
                memory(ref, dtype, operand), (*sizes, *shape), steps
            )

        def gathered(operand: int, rows: list, columns: list, batch: list[int]) -> np.ndarray:
            """A matrix whose rows and columns are lists of axes (size, stride)."""
            shape, strides = zip(*rows, *columns, strict=True)
            sides = [int(np.prod([n for n, _ in side])) for side in (rows, columns)]
            return matrix(operand, shape, strides, batch).reshape(*sizes, *sides)

        if s.axes is None:
            a = matrix(0, (s.m, s.k), s.a_strides, [x[1] for x in s.batch])
            b = matrix(1, (s.k, s.n), s.b_strides, [x[2] for x in s.batch])
        else:
            ks_a, ks_b = ([(x[0], x[i]) for x in s.axes.k] for i in (1, 2))
            a = gathered(0, list(s.axes.m), ks_a, [x[1] for x in s.batch])
            b = gathered(1, ks_b, list(s.axes.n), [x[2] for x in s.batch])
        if s.apart:
            self.bands[s.c.number] = np.full(s.m * s.n * s.out.itemsize, 0xCB, BYTE)
        c = matrix(None, (s.m, s.n), s.c_strides, [x[3] for x in s.batch])
        wide = NARROW_SUMS.get(s.dtype, s.out)
        c[...] = np.matmul(a.astype(wide), b.astype(wide)).astype(s.out)
        if s.finish is not None:
            for i in range(s.finish.length):
                self.counters[s.finish.number] = i  # whose band has the sums
                self.steps(s.finish.body)

    def attention(self, s: AttentionStep) -> None:
        """Attend, or compute the cotangents of attention."""
        n, wide = s.sizes, wide_dtype(s.dtype)
        queries = (n.batch, n.queries, n.heads, n.features)
        keys = (n.batch, n.keys, n.key_heads, n.features)

        def arrays(operands: Sequence[Strided], *shapes: tuple[int, ...]) -> list[np.ndarray]:
            return [self.strided(x.ref, s.dtype, shape, x.strides)
                    for x, shape in zip(operands, shapes, strict=False)]  # fmt: skip

        stats = []
        if s.stats is not None:
            shape = (n.batch, n.heads, 2, n.queries)
            flat = self.memory(s.stats, math.prod(shape) * wide.itemsize).view(wide)
            stats.append(flat.reshape(shape))
        lengths = [self.memory(r, 4 * n.batch).view(np.int32) for r in s.lengths]
        params = {"scale": s.scale, "before": s.before, "after": s.after}
        q, k, v, *rest = arrays(s.ins, queries, keys, keys, queries, queries)
        given, dbias = self.attention_pairs(s)
        if s.op == "attention_backward":
            out, ct = rest
            operands = q, k, v, out, *stats, ct, *lengths, *given
            found = attention_backward_p.impl(np, *operands, bias_too=bool(dbias), **params)
            outs = arrays(s.outs, queries, keys, keys) + dbias
        else:
            prim = attention_p if s.op == "attention" else attention_joint_p
            found = prim.impl(np, q, k, v, *rest, *lengths, *given, **params)
            outs = arrays(s.outs, queries, queries, keys, keys) + stats
        for to, x in zip(outs, found, strict=True):
            to[...] = x

    def attention_pairs(self, s: AttentionStep) -> tuple[list, list]:
        """Bias and mask, those that are there, and the bias's cotangents, if they are wanted."""
        n = s.sizes
        whole: tuple[int, ...] = (n.batch, n.heads, n.queries, n.keys)
        own = whole
        if s.dbias is not None:
            own = tuple(m if x else 1 for m, x in zip(whole, s.dbias.strides, strict=True))
        found = []
        for name, x in s.pairs.items():
            mask = name == "mask"
            dtype = np.dtype(bool) if mask else wide_dtype(s.dtype)
            found.append(self.strided(x.ref, dtype, whole if mask else own, x.strides))
        return (found, []) if s.dbias is None else (found[:-1], found[-1:])

    def strided(self, ref: Ref, dtype: np.dtype, shape: tuple, strides: tuple) -> np.ndarray:
        """An array at strides that count elements."""
        at = ref.offset + sum(self.counters[n] * d for n, d in ref.strides)
        flat = self.spaces[ref.space][ref.number][at:]
        flat = flat[: flat.size // dtype.itemsize * dtype.itemsize].view(dtype)
        steps = [n * dtype.itemsize for n in strides]
        return np.lib.stride_tricks.as_strided(flat, shape, steps)

    def host(self, s: HostStep) -> None:
        """Compute an operation by its rule `impl`."""
        out = s.prim.impl(np, *(self.array(v) for v in s.ins), **s.params)
        for view, value in zip(s.outs, out if s.prim.multiple else [out], strict=True):
            self.array(view)[...] = np.asarray(value).astype(view.aval.dtype)

    def exchange(self, s: ExchangeStep) -> None:
        """Do a collective."""
        before, after = s.blocks
        nbytes = s.count * s.dtype.itemsize
        source = self.memory(s.source, before * nbytes).view(s.dtype)
        if s.kind in ("reduce_scatter", "all_to_all"):
            source = source.reshape(before, s.count)
        out = exchange_arrays(self.comms[s.comm], s.kind, s.op, s.perm, source.copy())
        self.memory(s.to, after * nbytes).view(s.dtype)[...] = out.reshape(-1)

    def lane(self, s: LaneStep) -> None:
        """Run the steps of a lane beside the others: here in order."""
        self.memory(s.to, 4).view(np.int32)[0] = self.comms[s.comm].rank

    def copy(self, s: CopyStep) -> None:
        """Copy bytes."""
        self.memory(s.to, s.nbytes)[...] = self.memory(s.source, s.nbytes).copy()

    def cond(self, s: CondStep) -> None:
        """Run the branch that is chosen."""
        self.steps(s.branches[int(self.memory(s.index, 4).view(np.int32)[0])])

    def loop(self, s: LoopStep) -> None:
        """Run steps so many times."""
        for i in range(s.length):
            self.counters[s.number] = i
            self.bands[s.number] = np.full(s.band, 0xCB, BYTE)
            self.steps(s.body)

    def while_(self, s: WhileStep) -> None:
        """Run steps while their condition holds."""
        while True:
            self.steps(s.test)
            if not self.memory(s.condition, 1)[0]:
                return
            self.steps(s.body)


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(BYTE)
