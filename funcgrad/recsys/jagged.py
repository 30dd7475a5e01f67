"""Bags of different sizes side by side: `JaggedTensor`, values and how many of them each bag has.

The values of all bags lie one after the other; behind the last one there may be padding, so that
batches of different counts have one shape and one compiled program. The names are TorchRec's
(Ivchenko et al., "TorchRec: a PyTorch domain library for recommendation systems", 2022).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.ops.indexing.plan import known


@tree.register_pytree_node_class
class JaggedTensor:
    """A batch of bags: `values` (capacity, …) one after the other, `lengths` (batch,) of the bags.

    Behind the `count` values that belong to bags the rest is padding. weights: one for each value
    (capacity,), or None. A tree: it passes through `jit`, `vmap`, `grad`, `device_put`.

    Raises ShapeError, DTypeError where the arrays don't fit together, and ArgumentError, with the
    bag, for lengths that are negative or more than there are values (where these are known).

    >>> from funcgrad import recsys
    >>> bags = recsys.JaggedTensor.from_lists([[3, 1], [], [2]])
    >>> bags.values, bags.lengths, bags.offsets
    (Array([3, 1, 2], dtype=int32), Array([2, 0, 1], dtype=int32), Array([0, 2, 2, 3], dtype=int32))
    """

    values: Any
    lengths: Any
    weights: Any

    def __init__(self, values: Any, lengths: Any, weights: Any = None):
        self.values, self.lengths = fnp.asarray(values), fnp.asarray(lengths)
        self.weights = None if weights is None else fnp.asarray(weights)
        check_arrays("recsys.JaggedTensor", self.values, self.lengths, self.weights)
        check_lengths("recsys.JaggedTensor", known(self.lengths), self.values.shape[0])

    @classmethod
    def from_lists(
        cls,
        bags: Iterable[Sequence],
        weights: Iterable[Sequence] | None = None,
        *,
        capacity: int | None = None,
        dtype: Any = "int32",
    ) -> JaggedTensor:
        """Of a list of lists, padded with zeros to `capacity` values (as many as there are).

        >>> from funcgrad import recsys
        >>> recsys.JaggedTensor.from_lists([[5], [6, 7]], capacity=4).values
        Array([5, 6, 7, 0], dtype=int32)
        """
        values, lengths = joined("recsys.JaggedTensor.from_lists", bags, dtype)
        loads = None
        if weights is not None:
            loads, sizes = joined("recsys.JaggedTensor.from_lists: weights", weights, "float32")
            check_same_lengths("recsys.JaggedTensor.from_lists", lengths, sizes)
        room = capacity_of("recsys.JaggedTensor.from_lists", len(values), capacity)
        padded_weights = None if loads is None else padded(loads, room)
        return cls(padded(values, room), lengths, padded_weights)

    @classmethod
    def from_offsets(cls, values: Any, offsets: Any, weights: Any = None) -> JaggedTensor:
        """Of values and (batch + 1,) offsets: bag i has values[offsets[i]:offsets[i + 1]].

        Raises ArgumentError, with the place, for offsets that don't begin with 0 or decrease.

        >>> from funcgrad import recsys
        >>> recsys.JaggedTensor.from_offsets([4, 5, 6], [0, 1, 3]).to_lists()
        [[4], [5, 6]]
        """
        return cls(values, lengths_of("recsys.JaggedTensor.from_offsets", offsets), weights)

    @classmethod
    def from_dense(cls, x: Any, lengths: Any) -> JaggedTensor:
        """The first lengths[i] entries of each row x[i] of x (batch, most, …).

        >>> from funcgrad import recsys
        >>> recsys.JaggedTensor.from_dense([[1, 2], [3, 0]], [2, 1]).to_lists()
        [[1, 2], [3]]
        """
        x, lengths = fnp.asarray(x), fnp.asarray(lengths)
        if x.ndim < 2 or lengths.shape != x.shape[:1]:
            raise ShapeError(
                "recsys.JaggedTensor.from_dense: need x (batch, most, …) and lengths (batch,), "
                f"got {aval_of(x)} and {aval_of(lengths)}"
            )
        batch, most = x.shape[:2]
        check_lengths("recsys.JaggedTensor.from_dense", known(lengths), most, each=True)
        room = batch * most
        start = fnp.cumsum(lengths, dtype=lengths.dtype) - lengths
        place = fnp.where(
            fnp.arange(most) < lengths[:, None], start[:, None] + fnp.arange(most), room
        )
        flat = x.reshape(room, *x.shape[2:])
        values = fnp.zeros_like(flat).at[place.reshape(room)].set(flat, mode="drop")
        return cls(values, lengths)

    @property
    def batch(self) -> int:
        """How many bags there are."""
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        """How many values there is room for."""
        return self.values.shape[0]

    @property
    def offsets(self) -> Any:
        """(batch + 1,): where each bag begins, and where the last one ends."""
        ends = fnp.cumsum(self.lengths, dtype=self.lengths.dtype)
        return fnp.concatenate([fnp.zeros(1, ends.dtype), ends])

    @property
    def count(self) -> Any:
        """How many values belong to bags."""
        return fnp.sum(self.lengths)

    def segments(self) -> Any:
        """(capacity,): the bag of each value; `batch` for padding.

        >>> from funcgrad import recsys
        >>> recsys.JaggedTensor([7, 8, 9, 0], [2, 0, 1]).segments()
        Array([0, 0, 2, 3], dtype=int32)
        """
        ends = fnp.cumsum(self.lengths, dtype=self.lengths.dtype)
        marks = fnp.zeros(self.capacity, "int32").at[ends].add(1, mode="drop")
        return fnp.cumsum(marks, dtype="int32")

    def to_dense(self, most: int | None = None, fill_value: Any = 0) -> Any:
        """(batch, most, …): bag by bag, cut to `most` values or filled up; the longest bag's size
        where it isn't given, for which the lengths must be known.

        >>> from funcgrad import recsys
        >>> recsys.JaggedTensor.from_lists([[3, 1], [], [2]]).to_dense(fill_value=-1)
        Array([[ 3,  1],
               [-1, -1],
               [ 2, -1]], dtype=int32)
        """
        if most is None:
            lengths = known(self.lengths)
            if lengths is None:
                raise ArgumentError(
                    "recsys.JaggedTensor.to_dense: the lengths are unknown while the function is "
                    "traced; give the result's width: to_dense(most)"
                )
            most = int(lengths.max(initial=0))
        column = fnp.arange(most, dtype=self.lengths.dtype)
        place = self.offsets[:-1, None] + column
        inside = column < self.lengths[:, None]
        inside = inside.reshape(*inside.shape, *(1,) * (self.values.ndim - 1))
        fill = fnp.asarray(fill_value, self.values.dtype)
        if not self.capacity:
            return fnp.full((self.batch, most, *self.values.shape[1:]), fill)
        return fnp.where(inside, self.values.at[place].get(mode="clip"), fill)

    def to_lists(self) -> list[list]:
        """The bags as lists.

        >>> from funcgrad import recsys
        >>> recsys.JaggedTensor([7, 8, 9, 0], [2, 0, 1]).to_lists()
        [[7, 8], [], [9]]
        """
        ends = np.cumsum(np.asarray(self.lengths))
        values = np.asarray(self.values)
        return [x.tolist() for x in np.split(values, ends)[:-1]]

    def __getitem__(self, bags: slice) -> JaggedTensor:
        """A slice of the batch, with room for as many values."""
        start, stop = batch_slice("recsys.JaggedTensor", bags, self.batch)
        if not self.capacity:
            return JaggedTensor(self.values, self.lengths[start:stop], self.weights)
        place = self.offsets[start] + fnp.arange(self.capacity, dtype=self.lengths.dtype)
        values, weights = tree.map(
            lambda x: x.at[place].get(mode="clip"), (self.values, self.weights)
        )
        return JaggedTensor(values, self.lengths[start:stop], weights)

    def tree_flatten(self) -> tuple:
        """For `tree`: the three arrays."""
        return (self.values, self.lengths, self.weights), None

    def tree_flatten_with_keys(self) -> tuple:
        """For `tree`: the three arrays with their names."""
        names = ("values", "lengths", "weights")
        return [(tree.GetAttrKey(n), getattr(self, n)) for n in names], None

    @classmethod
    def tree_unflatten(cls, _: None, children: Iterable) -> JaggedTensor:
        """For `tree`: nothing is checked, as children may be anything."""
        new = object.__new__(cls)
        new.values, new.lengths, new.weights = children
        return new

    def __repr__(self) -> str:
        return f"JaggedTensor(values={self.values}, lengths={self.lengths}, weights={self.weights})"


# ---- what keyed ones use, too


def check_arrays(where: str, values: Any, lengths: Any, weights: Any) -> None:
    """Shapes and dtypes of the arrays of jagged features."""
    if values.ndim < 1 or lengths.ndim != 1:
        raise ShapeError(
            f"{where}: need values (capacity, …) and lengths (batch,), got {aval_of(values)} and "
            f"{aval_of(lengths)}"
        )
    if not dtypes.is_integer(lengths.dtype):
        raise DTypeError(f"{where}: lengths must be integers, got {aval_of(lengths)}")
    if weights is not None and weights.shape != values.shape[:1]:
        raise ShapeError(
            f"{where}: weights must have one number for each of {values.shape[0]} values, got "
            f"{aval_of(weights)}"
        )


def check_lengths(where: str, lengths: np.ndarray | None, room: int, each: bool = False) -> None:
    """Known lengths are no negative numbers; all of them (or each) have room for their values."""
    if lengths is None or not lengths.size:
        return
    bad = lengths < 0
    if bad.any():
        i = int(np.argmax(bad))
        raise ArgumentError(f"{where}: the length of bag {i} is {lengths[i]}; it must be 0 or more")
    taken = lengths if each else np.cumsum(lengths, dtype=np.int64)
    if (taken > room).any():
        i = int(np.argmax(taken > room))
        upto = "has" if each else "ends behind"
        raise ArgumentError(f"{where}: bag {i} {upto} {taken[i]} values, but there are {room}")


def check_same_lengths(where: str, values: np.ndarray, weights: np.ndarray) -> None:
    """Weights given as lists have the shape of the values' lists."""
    if values.shape != weights.shape or (values != weights).any():
        differ = values.shape == weights.shape
        at = f"bag {int(np.argmax(values != weights))}" if differ else "the number of bags"
        raise ArgumentError(f"{where}: weights need a number for each value; {at} differs")


def lengths_of(where: str, offsets: Any) -> Any:
    """The lengths of bags that lie between offsets, which are checked where they are known."""
    offsets = fnp.asarray(offsets)
    if offsets.ndim != 1 or not offsets.size or not dtypes.is_integer(offsets.dtype):
        raise ArgumentError(
            f"{where}: offsets must be (batch + 1,) integers, got {aval_of(offsets)}"
        )
    value = known(offsets)
    if value is not None:
        if value[0] != 0:
            raise ArgumentError(f"{where}: offsets must begin with 0, got {value[0]}")
        falls = np.diff(value) < 0
        if falls.any():
            i = int(np.argmax(falls))
            raise ArgumentError(
                f"{where}: offsets must not decrease, but {value[i]} at {i} is followed by "
                f"{value[i + 1]}"
            )
    return offsets[1:] - offsets[:-1]


def joined(where: str, bags: Iterable[Sequence], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """All values of lists, one after the other, and how many each has; integers must fit."""
    arrays = [np.asarray(bag) for bag in bags]
    lengths = np.array([len(bag) if bag.ndim else -1 for bag in arrays], "int32")
    if (lengths < 0).any():
        i = int(np.argmax(lengths < 0))
        raise ArgumentError(f"{where}: bag {i} must be a list, got {arrays[i]}")
    parts = [bag for bag in arrays if len(bag)]
    values = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return as_dtype(where, values, dtype), lengths


def as_dtype(where: str, values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values of another dtype; of what integers can't hold the place is told."""
    target = dtypes.canonical(dtype)
    if not dtypes.is_integer(target):
        return values.astype(target)
    if not np.issubdtype(values.dtype, np.integer):
        raise DTypeError(f"{where}: need integers for dtype {target}, got {values.dtype}")
    info = np.iinfo(target)
    bad = (values < info.min) | (values > info.max)
    if bad.any():
        i = int(np.argmax(bad))
        raise ArgumentError(f"{where}: {values.ravel()[i]} at {i} doesn't fit {target}")
    return values.astype(target)


def capacity_of(where: str, count: int, capacity: int | None) -> int:
    """The room for `count` values: as asked for, or exactly for them."""
    if capacity is not None and count > capacity:
        raise ArgumentError(f"{where}: there are {count} values, but capacity is {capacity}")
    return count if capacity is None else capacity


def padded(x: np.ndarray, room: int) -> np.ndarray:
    """x with zeros behind it."""
    return np.concatenate([x, np.zeros((room - len(x), *x.shape[1:]), x.dtype)])


def batch_slice(where: str, bags: Any, batch: int) -> tuple[int, int]:
    """Where a slice of the batch begins and ends."""
    if not isinstance(bags, slice) or bags.step not in (None, 1):
        raise ArgumentError(f"{where}: index with a slice of the batch, got [{bags!r}]")
    start, stop, _ = bags.indices(batch)
    return start, max(start, stop)
