"""Writing a cluster's kernel: the rows in parallel, and in a row one loop after the other.

What a later loop or somebody outside reads stands in memory, everything else in registers. Where
there are sums over the rows, a task takes a block of rows, one after the other, and keeps their
sums. Other sums over slow axes go another way: a task takes some columns, and adds up row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from funcgrad.backends.fusion.clusters import Cluster, same_point
from funcgrad.backends.fusion.levels import Member, Nest, arrange
from funcgrad.backends.fusion.roots import Root, Summand, group
from funcgrad.backends.loops.builder import ZERO, Builder, add_indices, scale_index
from funcgrad.backends.loops.collapse import collapse
from funcgrad.backends.loops.ir import Axis, Buffer, Const, Index, Kernel, Operand, Value
from funcgrad.backends.lower.pull import Pull
from funcgrad.backends.lower.rules import RULES, reduction
from funcgrad.backends.target import Limits
from funcgrad.core.ir import Eqn, Var
from funcgrad.core.record import Record

if TYPE_CHECKING:
    from funcgrad.backends.fusion.joins import Place


class Written(Record, frozen=False):
    """A kernel with what its parameters stand for."""

    kernel: Kernel
    params: list[Var]


class Parameters:
    """The parameters of a kernel: one for each variable that it reads or writes.

    places: of variables that are written as pieces of others
    wholes: of those whose pieces alternate, element by element, in a parameter that they share
    """

    def __init__(
        self, places: Mapping[Var, Place] | None = None, wholes: Mapping[Var, Var] | None = None
    ) -> None:
        self.places = places or {}
        self.wholes = wholes or {}
        self.ins: dict[Var, Buffer] = {}
        self.outs: dict[Var, Buffer] = {}
        self.scratch: list[Buffer] = []

    def read(self, var: Var) -> Buffer:
        """The parameter to read a variable from."""
        if var not in self.ins:
            name = f"in{len(self.ins)}"
            self.ins[var] = Buffer(name, var.aval.dtype, var.aval.size, "in")
        return self.ins[var]

    def write(self, var: Var, role: str = "out") -> Buffer:
        """The parameter to write a variable to."""
        name, size = f"out{len(self.outs)}", var.aval.size
        if var in self.wholes:
            var = self.wholes[var]
            size = var.aval.size
        elif var in self.places:
            size = self.places[var].span
        if var not in self.outs:
            self.outs[var] = Buffer(name, var.aval.dtype, size, role)  # type: ignore[arg-type]
        return self.outs[var]

    def at(self, var: Var, b: Builder, flat: Index) -> Index:
        """Where the element of a written variable lies in its parameter."""
        if var not in self.places:
            return flat
        place = self.places[var]
        at = place.at(b, flat)
        return add_indices(at, Index(place.start)) if var in self.wholes else at

    def local(self, dtype, size: int) -> Buffer:
        """A new scratch buffer."""
        self.scratch.append(Buffer(f"tmp{len(self.scratch)}", dtype, size, "scratch"))
        return self.scratch[-1]

    def kernel(
        self,
        builder: Builder,
        name: str,
        axes: Sequence[Axis],
        in_place: Sequence[tuple[Var, Var]] = (),
    ) -> Written:
        """The finished kernel."""
        order = [*self.ins, *self.outs]
        buffers = [*self.ins.values(), *self.outs.values(), *self.scratch]
        n = len(self.ins)
        place = {v: i for i, v in enumerate(self.ins)}
        over = {v: n + i for i, v in enumerate(self.outs)}
        pairs = tuple((over[o], place[i]) for o, i in in_place if i in place)
        body = tuple(builder.blocks[0].stmts)
        return Written(collapse(Kernel(name, tuple(buffers), tuple(axes), body, pairs)), order)


def kernel_name(roots: Sequence[Root]) -> str:
    """A name that tells what a kernel computes."""
    names = dict.fromkeys(r.eqn.prim.name.removeprefix("reduce_") for r in roots)
    return "_".join(list(names)[-4:])


def write_cluster(
    cluster: Cluster,
    inlined: dict[Var, Eqn],
    kept: set[Var],
    places: Mapping[Var, Place],
    wholes: Mapping[Var, Var],
    limits: Limits,
) -> Written:
    """The kernel of a cluster.

    kept: the variables that others read
    places, wholes: of those that are pieces of others; see `Parameters`
    """
    params = Parameters(places, wholes)
    if cluster.columns:
        return _write_columns(cluster, inlined, params, limits)
    return _RowWriter(cluster, inlined, kept, params, limits).write()


class _RowWriter:
    def __init__(
        self, cluster: Cluster, inlined: dict[Var, Eqn], kept: set[Var], params: Parameters,
        limits: Limits,
    ):  # fmt: skip
        self.rows = max(cluster.rows)
        outer, self.loop_sizes = _blocks_of_rows(cluster, self.rows)
        self.kept = kept
        self.builder = Builder()
        self.pull = Pull(self.builder, RULES, limits, inlined, self.leaf)
        self.params = params
        self.members = arrange(cluster, self.rows)
        self.current: dict[Var, Operand] = {}
        self.pending: list[tuple[Buffer, Index, Operand]] = []
        self.axes = [Axis(self.builder.axis(n), n) for n in outer]
        self.outer = [Index(0, ((1, a.value),)) for a in self.axes]
        self.row_axes: list[tuple[Index, int]] = []
        self.row = ZERO

    def write(self) -> Written:
        """The kernel: rows in parallel, or blocks of rows where sums are taken over the rows."""
        sums = [m for m in self.members.values() if isinstance(m.root, Summand)]
        for m in self.members.values():
            if m in sums:
                m.buffer = self.params.local(reduction(m.root.eqn).dtype, m.width)
            elif m.root.var in self.kept:
                m.buffer = self.params.write(m.root.var)
            elif m.read_later:
                m.buffer = self.params.local(m.root.var.aval.dtype, m.width)
        for m in sums:
            self.over_row(m, partial(self.start_sum, m))
        self.builder.nest(self.loop_sizes, self.write_row)
        for m in sums:
            self.params.write(m.root.var)
            self.over_row(m, partial(self.finish_sum, m))
        name = kernel_name([m.root for m in self.members.values()])
        return self.params.kernel(self.builder, name, self.axes, self.in_place())

    def write_row(self, inner: Sequence[Index]) -> None:
        """What is done in a row: level by level, scalars first, then loops."""
        sizes = [*(a.size for a in self.axes), *self.loop_sizes]
        self.row_axes = list(zip([*self.outer, *inner], sizes, strict=True))
        self.row = self.builder.flatten([i for i, _ in self.row_axes], sizes)
        for level in range(1 + max(m.level for m in self.members.values())):
            here = [m for m in self.members.values() if m.level == level]
            for m in here:
                if m.is_scalar:
                    self.finish(m, self.value(m, ()), ZERO)
            self.flush()
            for nest in dict.fromkeys(m.nest for m in here if m.nest is not None):
                if nest.members[0].own_loop:
                    self.write_own(nest.members[0])
                else:
                    self.write_nest(nest)

    # ---- sums over rows

    def over_row(self, m: Member, body: Callable[[Index], None]) -> None:
        self.builder.loop(m.width, lambda i: body(Index(0, ((1, i),))), parallel=True)

    def start_sum(self, m: Member, at: Index) -> None:
        assert m.buffer is not None
        self.builder.store(m.buffer, at, reduction(m.root.eqn).start)

    def add(self, m: Member, value: Operand, at: Index) -> None:
        """Add a term to its sum, which is stored at the end of the block."""
        b, how = self.builder, reduction(m.root.eqn)
        assert m.buffer is not None
        total = b.op(how.op, how.dtype, b.load(m.buffer, at), b.convert(value, how.dtype))
        self.pending.append((m.buffer, at, total))

    def finish_sum(self, m: Member, at: Index) -> None:
        b, out = self.builder, self.params.outs[m.root.var]
        assert m.buffer is not None
        block = b.flatten(self.outer, [a.size for a in self.axes])
        flat = add_indices(scale_index(block, m.width), at)
        b.store(out, self.params.at(m.root.var, b, flat), b.load(m.buffer, at))

    # ---- reading and writing members

    def leaf(self, var: Var, flat: Index) -> Operand:
        """An element of a variable that is not inlined."""
        b, m = self.builder, self.members.get(var)
        if m is None:
            return b.load(self.params.read(var), flat)
        value = m.scalar if m.width == 1 else self.current.get(var)
        if value is not None:
            # Where a guard is false a load gives 0, and so does this.
            guard = b.guard
            if guard is None:
                return value
            return b.op("where", value.dtype, guard, value, Const(0, value.dtype))
        assert m.buffer is not None, var
        if m.buffer.role == "scratch":
            flat = add_indices(flat, scale_index(self.row, -m.width))
        return b.load(m.buffer, flat)

    def finish(self, m: Member, value: Operand, inner: Index) -> None:
        """Note a member's value at a point of its row; it is stored at the end of the block."""
        value = self.builder.convert(value, m.root.var.aval.dtype)
        if m.width == 1:
            m.scalar = value
        else:
            self.current[m.root.var] = value
        if m.buffer is not None:
            scratch = m.buffer.role == "scratch"
            if not scratch:
                flat = add_indices(scale_index(self.row, m.width), inner)
                inner = self.params.at(m.root.var, self.builder, flat)
            self.pending.append((m.buffer, inner, value))

    def flush(self) -> None:
        """Store what the block computed, after everything is read: outputs may be inputs."""
        for buffer, index, value in self.pending:
            self.builder.store(buffer, index, value)
        self.pending.clear()

    def point(self, m: Member, inner: Sequence[tuple[Index, int]]) -> list[Index]:
        """The indices of a member's domain from the axes of the row's part."""
        shape = (*m.root.shape, *m.root.reduced_shape)
        return group([*self.row_axes, *inner], shape)

    def value(self, m: Member, inner: Sequence[tuple[Index, int]]) -> Operand:
        """The element of a member's domain at a point."""
        at, rank = self.point(m, inner), len(m.root.shape)
        return m.root.evaluate(self.pull, at[:rank], at[rank:])

    # ---- loops

    def write_nest(self, nest: Nest) -> None:
        """One loop over a row for all members of a nest."""
        sizes, members = nest.sizes, nest.members
        reduces = [m for m in members if m.root.reduces]
        how = [reduction(m.root.eqn) for m in reduces]

        def body(at: Sequence[Index], *totals: Value) -> list[Operand]:
            nexts = dict(zip(reduces, totals, strict=True))
            inner = list(zip(at, sizes, strict=True))
            flat = self.builder.flatten(at, sizes)
            for m in members:
                value = self.value(m, inner)
                if isinstance(m.root, Summand):
                    self.add(m, value, flat)
                elif m in nexts:
                    r = how[reduces.index(m)]
                    wide = self.builder.convert(value, r.dtype)
                    nexts[m] = self.builder.op(r.op, r.dtype, nexts[m], wide)  # type: ignore
                else:
                    self.finish(m, value, flat)
            self.flush()
            self.current.clear()
            return list(nexts.values())

        totals = self.builder.nest(
            sizes, body, [r.start for r in how], [r.op for r in how], parallel=True
        )
        for m, total in zip(reduces, totals, strict=True):
            self.finish(m, total, ZERO)
        self.flush()

    def write_own(self, m: Member) -> None:
        """A reduction for each of several results a row."""
        how, b = reduction(m.root.eqn), self.builder
        reduced = m.root.reduced_parts
        sizes = m.sizes[: len(m.sizes) - len(reduced)]

        def result(at: Sequence[Index]) -> None:
            inner = list(zip(at, sizes, strict=True))

            def turn(k: Sequence[Index], total: Value) -> list[Operand]:
                value = self.value(m, [*inner, *zip(k, reduced, strict=True)])
                return [b.op(how.op, how.dtype, total, b.convert(value, how.dtype))]

            (total,) = b.nest(reduced, turn, [how.start], [how.op], parallel=True)
            self.finish(m, total, b.flatten(at, sizes))
            self.flush()
            self.current.clear()

        b.nest(sizes, result, parallel=True)

    # ---- in place

    def in_place(self) -> list[tuple[Var, Var]]:
        """Outputs that may take the place of inputs: each element is read for the last time where
        the output's is written, or in an earlier loop over the same row."""
        pairs = []
        free = self.kept - self.params.places.keys()
        outs = [
            m for m in self.members.values()
            if m.root.var in free and not m.root.reduces and not isinstance(m.root, Summand)
        ]  # fmt: skip
        for var in self.params.ins:
            for m in outs:
                aval = m.root.var.aval
                if (var.aval.size, var.aval.dtype) == (aval.size, aval.dtype) and all(
                    self.before(m, reader, var) for reader in self.members.values()
                ):
                    pairs.append((m.root.var, var))
        return pairs

    def before(self, m: Member, reader: Member, var: Var) -> bool:
        """Whether a member's reads of an input are over when another writes in its place."""
        for access in reader.root.accesses:
            if access.leaf is not var:
                continue
            if access.guarded or not same_point(access, reader.root, var.aval.size):
                return False
            together = reader.nest is m.nest and reader.level == m.level and not m.own_loop
            if not together and reader.level >= m.level:
                return False
        return True


def _blocks_of_rows(cluster: Cluster, rows: int) -> tuple[list[int], list[int]]:
    """The sizes of a cluster's row axes: those in parallel, and those of the loop in each block of
    rows over which there are sums."""
    sizes = cluster.rows[rows]
    blocks = next((m.blocks for m in cluster.members if isinstance(m, Summand)), rows)
    at = next(i for i in range(len(sizes) + 1) if math.prod(sizes[:i]) == blocks)
    return sizes[:at], sizes[at:]


# ---- columns


def _write_columns(
    cluster: Cluster, inlined: dict[Var, Eqn], params: Parameters, limits: Limits
) -> Written:
    """Reductions over slow axes: a block of columns a task, whose totals take up row by row."""
    b = Builder()
    pull = Pull(b, RULES, limits, inlined, lambda v, flat: b.load(params.read(v), flat))
    roots = cluster.members
    first = roots[0]
    *outer, columns = first.out_parts
    block = column_block(columns, math.prod(outer), limits)
    sizes = [*outer, columns // block]
    axes = [Axis(b.axis(n), n) for n in sizes if n != 1]
    left = iter(axes)
    outer_axes = [(Index(0, ((1, next(left).value),)) if n != 1 else ZERO, n) for n in sizes]
    totals = [params.local(reduction(r.eqn).dtype, block) for r in roots]
    how = [reduction(r.eqn) for r in roots]
    rank, shape = len(first.shape), (*first.shape, *first.reduced_shape)

    def over_block(body: Callable[[Index], None]) -> None:
        b.loop(block, lambda c: body(Index(0, ((1, c),))), parallel=True)

    def start(c: Index) -> None:
        for total, r in zip(totals, how, strict=True):
            b.store(total, c, r.start)

    *slow, rows = first.reduced_parts
    together = _rows_together(rows, sum(r.cost for r in roots), limits)

    def some_rows(k: Sequence[Index]) -> None:
        def add(c: Index) -> None:
            sums = [b.load(total, c) for total in totals]
            for j in range(together):
                reduced = zip([*k[:-1], scale_index(k[-1], together, j)], first.reduced_parts,
                              strict=True)  # fmt: skip
                at = group([*outer_axes, (c, block), *reduced], shape)
                for i, (root, r) in enumerate(zip(roots, how, strict=True)):
                    value = b.convert(root.evaluate(pull, at[:rank], at[rank:]), r.dtype)
                    sums[i] = b.op(r.op, r.dtype, sums[i], value)
            for total, value in zip(totals, sums, strict=True):
                b.store(total, c, value)

        over_block(add)

    def finish(c: Index) -> None:
        flat = b.flatten([i for i, _ in outer_axes] + [c], [*sizes, block])
        for root, total in zip(roots, totals, strict=True):
            value = b.convert(b.load(total, c), root.var.aval.dtype)
            b.store(params.outs[root.var], params.at(root.var, b, flat), value)

    for root in roots:
        params.write(root.var)
    over_block(start)
    b.nest([*slow, rows // together], some_rows)
    over_block(finish)
    return params.kernel(b, kernel_name(roots), axes)


def _rows_together(rows: int, cost: int, limits: Limits) -> int:
    """How many rows to add at a time, so that totals are loaded and stored less often."""
    most = next((n for dearest, n in limits.together if cost <= dearest), 1) if rows else 1
    while rows % most:
        most //= 2
    return most


def column_block(columns: int, others: int, limits: Limits) -> int:
    """How many columns a task takes: a divisor of their number."""
    best = columns
    for d in range(2, columns // limits.columns + 1):
        if others * (columns // best) >= limits.tasks:
            break
        if columns % d == 0:
            best = columns // d
    return best
