"""Products with their gather or scatter, block by block round a ring of devices.

While a device multiplies one block, the next one, or the sum of the last one, is on its way (Wang
et al., "Overlap Communication with Dependent Computation via Decomposition", 2023). Devices send
the bytes that the collective would; what is gathered, or is to be scattered, is nowhere whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.core.dims import mapping
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Params
from funcgrad.ops.collective.exchanges import ppermute_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.indexing.windows_at import dynamic_slice_p, dynamic_update_slice_p


class Factor(NamedTuple):
    """What is multiplied with an array that comes in blocks.

    other: the other operand; first: whether it is the product's first operand; params: the
    product's, as of `dot_general`
    """

    other: Any
    first: bool
    params: Params

    def product(self, block: Any, other: Any, **changes: Any) -> Any:
        """The product of a block."""
        pair = (other, block) if self.first else (block, other)
        return dot_general_p.bind(*pair, **{**self.params, **changes})

    def places(self, block: Any, dim: int) -> tuple[int | None, int | None]:
        """Which axis of the other operand, and of the result, an axis of the blocks is."""
        pair = (self.other, block) if self.first else (block, self.other)
        names = mapping(dot_general_p, [aval_of(x) for x in pair], self.params)
        factor, other = names.ins[self.first][dim], names.ins[not self.first]
        found = [own.index(factor) if factor in own else None for own in (other, *names.outs)]
        return found[0], found[1]

    def dtype(self, block: Any) -> np.dtype:
        """The dtype of the product."""
        return self.params["preferred_element_type"] or aval_of(block).dtype


def gathered_products(
    x: Any, axes: tuple, dim: int, factors: Sequence[Factor], keep: bool = False
) -> list:
    """The products of `all_gather(x, axes, axis=dim, tiled=True)` with each factor; and at the end
    what is gathered, if it is to be kept."""
    n, rows = lax.axis_size(axes), aval_of(x).shape[dim]
    own = lax.axis_index(axes)
    works = [_work(x, n, dim, f) for f in factors]
    if keep:
        works.append(_Work(lambda block, start: block, n, dim))

    def turn(number: Any, block: Any, outs: Sequence[Any]) -> list:
        start = lax.rem(own + (n - number), n) * rows
        return [w.add(out, block, start) for w, out in zip(works, outs, strict=True)]

    def step(state: tuple, number: Any) -> tuple:
        block, outs = state
        # What comes next is sent before the work, and may arrive during it.
        following = onward(block, axes)
        return (following, turn(number, block, outs)), None

    state: tuple = (x, [None] * len(works))
    if n > 1:
        state, _ = step(state, 0)
        state = _turns(step, state, 1, n - 1)
    outs = turn(n - 1, *state)
    products = [
        out.astype(f.dtype(x)) for f, out in zip(factors, outs[: len(factors)], strict=True)
    ]
    return products + outs[len(factors) :]


def scattered_product(lhs: Any, rhs: Any, params: Params, axes: tuple, dim: int) -> Any:
    """`psum_scatter` of a product over axes, along an axis of its result: each block's sum goes
    round and arrives where it belongs. Sums of narrow floats are in float32."""
    n, own = lax.axis_size(axes), lax.axis_index(axes)
    avals = [aval_of(lhs), aval_of(rhs)]
    names, result = mapping(dot_general_p, avals, params), dot_general_p.abstract(*avals, **params)
    factor, rows = names.outs[0][dim], result.shape[dim] // n
    places = [own.index(factor) if factor in own else None for own in names.ins]
    wide = {**params, **_in_wide(result.dtype)}

    def product(turn: Any) -> Any:
        start = lax.rem(own + (2 * n - 1 - turn), n) * rows
        pair = [_block(x, start, rows, at) for x, at in zip((lhs, rhs), places, strict=True)]
        return dot_general_p.bind(*pair, **wide)

    def step(total: Any, turn: Any) -> tuple:
        return onward(total, axes) + product(turn), None

    return _turns(step, product(0), 1, n).astype(result.dtype)


def onward(x: Any, axes: tuple) -> Any:
    """x from each device to the next one, round the ring."""
    n = lax.axis_size(axes)
    return ppermute_p.bind(x, axis_name=axes, perm=tuple((i, (i + 1) % n) for i in range(n)))


def _turns(step: Callable, state: Any, start: int, stop: int) -> Any:
    """The state after steps with the numbers from start to stop: in a loop, so that the program
    doesn't grow with the devices, and parts of operands are taken one at a time."""
    if stop - start <= 1:
        return step(state, start)[0] if start < stop else state
    return lax.scan(step, state, lax.iota(np.int32, stop - start) + start)[0]


class _Work(NamedTuple):
    """What is done with each of so many blocks: its part, and along which axis of the result parts
    lie; at None they are added."""

    part: Callable[[Any, Any], Any]
    blocks: int
    at: int | None

    def add(self, out: Any, block: Any, start: Any) -> Any:
        """A result with the part of one more block, which begins at a row; None: the first."""
        part = self.part(block, start)
        if self.at is None:
            return part if out is None else out + part
        if out is None:
            return _repeated(part, self.blocks, self.at)
        return dynamic_update_slice_p.bind(out, part, *_starts(out, start, self.at))


def _repeated(part: Any, blocks: int, at: int) -> Any:
    """A result with its first part in all places, until the others come."""
    shape = list(aval_of(part).shape)
    wide = fnp.broadcast_to(fnp.expand_dims(part, at), (*shape[:at], blocks, *shape[at:]))
    shape[at] *= blocks
    return fnp.reshape(wide, shape)


def _work(x: Any, n: int, dim: int, factor: Factor) -> _Work:
    rows = aval_of(x).shape[dim]
    other_at, out_at = factor.places(x, dim)
    kind = _in_wide(factor.dtype(x)) if out_at is None else {}

    def part(block: Any, start: Any) -> Any:
        return factor.product(block, _block(factor.other, start, rows, other_at), **kind)

    return _Work(part, n, out_at)


def _block(x: Any, start: Any, rows: int, at: int | None) -> Any:
    """Some rows of an array along an axis; all of it where that is None."""
    if at is None:
        return x
    sizes = list(aval_of(x).shape)
    sizes[at] = rows
    return dynamic_slice_p.bind(x, *_starts(x, start, at), slice_sizes=tuple(sizes))


def _starts(x: Any, start: Any, at: int) -> list:
    return [start if d == at else np.int32(0) for d in range(aval_of(x).ndim)]


def _in_wide(dtype: np.dtype) -> Params:
    """What a product's parameters are in addition, so that what is summed is in float32."""
    narrow = dtypes.is_float(dtype) and dtype.itemsize < 4
    return {"preferred_element_type": np.dtype(np.float32)} if narrow else {}
