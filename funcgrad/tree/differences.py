"""Where two structures differ, in words.

The search walks both structures together and stops at the first node that is not the same in both;
the message gives its path and what each side has there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from funcgrad.errors import TreeError
from funcgrad.tree.keypath import KeyPath, keystr
from funcgrad.tree.kinds import (
    DEFAULT_DICT,
    DICT,
    LIST,
    NONE,
    ORDERED_DICT,
    TUPLE,
    Kind,
    flat_keys,
)

if TYPE_CHECKING:
    from funcgrad.tree.treedef import PyTreeDef


class Side(NamedTuple):
    """One of two trees that are compared: what to call it, its structure, its leaves if known."""

    name: str
    treedef: "PyTreeDef"
    leaves: Sequence = ()


def raise_difference(a: Side, b: Side, prefix: bool = False, where: str = "") -> NoReturn:
    """Raises TreeError about the first difference; `prefix` lets `a` end above `b`."""
    found = _first_difference(a.treedef, b.treedef, prefix)
    assert found is not None, "equal structures were taken to differ"
    path, x, y, i, j = found
    here = contrast(Side(a.name, x, a.leaves[i:]), Side(b.name, y, b.leaves[j:]))
    if prefix and b.leaves:
        here += _expected(x, y, b.leaves[j : j + y.num_leaves])
    raise TreeError(f"{where}the trees differ {at(path)}: {here}")


def _expected(wanted: "PyTreeDef", got: "PyTreeDef", leaves: Sequence) -> str:
    """What a subtree is, where that is short, beside what it should be: in JAX's words."""
    value = repr(got.unflatten(leaves)) if len(leaves) < 10 else ""
    kind, other = wanted._kind, got._kind
    assert kind is not None
    if len(value) > 80 or "\n" in value or not value:
        return ""
    keys = _dict_keys(wanted)
    if kind is not other:
        if kind.label == "namedtuple":
            both = other is not None and other.label == "namedtuple"
            return (
                f". Named tuple type mismatch: {value}."
                if both
                else (f". Expected named tuple, got {value}.")
            )
        name = "None" if kind is NONE else kind.cls.__name__
        plain = kind in (NONE, TUPLE, LIST) or keys is not None
        return (
            f". Expected {name}, got {value}."
            if plain
            else (f". Custom node type mismatch: expected {name}, got {value}.")
        )
    if keys is not None:
        return f". Dict key mismatch; expected keys: {[*keys]}; dict: {value}."
    if kind in (TUPLE, LIST):
        name, n, m = kind.cls.__name__, len(got.children()), len(wanted.children())
        return f". {name.capitalize()} arity mismatch: {n} != {m}; {name}: {value}."
    return ""


def at(path: KeyPath) -> str:
    """Where a path leads, in words."""
    return f"at {keystr(path)}" if path else "at the root"


def child_keys(treedef: "PyTreeDef") -> Sequence:
    """The last step of the path to each child."""
    kind, n = treedef._kind, len(treedef.children())
    assert kind is not None
    if kind.keyed_children is None:
        return kind.keys(treedef._data, n)
    # Only an object can tell. A class that refuses to hold placeholders costs no more than names.
    try:
        tree = kind.unflatten(treedef._data, (object(),) * n)
        return [key for key, _ in kind.keyed_children(tree)]
    except Exception:
        return flat_keys(None, n)


def same_data(kind: Kind, a: Any, b: Any) -> bool:
    """Whether the metadata of two nodes of one kind are equal."""
    if a is b:
        return True
    try:
        return bool(a == b)
    except ValueError as e:
        raise TreeError(
            f"tree: the metadata of two {kind.label} nodes can't be compared ({e}): an array "
            "belongs in a child (a data field), where it is a leaf"
        ) from None


def same_node(a: "PyTreeDef", b: "PyTreeDef") -> bool:
    """Whether two structures have the same node on top, whatever their children are."""
    if a._kind is None or a._kind is not b._kind:
        return a._kind is b._kind
    return len(a.children()) == len(b.children()) and same_data(a._kind, a._data, b._data)


_Found = tuple[KeyPath, "PyTreeDef", "PyTreeDef", int, int]  # the ints: how many leaves come before


def _first_difference(a: "PyTreeDef", b: "PyTreeDef", prefix: bool) -> _Found | None:
    if a is b or (prefix and a._kind is None):
        return None
    if not same_node(a, b):
        return (), a, b, 0, 0
    if a._kind is None:
        return None
    i = j = 0
    for key, x, y in zip(child_keys(a), a.children(), b.children(), strict=True):
        found = _first_difference(x, y, prefix)
        if found is not None:
            path, sub_a, sub_b, di, dj = found
            return (key, *path), sub_a, sub_b, i + di, j + dj
        i, j = i + x.num_leaves, j + y.num_leaves
    return None


def contrast(a: Side, b: Side) -> str:
    """What two nodes are, and where both are dicts, which keys only one of them has."""
    text = f"{a.name} has {_describe(a)}, {b.name} has {_describe(b)}"
    if a.treedef._kind is b.treedef._kind and _dict_keys(a.treedef) is not None:
        keys_a, keys_b = _dict_keys(a.treedef) or (), _dict_keys(b.treedef) or ()
        for name, keys, others in (a.name, keys_a, keys_b), (b.name, keys_b, keys_a):
            missing = [repr(key) for key in others if key not in keys]
            if missing:
                text += f"; {name} lacks {', '.join(missing)}"
    elif {a.treedef._kind, b.treedef._kind} == {NONE, None}:
        text += "; None is a node without leaves, not a leaf"
    return text


def _dict_keys(treedef: "PyTreeDef") -> tuple | None:
    if treedef._kind is DEFAULT_DICT:
        return treedef._data[1]
    return treedef._data if treedef._kind in (DICT, ORDERED_DICT) else None


def _describe(side: Side) -> str:
    treedef = side.treedef
    kind, n = treedef._kind, len(treedef.children())
    if kind is None:
        return f"a leaf of type {type(side.leaves[0]).__name__}" if side.leaves else "a leaf"
    if kind is NONE:
        return "None"
    if kind in (TUPLE, LIST):
        return f"a {kind.cls.__name__} of length {n}"
    keys = _dict_keys(treedef)
    if keys is not None:
        return f"a {kind.cls.__name__} with keys {[*keys]}"
    children = "1 child" if n == 1 else f"{n} children"
    data = "" if treedef._data is None else f" and metadata {treedef._data!r}"
    return f"a {kind.cls.__name__} with {children}{data}"
