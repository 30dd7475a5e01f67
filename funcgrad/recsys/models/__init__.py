"""Models of recommenders: a function, a tree of parameters, a frozen config.

Tables and what is dense are apart: `tables_of(key, cfg)` gives tables by name, `…_init(key, cfg)`
the dense parameters, and the model takes what `embedding_bag` makes of the tables. So tables may be
whole, cut over devices, of 8 bits, and have an optimizer of their own.

- `layers`: perceptrons, and tables to begin with
- `dlrm`: DLRM, with dot products or cross layers
- `deepfm`: factorization machine and perceptron side by side
- `two_tower`: vectors of users and items, in-batch softmax, the best items of a user
- `search`: the best items among a part of all of them
- `sasrec`: the next item of a sequence, by self-attention
"""

from funcgrad.recsys.models.deepfm import DeepFMConfig, deepfm, deepfm_init
from funcgrad.recsys.models.dlrm import DLRMConfig, dlrm, dlrm_init
from funcgrad.recsys.models.layers import init_tables, mlp, mlp_init
from funcgrad.recsys.models.sasrec import SASRecConfig, sasrec, sasrec_init, sasrec_loss
from funcgrad.recsys.models.search import ItemIndex, item_index, search_items
from funcgrad.recsys.models.two_tower import (
    TwoTowerConfig,
    in_batch_softmax,
    sampled_softmax,
    top_items,
    two_tower,
    two_tower_init,
)

__all__ = [
    "init_tables", "mlp", "mlp_init",
    "DLRMConfig", "dlrm", "dlrm_init",
    "DeepFMConfig", "deepfm", "deepfm_init",
    "TwoTowerConfig", "in_batch_softmax", "sampled_softmax", "top_items", "two_tower",
    "two_tower_init",
    "ItemIndex", "item_index", "search_items",
    "SASRecConfig", "sasrec", "sasrec_init", "sasrec_loss",
]  # fmt: skip
