"""Recommenders: jagged features, embedding tables and their sparse updates, over many devices.

Tables are arrays, features trees, optimizers pairs of functions; a table's sharding is an
annotation, and everything else a function.

- `jagged`, `keyed`: bags of different sizes; ids of many features by name
- `columns`: ids from columns of lists, as Apache Arrow keeps them
- `tables`, `embedding`: tables, also of 8 bits, and their rows by ids, pooled or not
- `rows`, `lookups`, `updates`: gradients of the rows that were read, and optimizers of these
- `layouts`, `sharded`: tables cut over many devices
- `remote`, `exchange`, `wire`: lookups in them; ids and sums on their way between devices
- `costs`, `plans`, `planner`: which cut is best for each table
- `zch`, `disk`: rows for raw ids, without collisions; tables in files
- `metrics`: AUC, normalized entropy, NDCG, recall; `models`: DLRM and others
"""

from funcgrad.recsys import models
from funcgrad.recsys.costs import Bandwidths, TableStats, measure_bandwidths
from funcgrad.recsys.disk import DiskTable, create_disk_table
from funcgrad.recsys.embedding import check_features, embedding, embedding_bag
from funcgrad.recsys.jagged import JaggedTensor
from funcgrad.recsys.keyed import KeyedJaggedTensor
from funcgrad.recsys.layouts import (
    Layout,
    TableSharding,
    column_wise,
    data_parallel,
    grid,
    layout,
    row_wise,
    table_column_wise,
    table_row_wise,
    table_wise,
)
from funcgrad.recsys.lookups import value_and_sparse_grad
from funcgrad.recsys.metrics import (
    Metric,
    ndcg_at,
    normalized_entropy,
    recall_at,
    streaming_auc,
)
from funcgrad.recsys.planner import plan
from funcgrad.recsys.plans import Plan, plan_from_json
from funcgrad.recsys.remote import ArrivedIds, check_exchange, exchange_ids, overlapped
from funcgrad.recsys.rows import IndexedRows
from funcgrad.recsys.sharded import (
    ShardedTables,
    average_replicas,
    begin_rows,
    gather_tables,
    partition_specs,
    put,
    reshard_tables,
    shard_tables,
    split_batch,
)
from funcgrad.recsys.tables import QuantizedTable, quantize_rows
from funcgrad.recsys.updates import (
    SparseState,
    adagrad,
    adam,
    apply_updates,
    lamb,
    lazy_adam,
    rowwise_adagrad,
    sgd,
)
from funcgrad.recsys.zch import (
    ZCHConfig,
    ZCHState,
    zch_check,
    zch_init,
    zch_put,
    zch_rows,
    zch_specs,
    zch_update,
)

__all__ = [
    "JaggedTensor", "KeyedJaggedTensor",
    "check_features", "embedding", "embedding_bag", "QuantizedTable", "quantize_rows",
    "IndexedRows", "value_and_sparse_grad",
    "Layout", "ShardedTables", "TableSharding", "average_replicas", "begin_rows", "column_wise",
    "data_parallel", "gather_tables", "grid", "layout", "partition_specs", "put", "reshard_tables",
    "row_wise", "shard_tables", "split_batch",
    "table_column_wise", "table_row_wise", "table_wise",
    "ArrivedIds", "check_exchange", "exchange_ids", "overlapped",
    "Bandwidths", "Plan", "TableStats", "measure_bandwidths", "plan", "plan_from_json",
    "Metric", "ndcg_at", "normalized_entropy", "recall_at", "streaming_auc",
    "models",
    "DiskTable", "create_disk_table",
    "ZCHConfig", "ZCHState", "zch_check", "zch_init", "zch_put", "zch_rows", "zch_specs",
    "zch_update",
    "SparseState", "adagrad", "adam", "apply_updates", "lamb", "lazy_adam", "rowwise_adagrad",
    "sgd",
]  # fmt: skip
