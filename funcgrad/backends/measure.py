"""What a planned program does: operations, bytes read and written, exchanges with others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from funcgrad import dtypes
from funcgrad.backends.loops.ir import (
    MATH,
    Buffer,
    Kernel,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
    Value,
    While,
    walk,
)
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
    Step,
    WhileStep,
)
from funcgrad.backends.walker import Walker
from funcgrad.core.record import Record, fresh
from funcgrad.ops.convolution.conv import conv_general_dilated_p

# Scalar ops that move or compare are not counted, an elementary function counts as ten.
_FREE = {"convert", "bitcast", "where"}


class Cost(Record):
    """Floating-point operations, bytes moved in memory, and for each kind of exchange its number
    ("all_reduce count") and the bytes of its larger side ("all_reduce bytes")."""

    flops: float = 0.0
    moved: float = 0.0
    traffic: dict[str, float] = fresh(factory=dict)

    def plus(self, other: Cost, times: int = 1) -> Cost:
        """The cost of this, and of the other a number of times."""
        traffic = dict(self.traffic)
        for key, n in other.traffic.items():
            traffic[key] = traffic.get(key, 0.0) + n * times
        return Cost(self.flops + other.flops * times, self.moved + other.moved * times, traffic)


def measure(steps: Sequence[Step]) -> Cost:
    """The cost of steps: the dearest branch of each choice, one turn of a loop whose number of
    turns isn't known."""
    meter = _Meter()
    meter.steps(steps)
    return meter.total


class _Meter(Walker):
    """Adds up what steps cost."""

    def __init__(self) -> None:
        self.total = Cost()

    def add(self, cost: Cost, times: int = 1) -> None:
        """The cost of a step."""
        self.total = self.total.plus(cost, times)

    def kernel(self, s: KernelStep) -> None:
        self.add(Cost(kernel_flops(s.kernel), float(kernel_bytes(s.kernel))))

    def gemm(self, s: GemmStep) -> None:
        batch = math.prod(n for n, *_ in s.batch)
        m, n, k = s.m, s.n, s.k
        a, b = m * k, k * n
        if s.axes is not None:
            # Windows share elements.
            a = min(a, _span((*s.axes.m, *((size, x) for size, x, _ in s.axes.k))))
            b = min(b, _span((*s.axes.n, *((size, y) for size, _, y in s.axes.k))))
        c = 0 if s.apart else m * n * s.out.itemsize
        each = 8.0 if dtypes.is_complex(s.dtype) else 2.0
        self.add(Cost(each * batch * m * n * k, float(batch * ((a + b) * s.dtype.itemsize + c))))
        if s.finish is not None:
            self.step(s.finish)

    def attention(self, s: AttentionStep) -> None:
        self.add(_attention(s))

    def host(self, s: HostStep) -> None:
        flops = 0.0
        if s.prim is conv_general_dilated_p:
            kernel, numbers = s.ins[1].aval, s.params["dimension_numbers"]
            flops = 2.0 * s.outs[0].aval.size * kernel.size / kernel.shape[numbers.rhs_spec[0]]
        self.add(Cost(flops, float(sum(v.aval.nbytes for v in (*s.ins, *s.outs)))))

    def exchange(self, s: ExchangeStep) -> None:
        self.add(Cost(traffic={f"{s.kind} count": 1.0, f"{s.kind} bytes": float(s.nbytes)}))

    def lane(self, s: LaneStep) -> None:
        """Nothing that counts."""

    def copy(self, s: CopyStep) -> None:
        self.add(Cost(moved=2.0 * s.nbytes))

    def cond(self, s: CondStep) -> None:
        costs = [measure(b) for b in s.branches]
        self.add(max(costs, key=lambda c: (c.flops, c.moved), default=Cost()))

    def loop(self, s: LoopStep) -> None:
        self.add(measure(s.body), s.length)

    def while_(self, s: WhileStep) -> None:
        self.steps((*s.test, *s.body))


def _attention(step: AttentionStep) -> Cost:
    """Products of all pairs that a window lets through, an exponential each."""
    n = step.sizes
    pairs = sum(
        max(0, min(n.keys, n.keys if step.after is None else t + step.after + 1)
            - max(0, 0 if step.before is None else t - step.before))
        for t in range(n.queries)
    ) if (step.before, step.after) != (None, None) else n.queries * n.keys  # fmt: skip
    products = {"attention": 2, "attention_backward": 5, "attention_joint": 6}[step.op]
    flops = n.batch * n.heads * pairs * (2.0 * products * n.features + 14)
    queries = n.batch * n.queries * n.heads * n.features
    keys = n.batch * n.keys * n.key_heads * n.features
    arrays = len(step.ins) + len(step.outs)
    of_keys = 2 if step.op == "attention" else 4
    moved = (arrays - of_keys) * queries + of_keys * keys
    whole = (n.batch, n.heads, n.queries, n.keys)
    given = sum(
        math.prod(m for m, stride in zip(whole, x.strides, strict=True) if stride)
        * (1 if name == "mask" else max(4, step.dtype.itemsize))
        for name, x in step.pairs.items()
    )
    return Cost(flops, float(moved * step.dtype.itemsize + given))


def _span(axes: Iterable[tuple[int, int]]) -> int:
    """Elements from the first to the last that axes (size, stride) reach."""
    return 1 + sum((size - 1) * abs(stride) for size, stride in axes)


def kernel_bytes(kernel: Kernel) -> int:
    """Bytes of a kernel's parameters, those it reads and writes counted twice, and no more of any
    than there are places that its indices can name."""
    sizes: dict[Value, int] = {a.value: a.size for a in kernel.axes}
    sizes |= {s.axis: s.size for s in walk(kernel.body) if isinstance(s, Loop)}
    named: dict[Buffer, int] = {}
    for s in walk(kernel.body):
        if isinstance(s, Load | Store):
            known = all(v in sizes for _, v in s.index.terms)
            count = math.prod(sizes[v] for _, v in s.index.terms) if known else s.buffer.size
            named[s.buffer] = named.get(s.buffer, 0) + count
    return sum(
        min(b.size, named.get(b, b.size)) * b.dtype.itemsize * (2 if b.role == "inout" else 1)
        for b in kernel.params
    )


def kernel_flops(kernel: Kernel) -> float:
    """Scalar operations on floating-point numbers."""
    return float(kernel.points) * _body_flops(kernel.body)


def _body_flops(body: Sequence[Stmt]) -> float:
    total = 0.0
    for s in body:
        if isinstance(s, Op):
            if s.out.dtype.kind == "f" and s.name not in _FREE:
                total += 10 if s.name in MATH else 1
        elif isinstance(s, Loop):
            total += s.size * _body_flops(s.body)
        elif isinstance(s, While):
            total += _body_flops(s.test) + _body_flops(s.body)
    return total
