"""Planned programs as text: steps in order, then the kernels they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.backends.loops.ir import kernel_text
from funcgrad.backends.program import (
    AttentionStep,
    CondStep,
    Convolution,
    CopyStep,
    ExchangeStep,
    GemmStep,
    HostStep,
    KernelStep,
    LaneStep,
    LoopStep,
    Program,
    Step,
    WhileStep,
    Windows,
)
from funcgrad.backends.walker import Walker
from funcgrad.core.display import jaxpr_text as display
from funcgrad.core.primitive import Primitive
from funcgrad.ops.convolution.conv import third


def program_text(program: Program) -> str:
    """The steps, then the kernels they run."""
    ins, outs = (", ".join(map(str, avals)) for avals in (program.ins, program.outs))
    head = f"program {program.name}({ins}) -> ({outs}), arena {program.arena_bytes} bytes"
    aliases = [f"  output{o} is input{i}" for o, i in program.aliases.items()]
    comms = [f"  comm{i}: {c.size} devices over {c.axes}" for i, c in enumerate(program.comms)]
    lines = _Lines()
    lines.nested(program.steps)
    text = "\n".join([head, *aliases, *comms, *lines.lines])
    return "\n\n".join([text, *(kernel_text(k) for k in program.kernels())])


class _Lines(Walker):
    """The lines of steps."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = ""

    def line(self, text: str) -> None:
        """A line of the step in hand."""
        self.lines.append(self.indent + text)

    def nested(self, steps: Sequence[Step]) -> None:
        """The lines of steps, further in."""
        before, self.indent = self.indent, self.indent + "  "
        self.steps(steps)
        self.indent = before

    def kernel(self, s: KernelStep) -> None:
        self.line(f"{s.kernel.name} {', '.join(map(str, s.args))}{_kernel_op_text(s)}")

    def gemm(self, s: GemmStep) -> None:
        self.line(_gemm_text(s))
        if s.finish is not None:
            self.nested([s.finish])

    def attention(self, s: AttentionStep) -> None:
        self.line(_attention_text(s))

    def host(self, s: HostStep) -> None:
        ins, outs = (", ".join(map(str, views)) for views in (s.ins, s.outs))
        self.line(f"host {_op_text(s.prim, s.params)} {ins} -> {outs}")

    def exchange(self, s: ExchangeStep) -> None:
        self.line(_exchange_text(s))

    def lane(self, s: LaneStep) -> None:
        self.line(f"lane of comm{s.comm} -> {s.to}")

    def copy(self, s: CopyStep) -> None:
        self.line(f"copy {s.nbytes} bytes {s.source} -> {s.to}")

    def cond(self, s: CondStep) -> None:
        for i, branch in enumerate(s.branches):
            self.line(f"{'if' if not i else 'elif'} {s.index} is {i}:")
            self.nested(branch)

    def loop(self, s: LoopStep) -> None:
        band = f", band {s.band} bytes" if s.band else ""
        self.line(f"{'parallel' if s.parallel else 'loop'} t{s.number} < {s.length}{band}:")
        self.nested(s.body)

    def while_(self, s: WhileStep) -> None:
        self.line("while:")
        self.nested(s.test)
        self.line(f"  stop unless {s.condition}")
        self.nested(s.body)


# ---- what a step is


def _op_text(prim: Primitive, params: dict[str, Any]) -> str:
    said = {k: v for k, v in params.items() if v is not None and not display.holds_programs(v)}
    text = " ".join(f"{k}={display.param_text(v, '')}" for k, v in said.items())
    return f"{prim.name}[{text}]" if text else f"{prim.name}"


def _convolution_text(c: Convolution, windows: Windows | None) -> str:
    sizes = (c.images, c.channels, *c.size), (c.features, *c.taps), c.places
    images, kernel, result = ("x".join(map(str, x)) for x in sizes)
    names = ("padding", "strides", "dilation", "holes", "groups", "phases")
    more = {name: getattr(c, name) for name in names}
    return (
        f"; a convolution's {third(c.operands)}"
        + ("" if windows is None else f" by windows of {'ab'[windows.operand]}")
        + f": images {images}{' last' * c.last}, kernel {kernel}, result {result}"
        + "".join(f", {k} {v}" for k, v in more.items() if v and set(v) not in ({1}, {(0, 0)}))
    )


def _kernel_op_text(s: KernelStep) -> str:
    if (of := s.params.get("convolution")) is not None:
        return _convolution_text(of, None)
    return "" if s.prim is None else f"; {_op_text(s.prim, s.params)}"


def _gemm_text(s: GemmStep) -> str:
    batch = "".join(f" batch {n}({a},{b},{c})" for n, a, b, c in s.batch)
    kind = s.dtype.name if s.out == s.dtype else f"{s.dtype.name} to {s.out.name}"
    of = "" if s.convolution is None else _convolution_text(s.convolution, s.windows)
    if s.axes is not None:
        operands = f"{s.a} @ {s.b} over m{s.axes.m} n{s.axes.n} k{s.axes.k}"
        if s.frame is not None:
            f = s.frame
            operands += f" in zeros {'ab'[f.operand]}[{f.start}] {f.planes}x{f.axes}"
    else:
        operands = f"{s.a}{list(s.a_strides)} @ {s.b}{list(s.b_strides)}"
    sizes = f"{s.m}x{s.n}x{s.k}{batch}"
    tail = f", then {s.tail}" if s.tail else ""
    return f"gemm {kind} {sizes}: {s.c}{list(s.c_strides)} = {operands}{of}{tail}"


def _attention_text(s: AttentionStep) -> str:
    n = s.sizes
    window = f" before {s.before} after {s.after}" if (s.before, s.after) != (None, None) else ""
    ins, outs = (", ".join(f"{x.ref}{list(x.strides)}" for x in xs) for xs in (s.ins, s.outs))
    rest = "".join(f", {r}" for r in (s.stats, *s.lengths) if r is not None)
    rest += "".join(f", {name} {x.ref}{list(x.strides)}" for name, x in s.pairs.items())
    return (
        f"{s.op} {s.dtype.name} {n.batch}x{n.queries}x{n.keys}x{n.heads}/{n.key_heads}x"
        f"{n.features}{window}: {outs} = {ins}{rest}"
    )


def _exchange_text(s: ExchangeStep) -> str:
    what = f"{s.kind} {s.op}" if "reduce" in s.kind else s.kind
    perm = "".join(f" {a}->{b}" for a, b in s.perm)
    return f"{what} over comm{s.comm}{perm} {s.dtype.name}[{s.count}]: {s.to} = {s.source}"
