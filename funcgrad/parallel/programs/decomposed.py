"""Gathers before products, and scatters after them, in blocks round a ring (`rings`).

A gather goes if the first that uses it is a product: all products with it whose other operand is
there by then go block by block; if anything uses it later, it is put together from the blocks. A
scatter goes if a product is all that it sums. Where that is worth while, `fits` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from funcgrad.core import context
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.rewriting import Writer, everywhere, makers, uses
from funcgrad.core.sharding import Mesh
from funcgrad.ops.collective.reductions import all_gather_p, psum_scatter_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.parallel.programs.rings import Factor, gathered_products, scattered_product

# A turn of few bytes takes as long as to begin it, and so do many turns.
LEAST_BYTES, MOST_DEVICES = 1 << 22, 16


def in_rings(jaxpr: Jaxpr, mesh: Mesh) -> Jaxpr:
    """A per-device program with products, and what is gathered for them or scattered of them, round
    rings, as `tensor_products` says."""
    way = context.current().products
    # Devices of one process send nothing.
    virtual = mesh.devices is not None and all(d.kind == "virtual" for d in mesh.devices.flat)
    if way == "whole" or (way == "auto" and virtual):
        return jaxpr
    with context.scoped(axes=mesh.shape):
        return everywhere(jaxpr, lambda j: _in_rings(j, mesh.shape))


def _in_rings(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Jaxpr:
    plan = _Plan(jaxpr, sizes)
    return _Rings(plan).write(jaxpr) if plan.gathers or plan.scatters else jaxpr


@dataclass(frozen=True)
class _Gather:
    """A gather, the products with it that go round, and whether it is needed beside them."""

    eqn: Eqn
    products: tuple[Eqn, ...]
    keep: bool


class _Plan:
    """Which gathers and scatters of a program go round: the gathers by the result of the first
    product that goes with them, and the products by that of the scatter."""

    def __init__(self, jaxpr: Jaxpr, sizes: Mapping[str, int]):
        self.eqns, self.sizes = jaxpr.eqns, sizes
        self.made, self.used = makers(jaxpr), uses(jaxpr)
        self.given = self._given(jaxpr)
        self.gathers: dict[Var, _Gather] = {}
        self.scatters: dict[Var, Eqn] = {}
        # Results that come with others: of what is gathered, and of products.
        self.elsewhere: set[Var] = set()
        for eqn in jaxpr.eqns:
            if eqn.prim is all_gather_p:
                self._gather(eqn)
            elif eqn.prim is psum_scatter_p:
                self._scatter(eqn)

    def _given(self, jaxpr: Jaxpr) -> set[Any]:
        """The inputs, and what is made of one alone without a sum: a weight in another dtype."""
        given = set(jaxpr.ins)
        for eqn in jaxpr.eqns:
            arrays = [a for a in eqn.ins if isinstance(a, Var)]
            same = eqn.prim.elementwise or eqn.prim.view is not None or eqn.prim.identity
            if same and len(arrays) == 1 and given.issuperset(arrays):
                given.update(eqn.outs)
        return given

    def fits(self, eqn: Eqn, block: int) -> bool:
        """Whether a collective may go round, whose blocks have so many bytes."""
        n = 1
        for axis in eqn.params["axis_name"]:
            n *= self.sizes[axis]
        if n == 1 or not eqn.params["tiled"] or not block:
            return False
        if context.current().products == "ring":
            return True
        computed = eqn.ins[0] not in self.given
        return computed and block >= LEAST_BYTES and n <= MOST_DEVICES

    def _gather(self, eqn: Eqn) -> None:
        (whole,), users = eqn.outs, self.used.get(eqn.outs[0], [])
        if not users or not self.fits(eqn, eqn.ins[0].aval.nbytes):
            return
        first = users[0]
        found = [i for i in dict.fromkeys(users) if self._goes_with(i, whole, first)]
        if first not in found:
            return
        products = tuple(self.eqns[i] for i in found)
        self.gathers[products[0].outs[0]] = _Gather(eqn, products, len(found) < len(users))
        self.elsewhere.update((whole, *(p.outs[0] for p in products)))

    def _goes_with(self, i: int, whole: Var, first: int) -> bool:
        """Whether an equation is a product of what is gathered with what is there by the first."""
        if i >= len(self.eqns) or self.eqns[i].prim is not dot_general_p:
            return False
        others = [a for a in self.eqns[i].ins if a is not whole]
        there = len(others) == 1 and self.made.get(others[0], -1) < first  # type: ignore[arg-type]
        return there and self.eqns[i].outs[0] not in self.elsewhere

    def _scatter(self, eqn: Eqn) -> None:
        (total,) = eqn.ins
        i = self.made.get(total, -1)  # type: ignore[arg-type]
        if i < 0 or self.eqns[i].prim is not dot_general_p or len(self.used[total]) > 1:  # type: ignore[index]
            return
        if total not in self.elsewhere and self.fits(eqn, eqn.outs[0].aval.nbytes):
            self.scatters[eqn.outs[0]] = self.eqns[i]
            self.elsewhere.add(total)  # type: ignore[arg-type]


class _Rings(Writer):
    def __init__(self, plan: _Plan):
        super().__init__()
        self.plan = plan

    def equation(self, eqn: Eqn, ins: list) -> None:
        plan, out = self.plan, eqn.outs[0] if len(eqn.outs) == 1 else None
        if out in plan.gathers:
            self.gathered(plan.gathers[out])
        elif out in plan.scatters:
            product, params = plan.scatters[out], eqn.params
            pair = [self.value(self.read(a)) for a in product.ins]
            where = params["axis_name"], params["axis"]
            self.define(eqn, [scattered_product(pair[0], pair[1], product.params, *where)])
        elif out not in plan.elsewhere:
            self.keep(eqn, ins)

    def gathered(self, ring: _Gather) -> None:
        """Write products round a ring in place of the first one."""
        (whole,), params = ring.eqn.outs, ring.eqn.params
        x = self.value(self.read(ring.eqn.ins[0]))
        factors = []
        for product in ring.products:
            first = product.ins[1] is whole
            other = self.value(self.read(product.ins[0 if first else 1]))
            factors.append(Factor(other, first, product.params))
        outs = gathered_products(x, params["axis_name"], params["axis"], factors, ring.keep)
        for product, out in zip(ring.products, outs, strict=False):
            self.define(product, [out])
        if ring.keep:
            self.define(ring.eqn, outs[-1:])
