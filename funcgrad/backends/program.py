"""Planned programs: steps on memory, ready for a backend to emit as one native function.

Everything has an address before anything is emitted: a `Ref` names a place in an input, an output,
a constant or the arena, the one block of temporary memory, of which liveness analysis reuses
parts. Loops and branches hold their steps inside, on the same memory: slices of scanned arrays and
rows of stacked results are refs that move with the loop's counter.

Steps keep what their equations mean, by which a target may choose code: a product the convolution
that it is, a `HostStep` (sorts, FFTs and what has no loops) and a kernel that was written for one
op (a small Cholesky factor, a convolution of single channels) their primitive and parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.backends.loops.ir import Kernel, kernel_text
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.record import Record, fresh
from funcgrad.core.source import Source
from funcgrad.ops.convolution.conv import ARRAYS, third

display = Late("funcgrad.core.display.jaxpr_text")


class Ref(Record):
    """The address base + offset + Σ counter·stride, in bytes.

    space, number: input number, output number or constant number; the arena is one (number 0); the
        number of a parallel `LoopStep` around, whose turns each have a "band" of memory
    strides: pairs (number of an enclosing `LoopStep`, bytes by which a turn moves the address)

    Inputs, outputs and the arena are aligned as the target says or as numpy allocates (16); an
    address inside is as aligned as its offset and strides say.
    """

    space: Literal["input", "output", "constant", "arena", "band"]
    number: int = 0
    offset: int = 0
    strides: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        base = self.space if self.space in ("arena", "band") else f"{self.space}{self.number}"
        moves = "".join(f"{s:+}*t{n}" for n, s in self.strides)
        return f"{base}{f'+{self.offset}' if self.offset else ''}{moves}"


class View(Record):
    """An array in memory: contiguous, in C order, starting at `ref`."""

    ref: Ref
    aval: ShapedArray

    def __str__(self) -> str:
        return f"{self.ref}:{self.aval}"


class KernelStep(Record):
    """Run a kernel: one address a parameter. Equal kernels of a program are one object.

    prim, params: of the op that it computes, if it was written for one alone
    """

    kernel: Kernel
    args: tuple[Ref, ...]
    prim: Primitive | None = None
    params: dict[str, Any] = fresh(factory=dict)


class GemmAxes(Record):
    """m, n and k as several axes each, outermost first, up to six.

    m: sizes, and strides of a; n: sizes, and strides of b; k: sizes, and strides of a and of b
    """

    m: tuple[tuple[int, int], ...]
    n: tuple[tuple[int, int], ...]
    k: tuple[tuple[int, int, int], ...]


class Frame(Record):
    """How an operand of a product is read: as if zeros stood around what is in memory.

    operand: its number, 0 for a and 1 for b
    start: the element, of the array with its zeros, at which the operand begins
    planes: how often the axes are there; axes: up to three sizes, each with how many zeros are in
        front and behind, outermost first
    """

    operand: int
    start: int
    planes: int
    axes: tuple[tuple[int, int, int], ...]


class Convolution(Record):
    """What a product of windows and a kernel computes: result[i, f, p] = Σ images[i, c, p·strides +
    t·dilation]·kernel[f, c, t], summed over channels c and the taps t of a window; images count
    from their padding. A gradient of images is one, its kernel turned; one of a kernel is, too,
    whose taps are places of what comes back, and whose images and channels are the other's channels
    and images.

    operands: what images and kernel are to the convolution that was differentiated: two of its
        "images", "kernel" and "result", which make the third

    images, channels, features: how many there are, in each group
    size: of an image; taps: of a window; places: of a result
    padding: for each axis, how many zeros are in front and behind; fewer than 0 aren't read
    holes: by which images' elements are apart before their padding, if any are
    groups: of features, of images; phases: if there are any, how many convolutions along each axis
        are computed at once: windows of each begin one further, kernels are their own
    last: whether channels come after places in images
    """

    images: int
    channels: int
    features: int
    size: tuple[int, ...]
    taps: tuple[int, ...]
    places: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: tuple[int, int] = (1, 1)
    phases: tuple[int, ...] = ()
    last: bool = False
    operands: tuple[str, ...] = ARRAYS[:2]
    holes: tuple[int, ...] = ()


class Windows(Record):
    """Where a product has the windows of its convolution, if it reads them in images.

    operand: which has them, 0 for a and 1 for b
    steps: how far its images, channels and places along each axis are apart, in elements
    rows: which axes, of images (0) and of places (1, …), are the operand's matrix axis, outermost
        first; others of more than one element are the batch
    results: how far results of images, of phases and of places along each axis are apart
    kernels: how far kernels of phases are
    """

    operand: int
    steps: tuple[int, ...]
    rows: tuple[int, ...]
    results: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()


class Tail(Record):
    """What becomes of a product's sums before they are rounded to c's dtype: times each of `scales`
    (float32), plus the bias, of c's dtype (an element for each of its axis of stride 1), then the
    activation: "relu", "gelu" (its formula with tanh), or ""."""

    scales: tuple[Ref, ...] = ()
    bias: Ref | None = None
    activation: str = ""

    @property
    def refs(self) -> tuple[Ref, ...]:
        """What it reads beside the sums: the scales, and the bias."""
        return self.scales if self.bias is None else (*self.scales, self.bias)


class GemmStep(Record):
    """c[b…, m, n] = Σ_k a[b…, m, k]·b[b…, k, n] for each point of the batch axes.

    dtype: of a and b: float32, float64, complex64, complex128; bfloat16, float16 or int8
    out: of c: that of a and b, or float32 for the narrow floats and int32 for int8
    a_strides, b_strides, c_strides: in elements, of the two matrix axes (m, k), (k, n), (m, n)
    batch: for each batch axis its size and the strides of a, b and c (0 repeats an operand)
    axes: in place of a_strides and b_strides, where an operand's rows or columns don't lie at equal
        distances, such as windows of an image, whose elements may belong to several rows
    frame: of the operand whose strides (in axes and batch) count the zeros around it
    exact: whether all products are formed, none of windows by tiles
    convolution, windows: if it is one, and where an operand reads windows in its images
    finish: kernels that read row t of c in turn t, and may run when its sums are whole; of the
        band of such a loop if nobody else reads c
    b_dtype: of b, if another; tail: what becomes of the sums: of targets that have such products
    rounds: whether operands may be rounded to TensorFloat-32 first, where hardware has that
    k may be 0 (c becomes 0). c overlaps neither a nor b.
    """

    dtype: np.dtype
    out: np.dtype
    m: int
    n: int
    k: int
    a: Ref
    b: Ref
    c: Ref
    a_strides: tuple[int, int]
    b_strides: tuple[int, int]
    c_strides: tuple[int, int]
    batch: tuple[tuple[int, int, int, int], ...] = ()
    axes: GemmAxes | None = None
    frame: Frame | None = None
    exact: bool = False
    convolution: Convolution | None = None
    windows: Windows | None = None
    finish: LoopStep | None = None
    b_dtype: np.dtype | None = None
    rounds: bool = False
    tail: Tail | None = None

    @property
    def apart(self) -> bool:
        """Whether c has no memory but for the rows in hand."""
        return self.finish is not None and self.c.space == "band"


class AttentionSizes(NamedTuple):
    """Of query (batch, queries, heads, features) and key (batch, keys, key heads, features)."""

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    features: int


class Strided(NamedTuple):
    """An array at any strides, which count elements."""

    ref: Ref
    strides: tuple[int, ...]


class AttentionStep(Record):
    """`attention`, `attention_backward` (transforms.attention), or both
    (backends.rewrites.attention_joint), by the name of the op.

    ins: the op's operands but stats; outs: its results but stats; all with axes batch, place,
        head, feature
    stats: (batch, head, 2, query), contiguous, in the dtype of sums; none in both
    lengths: none, or how many queries and how many keys count, int32 (batch)
    params: the op's
    bias, mask, dbias: where they are there, of axes batch, head, query, key; dbias is contiguous.
        Strides are 0 along axes of size 1
    dbias_size: elements of dbias
    cut: what the target wants to know beside: how tasks are cut, where they have temporary memory
    """

    op: str
    dtype: np.dtype
    sizes: AttentionSizes
    ins: tuple[Strided, ...]
    outs: tuple[Strided, ...]
    stats: Ref | None
    lengths: tuple[Ref, ...]
    scale: float
    before: int | None
    after: int | None
    bias: Strided | None = None
    mask: Strided | None = None
    dbias: Strided | None = None
    dbias_size: int = 0
    cut: Any = None

    @property
    def pairs(self) -> dict[str, Strided]:
        """Which of bias, mask and dbias there are."""
        found = {"bias": self.bias, "mask": self.mask, "dbias": self.dbias}
        return {name: x for name, x in found.items() if x is not None}


class HostStep(Record):
    """Run `prim.impl(numpy, *ins, **params)` in Python and copy its results into `outs`, converted
    to their dtypes. Effects happen in program order. An exception ends the whole program."""

    prim: Primitive
    params: dict[str, Any]
    ins: tuple[View, ...]
    outs: tuple[View, ...]


class ExchangeStep(Record):
    """Exchange contiguous blocks with the other devices of a communicator.

    kind: "all_reduce", "all_gather" (a block to one of each rank), "reduce_scatter", "all_to_all"
        (one block for each rank), "permute" (`perm` has pairs of ranks, from and to; who receives
        nothing gets zeros)
    comm: the number of an entry of `Program.comms`
    op: "sum", "max" or "min", for the kinds that reduce
    count: the elements of a block; of the whole array for all_reduce and permute
    size: the number of ranks
    source and to don't overlap, or for all_reduce may be equal.
    """

    kind: str
    comm: int
    op: str
    dtype: np.dtype
    count: int
    size: int
    source: Ref
    to: Ref
    perm: tuple[tuple[int, int], ...] = ()

    @property
    def blocks(self) -> tuple[int, int]:
        """How many blocks the source has, and how many the result."""
        several = self.size
        n = {"all_gather": (1, several), "reduce_scatter": (several, 1)}
        return n.get(self.kind, (several, several) if self.kind == "all_to_all" else (1, 1))

    @property
    def nbytes(self) -> int:
        """The bytes of the larger one of source and result."""
        return max(self.blocks) * self.count * self.dtype.itemsize


class LaneStep(Record):
    """Write the device's rank in a communicator, an int32."""

    comm: int
    to: Ref


class CopyStep(Record):
    """Copy bytes; source and destination don't overlap (or are equal: nothing to do)."""

    source: Ref
    to: Ref
    nbytes: int


class CondStep(Record):
    """Run the branch whose number is at `index` (an int32, in range)."""

    index: Ref
    branches: tuple[tuple[Step, ...], ...]


class LoopStep(Record):
    """Run the body `length` times; refs inside move with counter t`number` = 0 … length-1.

    parallel: turns are independent of each other; the body has kernels and products alone
    band: bytes of memory that a turn of a parallel loop has for itself
    """

    number: int
    length: int
    body: tuple[Step, ...]
    parallel: bool = False
    band: int = 0


class WhileStep(Record):
    """Run `test`, and while the bool at `condition` is true the body and `test` again."""

    test: tuple[Step, ...]
    condition: Ref
    body: tuple[Step, ...]


Step = (
    KernelStep
    | GemmStep
    | AttentionStep
    | HostStep
    | ExchangeStep
    | LaneStep
    | CopyStep
    | CondStep
    | LoopStep
    | WhileStep
)


class Comm(Record):
    """A communicator that a program needs: over named axes, the device's rank counted row-major.

    size: the number of devices, the product of the axes' sizes
    """

    axes: tuple
    size: int


class Program(Record):
    """A planned program: call it with a pointer for each input and output, and an arena.

    aliases: output number → input number, where an output lives in the memory of a donated input:
        the caller passes the input's address for both and hands the input's array out as result
    constants: arrays that refs of space "constant" point into
    flops, bytes_moved: what the steps do when each loop of unknown length turns once
    comms: the communicators that exchanges use, in order of first use
    traffic: for each kind of exchange how many there are and the bytes of their larger side
    peak: what lives in the arena when it is fullest: types, and the user's lines that compute them
    beside: steps that may take memory beside the arena while they run, and the user's lines
    """

    name: str
    ins: tuple[ShapedArray, ...]
    outs: tuple[ShapedArray, ...]
    steps: tuple[Step, ...]
    arena_bytes: int
    constants: tuple[np.ndarray, ...] = ()
    aliases: dict[int, int] = fresh(factory=dict)
    flops: float = 0.0
    bytes_moved: float = 0.0
    comms: tuple[Comm, ...] = ()
    traffic: dict[str, float] = fresh(factory=dict)
    peak: tuple[tuple[ShapedArray, Source | None], ...] = ()
    beside: tuple[tuple[Step, Source | None], ...] = ()

    def kernels(self) -> list[Kernel]:
        """The different kernels in order of first use."""
        found = {id(s.kernel): s.kernel for s in walk(self.steps) if isinstance(s, KernelStep)}
        return list(found.values())

    def __repr__(self) -> str:
        return program_text(self)


def walk(steps: Sequence[Step]) -> Iterator[Step]:
    """Each step, nested ones after the one that holds them."""
    for s in steps:
        yield s
        for inner in blocks(s):
            yield from walk(inner)


def blocks(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The lists of steps that a step holds."""
    if isinstance(step, CondStep):
        return step.branches
    if isinstance(step, LoopStep):
        return (step.body,)
    if isinstance(step, GemmStep):
        return () if step.finish is None else ((step.finish,),)
    return (step.test, step.body) if isinstance(step, WhileStep) else ()


# ---- text


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
    more = () if s.tail is None else ("; then", *map(str, s.tail.refs), s.tail.activation)
    return f"gemm {kind} {sizes}: {s.c}{list(s.c_strides)} = {operands}{of}{' '.join(more)}"


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


def _step_lines(steps: Sequence[Step], indent: str) -> Iterator[str]:
    for s in steps:
        if isinstance(s, KernelStep):
            yield f"{indent}{s.kernel.name} {', '.join(map(str, s.args))}{_kernel_op_text(s)}"
        elif isinstance(s, GemmStep):
            yield indent + _gemm_text(s)
            if s.finish is not None:
                yield from _nested_lines(s.finish, indent + "  ")
        elif isinstance(s, AttentionStep):
            yield indent + _attention_text(s)
        elif isinstance(s, HostStep):
            ins, outs = (", ".join(map(str, views)) for views in (s.ins, s.outs))
            yield f"{indent}host {_op_text(s.prim, s.params)} {ins} -> {outs}"
        elif isinstance(s, ExchangeStep):
            yield indent + _exchange_text(s)
        elif isinstance(s, LaneStep):
            yield f"{indent}lane of comm{s.comm} -> {s.to}"
        elif isinstance(s, CopyStep):
            yield f"{indent}copy {s.nbytes} bytes {s.source} -> {s.to}"
        else:
            yield from _nested_lines(s, indent)


def _nested_lines(s: CondStep | LoopStep | WhileStep, indent: str) -> Iterator[str]:
    inner = indent + "  "
    if isinstance(s, CondStep):
        for i, branch in enumerate(s.branches):
            yield f"{indent}{'if' if not i else 'elif'} {s.index} is {i}:"
            yield from _step_lines(branch, inner)
    elif isinstance(s, LoopStep):
        band = f", band {s.band} bytes" if s.band else ""
        yield f"{indent}{'parallel' if s.parallel else 'loop'} t{s.number} < {s.length}{band}:"
        yield from _step_lines(s.body, inner)
    else:
        yield f"{indent}while:"
        yield from _step_lines(s.test, inner)
        yield f"{inner}stop unless {s.condition}"
        yield from _step_lines(s.body, inner)


def program_text(program: Program) -> str:
    """The steps, then the kernels they run."""
    ins, outs = (", ".join(map(str, avals)) for avals in (program.ins, program.outs))
    head = f"program {program.name}({ins}) -> ({outs}), arena {program.arena_bytes} bytes"
    aliases = [f"  output{o} is input{i}" for o, i in program.aliases.items()]
    comms = [f"  comm{i}: {c.size} devices over {c.axes}" for i, c in enumerate(program.comms)]
    lines = [head, *aliases, *comms, *_step_lines(program.steps, "  ")]
    return "\n\n".join(["\n".join(lines), *(kernel_text(k) for k in program.kernels())])
