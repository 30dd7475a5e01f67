"""Products of floats of 8 bits as cuBLASLt has them: rewrites of a program, before it is planned.

Both operands become matrices of bytes whose rows lie along what is contracted, and numbers that
multiply a product become its scales, which cuBLASLt reads where they are. What it has no such
product of is one of bfloat16, which has all numbers of 8 bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.cuda.libraries.products import EIGHTS, SIXTEEN
from funcgrad.backends.drafts.drafter import BlockDrafter
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.program import GemmStep, Ref, Step, Tail
from funcgrad.backends.rewrites import narrow, products
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Var
from funcgrad.core.record import replace
from funcgrad.ops.elementwise.arithmetic import mul

FLOAT32, BFLOAT16, INT8 = np.dtype(np.float32), products.BFLOAT16, np.dtype(np.int8)
MOST_SCALES = 2


def _abstract(x: ShapedArray, y: ShapedArray, *scales: ShapedArray, kinds: tuple) -> ShapedArray:
    return ShapedArray((*x.shape[:2], y.shape[1]), FLOAT32)


def _impl(xp: Any, x: Any, y: Any, *scales: Any, kinds: tuple) -> Any:
    left, right = (v.view(kind).astype(FLOAT32) for v, kind in zip((x, y), kinds, strict=True))
    out = xp.matmul(left, right.swapaxes(1, 2))
    for scale in scales:
        out = out * scale.reshape(())
    return out


# Bytes (batch, row, contracted) times bytes (batch, column, contracted), in float32, times up to
# two numbers. kinds: what the bytes are.
eights_p = lowered("eights", _abstract, _impl)


def dot(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A `dot_general`: of floats of 8 bits as cuBLASLt takes them, or else of wider numbers."""
    kinds = tuple(x.aval.dtype for x in ins)
    if narrow.NARROW.isdisjoint(kinds):
        return products.dot(flat, eqn, ins)
    out = eqn.outs[0].aval
    axes = list(zip(*eqn.params["dimension_numbers"], strict=True))
    sides = [_sizes(x.aval.shape, *own) for x, own in zip(ins, axes, strict=True)]
    made: Atom | None
    if has_product(kinds, *sides):
        sides_ = zip(ins, axes, sides, strict=True)
        matrices = [_matrices(flat, x, own[0], own[1], size) for x, own, size in sides_]
        made = flat.reshape(flat.add(eights_p, matrices, kinds=kinds), out.shape)
    else:
        to = BFLOAT16 if set(kinds) <= set(dtypes.FLOAT8) else FLOAT32
        if all(dtypes.is_integer(k) for k in kinds):
            to = INT8
        wide = [flat.convert(x, to) if x.aval.dtype in narrow.NARROW else x for x in ins]
        result = out if out.dtype in LOOP_DTYPES else out.update(dtype=FLOAT32)
        if result.dtype not in LOOP_DTYPES or any(x.aval.dtype not in LOOP_DTYPES for x in wide):
            return None
        made = products.dot(flat, eqn.replace(ins=wide, outs=[Var(result)]), wide)
    return None if made is None else flat.convert(made, out.dtype)


def has_product(kinds: tuple, left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether cuBLASLt has a product of two dtypes, (batch, row, contracted) times (batch, column,
    contracted).

    >>> e4m3, e5m2 = EIGHTS
    >>> has_product((e4m3, e5m2), (1, 5, 32), (1, 16, 32))
    True
    >>> has_product((e5m2, e5m2), (1, 5, 32), (1, 16, 32))
    False
    """
    (count, m, k), (_, n, _) = left, right
    known = set(kinds) <= set(EIGHTS) and set(kinds) != {EIGHTS[1]}
    return known and count > 0 and m > 1 and min(n, k) > 0 and n % SIXTEEN == k % SIXTEEN == 0


def _sizes(shape: Sequence[int], contract: Sequence[int], batch: Sequence[int]) -> tuple:
    """An operand's elements along batch axes, free ones, contracted ones."""
    count, k = (math.prod(shape[i] for i in axes) for axes in (batch, contract))
    return count, math.prod(shape) // max(1, count * k), k


def _matrices(
    flat: Equations, x: Atom, contract: Sequence[int], batch: Sequence[int], sizes: tuple
) -> Atom:
    """An operand's bytes as matrices, whose rows lie along what is contracted."""
    free = [i for i in range(x.aval.ndim) if i not in contract and i not in batch]
    moved = flat.transpose(narrow.bytes_of(flat, x), [*batch, *free, *contract])
    return flat.reshape(moved, sizes)


# ---- scales


def scaled(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> Sequence[Eqn]:
    """The pass by which numbers that a product of floats of 8 bits is multiplied by are its scales.

    >>> scaled([], [])
    []
    """
    if not any(e.prim is eights_p for e in eqns):
        return eqns
    return _Scales(eqns, outs).run()


class _Scales:
    def __init__(self, eqns: Sequence[Eqn], outs: Sequence[Atom]):
        self.places = [[eqn] for eqn in eqns]  # what stands where an equation stood
        self.made = {v: (i, e) for i, e in enumerate(eqns) for v in e.outs}
        self.reads = Counter([*outs, *(a for e in eqns for a in e.ins)])

    def run(self) -> list[Eqn]:
        for i, (eqn,) in enumerate(self.places.copy()):
            if eqn.prim is mul and eqn.outs[0].aval.dtype == FLOAT32:
                for x, y in (eqn.ins, eqn.ins[::-1]):
                    chain, number = self.product(x), self.number(y)
                    if chain and number is not None:
                        self.absorb(i, eqn, chain, number)
                        break
        return [e for place in self.places for e in place]

    def product(self, x: Atom) -> list[Eqn]:
        """The equations of a product that nobody else reads, from its own to what x is of it."""
        found: list[Eqn] = []
        while x in self.made and self.reads[x] == 1:
            eqn = self.made[x][1]
            found.append(eqn)
            if eqn.prim is eights_p:
                return found[::-1] if len(eqn.ins) - 2 < MOST_SCALES else []
            if eqn.prim.view is None:
                break
            x = eqn.ins[0]
        return []

    def number(self, y: Atom) -> Atom | None:
        """The number that all elements of y are, if they are views of one."""
        while y.aval.size != 1:
            eqn = self.made[y][1] if y in self.made else None
            if eqn is None or eqn.prim.view is None:
                return None
            y = eqn.ins[0]
        return y if y.aval.dtype == FLOAT32 else None

    def absorb(self, i: int, eqn: Eqn, chain: list[Eqn], number: Atom) -> None:
        """Let a product, with its chain, stand where it is multiplied by a number."""
        for e in chain:
            self.places[self.made[e.outs[0]][0]].remove(e)
        first, *rest = chain
        new = [first.replace(ins=(*first.ins, number)), *rest]
        new[-1] = new[-1].replace(outs=eqn.outs)
        self.places[i] = new
        self.made.update({v: (i, e) for e in new for v in e.outs})


# ---- steps


def draft(d: BlockDrafter, eqn: Eqn) -> bool:
    """Such a product as a step."""
    tensors = [d.tensor(x) for x in (*eqn.ins[:2], eqn.outs[0], *eqn.ins[2:])]
    (count, m, k), (_, n, _) = (x.aval.shape for x in eqn.ins[:2])
    batch = ((count, m * k, n * k, m * n),) if count > 1 else ()
    kind, other = eqn.params["kinds"]
    at = Ref("arena")
    step = GemmStep(kind, FLOAT32, m, n, k, at, at, at, (k, 1), (1, k), (n, 1), batch,
                    b_dtype=None if other == kind else other)  # fmt: skip

    def make(inner: Any) -> list[Step]:
        a, b, c, *scales = (t.place for t in tensors)
        tail = Tail(tuple(scales)) if scales else None
        return [replace(step, a=a, b=b, c=c, tail=tail)]

    reads, out = [*tensors[:2], *tensors[3:]], tensors[2]
    d.add(reads, [out], make, product=step, operands=tensors, offsets=(0,) * len(tensors))
    return True
