"""Jagged features by name: `KeyedJaggedTensor`, ids of many features in two arrays.

Each feature has a block of `values` of its own, padded to a capacity that is part of the type, as
are the names and the sizes of the batches. So features are static slices: taking one, permuting
them or sending them to other devices compiles to copies, whatever the counts are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.ops.indexing.plan import known
from funcgrad.recsys.columns import lists_of
from funcgrad.recsys.jagged import (
    JaggedTensor,
    as_dtype,
    batch_slice,
    capacity_of,
    check_arrays,
    check_lengths,
    check_same_lengths,
    joined,
    lengths_of,
    padded,
)

_NAME = "recsys.KeyedJaggedTensor"


@tree.register_pytree_node_class
class KeyedJaggedTensor:
    """Jagged ids of several features: feature after feature, bag after bag.

    keys: the features' names; values: (Σ capacities,) integers, a padded block for each feature;
    lengths: (Σ batches,) how many ids each bag has; weights: a number for each value, or None;
    capacities: the sizes of the blocks, by default exactly what the lengths need; batches: how many
    bags each feature has, by default the same for all. A tree whose leaves are the arrays.

    Raises ShapeError, DTypeError and ArgumentError with the feature and the bag at fault.

    >>> from funcgrad import recsys
    >>> clicks = recsys.KeyedJaggedTensor.from_lists({"ad": [[3], [1, 2]], "page": [[], [7]]})
    >>> clicks
    KeyedJaggedTensor(ad: 3 of 3 values in 2 bags, page: 1 of 1 values in 2 bags)
    >>> clicks["ad"].to_lists()
    [[3], [1, 2]]
    """

    keys: tuple[str, ...]
    values: Any
    lengths: Any
    weights: Any
    capacities: tuple[int, ...]
    batches: tuple[int, ...]

    def __init__(
        self,
        keys: Sequence[str],
        values: Any,
        lengths: Any,
        weights: Any = None,
        *,
        capacities: Sequence[int] | None = None,
        batches: Sequence[int] | None = None,
    ):
        self.keys = unique_keys(_NAME, keys)
        self.values, self.lengths = fnp.asarray(values), fnp.asarray(lengths)
        self.weights = None if weights is None else fnp.asarray(weights)
        check_arrays(_NAME, self.values, self.lengths, self.weights)
        if self.values.ndim != 1 or not dtypes.is_integer(self.values.dtype):
            raise DTypeError(f"{_NAME}: values must be integers (n,), got {aval_of(self.values)}")
        self.batches = self._batches(batches)
        self.capacities = self._capacities(capacities)
        lengths = known(self.lengths)
        if lengths is not None:
            starts = np.cumsum((0, *self.batches))
            for key, room, a, b in zip(
                self.keys, self.capacities, starts, starts[1:], strict=False
            ):
                check_lengths(f"{_NAME}: feature {key!r}", lengths[a:b], room)

    def _batches(self, given: Sequence[int] | None) -> tuple[int, ...]:
        n, bags = len(self.keys), self.lengths.shape[0]
        if given is None:
            if bags % n if n else bags:
                raise ShapeError(f"{_NAME}: {bags} lengths can't be shared among {n} features")
            return (bags // n,) * n if n else ()
        if len(given) != n or sum(given) != bags or min(given, default=0) < 0:
            raise ShapeError(
                f"{_NAME}: batches {tuple(given)} must be the numbers of bags of {n} features, "
                f"{bags} together"
            )
        return tuple(map(int, given))

    def _capacities(self, given: Sequence[int] | None) -> tuple[int, ...]:
        room = self.values.shape[0]
        if given is not None:
            if len(given) != len(self.keys) or sum(given) != room or min(given, default=0) < 0:
                raise ShapeError(
                    f"{_NAME}: capacities {tuple(given)} must be the sizes of the blocks of "
                    f"{len(self.keys)} features, {room} together"
                )
            return tuple(map(int, given))
        lengths = known(self.lengths)
        if lengths is None:
            raise ArgumentError(
                f"{_NAME}: the lengths are unknown while the function is traced; give capacities="
            )
        parts = np.split(lengths, np.cumsum(self.batches)[:-1]) if self.keys else []
        counts = tuple(int(np.sum(part, dtype=np.int64)) for part in parts)
        if sum(counts) != room:
            raise ArgumentError(
                f"{_NAME}: the lengths say {dict(zip(self.keys, counts, strict=True))}, "
                f"{sum(counts)} values together, but there are {room}"
            )
        return counts

    # ---- from elsewhere

    @classmethod
    def from_lists(
        cls,
        features: Mapping[str, Iterable[Sequence[int]]],
        weights: Mapping[str, Iterable[Sequence[float]]] | None = None,
        *,
        capacity: int | Mapping[str, int] | None = None,
        dtype: Any = "int32",
    ) -> KeyedJaggedTensor:
        """Of lists of lists by name.

        weights: likewise, for all features; capacity: the room for each feature's values, one
        number or by name, so that batches have one type; dtype: of the ids, which must fit it.

        >>> from funcgrad import recsys
        >>> f = recsys.KeyedJaggedTensor.from_lists(
        ...     {"a": [[1], [2, 3]], "b": [[], [4]]}, capacity=4
        ... )
        >>> f.values
        Array([1, 2, 3, 0, 4, 0, 0, 0], dtype=int32)
        """
        where = f"{_NAME}.from_lists: feature"
        found = {k: joined(f"{where} {k!r}", bags, dtype) for k, bags in features.items()}
        loads = None
        if weights is not None:
            _same_names(f"{_NAME}.from_lists: weights", weights, found)
            loads = {}
            for key, (_, lengths) in found.items():
                loads[key], sizes = joined(f"{where} {key!r}: weights", weights[key], "float32")
                check_same_lengths(f"{where} {key!r}", lengths, sizes)
        return cls._assembled(f"{_NAME}.from_lists", found, loads, capacity)

    @classmethod
    def from_columns(
        cls,
        columns: Any,
        keys: Sequence[str] | None = None,
        *,
        capacity: int | Mapping[str, int] | None = None,
        dtype: Any = "int32",
    ) -> KeyedJaggedTensor:
        """Of columns of lists as Apache Arrow keeps them: no Python object is made for a row.

        columns: an Arrow table or record batch, or columns by name; each is a column of lists of
        integers, of integers (bags of one id), or a pair (values, offsets) of arrays. Empty lists
        and missing ones are empty bags. keys: the columns to take, all by default.

        >>> from funcgrad import recsys
        >>> columns = {"ad": (np.array([5, 6, 7]), np.array([0, 1, 3]))}
        >>> recsys.KeyedJaggedTensor.from_columns(columns)["ad"].to_lists()
        [[5], [6, 7]]
        """
        where = f"{_NAME}.from_columns"
        names = columns.schema.names if hasattr(columns, "schema") else list(columns)
        for key in keys or ():
            if key not in names:
                raise ArgumentError(f"{where}: there is no column {key!r} among {names}")
        found = {}
        for key in names if keys is None else keys:
            values, lengths = lists_of(f"{where}: feature {key!r}", columns[key])
            found[key] = as_dtype(f"{where}: feature {key!r}", values, dtype), lengths
        return cls._assembled(where, found, None, capacity)

    @classmethod
    def _assembled(
        cls, where: str, found: Mapping[str, tuple], loads: Mapping | None, capacity: Any
    ) -> KeyedJaggedTensor:
        """Blocks of (values, lengths) by name, padded."""
        if isinstance(capacity, Mapping):
            _same_names(f"{where}: capacity", capacity, found)
        rooms = {}
        for key, (values, _) in found.items():
            rooms[key] = capacity_of(f"{where}: feature {key!r}", len(values), _at(capacity, key))
        if not found:
            return cls((), np.zeros(0, "int32"), np.zeros(0, "int32"))
        weights = None
        if loads is not None:
            weights = np.concatenate([padded(loads[k], rooms[k]) for k in found])
        return cls(
            tuple(found),
            np.concatenate([padded(values, rooms[k]) for k, (values, _) in found.items()]),
            np.concatenate([lengths for _, lengths in found.values()]),
            weights,
            capacities=tuple(rooms.values()),
            batches=tuple(len(lengths) for _, lengths in found.values()),
        )

    @classmethod
    def from_offsets(
        cls, keys: Sequence[str], values: Any, offsets: Any, weights: Any = None
    ) -> KeyedJaggedTensor:
        """Of values without padding and (features · batch + 1,) offsets, which must be known.

        >>> from funcgrad import recsys
        >>> f = recsys.KeyedJaggedTensor.from_offsets(["a", "b"], [1, 2, 3], [0, 1, 2, 2, 3])
        >>> f["b"].to_lists()
        [[], [3]]
        """
        return cls(keys, values, lengths_of(f"{_NAME}.from_offsets", offsets), weights)

    @classmethod
    def from_features(cls, features: Mapping[str, JaggedTensor]) -> KeyedJaggedTensor:
        """Of jagged features by name; all of them have weights, or none.

        >>> from funcgrad import recsys
        >>> recsys.KeyedJaggedTensor.from_features({"a": recsys.JaggedTensor([1], [0, 1])}).keys
        ('a',)
        """
        parts = list(features.values())
        weighted = [x.weights is not None for x in parts]
        if any(weighted) and not all(weighted):
            lacking = next(k for k, x in features.items() if x.weights is None)
            raise ArgumentError(
                f"{_NAME}.from_features: feature {lacking!r} has no weights, others have"
            )
        if not parts:
            return cls((), np.zeros(0, "int32"), np.zeros(0, "int32"))
        return cls(
            tuple(features),
            fnp.concatenate([x.values for x in parts]),
            fnp.concatenate([x.lengths for x in parts]),
            fnp.concatenate([x.weights for x in parts]) if any(weighted) else None,
            capacities=[x.capacity for x in parts],
            batches=[x.batch for x in parts],
        )

    @classmethod
    def concat(cls, parts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """The features of several side by side; no name may come twice.

        >>> from funcgrad import recsys
        >>> both = [recsys.KeyedJaggedTensor([k], [7], [1]) for k in "ab"]
        >>> recsys.KeyedJaggedTensor.concat(both).keys
        ('a', 'b')
        """
        unique_keys(f"{_NAME}.concat", [k for part in parts for k in part.keys])
        return cls.from_features({k: part[k] for part in parts for k in part.keys})

    # ---- parts

    def __getitem__(self, at: str | slice) -> Any:
        """A feature by its name, as a JaggedTensor; or a slice of the batch of all features."""
        if isinstance(at, str):
            return self._feature(self.place(at))
        if len(set(self.batches)) > 1:
            raise ArgumentError(
                f"{_NAME}: features have batches of {self.batches}; slice them one by one"
            )
        start, stop = batch_slice(_NAME, at, self.batch)
        return self.from_features({k: self[k][start:stop] for k in self.keys})

    def _feature(self, i: int) -> JaggedTensor:
        a, b = sum(self.capacities[:i]), sum(self.batches[:i])
        block = slice(a, a + self.capacities[i])
        return JaggedTensor.tree_unflatten(
            None,
            (
                self.values[block],
                self.lengths[b : b + self.batches[i]],
                None if self.weights is None else self.weights[block],
            ),
        )

    def place(self, key: str) -> int:
        """Which feature it is that has a name; ArgumentError for a name that none has.

        >>> from funcgrad import recsys
        >>> recsys.KeyedJaggedTensor(["a", "b"], [1, 2], [1, 1]).place("b")
        1
        """
        if key not in self.keys:
            raise ArgumentError(f"{_NAME}: there is no feature {key!r} among {self.keys}")
        return self.keys.index(key)

    @property
    def batch(self) -> int:
        """How many bags each feature has; of features with different ones, the most."""
        return max(self.batches, default=0)

    def features(self) -> dict[str, JaggedTensor]:
        """The features by name."""
        return {k: self._feature(i) for i, k in enumerate(self.keys)}

    def permute(self, keys: Sequence[str]) -> KeyedJaggedTensor:
        """Features in another order, or some of them.

        >>> from funcgrad import recsys
        >>> recsys.KeyedJaggedTensor(["a", "b"], [1, 2], [1, 1]).permute(["b", "a"]).values
        Array([2, 1], dtype=int32)
        """
        return self.from_features({k: self[k] for k in unique_keys(f"{_NAME}.permute", keys)})

    def split(self, groups: Sequence[int]) -> list[KeyedJaggedTensor]:
        """The first groups[0] features, the next groups[1], and so on.

        >>> from funcgrad import recsys
        >>> f = recsys.KeyedJaggedTensor(["a", "b", "c"], [1, 2, 3], [1, 1, 1])
        >>> [part.keys for part in f.split([1, 2])]
        [('a',), ('b', 'c')]
        """
        if sum(groups) != len(self.keys) or min(groups, default=0) < 0:
            raise ArgumentError(
                f"{_NAME}.split: groups {list(groups)} must share {len(self.keys)} features"
            )
        ends = list(itertools.accumulate(groups))
        return [self.permute(self.keys[b - n : b]) for n, b in zip(groups, ends, strict=True)]

    def to_dense(self, most: int | Mapping[str, int] | None = None, fill_value: Any = 0) -> dict:
        """Each feature as (batch, most) ids; see `JaggedTensor.to_dense`.

        >>> from funcgrad import recsys
        >>> recsys.KeyedJaggedTensor(["a"], [1, 2], [2, 0]).to_dense(fill_value=-1)["a"].tolist()
        [[1, 2], [-1, -1]]
        """
        return {k: x.to_dense(_at(most, k), fill_value) for k, x in self.features().items()}

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Values without padding, and lengths, on the host; as TorchRec keeps them.

        >>> from funcgrad import recsys
        >>> recsys.KeyedJaggedTensor.from_lists({"a": [[5], []]}, capacity=3).packed()[0].tolist()
        [5]
        """
        parts = [np.asarray(x.values)[: int(x.count)] for x in self.features().values()]
        values = np.concatenate(parts) if parts else np.asarray(self.values)
        return values, np.asarray(self.lengths)

    # ---- trees

    def tree_flatten(self) -> tuple:
        """For `tree`: the three arrays."""
        static = (self.keys, self.capacities, self.batches)
        return (self.values, self.lengths, self.weights), static

    def tree_flatten_with_keys(self) -> tuple:
        """For `tree`: the three arrays with their names."""
        children, static = self.tree_flatten()
        names = map(tree.GetAttrKey, ("values", "lengths", "weights"))
        return list(zip(names, children, strict=True)), static

    @classmethod
    def tree_unflatten(cls, static: tuple, children: Iterable) -> KeyedJaggedTensor:
        """For `tree`: nothing is checked, as children may be anything."""
        new = object.__new__(cls)
        new.keys, new.capacities, new.batches = static
        new.values, new.lengths, new.weights = children
        return new

    def __repr__(self) -> str:
        lengths = known(self.lengths) if hasattr(self.lengths, "shape") else None
        shown = []
        for i, key in enumerate(self.keys):
            b = sum(self.batches[:i])
            part = (
                None if lengths is None or lengths.ndim != 1 else lengths[b : b + self.batches[i]]
            )
            count = "?" if part is None else part.sum()
            shown.append(f"{key}: {count} of {self.capacities[i]} values in {self.batches[i]} bags")
        return f"KeyedJaggedTensor({', '.join(shown)})"


def unique_keys(where: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Names of features, which must be strings that differ."""
    keys = tuple(keys)
    for i, key in enumerate(keys):
        if not isinstance(key, str):
            raise ArgumentError(f"{where}: keys must be strings, got {key!r}")
        if key in keys[:i]:
            raise ArgumentError(f"{where}: the feature {key!r} comes twice")
    return keys


def _at(given: Any, key: str) -> Any:
    """What is given for a feature: by its name, or the same for all."""
    return given[key] if isinstance(given, Mapping) else given


def _same_names(where: str, given: Mapping, keys: Iterable[str]) -> None:
    if set(given) != set(keys):
        raise ArgumentError(f"{where} has {sorted(given)}, the features are {sorted(keys)}")
