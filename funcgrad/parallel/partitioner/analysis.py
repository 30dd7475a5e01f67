"""What a per-device program costs, on paper: bytes by collective, memory and work of each device.

No device is needed: a program for an `AbstractMesh` of thousands is analysed as one for four.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.plan import plan
from funcgrad.core import context
from funcgrad.core.display.array_html import size_text
from funcgrad.core.display.jaxpr_html import page
from funcgrad.core.ir import Eqn, Jaxpr
from funcgrad.core.rewriting import runs
from funcgrad.core.sharding import Mesh
from funcgrad.parallel.partitioner.reshard import Sizes, extent, moved
from funcgrad.parallel.programs.overlap import joined, start_p
from funcgrad.parallel.programs.program import SpmdProgram
from funcgrad.transforms.passes.simplify import simplify

Traffic = dict[tuple[str, tuple[str, ...]], tuple[float, float]]


@dataclass(frozen=True)
class Analysis:
    """What each device of a mesh keeps, computes and sends in one run of a program.

    collectives: for each kind and the mesh axes that it goes over, how many run and the bytes that
        a device sends in all of them; in loops, for each turn (one where their number isn't known)
    argument_bytes, result_bytes: of a device's parts of the inputs and the results
    temporary_bytes: the most memory that is needed beside them at once, as the compiler plans it
    flops: floating-point operations of a device
    """

    mesh: Mesh
    collectives: Traffic
    argument_bytes: int
    result_bytes: int
    temporary_bytes: int
    flops: float

    @property
    def bytes_sent(self) -> float:
        """The bytes that a device sends in all collectives."""
        return sum(nbytes for _, nbytes in self.collectives.values())

    @property
    def counts(self) -> dict[str, float]:
        """How many collectives of each kind run."""
        found: dict[str, float] = {}
        for (kind, _), (n, _) in self.collectives.items():
            found[kind] = found.get(kind, 0) + n
        return found

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table's cells: what, over which axes, how many, how much."""
        sent = [
            (kind, "×".join(axes), f"{n:g}", size_text(round(nbytes)))
            for (kind, axes), (n, nbytes) in sorted(self.collectives.items())
        ]
        return [
            *sent,
            ("sent in all", "", "", size_text(round(self.bytes_sent))),
            ("arguments", "", "", size_text(self.argument_bytes)),
            ("results", "", "", size_text(self.result_bytes)),
            ("temporaries", "", "", size_text(self.temporary_bytes)),
            ("operations", "", "", f"{self.flops:.3g} flops"),
        ]

    def __repr__(self) -> str:
        rows = [("per device", "axes", "count", "bytes"), *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
            for a, b, c, d in rows
        ]
        return "\n".join([str(self.mesh), *(line.rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self.rows()
        )
        return page(f"<div><b>{html.escape(str(self.mesh))}</b></div><table>{rows}</table>")


def analyse(program: SpmdProgram, donated: Sequence[bool] | None = None) -> Analysis:
    """The cost of a per-device program: bytes sent by each kind of collective, memory, work.

    donated: inputs whose memory results may take

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> from funcgrad.parallel import AbstractMesh, NamedSharding, P
    >>> from funcgrad.parallel.partitioner.partition import partition
    >>> mesh = AbstractMesh((4096,), "data")
    >>> x = fg.ShapeDtypeStruct((4096, 1000), "float32")
    >>> jaxpr = fg.make_jaxpr(lambda x: x.sum(0))(x).jaxpr
    >>> analyse(partition(jaxpr, mesh, [NamedSharding(mesh, P("data"))]))
    AbstractMesh('data': 4096)
    per device   axes  count        bytes
    all_reduce   data      1         8 kB
    sent in all                      8 kB
    arguments                        4 kB
    results                          4 kB
    temporaries                       0 B
    operations                1e+03 flops
    """
    jaxpr = joined(program.jaxpr)
    with context.scoped(axes=program.mesh.shape):
        donated = donated or [False] * len(jaxpr.ins)
        planned = plan(simplify(jaxpr), donated, "program", CPU)
    return Analysis(
        program.mesh,
        traffic(jaxpr, program.mesh.shape),
        sum(v.aval.nbytes for v in jaxpr.ins),
        sum(a.aval.nbytes for a in jaxpr.outs),
        planned.arena_bytes,
        planned.flops,
    )


def traffic(jaxpr: Jaxpr, sizes: Sizes) -> Traffic:
    """For each kind of collective and the axes that it goes over, how many a program runs and the
    bytes that a device sends in them."""
    total: Traffic = {}
    for eqn, times in runs(jaxpr, lambda e: _collective(e, sizes)[1]):
        key, nbytes = _collective(eqn, sizes)
        if key is not None:
            n, have = total.get(key, (0, 0.0))
            total[key] = n + times, have + nbytes * times
    return total


def _collective(eqn: Eqn, sizes: Sizes) -> tuple[tuple[str, tuple[str, ...]] | None, float]:
    """Which collective an equation is, and the bytes that a device sends in it."""
    prim = eqn.params["prim"] if eqn.prim is start_p else eqn.prim
    kind = prim.collective
    if not kind:
        return None, 0.0
    axes = eqn.params["axis_name"]
    return (kind, axes), moved(kind, eqn.ins[0].aval.nbytes, extent(axes, sizes))
