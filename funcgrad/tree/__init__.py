"""Pytrees: nested containers seen as a list of leaves and a structure that puts them back.

Every transform takes and returns trees; inside, it sees flat lists. `flatten` splits a tree into
leaves and a `PyTreeDef`; `unflatten` joins them. Nodes are tuple, list, dict, OrderedDict,
defaultdict, named tuples, None (a node without leaves), and what the `register_*` functions add;
everything else is a leaf. The idea and the names are those of `jax.tree`.
"""

from funcgrad.tree.functions import (
    all,
    broadcast,
    check_same_structure,
    flatten_axes,
    flatten_with_path,
    leaves,
    leaves_with_path,
    map,
    map_with_path,
    reduce,
    reduce_associative,
    transpose,
    unflatten,
)
from funcgrad.tree.keypath import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyPath,
    SequenceKey,
    keystr,
)
from funcgrad.tree.register import (
    Partial,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_static,
    static,
)
from funcgrad.tree.treedef import PyTreeDef, flatten, structure

__all__ = [
    "PyTreeDef",
    "flatten",
    "unflatten",
    "leaves",
    "structure",
    "map",
    "reduce",
    "reduce_associative",
    "all",
    "transpose",
    "broadcast",
    "flatten_axes",
    "check_same_structure",
    "KeyPath",
    "DictKey",
    "SequenceKey",
    "GetAttrKey",
    "FlattenedIndexKey",
    "keystr",
    "flatten_with_path",
    "leaves_with_path",
    "map_with_path",
    "register_pytree_node",
    "register_pytree_with_keys",
    "register_pytree_node_class",
    "register_dataclass",
    "register_static",
    "static",
    "Partial",
]
