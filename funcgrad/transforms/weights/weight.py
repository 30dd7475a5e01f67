"""What stands in an array's place among a function's parameters.

A `Weight` is a node of a tree, made of arrays, that stands for one array: it has that one's shape
and dtype, can compute it (`dense`), and may know of products with it that are cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from funcgrad import tree
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree, Value

if TYPE_CHECKING:
    from funcgrad.transforms.weights.products import Product, Rows

# Takes a piece of an array along an axis: cut(array, axis) → array.
Cut = Callable[[Value, int], Value]


class Weight:
    """The base of what stands for an array. Subclasses are nodes of trees (`tree.register_*`).

    Only `shape`, `dtype` and `dense` must be there; the rest is how a product, a lookup or a piece
    is had without the dense array, and None where it isn't.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that this stands for."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the array that this stands for."""
        raise NotImplementedError

    def dense(self) -> Value:
        """The array that this stands for."""
        raise NotImplementedError

    def product(self, use: Product, x: Value) -> Value:
        """What a product or a convolution with x gives."""
        return use.bind(x, use.operand(self.dense()))

    def rows(self, use: Rows) -> Value | None:
        """What a lookup of rows gives."""
        return None

    def cut(self, axis: int, cut: Cut) -> Weight | None:
        """The weight of a piece along an axis; `cut` takes it from an array."""
        return None

    def stacked(self) -> bool:
        """Whether elements of the first axis are those of all arrays' first axes, so that a loop
        over these is one over weights."""
        return False


class Dense(Weight):
    """An array as a weight: what a function's parameters are before anything is done to them."""

    def __init__(self, array: Value):
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return aval_of(self.array).shape

    @property
    def dtype(self) -> np.dtype:
        return aval_of(self.array).dtype

    def dense(self) -> Value:
        return self.array

    def rows(self, use: Rows) -> Value:
        return use.take(self.array)

    def cut(self, axis: int, cut: Cut) -> Dense:
        return Dense(cut(self.array, axis))

    def stacked(self) -> bool:
        return True


tree.register_pytree_node(Dense, lambda w: ((w.array,), None), lambda _, arrays: Dense(*arrays))


def is_weight(x: Tree) -> bool:
    """Whether this is a weight rather than a tree of arrays.

    >>> is_weight(1.0)
    False
    """
    return isinstance(x, Weight)
