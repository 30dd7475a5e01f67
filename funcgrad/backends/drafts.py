"""Programs as drafts of steps: what each step reads and writes, before anything has an address.

A `Block` is the draft of a program (or of a loop's or branch's body): clusters become kernels,
products matrix multiplications, control flow drafts with blocks inside, and what loops can't
express runs on the host. Values that need memory are `Tensor`s, to be placed by `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from funcgrad.backends.bands import banded, sliced_kernel, sliced_product
from funcgrad.backends.builder import strides_of
from funcgrad.backends.fusion import Cluster, Entry, fuse
from funcgrad.backends.joins import Place, join_p, place_pieces, places_of
from funcgrad.backends.kernels import Written, write_cluster
from funcgrad.backends.late import late
from funcgrad.backends.loops import Kernel, kernel_text
from funcgrad.backends.merges import merge
from funcgrad.backends.normalize import normalize
from funcgrad.backends.pads import join_pads
from funcgrad.backends.program import (
    AttentionStep,
    Comm,
    CondStep,
    CopyStep,
    ExchangeStep,
    GemmStep,
    HostStep,
    KernelStep,
    LaneStep,
    LoopStep,
    Ref,
    Step,
    Strided,
    View,
    WhileStep,
)
from funcgrad.backends.roots import Analysis
from funcgrad.backends.scalars import LOOP_DTYPES
from funcgrad.backends.signature import signature
from funcgrad.backends.tensors import Block, Draft, Part, Row, Tensor, moved
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.record import replace

if TYPE_CHECKING:
    from funcgrad.backends import (
        attention,
        depthwise,
        eliminations,
        gemms,
        scalar_loops,
        selections,
        special,
        updates,
    )
else:
    attention, depthwise, eliminations, gemms, scalar_loops, selections, special, updates = late(
        "funcgrad.backends",
        *("attention", "depthwise", "eliminations", "gemms", "scalar_loops", "selections"),
        *("special", "updates"),
    )

INT32 = np.dtype(np.int32)
# From so many bytes on what a loop carries is worth two turns at a time, of so many equations each.
_LARGE_CARRY, _SHORT_BODY = 1 << 14, 100
# Ops that are none of elements, and the modules whose `WRITERS` write their kernels.
_WRITERS: dict[str, Any] = {
    "scatter": updates, "scatter_add": updates, "scatter_mul": updates, "scatter_min": updates,
    "scatter_max": updates, "cumsum": updates, "cumprod": updates, "cummax": updates,
    "cummin": updates, "cumlogsumexp": updates, "dynamic_update_slice": updates,
    "select_and_scatter_add": selections,
    "lu": eliminations, "cholesky": eliminations, "triangular_solve": eliminations,
    "scan": scalar_loops, "while": scalar_loops, "channels": depthwise,
}  # fmt: skip


class Drafter:
    """Drafts blocks; shares equal kernels, constants and numbers of loops among them."""

    def __init__(self) -> None:
        self.kernels: dict[str, Kernel] = {}
        self.finished: set[int] = set()  # ids of the kernels that are shared
        self.clusters: dict[tuple, tuple[Kernel, list[int]]] = {}
        self.names: dict[str, int] = {}
        self.constants: list[np.ndarray] = []
        self.known: dict[tuple, Tensor] = {}
        self.arrays: dict[int, tuple[Array, Tensor]] = {}
        self.loops = 0
        self.comms: dict[Comm, int] = {}

    def block(self, jaxpr: Jaxpr, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> Block:
        """The draft of a program on these inputs, its results for these destinations."""
        return _BlockDrafter(self, place_pieces(join_pads(normalize(jaxpr))), ins).draft(outs)

    def constant(self, literal: Literal) -> Tensor:
        """A literal in memory."""
        aval, value = literal.aval.strong(), np.asarray(literal.value)
        key = (aval.dtype, value.tobytes())
        if key not in self.known:
            self.known[key] = self.held(aval, value)
        return self.known[key]

    def array(self, x: Array) -> Tensor:
        """An array that a program holds."""
        if id(x) not in self.arrays:
            self.arrays[id(x)] = x, self.held(x.aval.strong(), x.value)
        return self.arrays[id(x)][1]

    def held(self, aval: ShapedArray, value: np.ndarray) -> Tensor:
        self.constants.append(np.ascontiguousarray(value.astype(aval.dtype)))
        return Tensor(aval, Ref("constant", len(self.constants) - 1))

    def shared(self, kernel: Kernel) -> Kernel:
        """The kernel, or an equal one that was written before."""
        if id(kernel) in self.finished:
            return kernel
        text = kernel_text(kernel, name="")
        if text not in self.kernels:
            n = self.names[kernel.name] = self.names.get(kernel.name, -1) + 1
            name = f"{kernel.name}_{n}" if n else kernel.name
            made = Kernel(name, kernel.buffers, kernel.axes, kernel.body, kernel.in_place)
            self.kernels[text] = made
            self.finished.add(id(made))
        return self.kernels[text]

    def written(
        self,
        cluster: Cluster,
        inlined: dict[Var, Eqn],
        kept: set[Var],
        places: Mapping[Var, Place],
    ) -> Written:
        """The kernel of a cluster, written unless one just like it was."""
        found = signature(cluster, inlined, kept, places)
        if found is None:
            return write_cluster(cluster, inlined, kept, places)
        key, variables = found
        if key not in self.clusters:
            made = write_cluster(cluster, inlined, kept, places)
            number = {v: i for i, v in enumerate(variables)}
            self.clusters[key] = self.shared(made.kernel), [number[v] for v in made.params]
        kernel, params = self.clusters[key]
        return Written(kernel, [variables[i] for i in params])

    def comm(self, axes: tuple, size: int) -> int:
        """The number of the communicator over named axes."""
        return self.comms.setdefault(Comm(axes, size), len(self.comms))

    def loop_number(self) -> int:
        """A number for a new loop's counter."""
        self.loops += 1
        return self.loops - 1


class _BlockDrafter:
    def __init__(self, drafter: Drafter, jaxpr: Jaxpr, ins: Sequence[Tensor]):
        self.drafter = drafter
        self.jaxpr = jaxpr
        self.analysis = Analysis(jaxpr.eqns, jaxpr.outs)
        joins = [e for e in jaxpr.eqns if e.prim is join_p]
        self.places: dict[Var, Place] = {
            self.analysis.alias(a): place  # type: ignore[misc]
            for e in joins for a, place in zip(e.ins, places_of(e), strict=True)
        }  # fmt: skip
        self.tensors: dict[Var, Tensor] = dict(zip(jaxpr.ins, ins, strict=True))
        self.drafts: list[Draft] = []

    def draft(self, outs: Sequence[Tensor]) -> Block:
        entries = merge(fuse(self.analysis), self.analysis)
        kept = self.kept(entries)
        for entry in entries:
            if isinstance(entry, Cluster):
                if any(m.size for m in entry.members):
                    inlined = self.analysis.inlined
                    self.kernel(self.drafter.written(entry, inlined, kept, self.places))
            elif entry.prim.name == "constant":
                self.tensors[entry.outs[0]] = self.drafter.array(entry.params["value"].array)
            elif any(v.aval.size for v in entry.outs) or entry.prim.multiple or entry.prim.effect:
                self.step(entry)
        values = [self.tensor(a) for a in self.jaxpr.outs]
        drafts = banded(self.drafts, values, self.drafter.loop_number)
        return Block(drafts, list(zip(values, outs, strict=True)))

    def kept(self, entries: Sequence[Entry]) -> set[Var]:
        """The roots that somebody other than their own cluster reads."""
        kept = set(self.analysis.forced)
        for entry in entries:
            if isinstance(entry, Cluster):
                kept |= entry.leaves - entry.vars
            else:
                # What is inlined into an op that writes in place reads memory, too.
                kept |= self.leaves(entry)
        return kept

    def leaves(self, eqn: Eqn) -> set[Var]:
        seen: set[Atom] = set()
        todo = [a for a in eqn.ins if a in self.analysis.inlined]
        found = {a for a in eqn.ins if type(a) is Var and a not in self.analysis.inlined}
        while todo:
            for a in self.analysis.inlined[todo.pop()].ins:
                if a in self.analysis.inlined and a not in seen:
                    todo.append(a)
                elif type(a) is Var:
                    found.add(a)
                seen.add(a)
        return found

    def tensor(self, atom: Atom) -> Tensor:
        """The memory of a value; made when first asked for."""
        atom = self.analysis.alias(atom)
        if type(atom) is Literal:
            return self.drafter.constant(atom)
        if atom not in self.tensors:
            self.tensors[atom] = self.made(atom)  # type: ignore
        return self.tensors[atom]  # type: ignore[index]

    def made(self, var: Var) -> Tensor:
        """A new tensor, or the part of another one that a piece is."""
        aval, place = var.aval.strong(), self.places.get(var)
        if place is None:
            return Tensor(aval, source=self.analysis.source(var))
        return Part(aval, None, self.tensor(place.whole), None, place.start * aval.dtype.itemsize)

    def view(self, atom: Atom) -> Callable[[], View]:
        tensor, aval = self.tensor(atom), atom.aval
        return lambda: View(tensor.place, aval)

    def add(
        self, reads: Sequence[Tensor], writes: Sequence[Tensor], make: Any, **rest: Any
    ) -> None:
        self.drafts.append(Draft(list(reads), list(writes), make, **rest))

    # ---- steps

    def kernel(self, written: Written, **rest: Any) -> None:
        """A kernel on the variables that its parameters stand for."""
        kernel = self.drafter.shared(written.kernel)
        tensors = [self.tensor(v) for v in written.params]
        reads = [t for t, b in zip(tensors, kernel.params, strict=True) if b.role == "in"]
        writes = [t for t, b in zip(tensors, kernel.params, strict=True) if b.role != "in"]
        pairs = [(tensors[o], tensors[i]) for o, i in kernel.in_place]
        shared = self.drafter.shared
        self.add(reads, writes, lambda inner: [KernelStep(kernel, tuple(t.place for t in tensors))],
                 in_place=pairs, sliced=lambda n: sliced_kernel(kernel, tensors, n, shared),
                 **rest)  # fmt: skip

    def step(self, eqn: Eqn) -> None:
        """An equation that is a step of its own."""
        make = _STEPS.get(eqn.prim.name)
        if eqn.prim.name in _WRITERS and self.special(eqn):
            return
        if make is not None and make(self, eqn):
            return
        self.host(eqn)

    def special(self, eqn: Eqn) -> bool:
        """An op with a kernel of its own kind, unless its types are the host's."""
        if any(a.aval.dtype not in LOOP_DTYPES for a in eqn.ins):
            return False
        write: Callable[..., Written | None] = _WRITERS[eqn.prim.name].WRITERS[eqn.prim.name]
        written = write(special.SpecialKernel(self.analysis.inlined), eqn)
        if written is None:
            return False
        inout = any(b.role == "inout" for b in written.kernel.params)
        if not inout:
            self.kernel(written)
            return True
        pair = (self.tensor(eqn.outs[0]), self.tensor(eqn.ins[0]))
        self.kernel(written, starts=[pair])
        self.drafts[-1].reads.append(pair[1])
        return True

    def dot(self, eqn: Eqn) -> bool:
        """A product as a matrix multiplication."""
        sides = []
        for i, operand in enumerate(eqn.ins):
            view = self.analysis.views.get((eqn, i))
            base = operand if view is None else view.base
            sides.append((self.tensor(base), view, operand.aval.shape))
        strides = self.strides_of(eqn.outs[0])
        shape = gemms.gemm_shape(eqn, [(view, shape) for _, view, shape in sides], strides)
        if shape is None:
            return False
        out, dtype = self.tensor(eqn.outs[0]), eqn.ins[0].aval.dtype
        (a, va, _), (b, vb, _) = sides[::-1] if shape.swapped else sides
        frames = [gemms.frame_of(v, i) for i, v in enumerate((va, vb))]
        frame = frames[0] or frames[1]
        offsets = [
            0 if v is None or f is not None else v.offset * dtype.itemsize
            for v, f in zip((va, vb), frames, strict=True)
        ]

        nowhere = Ref("arena")
        step = GemmStep(dtype, out.aval.dtype, shape.m, shape.n, shape.k, nowhere, nowhere, nowhere,
                        *shape.strides, shape.batch, shape.axes, frame,
                        eqn.params["exact"])  # fmt: skip

        def make(inner: Any) -> list[Step]:
            at_a, at_b = moved(a.place, offsets[0]), moved(b.place, offsets[1])
            return [replace(step, a=at_a, b=at_b, c=out.place)]

        self.add([a, b], [out], make, product=step,
                 sliced=lambda n: sliced_product(step, (a, b, out), (*offsets, 0), n))  # fmt: skip
        return True

    def strides_of(self, out: Var) -> tuple[int, ...]:
        """The strides of a result, which may be a piece of another array."""
        place, shape = self.places.get(out), out.aval.shape
        return tuple(strides_of(shape) if place is None else place.strides(shape))

    def attention(self, eqn: Eqn) -> bool:
        """Attention, forward, backward or both, unless its dtype is the host's."""
        dtype, wide = attention.dtypes_of(eqn)
        if dtype not in LOOP_DTYPES:
            return False
        op, shape = eqn.prim.name, attention.attention_shape(eqn)
        numbers = attention.given_numbers(eqn)
        ins = [self.strided(eqn, i) for i in attention.ARRAYS[op]]
        outs = [self.tensor(v) for v in eqn.outs]
        known = [self.tensor(eqn.ins[4])] if op == "attention_backward" else []
        stats = known or [outs.pop()] if op != "attention_joint" else []
        lengths = [self.tensor(eqn.ins[i]) for i in numbers.lengths]
        given = {"bias": numbers.bias, "mask": numbers.mask}
        pairs = {name: self.pair(eqn, i) for name, i in given.items() if i is not None}
        results, written, scratch = outs[: attention.RESULTS[op]], [*outs], None
        if op == "attention":
            written += stats
        else:
            size = attention.scratch_size(shape, op == "attention_joint")
            scratch = Tensor(ShapedArray((size,), wide))
            written.append(scratch)
        dbias = next(iter(outs[len(results) :]), None)
        apart = [self.strides_of(v) for v in attention.strided_results(eqn)]

        def make(inner: Any) -> list[Step]:
            p, (sizes, block, ranges, shared) = eqn.params, shape
            operands = tuple(Strided(moved(t.place, at), strides) for t, at, strides in ins)
            found = tuple(Strided(t.place, s) for t, s in zip(results, apart, strict=True))
            step = AttentionStep(op, dtype, sizes, operands, found,
                                 next((t.place for t in stats), None),
                                 tuple(t.place for t in lengths), p["scale"], p["before"],
                                 p["after"], block, ranges,
                                 None if scratch is None else scratch.place)  # fmt: skip
            more: dict[str, Any] = {
                name: Strided(moved(t.place, at), strides)
                for name, (t, at, strides) in pairs.items()
            }
            if dbias is not None:
                steps = attention.spans(dbias.aval.shape, strides_of(dbias.aval.shape))
                more |= {"dbias": Strided(dbias.place, steps), "dbias_size": dbias.aval.size}
            return [replace(step, shared=shared, **more)]

        reads = [t for t, _, _ in (*ins, *pairs.values())] + lengths + known
        self.add(reads, written, make)
        return True

    def pair(self, eqn: Eqn, i: int) -> tuple[Tensor, int, tuple[int, ...]]:
        """A bias or mask: as `strided`."""
        tensor, at, strides = self.strided(eqn, i)
        return tensor, at, attention.spans(eqn.ins[i].aval.shape, strides)

    def strided(self, eqn: Eqn, i: int) -> tuple[Tensor, int, tuple[int, ...]]:
        """An operand that is read where it lies: what it is part of, from which byte, strides."""
        operand, view = eqn.ins[i], self.analysis.views.get((eqn, i))
        if view is None:
            return self.tensor(operand), 0, tuple(strides_of(operand.aval.shape))
        return self.tensor(view.base), view.offset * operand.aval.dtype.itemsize, view.strides

    def host(self, eqn: Eqn) -> None:
        """An op that Python runs."""
        ins = [self.view(a) for a in eqn.ins]
        outs = [self.view(v) for v in eqn.outs]

        def make(inner: Any) -> list[Step]:
            views = tuple(v() for v in ins), tuple(v() for v in outs)
            return [HostStep(eqn.prim, eqn.params, *views)]

        reads = [self.tensor(a) for a in eqn.ins]
        self.add(reads, [self.tensor(v) for v in eqn.outs], make)

    # ---- pieces of others

    def join(self, eqn: Eqn) -> bool:
        """Nothing to do: the operands were written to their places."""
        return True

    def move(self, eqn: Eqn) -> bool:
        """A contiguous part of an array as bytes."""
        source, to = self.tensor(eqn.ins[0]), self.tensor(eqn.outs[0])
        at = eqn.params["start"] * to.aval.dtype.itemsize

        def make(inner: Any) -> list[Step]:
            return [CopyStep(moved(source.place, at), to.place, to.aval.nbytes)]

        self.add([source], [to], make)
        return True

    # ---- exchanges with other devices

    def exchange(self, eqn: Eqn) -> bool:
        p, source, to = eqn.params, self.tensor(eqn.ins[0]), self.tensor(eqn.outs[0])
        count = eqn.ins[0].aval.size
        if p["kind"] in ("reduce_scatter", "all_to_all"):
            count //= p["size"]
        comm, dtype = self.drafter.comm(p["axis_name"], p["size"]), eqn.outs[0].aval.dtype

        def make(inner: Any) -> list[Step]:
            places = source.place, to.place
            return [
                ExchangeStep(p["kind"], comm, p["op"], dtype, count, p["size"], *places, p["perm"])
            ]

        pairs = [(to, source)] if p["kind"] == "all_reduce" else []
        self.add([source], [to], make, in_place=pairs)
        return True

    def lane(self, eqn: Eqn) -> bool:
        to = self.tensor(eqn.outs[0])
        comm = self.drafter.comm(eqn.params["axis_name"], eqn.params["size"])
        self.add([], [to], lambda inner: [LaneStep(comm, to.place)])
        return True

    # ---- control flow

    def cond(self, eqn: Eqn) -> bool:
        index, *ops = (self.tensor(a) for a in eqn.ins)
        if index.aval.dtype != INT32:
            return False
        outs = [self.tensor(v) for v in eqn.outs]
        blocks = [self.drafter.block(b, ops, outs) for b in eqn.params["branches"]]
        self.add([index, *ops], outs, lambda inner: [CondStep(index.place, tuple(inner))],
                 blocks=blocks)  # fmt: skip
        return True

    def while_(self, eqn: Eqn) -> bool:
        p, ins = eqn.params, [self.tensor(a) for a in eqn.ins]
        nc, nb = p["n_cond"], p["n_body"]
        cond_consts, consts, init = ins[:nc], ins[nc : nc + nb], ins[nc + nb :]
        carry = [self.tensor(v) for v in eqn.outs]
        holds = Tensor(p["cond_jaxpr"].outs[0].aval.strong())
        test = self.drafter.block(p["cond_jaxpr"], [*cond_consts, *carry], [holds])
        body = self.drafter.block(p["body_jaxpr"], [*consts, *carry], carry)

        def make(inner: list[tuple[Step, ...]]) -> list[Step]:
            return [WhileStep(inner[0], holds.place, inner[1])]

        self.add(ins, [*carry, holds], make, starts=list(zip(carry, init, strict=True)),
                 blocks=[test, body])  # fmt: skip
        return True

    def scan(self, eqn: Eqn) -> bool:
        p, ins = eqn.params, [self.tensor(a) for a in eqn.ins]
        nc, nk, length = p["n_consts"], p["n_carry"], p["length"]
        consts, init, xs = ins[:nc], ins[nc : nc + nk], ins[nc + nk :]
        outs = [self.tensor(v) for v in eqn.outs]
        carry, ys = outs[:nk], outs[nk:]
        number, body = self.drafter.loop_number(), p["jaxpr"]

        def turn(carried: Sequence[Tensor], i: int, every: int) -> Block:
            """The body's turn i, and each so many after it; carried values are where they come."""

            def rows(arrays: Sequence[Tensor], like: Sequence[Atom]) -> list[Tensor]:
                return [Row(v.aval.strong(), None, t, None, number, length, p["reverse"], every, i)
                        for t, v in zip(arrays, like, strict=True)]  # fmt: skip

            given = [*consts, *carried, *rows(xs, body.ins[nc + nk :])]
            return self.drafter.block(body, given, [*carry, *rows(ys, body.outs[nk:])])

        def make(inner: list[tuple[Step, ...]]) -> list[Step]:
            rest = inner[1] if len(inner) > 1 else ()
            return [LoopStep(number, length // every, inner[0]), *rest]

        every = 2 if length > 1 and _swaps(body, nc, nk) else 1
        if every == 1:
            blocks = [turn(carry, 0, 1)]
        else:
            # Two turns take each other's memory, where one would copy what it carries back.
            first = turn(carry, 0, 2)
            second = turn([value for value, _ in first.results[:nk]], 1, 2)
            results = [*first.results[nk:], *second.results]
            blocks = [Block([*first.drafts, *second.drafts], results)]
            blocks += [turn(carry, length - 1, 0)] if length % 2 else []
        self.add(ins, outs, make, starts=list(zip(carry, init, strict=True)), blocks=blocks)
        return True


def _swaps(body: Jaxpr, n_consts: int, n_carry: int) -> bool:
    """Whether a loop carries so much that two turns at a time are worth a longer program."""
    carried = sum(v.aval.nbytes for v in body.ins[n_consts : n_consts + n_carry])
    return carried >= _LARGE_CARRY and len(body.eqns) <= _SHORT_BODY and not body.has_effects


_STEPS: dict[str, Callable[[_BlockDrafter, Eqn], bool]] = {
    "product": _BlockDrafter.dot,
    "attention": _BlockDrafter.attention,
    "attention_backward": _BlockDrafter.attention,
    "attention_joint": _BlockDrafter.attention,
    "cond": _BlockDrafter.cond,
    "while": _BlockDrafter.while_,
    "scan": _BlockDrafter.scan,
    "join": _BlockDrafter.join,
    "move": _BlockDrafter.move,
    "exchange": _BlockDrafter.exchange,
    "lane": _BlockDrafter.lane,
}
