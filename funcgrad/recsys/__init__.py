"""Recommenders: jagged features, embedding tables and their sparse updates, over many devices.

Tables are arrays, features trees, optimizers pairs of functions; a table's sharding is an
annotation, and everything else a function.

- `jagged`, `keyed`: bags of different sizes; ids of many features by name
- `columns`: ids from columns of lists, as Apache Arrow keeps them
"""

from funcgrad.recsys.jagged import JaggedTensor
from funcgrad.recsys.keyed import KeyedJaggedTensor

__all__ = [
    "JaggedTensor", "KeyedJaggedTensor",
]  # fmt: skip
