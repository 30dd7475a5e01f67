"""Rows of tables by ids: summed bag by bag (`embedding_bag`), or one by one (`embedding`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError
from funcgrad.ops.indexing.plan import known
from funcgrad.recsys.jagged import JaggedTensor
from funcgrad.recsys.keyed import KeyedJaggedTensor
from funcgrad.recsys.lookups import Tapped, pooled, rows_of
from funcgrad.recsys.remote import ArrivedIds, sharded_lookup
from funcgrad.recsys.sharded import ShardedTables
from funcgrad.recsys.tables import as_table, check_ids

POOLINGS = ("sum", "mean")


def embedding_bag(
    tables: Any,
    features: Any,
    pooling: str | Mapping[str, str] = "sum",
    *,
    table_of: Mapping[str, str] | None = None,
) -> Any:
    """The sum or mean of the rows that each bag of ids names; weighted where features have weights.

    tables: arrays (rows, dim) of floats, or QuantizedTables, by name; features: a
    KeyedJaggedTensor; the result: (batch, dim) by feature. Or one table and a JaggedTensor: then
    the result is an array. pooling: "sum" or "mean", for all or by feature; a mean divides the
    weighted sum by the number of ids, an empty bag gives zeros. table_of: the tables of features
    that don't have their table's name, so several may share one.

    Rows narrower than float32 are read as they are and summed in float32. An id that is no row is
    an OutOfBoundsError that names feature, position and bag; inside of compiled programs its bag
    becomes NaN. Derivatives with respect to tables are dense, but for `value_and_sparse_grad`.

    >>> from funcgrad import recsys
    >>> tables = {"ad": fnp.array([[1.0, 2.0], [10.0, 20.0], [5.0, 5.0]])}
    >>> clicks = recsys.KeyedJaggedTensor.from_lists({"ad": [[0, 1], [], [2]]})
    >>> recsys.embedding_bag(tables, clicks)["ad"]
    Array([[11., 22.],
           [ 0.,  0.],
           [ 5.,  5.]], dtype=float32)
    >>> recsys.embedding_bag(tables["ad"], clicks["ad"], "mean")[0]
    Array([ 5.5, 11. ], dtype=float32)
    """
    name = "recsys.embedding_bag"
    if isinstance(features, JaggedTensor):
        return _bag(f"{name}: features", tables, features, _pooling(name, pooling, None))
    if isinstance(tables, ShardedTables):
        return _sharded_bags(name, tables, features, pooling, table_of)
    named = _by_name(name, tables, features, table_of)
    return {
        key: _bag(f"{name}: feature {key!r}", table, x, _pooling(name, pooling, key))
        for key, table, x in named
    }


def embedding(tables: Any, features: Any, *, table_of: Mapping[str, str] | None = None) -> Any:
    """The rows that ids name, one by one.

    features: a KeyedJaggedTensor, with tables by name; a JaggedTensor of ids; or an array (…) of
    ids. The result: jagged tensors of values (capacity, dim) by feature; one; or an array
    (…, dim). Padding reads as zeros. Weights are kept beside the rows. For the rest see
    `embedding_bag`.

    >>> from funcgrad import recsys
    >>> table = fnp.array([[1.0, 2.0], [10.0, 20.0]])
    >>> recsys.embedding(table, fnp.array([[1, 0]]))
    Array([[[10., 20.],
            [ 1.,  2.]]], dtype=float32)
    >>> recsys.embedding(table, recsys.JaggedTensor.from_lists([[1], []])).to_dense(1)[:, 0]
    Array([[10., 20.],
           [ 0.,  0.]], dtype=float32)
    """
    name = "recsys.embedding"
    if isinstance(tables, ShardedTables):
        named = _names(name, features, table_of)
        rows = sharded_lookup(tables, named, pooling=False)
        return {
            k: JaggedTensor.tree_unflatten(None, (rows[k], x.lengths, x.weights))
            for k, (_, x) in named.items()
        }
    if isinstance(features, KeyedJaggedTensor):
        return {
            key: _sequences(f"{name}: feature {key!r}", table, x)
            for key, table, x in _by_name(name, tables, features, table_of)
        }
    if isinstance(features, JaggedTensor):
        return _sequences(f"{name}: features", tables, features)
    return _one_by_one(name, tables, features)


def check_features(
    features: KeyedJaggedTensor, rows: Mapping[str, int], table_of: Mapping[str, str] | None = None
) -> None:
    """Raise OutOfBoundsError, with feature, position and bag, for an id that is no row.

    For where batches are made: in compiled programs and on many devices nobody can be told of such
    an id, and its bag is NaN. rows: how many each table has, by its name.

    >>> from funcgrad import recsys
    >>> features = recsys.KeyedJaggedTensor.from_lists({"ad": [[0], [5]]})
    >>> recsys.check_features(features, {"ad": 5})
    Traceback (most recent call last):
    funcgrad.errors.OutOfBoundsError: ... feature 'ad': id 5 at position 1 (bag 1) is none of 5 ...
    """
    name = "recsys.check_features"
    for key, (table, x) in _names(name, features, table_of).items():
        if table not in rows:
            raise ArgumentError(
                f"{name}: feature {key!r} needs a table {table!r}, there are {sorted(rows)}"
            )
        lengths = np.asarray(x.lengths)
        bags = np.repeat(np.arange(x.batch), lengths)
        ids = np.asarray(x.values)[: len(bags)]
        check_ids(f"{name}: feature {key!r}", ids, rows[table], bags=bags)


def _by_name(
    name: str, tables: Any, features: Any, table_of: Mapping[str, str] | None
) -> Iterator[tuple[str, Any, JaggedTensor]]:
    """(feature's name, its table, its ids)."""
    if not isinstance(features, KeyedJaggedTensor) or not isinstance(tables, Mapping):
        raise ArgumentError(
            f"{name}: need tables by name with a KeyedJaggedTensor, or one table with a "
            f"JaggedTensor, got {type(tables).__name__} with {type(features).__name__}"
        )
    for key, (table, x) in _names(name, features, table_of).items():
        if table not in tables:
            raise ArgumentError(
                f"{name}: feature {key!r} needs a table {table!r}, there are {sorted(tables)}"
            )
        yield key, tables[table], x


def _names(
    name: str, features: Any, table_of: Mapping[str, str] | None
) -> dict[str, tuple[str, JaggedTensor]]:
    """(its table's name, its ids) of each feature."""
    if not isinstance(features, KeyedJaggedTensor):
        raise ArgumentError(f"{name}: need a KeyedJaggedTensor, got {type(features).__name__}")
    table_of = {} if table_of is None else table_of
    return {key: (table_of.get(key, key), x) for key, x in features.features().items()}


def _sharded_bags(
    name: str, tables: ShardedTables, features: Any, pooling: Any, table_of: Any
) -> dict[str, Any]:
    """Pooled rows of tables on many devices; sums are divided where they have arrived."""
    if isinstance(features, ArrivedIds):
        named, arrived = features.named, features.pools
    else:
        named, arrived = _names(name, features, table_of), None
    sums = sharded_lookup(tables, named, pooling=True, arrived=arrived)
    for key, (_, x) in named.items():
        if _pooling(name, pooling, key) == "mean":
            sums[key] = _mean(sums[key], x.lengths)
    return sums


def _pooling(name: str, pooling: str | Mapping[str, str], key: str | None) -> str:
    """How a feature is pooled."""
    if isinstance(pooling, Mapping):
        pooling = pooling.get(key or "", "none given")
    if pooling not in POOLINGS:
        whose = "" if key is None else f" of feature {key!r}"
        raise ArgumentError(f'{name}: pooling{whose} must be "sum" or "mean", got {pooling!r}')
    return pooling


def _bag(where: str, table: Any, x: JaggedTensor, pooling: str) -> Any:
    """Pooled rows (batch, dim) of one feature."""
    table = _table(where, table, x.values)
    if known(x.values) is not None:
        bags = x.segments()
        check_ids(where, x.values, table.shape[0], bags < x.batch, bags)
    ends = fnp.cumsum(x.lengths, dtype=x.lengths.dtype)
    sums = pooled(table, x.values, (ends - x.lengths, ends), x.weights)
    return _mean(sums, x.lengths) if pooling == "mean" else sums


def _mean(sums: Any, lengths: Any) -> Any:
    """Sums (batch, dim) of bags divided by how many rows they have."""
    return sums / fnp.maximum(lengths, 1).astype(sums.dtype)[:, None]


def _sequences(where: str, table: Any, x: JaggedTensor) -> JaggedTensor:
    """The rows of one feature's ids."""
    table = _table(where, table, x.values)
    bags = x.segments()
    used = bags < x.batch
    check_ids(where, x.values, table.shape[0], used, bags)
    ids = fnp.where(used, x.values, fnp.asarray(table.shape[0], x.values.dtype))
    rows = fnp.where(used[:, None], rows_of(table, ids), 0)
    return JaggedTensor.tree_unflatten(None, (rows, x.lengths, x.weights))


def _one_by_one(name: str, table: Any, ids: Any) -> Any:
    """The rows of an array of ids."""
    ids = fnp.asarray(ids)
    table = _table(name, table, ids)
    check_ids(f"{name}: features", ids, table.shape[0])
    return rows_of(table, ids.reshape(ids.size)).reshape(*ids.shape, table.shape[1])


def _table(where: str, table: Any, ids: Any) -> Any:
    if not dtypes.is_integer(ids.dtype):
        raise DTypeError(f"{where}: ids must be integers, got {aval_of(ids)}")
    return table if isinstance(table, Tapped) else as_table(f"{where}: its table", table)
