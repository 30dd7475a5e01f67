"""Drafts of steps that targets may have: products, attention, exchanges with other devices.

Each function adds the draft of an equation to a block's, or returns False if the host is to run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from funcgrad import dtypes
from funcgrad.backends.drafts.tensors import Tensor, moved
from funcgrad.backends.late import late
from funcgrad.backends.loops.builder import strides_of
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.program import (
    AttentionStep,
    CopyStep,
    ExchangeStep,
    GemmStep,
    LaneStep,
    Ref,
    Step,
    Strided,
)
from funcgrad.backends.rewrites.narrow import INTEGERS, memory_p
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn, Var
from funcgrad.core.record import replace

if TYPE_CHECKING:
    from funcgrad.backends.drafts.drafter import BlockDrafter

attention, gemms = late("funcgrad.backends.lower", "attention", "gemms")


def product(
    d: BlockDrafter, eqn: Eqn, joins: Callable[[GemmStep], bool] = lambda step: False
) -> bool:
    """A product as a matrix multiplication.

    joins: whether one of windows had better take their rows in the order of the result's memory
    """
    made = _product(d, eqn, False)
    if made is not None and made[0].axes is not None and joins(made[0]):
        made = _product(d, eqn, True)
    if made is None:
        return False
    (step, (a, b), offsets), out = made, d.tensor(eqn.outs[0])

    def make(inner: Any) -> list[Step]:
        at_a, at_b = moved(a.place, offsets[0]), moved(b.place, offsets[1])
        return [replace(step, a=at_a, b=at_b, c=out.place)]

    d.add([a, b], [out], make, product=step, operands=(a, b, out), offsets=(*offsets, 0))
    return True


def _product(
    d: BlockDrafter, eqn: Eqn, joins: bool
) -> tuple[GemmStep, list[Tensor], list[int]] | None:
    """The step of a product, its operands, and the bytes from which on it reads them; None if none
    computes it. joins: as for `gemm_shape`."""
    sides = []
    for i, operand in enumerate(eqn.ins):
        view = d.analysis.views.get((eqn, i))
        base = operand if view is None else view.base
        sides.append((d.tensor(base), view, operand.aval.shape))
    strides = _strides_of(d, eqn.outs[0])
    operands = [(view, shape) for _, view, shape in sides]
    shape = gemms.gemm_shape(eqn, operands, strides, d.target.limits, joins)
    if shape is None:
        return None
    dtype, other, out = (v.aval.dtype for v in (*eqn.ins, *eqn.outs))
    if shape.swapped:
        dtype, other = other, dtype
    if eqn.params["pairs"]:
        out = dtypes.to_complex(dtype)
    (a, va, _), (b, vb, _) = sides[::-1] if shape.swapped else sides
    frames = [gemms.frame_of(v, i) for i, v in enumerate((va, vb))]
    frame = frames[0] or frames[1]
    offsets = [
        0 if v is None or f is not None else v.offset * dtype.itemsize
        for v, f in zip((va, vb), frames, strict=True)
    ]
    kind = out if eqn.params["pairs"] else dtype
    nowhere = Ref("arena")
    a_strides, b_strides, c_strides = shape.strides
    step = GemmStep(kind, out, shape.m, shape.n, shape.k, nowhere, nowhere, nowhere, a_strides,
                    b_strides, c_strides, shape.batch, shape.axes, frame,
                    eqn.params["exact"], shape.convolution, shape.windows,
                    b_dtype=None if other == dtype else other,
                    tf32=eqn.params.get("tf32", False))  # fmt: skip
    return step, [a, b], offsets


def _strides_of(d: BlockDrafter, out: Var) -> tuple[int, ...]:
    """The strides of a result, which may be a piece of another array."""
    place, shape = d.places.get(out), out.aval.shape
    return tuple(strides_of(shape) if place is None else place.strides(shape))


def attend(
    d: BlockDrafter, eqn: Eqn, scratch: int = 0, cut: Callable[[Ref], Any] | None = None
) -> bool:
    """Attention, forward, backward or both, unless its dtype is the host's.

    scratch: of temporary memory, elements in the dtype of sums; cut: makes the step's `cut`, given
        that memory
    """
    dtype, wide = attention.dtypes_of(eqn)
    if dtype not in LOOP_DTYPES or not attention.kind_of(eqn):
        return False
    op, sizes = attention.kind_of(eqn), attention.sizes_of(eqn)
    numbers = attention.given_numbers(eqn)
    ins = [_strided(d, eqn, i) for i in attention.ARRAYS[op]]
    outs = [d.tensor(v) for v in eqn.outs]
    known = [d.tensor(eqn.ins[4])] if op == "attention_backward" else []
    stats = known or [outs.pop()] if op != "attention_joint" else []
    lengths = [d.tensor(eqn.ins[i]) for i in numbers.lengths]
    given = {"bias": numbers.bias, "mask": numbers.mask}
    pairs = {name: _pair(d, eqn, i) for name, i in given.items() if i is not None}
    room = Tensor(ShapedArray((scratch,), wide))
    results = outs[: attention.RESULTS[op]]
    written = [*outs, *(stats if op == "attention" else ()), *([room] if scratch else ())]
    dbias = next(iter(outs[len(results) :]), None)
    apart = [_strides_of(d, v) for v in attention.strided_results(eqn)]

    def make(inner: Any) -> list[Step]:
        p = eqn.params
        operands = tuple(Strided(moved(t.place, at), strides) for t, at, strides in ins)
        found = tuple(Strided(t.place, s) for t, s in zip(results, apart, strict=True))
        step = AttentionStep(op, dtype, sizes, operands, found,
                             next((t.place for t in stats), None),
                             tuple(t.place for t in lengths), p["scale"], p["before"],
                             p["after"])  # fmt: skip
        more: dict[str, Any] = {
            name: Strided(moved(t.place, at), strides) for name, (t, at, strides) in pairs.items()
        }
        if cut is not None:
            more["cut"] = cut(room.place)
        if dbias is not None:
            steps = attention.spans(dbias.aval.shape, strides_of(dbias.aval.shape))
            more |= {"dbias": Strided(dbias.place, steps), "dbias_size": dbias.aval.size}
        return [replace(step, **more)]

    reads = [t for t, _, _ in (*ins, *pairs.values())] + lengths + known
    d.add(reads, written, make)
    return True


def _pair(d: BlockDrafter, eqn: Eqn, i: int) -> tuple[Tensor, int, tuple[int, ...]]:
    """A bias or mask: as `_strided`."""
    tensor, at, strides = _strided(d, eqn, i)
    return tensor, at, attention.spans(eqn.ins[i].aval.shape, strides)


def _strided(d: BlockDrafter, eqn: Eqn, i: int) -> tuple[Tensor, int, tuple[int, ...]]:
    """An operand that is read where it lies: what it is part of, from which byte, strides."""
    operand, view = eqn.ins[i], d.analysis.views.get((eqn, i))
    if view is None:
        return d.tensor(operand), 0, tuple(strides_of(operand.aval.shape))
    return d.tensor(view.base), view.offset * operand.aval.dtype.itemsize, view.strides


def exchange(d: BlockDrafter, eqn: Eqn) -> bool:
    """Blocks that go to other devices, and come from them."""
    p, source, to = eqn.params, d.tensor(eqn.ins[0]), d.tensor(eqn.outs[0])
    count = eqn.ins[0].aval.size
    if p["kind"] in ("reduce_scatter", "all_to_all"):
        count //= p["size"]
    comm, dtype = d.drafter.comm(p["axis_name"], p["size"]), eqn.outs[0].aval.dtype

    def make(inner: Any) -> list[Step]:
        places = source.place, to.place
        return [ExchangeStep(p["kind"], comm, p["op"], dtype, count, p["size"], *places, p["perm"])]

    pairs = [(to, source)] if p["kind"] == "all_reduce" else []
    d.add([source], [to], make, in_place=pairs)
    return True


def lane(d: BlockDrafter, eqn: Eqn) -> bool:
    """The number of this device along named axes."""
    to = d.tensor(eqn.outs[0])
    comm = d.drafter.comm(eqn.params["axis_name"], eqn.params["size"])
    d.add([], [to], lambda inner: [LaneStep(comm, to.place)])
    return True


def same_memory(d: BlockDrafter, eqn: Eqn) -> bool:
    """An array that is the memory of another one; False for a bitcast of integers of 4 bits, whose
    bytes may have other ones."""
    (x,), (y,) = eqn.ins, eqn.outs
    if eqn.prim is not memory_p and {x.aval.dtype, y.aval.dtype} & set(INTEGERS):
        return False
    source = d.tensor(x)
    if y not in d.places:
        d.tensors[y] = source
        return True
    to = d.tensor(y)

    def make(inner: Any) -> list[Step]:
        return [CopyStep(source.place, to.place, y.aval.nbytes)]

    d.add([source], [to], make, in_place=[(to, source)])
    return True
