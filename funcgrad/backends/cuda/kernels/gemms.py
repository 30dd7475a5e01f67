"""Products that cuBLASLt doesn't take as kernels: a thread an element of the result.

Of integers, of windows, of matrices without a stride of 1, and all of them where there is
no library. Each thread sums along k in order; neighbours read neighbouring columns. It is as right
as it is plain: tiles in shared memory would be several times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.cuda.kernels import attention, windows
from funcgrad.backends.loops.builder import ZERO, Builder, add_indices, scale_index
from funcgrad.backends.loops.ir import Axis, Buffer, Const, Index, Kernel, Operand
from funcgrad.backends.loops.scalars import FLOAT32, HALVES, Scalars
from funcgrad.backends.program import (
    AttentionStep,
    CondStep,
    GemmStep,
    HostStep,
    KernelStep,
    LoopStep,
    Program,
    Ref,
    Step,
    Tail,
    WhileStep,
)
from funcgrad.backends.rewrites import narrow
from funcgrad.core.record import replace
from funcgrad.ops.convolution.conv import conv_general_dilated_p

Steps = tuple[Step, ...]
_Axes = Sequence[tuple[int, int]]  # sizes and strides


def with_kernels(program: Program, is_call: Callable[[GemmStep | HostStep], bool]) -> Program:
    """The program whose products and convolutions are kernels, but for those that a library is
    called for; so is attention."""
    made: dict[tuple, Any] = {}

    def those(s: Step) -> Steps:
        if isinstance(s, AttentionStep):
            return attention.kernel_steps(s)
        if isinstance(s, GemmStep) and not is_call(s):
            return (kernel_step(s, made),)
        if isinstance(s, HostStep) and s.prim is conv_general_dilated_p and not is_call(s):
            return (windows.kernel_step(s, made),)
        if isinstance(s, CondStep):
            return (replace(s, branches=tuple(map(all_of, s.branches))),)
        if isinstance(s, LoopStep):
            return (replace(s, body=all_of(s.body)),)
        if isinstance(s, WhileStep):
            return (replace(s, test=all_of(s.test), body=all_of(s.body)),)
        return (s,)

    def all_of(steps: Steps) -> Steps:
        return tuple(x for s in steps for x in those(s))

    return replace(program, steps=all_of(program.steps))


def kernel_step(s: GemmStep, made: dict[tuple, Any]) -> KernelStep:
    """A product's kernel, and where its operands begin; of equal ones the kernel is made once."""
    nowhere = Ref("arena")
    tail = s.tail and replace(
        s.tail, scales=(nowhere,) * len(s.tail.scales), bias=s.tail.bias and nowhere
    )
    key = (replace(s, a=nowhere, b=nowhere, c=nowhere, convolution=None, windows=None, tail=tail),)
    product = _Product(s)
    if key not in made:
        made[key] = product.kernel()
    refs = []
    for ref, operand in zip((s.a, s.b, s.c), product.operands, strict=True):
        refs.append(replace(ref, offset=ref.offset + operand.low * operand.dtype.itemsize))
    return KernelStep(made[key], (*refs, *(s.tail.refs if s.tail else ())))


class _Operand:
    """How a matrix of a batch is read: axes of three kinds, each with sizes and strides.

    low, high: the first and the last element that it has, from where it begins
    parts: how many scalars an element is: a complex number has two
    """

    def __init__(self, dtype: np.dtype, *kinds: _Axes):
        self.dtype = dtype
        self.kinds = kinds
        self.parts = 2 if dtype.kind == "c" else 1
        reaches = [max(n - 1, 0) * stride for axes in kinds for n, stride in axes]
        self.low = sum(min(r, 0) for r in reaches)
        self.high = sum(max(r, 0) for r in reaches)

    def buffer(self, name: str, role: str) -> Buffer:
        """The parameter that holds it."""
        real = np.empty(0, self.dtype).real.dtype if self.parts == 2 else self.dtype
        return Buffer(name, narrow.held(real), self.parts * (self.high - self.low + 1), role)  # type: ignore[arg-type]


class _Product:
    def __init__(self, s: GemmStep):
        assert s.frame is None, s  # the target asks for none
        self.s = s
        if s.axes is None:
            m_a, m_c = [(s.m, s.a_strides[0])], [(s.m, s.c_strides[0])]
            n_b, n_c = [(s.n, s.b_strides[1])], [(s.n, s.c_strides[1])]
            k_a, k_b = [(s.k, s.a_strides[1])], [(s.k, s.b_strides[0])]
        else:
            m_a, n_b = list(s.axes.m), list(s.axes.n)
            k_a, k_b = ([(x[0], x[i]) for x in s.axes.k] for i in (1, 2))
            m_c = _with_strides([n for n, _ in m_a], s.c_strides[0])
            n_c = _with_strides([n for n, _ in n_b], s.c_strides[1])
        batch = [[(x[0], x[i]) for x in s.batch] for i in (1, 2, 3)]
        self.operands = (
            _Operand(s.dtype, batch[0], m_a, k_a),
            _Operand(s.b_dtype or s.dtype, batch[1], n_b, k_b),
            _Operand(s.out, batch[2], m_c, n_c),
        )

    def kernel(self) -> Kernel:
        """The kernel: outer axes are the batch's, those of m and of n; its loop is k."""
        s, b, axes = self.s, Builder(), []

        def outer(sizes: _Axes) -> list[Index]:
            found = []
            for n, _ in sizes:
                axes.append(Axis(b.axis(n), n))
                found.append(Index(0, ((1, axes[-1].value),)))
            return found

        x, y, z = self.operands
        batch, m, n = (outer(kinds) for kinds in (x.kinds[0], x.kinds[1], y.kinds[1]))
        buffers = x.buffer("a", "in"), y.buffer("b", "in"), z.buffer("c", "out")
        sums = FLOAT32 if s.out in HALVES else buffers[2].dtype

        def turn(at: list[Index], *totals: Operand) -> list[Operand]:
            left = self._read(b, x, buffers[0], [batch, m, at], sums)
            right = self._read(b, y, buffers[1], [batch, n, at], sums)
            return [
                b.op("add", sums, total, term)
                for total, term in zip(totals, _times(b, sums, left, right), strict=True)
            ]

        zero = [Const(0, sums)] * z.parts
        totals = b.nest([k for k, _ in x.kinds[2]], turn, zero) if s.k else zero
        place = scale_index(_at(z, [batch, m, n]), z.parts, -z.low * z.parts)
        more: list[Buffer] = []
        if s.tail is not None:
            row, sizes = (n, y.kinds[1]) if s.c_strides[1] == 1 else (m, x.kinds[1])
            at = _at(_Operand(s.out, _with_strides([size for size, _ in sizes], 1)), [row])
            totals = [_tail(b, s.tail, totals[0], at, s.out, math.prod(k for k, _ in sizes), more)]
        for part, total in enumerate(totals):
            value = b.convert(total, buffers[2].dtype)
            b.store(buffers[2], scale_index(place, 1, part), value)
        return Kernel("product", (*buffers, *more), tuple(axes), tuple(b.blocks[0].stmts))

    def _read(
        self, b: Builder, x: _Operand, buffer: Buffer, at: Sequence[Sequence[Index]],
        sums: np.dtype,
    ) -> list[Operand]:  # fmt: skip
        """An element's parts as what is summed."""
        place = scale_index(_at(x, at), x.parts, -x.low * x.parts)
        parts = [b.load(buffer, scale_index(place, 1, i)) for i in range(x.parts)]
        if x.dtype in narrow.NARROW:
            xp = Scalars(b)
            parts = [narrow.loaded(xp, xp.symbol(parts[0], narrow.BYTE), x.dtype).operand]
        return [b.convert(part, sums) for part in parts]


def _tail(
    b: Builder, tail: Tail, total: Operand, at: Index, out: np.dtype, n: int, more: list[Buffer]
) -> Operand:  # fmt: skip
    """What becomes of a sum, whose place along the bias is `at`; adds what it reads to `more`."""
    for i, _ in enumerate(tail.scales):
        more.append(Buffer(f"scale{i}", FLOAT32, 1, "in"))
        total = b.op("multiply", FLOAT32, total, b.load(more[-1], ZERO))
    if tail.bias is not None:
        more.append(Buffer("bias", out, n, "in"))
        total = b.op("add", FLOAT32, total, b.convert(b.load(more[-1], at), FLOAT32))
    xp: Any = Scalars(b)
    x = xp.symbol(total, FLOAT32)
    if tail.activation == "relu":
        x = xp.maximum(x, 0)
    elif tail.activation == "gelu":
        x = 0.5 * x * (1.0 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return x.operand


def _at(x: _Operand, at: Sequence[Sequence[Index]]) -> Index:
    """Where an element is, by the indices of each kind."""
    moved = [
        scale_index(index, stride)
        for axes, indices in zip(x.kinds, at, strict=True)
        for (_, stride), index in zip(axes, indices, strict=True)
    ]
    return add_indices(ZERO, *moved)


def _times(
    b: Builder, dtype: np.dtype, x: Sequence[Operand], y: Sequence[Operand]
) -> Iterator[Operand]:
    """The parts of a product."""
    if len(x) == 1:
        yield b.op("multiply", dtype, x[0], y[0])
        return
    for (i, j), (k, m), how in (((0, 0), (1, 1), "subtract"), ((0, 1), (1, 0), "add")):
        one, two = b.op("multiply", dtype, x[i], y[j]), b.op("multiply", dtype, x[k], y[m])
        yield b.op(how, dtype, one, two)


def _with_strides(sizes: Sequence[int], last: int) -> list[tuple[int, int]]:
    """Axes in order whose elements lie `last` apart."""
    found, step = [], last
    for n in reversed(sizes):
        found.append((n, step))
        step *= n
    return found[::-1]
