"""Programs as drafts of steps: what each step reads and writes, before anything has an address.

A `Block` is the draft of a program (or of a loop's or branch's body): clusters become kernels,
products and the like steps (`steps`), control flow steps with blocks inside
(`control`), and what loops can't express runs on the host. Values that need memory are
`Tensor`s, to be placed by `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from funcgrad.backends.drafts.tensors import Block, Draft, Part, Tensor
from funcgrad.backends.fusion.clusters import Cluster, Entry, fuse
from funcgrad.backends.fusion.recomputes import recompute
from funcgrad.backends.fusion.roots import Analysis
from funcgrad.backends.fusion.signature import signature
from funcgrad.backends.kernels.cluster import Written, write_cluster
from funcgrad.backends.late import Late, late
from funcgrad.backends.loops.ir import Kernel, kernel_text
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.lower.primitives import key_of
from funcgrad.backends.program import (
    Comm,
    HostStep,
    KernelStep,
    Ref,
    Step,
    View,
)
from funcgrad.backends.rewrites.normalize import normalize
from funcgrad.backends.target import Target, Writer
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import constant_p
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.ops.shape import concatenate_p, pad_p

if TYPE_CHECKING:
    from funcgrad.backends.fusion.joins import Place

control = Late("funcgrad.backends.drafts.control")
joins, merges = late("funcgrad.backends.fusion", "joins", "merges")
special = Late("funcgrad.backends.kernels.special")
pads = Late("funcgrad.backends.rewrites.pads")


class Drafter:
    """Drafts blocks; shares equal kernels, constants and numbers of loops among them."""

    def __init__(self, target: Target) -> None:
        self.target = target
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
        jaxpr = _joined(normalize(jaxpr, self.target), self.target)
        return BlockDrafter(self, jaxpr, ins).draft(outs)

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
        """A constant of the program, in the dtype of its type."""
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
        wholes = {}
        if places and not cluster.columns:
            formulas = inlined | {m.var: m.eqn for m in cluster.members}
            pieces = [m.var for m in cluster.members if m.var in kept]
            wholes = joins.alternating(pieces, places, formulas)
        found = signature(cluster, inlined, kept, places, wholes)
        if found is None:
            return write_cluster(cluster, inlined, kept, places, wholes, self.target.limits)
        key, variables = found
        if key not in self.clusters:
            made = write_cluster(cluster, inlined, kept, places, wholes, self.target.limits)
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


def _joined(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """The program with joins for what they repay: sums of pads, concatenations."""
    if any(e.prim is pad_p for e in jaxpr.eqns):
        jaxpr = pads.join_pads(jaxpr)
    if any(e.prim is concatenate_p for e in jaxpr.eqns):
        jaxpr = joins.place_pieces(jaxpr, target)
    return jaxpr


class BlockDrafter:
    """Drafts one block: the memory of its values, and its steps in order."""

    def __init__(self, drafter: Drafter, jaxpr: Jaxpr, ins: Sequence[Tensor]):
        self.drafter = drafter
        self.jaxpr = jaxpr
        self.target = drafter.target
        self.analysis = Analysis(jaxpr.eqns, jaxpr.outs, self.target)
        joined = [e for e in jaxpr.eqns if key_of(e.prim) == "join"]
        self.places: dict[Var, Place] = {
            self.analysis.alias(a): place  # type: ignore[misc]
            for e in joined for a, place in zip(e.ins, joins.places_of(e), strict=True)
        }  # fmt: skip
        self.tensors: dict[Var, Tensor] = dict(zip(jaxpr.ins, ins, strict=True))
        self.drafts: list[Draft] = []

    def draft(self, outs: Sequence[Tensor]) -> Block:
        """The block, its results for these destinations."""
        recompute(self.analysis)
        entries = fuse(self.analysis)
        if len(entries) > 1:
            entries = merges.merge(entries, self.analysis)
        kept = self.kept(entries)
        for entry in entries:
            if isinstance(entry, Cluster):
                if any(m.size for m in entry.members):
                    inlined = self.analysis.inlined
                    self.kernel(self.drafter.written(entry, inlined, kept, self.places))
            elif entry.prim is constant_p:
                self.tensors[entry.outs[0]] = self.drafter.array(entry.params["value"].array)
            elif any(v.aval.size for v in entry.outs) or entry.prim.multiple or entry.prim.effect:
                self.step(entry)
        values = [self.tensor(a) for a in self.jaxpr.outs]
        drafts = self.target.grouped(self, self.drafts, values)
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
        """What an equation reads from memory, itself or through what is inlined into it."""
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
        """A value's memory as an array, once it has an address."""
        tensor, aval = self.tensor(atom), atom.aval
        return lambda: View(tensor.place, aval)

    def add(
        self, reads: Sequence[Tensor], writes: Sequence[Tensor], make: Any, **rest: Any
    ) -> None:
        """A step, which make(steps of its blocks) builds; the rest as in `Draft`."""
        self.drafts.append(Draft(list(reads), list(writes), make, **rest))

    # ---- steps

    def kernel(self, written: Written, eqn: Eqn | None = None, **rest: Any) -> None:
        """A kernel on the variables that its parameters stand for, of an equation alone if it is
        given."""
        kernel = self.drafter.shared(written.kernel)
        tensors = [self.tensor(v) for v in written.params]
        reads = [t for t, b in zip(tensors, kernel.params, strict=True) if b.role == "in"]
        writes = [t for t, b in zip(tensors, kernel.params, strict=True) if b.role != "in"]
        pairs = [(tensors[o], tensors[i]) for o, i in kernel.in_place]
        alone = () if eqn is None else (eqn.prim, eqn.params)

        def make(inner: Any) -> list[Step]:
            return [KernelStep(kernel, tuple(t.place for t in tensors), *alone)]

        self.add(reads, writes, make, in_place=pairs, kernel=kernel, operands=tensors, **rest)

    def step(self, eqn: Eqn) -> None:
        """An equation that is a step of its own."""
        key, steps = key_of(eqn.prim), self.target.steps
        writer = self.target.writers.get(key)
        if writer is not None and self.special(eqn, writer):
            return
        draft = steps[key] if key in steps else control.STEPS.get(key)
        if draft is None or not draft(self, eqn):
            self.host(eqn)

    def special(self, eqn: Eqn, writer: Writer) -> bool:
        """An op with a kernel of its own kind, unless its types are the host's."""
        if any(a.aval.dtype not in LOOP_DTYPES for a in eqn.ins):
            return False
        written = writer.write(special.SpecialKernel(self.analysis.inlined, self.target), eqn)
        if written is None:
            return False
        inout = any(b.role == "inout" for b in written.kernel.params)
        if not inout:
            self.kernel(written, eqn)
            return True
        pair = (self.tensor(eqn.outs[0]), self.tensor(eqn.ins[0]))
        self.kernel(written, eqn, starts=[pair])
        self.drafts[-1].reads.append(pair[1])
        return True

    def host(self, eqn: Eqn) -> None:
        """An op that Python runs."""
        ins = [self.view(a) for a in eqn.ins]
        outs = [self.view(v) for v in eqn.outs]

        def make(inner: Any) -> list[Step]:
            views = tuple(v() for v in ins), tuple(v() for v in outs)
            return [HostStep(eqn.prim, eqn.params, *views)]

        reads = [self.tensor(a) for a in eqn.ins]
        self.add(reads, [self.tensor(v) for v in eqn.outs], make)
