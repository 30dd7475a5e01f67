"""Uses of a weight: products and convolutions with it, and lookups of its rows.

A `Product` says which axes of the weight an equation sums over, which pair with those of the other
operand, and which go to the result; and it puts what a weight has for its axes (scales, the factors
of an adapter) where the other operand, or the result, has these.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from funcgrad.core.ir import Eqn
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Param, Value
from funcgrad.ops.base import transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.indexing.gather import gather_p
from funcgrad.ops.indexing.windows_at import slice_in_dim
from funcgrad.ops.shape import reshape
from funcgrad.ops.slicing import pad
from funcgrad.transforms.weights.view import Part, View

CONTRACTED, BATCH, FREE, MIXED = "contracted", "batch", "free", "mixed"


class Spelling(NamedTuple):
    """A product in letters, for sums of products of factors (`einsum`)."""

    shape: tuple[int, ...]  # of the other operand, its summed axes divided as the weight's are
    x: str  # the letters of its axes
    parts: dict[Part, str]  # those of the weight's parts
    out: str  # those of the result, before it has its shape
    free: Iterator[str]  # letters that nothing has


@dataclass(frozen=True)
class Product:
    """An equation that multiplies with a weight, which is its operand number `side`."""

    eqn: Eqn
    side: int
    view: View

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution, with the weight as its kernel."""
        return self.eqn.prim is conv_general_dilated_p

    @property
    def of_several_images(self) -> bool:
        """Whether it is a convolution whose results are of several images."""
        return self.is_convolution and self.eqn.params["batch_group_count"] > 1

    def roles(self) -> tuple[str, ...]:
        """What becomes of each of the weight's axes; empty where nobody knows, of size 1."""
        found: list[str] = ["" for _ in self.view.shape]
        ones = [i for i, n in enumerate(self.view.shape) if n == 1]
        of_ones = [r for d, r in zip(self.view.dims, self.dim_roles(), strict=True) if not d]
        if len(ones) == len(of_ones):  # no matter which is which
            for i, role in zip(ones, of_ones, strict=True):
                found[i] = role
        for dim, role in zip(self.view.dims, self.dim_roles(), strict=True):
            for part in dim:
                before = found[part.axis]
                found[part.axis] = role if before in ("", role) else MIXED
        return tuple(found)

    def dim_roles(self) -> list[str]:
        """What becomes of each axis of the operand."""
        if self.is_convolution:
            out = self.eqn.params["dimension_numbers"].rhs_spec[0]
            return [FREE if i == out else CONTRACTED for i in range(len(self.view.dims))]
        contracted, batch = (pair[self.side] for pair in self.eqn.params["dimension_numbers"])
        return [
            CONTRACTED if i in contracted else BATCH if i in batch else FREE
            for i in range(len(self.view.dims))
        ]

    def axes(self, *roles: str) -> tuple[int, ...]:
        """The weight's axes of these roles."""
        return tuple(i for i, role in enumerate(self.roles()) if role in roles)

    def bind(self, x: Value, w: Value, **params: Param) -> Value:
        """The equation on other operands: x, and what takes the weight's place."""
        ins = (w, x) if self.side == 0 else (x, w)
        return self.eqn.prim.bind(*ins, **{**self.eqn.params, **params})

    def bind_padded(self, x: Value, w: Value, zero: Value, **params: Param) -> Value:
        """`bind` where an element `zero` of x stands for 0: a convolution reads it outside of its
        images and between their elements, too."""
        if not self.is_convolution:
            return self.bind(x, w, **params)
        own = self.eqn.params
        _, _, *places = own["dimension_numbers"].lhs_spec
        config = [(0, 0, 0)] * aval_of(x).ndim
        for axis, (low, high), step in zip(
            places, own["padding"], own["lhs_dilation"], strict=True
        ):
            config[axis] = low, high, step - 1
        plain = {"padding": ((0, 0),) * len(places), "lhs_dilation": (1,) * len(places)}
        return self.bind(pad(x, zero, config), w, **plain, **params)

    def operand(self, dense: Value) -> Value:
        """The operand that the equation has, of an array of the weight's shape."""
        return self.view.convert(self.view.arrange(dense))

    def x_axes(self) -> tuple[int, ...]:
        """The other operand's axes that are summed over."""
        if self.is_convolution:
            lhs = self.eqn.params["dimension_numbers"].lhs_spec
            return tuple(sorted(lhs[1:]))
        return tuple(self.eqn.params["dimension_numbers"][0][1 - self.side])

    def over_result(self, scale: Value) -> Value:
        """An array with the weight's axes, those that are summed of size 1, as one that broadcasts
        against the result."""
        x = self.view.arrange(scale)
        if self.is_convolution:
            numbers = self.eqn.params["dimension_numbers"]
            sizes = [1] * aval_of(x).ndim
            sizes[numbers.out_spec[1]] = aval_of(x).size
            return reshape(x, sizes)
        return self._placed(x, self.side)

    def x_over_result(self, scale: Value) -> Value:
        """An array with the other operand's axes, those that are summed of size 1, as one that
        broadcasts against the result. A convolution's may differ by image."""
        if self.is_convolution:
            numbers = self.eqn.params["dimension_numbers"]
            sizes = [1] * aval_of(scale).ndim
            sizes[numbers.out_spec[0]] = aval_of(scale).size
            return reshape(scale, sizes)
        return self._placed(scale, 1 - self.side)

    def over_x(self, scale: Value) -> Value:
        """An array with the weight's axes, those that go to the result of size 1, as one that
        broadcasts against the other operand of a product."""
        x = self.view.arrange(scale)
        contracted, batch = self.eqn.params["dimension_numbers"]
        side = self.side
        pairs = [*zip(batch[1 - side], batch[side], strict=True),
                 *zip(contracted[1 - side], contracted[side], strict=True)]  # fmt: skip
        own = [i for _, i in sorted(pairs)]
        rest = [i for i in range(aval_of(x).ndim) if i not in own]
        sizes = [1] * self.eqn.ins[1 - side].aval.ndim
        for j, i in pairs:
            sizes[j] = aval_of(x).shape[i]
        return reshape(x, sizes, (*rest, *own))

    def rows_of_x(self, x: Value, most: int) -> tuple[list[Value], int] | None:
        """The other operand in pieces of one row, and the result's axis along which theirs lie;
        None where it has one, more than so many, or rows along several axes."""
        if self.is_convolution:
            return None
        contracted, batch = (pair[1 - self.side] for pair in self.eqn.params["dimension_numbers"])
        shape = aval_of(x).shape
        free = [i for i in range(len(shape)) if i not in (*contracted, *batch)]
        long = [i for i in free if shape[i] != 1]
        alone = all(shape[i] == 1 for i in batch)
        if not alone or len(long) != 1 or not 0 < shape[long[0]] <= most:
            return None
        pieces = [slice_in_dim(x, i, i + 1, axis=long[0]) for i in range(shape[long[0]])]
        before = self.eqn.outs[0].aval.ndim - len(free) if self.side == 0 else len(batch)
        return pieces, before + free.index(long[0])

    def _placed(self, x: Value, side: int) -> Value:
        contracted, batch = (pair[side] for pair in self.eqn.params["dimension_numbers"])
        shape = aval_of(x).shape
        own = [n for i, n in enumerate(shape) if i not in (*contracted, *batch)]
        if tuple(batch) != tuple(range(len(batch))):
            rest = (i for i in range(len(shape)) if i not in (*batch, *contracted))
            x = transpose_p.bind(x, permutation=(*batch, *contracted, *rest))
        ones = [1] * (self.eqn.outs[0].aval.ndim - len(batch) - len(own))
        free = [*own, *ones] if side == 0 else [*ones, *own]
        return reshape(x, [*(shape[i] for i in batch), *free])

    def spelling(self, x: Value) -> Spelling:
        """The product with x in letters: one for each part of the weight, each axis of x."""
        free = iter(string.ascii_letters)
        parts = {p: next(free) for dim in self.view.dims for p in dim}
        numbers = self.eqn.params["dimension_numbers"]
        paired: dict[int, tuple[Part, ...]] = {}
        for pair in numbers:
            own, other = pair[self.side], pair[1 - self.side]
            paired |= {j: self.view.dims[i] for i, j in zip(own, other, strict=True)}
        shape, names, kept = [], "", []
        for j, n in enumerate(aval_of(x).shape):
            here = [parts[p] for p in paired[j]] if j in paired else [next(free)]
            shape += [p.size for p in paired[j]] if j in paired else [n]
            names += "".join(here)
            kept += [] if j in paired else here
        batch = "".join(parts[p] for i in numbers[1][self.side] for p in self.view.dims[i])
        roles = self.dim_roles()
        own = "".join(
            parts[p] for d, r in zip(self.view.dims, roles, strict=True) if r == FREE for p in d
        )
        others = "".join(kept)
        out = batch + (own + others if self.side == 0 else others + own)
        return Spelling(tuple(shape), names, parts, out, free)

    def factor(
        self, spelling: Spelling, array: Value, axes: Sequence[int | None], rank: str
    ) -> tuple[Value, str]:
        """An array whose axes are these of the weight (None is the one of the letter `rank`), its
        axes divided as the weight's, and their letters."""
        sizes, letters = [], ""
        for axis, n in zip(axes, aval_of(array).shape, strict=True):
            if axis is None:
                sizes.append(n)
                letters += rank
                continue
            digits = sorted((p for p in spelling.parts if p.axis == axis), key=lambda p: -p.stride)
            sizes += [p.size for p in digits]
            letters += "".join(spelling.parts[p] for p in digits)
        same = tuple(sizes) == aval_of(array).shape
        return array if same else reshape(array, sizes), letters


@dataclass(frozen=True)
class Rows:
    """An equation that looks up rows along a weight's first axis."""

    eqn: Eqn
    indices: Value
    view: View

    def take(self, array: Value) -> Value:
        """The rows of an array with the weight's first axis; the others may differ."""
        sizes = (1, *aval_of(array).shape[1:])
        return gather_p.bind(array, self.indices, **{**self.eqn.params, "slice_sizes": sizes})

    def result(self, rows: Value) -> Value:
        """What the equation gives, of rows of the weight's dtype."""
        return self.view.convert(rows)


def product_of(eqn: Eqn, side: int, view: View) -> Product | None:
    """The product that an equation is, of a weight at this operand; None if it is none."""
    if eqn.prim is dot_general_p or (eqn.prim is conv_general_dilated_p and side == 1):
        return Product(eqn, side, view)
    return None


def rows_of(eqn: Eqn, side: int, view: View, indices: Value) -> Rows | None:
    """The lookup of rows that an equation is; None if it is another one, or none."""
    if eqn.prim is not gather_p or side != 0 or view.dims != View.whole(view.shape).dims:
        return None
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    plain = numbers.collapsed_slice_dims == (0,) and numbers.start_index_map == (0,)
    plain = plain and not numbers.operand_batching_dims
    ndim, inner = eqn.outs[0].aval.ndim, len(view.shape) - 1
    trailing = numbers.offset_dims == tuple(range(ndim - inner, ndim))
    return Rows(eqn, indices, view) if plain and trailing and sizes[1:] == view.shape[1:] else None
