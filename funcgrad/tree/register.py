"""How a user's classes become nodes of trees."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from funcgrad.tree.keypath import GetAttrKey
from funcgrad.tree.kinds import Kind, add_kind

_C = TypeVar("_C", bound=type)


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable, Any]],
    unflatten_func: Callable[[Any, tuple], Any],
) -> None:
    """Makes the instances of a class nodes of trees.

    `flatten_func(x)` gives the children and the metadata (hashable, for use under `jit`);
    `unflatten_func(metadata, children)` gives the object back. It must accept any children: they
    are tracers or placeholders at times. Raises ValueError for a class that is registered already.

    >>> class Pair:
    ...     def __init__(self, x, y):
    ...         self.x, self.y = x, y
    >>> tree.register_pytree_node(Pair, lambda p: ((p.x, p.y), None), lambda _, xy: Pair(*xy))
    >>> tree.leaves([Pair(1, 2), 3])
    [1, 2, 3]
    """
    add_kind(Kind(nodetype, flatten_func, unflatten_func))


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]],
    unflatten_func: Callable[[Any, tuple], Any],
    flatten_func: Callable[[Any], tuple[Iterable, Any]] | None = None,
) -> None:
    """As `register_pytree_node`, of a class whose children have names in paths.

    `flatten_with_keys(x)` gives pairs of key and child, and the metadata. `flatten_func` is the
    faster way without the keys, if there is one.

    >>> class Box:
    ...     def __init__(self, x):
    ...         self.x = x
    >>> tree.register_pytree_with_keys(
    ...     Box, lambda b: ([(tree.GetAttrKey("x"), b.x)], None), lambda _, x: Box(*x)
    ... )
    >>> tree.keystr(tree.leaves_with_path([Box(1)])[0][0])
    '[0].x'
    """

    def flatten_without_keys(tree: Any) -> tuple[Iterable, Any]:
        pairs, data = flatten_with_keys(tree)
        return [child for _, child in pairs], data

    def keyed_children(tree: Any) -> Iterable:
        return flatten_with_keys(tree)[0]

    flatten_func = flatten_func or flatten_without_keys
    add_kind(Kind(nodetype, flatten_func, unflatten_func, keyed_children=keyed_children))


def register_pytree_node_class(cls: _C) -> _C:
    """Decorates a class whose methods `tree_flatten` and `tree_unflatten` make it a node.

    With a method `tree_flatten_with_keys` too, its children have names in paths.

    >>> @tree.register_pytree_node_class
    ... class Scaled:
    ...     def __init__(self, x, by):
    ...         self.x, self.by = x, by
    ...
    ...     def tree_flatten(self):
    ...         return (self.x,), self.by
    ...
    ...     @classmethod
    ...     def tree_unflatten(cls, by, children):
    ...         return cls(*children, by)
    >>> tree.flatten(Scaled(1.5, by=2))
    ([1.5], PyTreeDef(CustomNode(Scaled[2], [*])))
    """
    methods: Any = cls
    plain = operator.methodcaller("tree_flatten") if hasattr(cls, "tree_flatten") else None
    if hasattr(cls, "tree_flatten_with_keys"):
        with_keys = operator.methodcaller("tree_flatten_with_keys")
        register_pytree_with_keys(cls, with_keys, methods.tree_unflatten, plain)
    elif plain is not None:
        register_pytree_node(cls, plain, methods.tree_unflatten)
    else:
        raise TypeError(
            f"tree.register_pytree_node_class: {cls.__name__} needs a method tree_flatten"
        )
    return cls


def register_dataclass(
    cls: _C,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
) -> _C:
    """Makes a dataclass a node: its data fields are children, its meta fields are metadata.

    Without the two lists, a field declared with `metadata=dict(static=True)` is a meta field and
    every other field of the constructor a data field. Works as a decorator above `@dataclass`.
    Raises TypeError for a class without fields to go by, ValueError for lists that do not name each
    field of the constructor once.

    >>> from dataclasses import dataclass, field
    >>> @tree.register_dataclass
    ... @dataclass
    ... class Layer:
    ...     w: object
    ...     width: int = field(metadata=dict(static=True))
    >>> tree.flatten(Layer(w=1.5, width=3))
    ([1.5], PyTreeDef(CustomNode(Layer[(3,)], [*])))
    """
    data, meta = _field_lists(cls, data_fields, meta_fields)
    names = (*data, *meta)
    children, metadata = _getter(data), _getter(meta)

    def flatten_fields(tree: Any) -> tuple[Iterable, tuple]:
        return children(tree), metadata(tree)

    def unflatten_fields(values: tuple, children: tuple) -> Any:
        return cls(**dict(zip(names, children + values, strict=True)))

    keys = tuple(map(GetAttrKey, data))
    add_kind(Kind(cls, flatten_fields, unflatten_fields, lambda values, n: keys))
    return cls


def static(**kwargs: Any) -> Any:
    """A field of a dataclass that is metadata, not a child: `dataclasses.field` of that kind.

    >>> from dataclasses import dataclass
    >>> @tree.register_dataclass
    ... @dataclass
    ... class Op:
    ...     x: object
    ...     name: str = tree.static(default="add")
    >>> tree.flatten(Op(1.5))
    ([1.5], PyTreeDef(CustomNode(Op[('add',)], [*])))
    """
    metadata = {"static": True, **(kwargs.pop("metadata", None) or {})}
    return dataclasses.field(metadata=metadata, **kwargs)


def register_static(cls: _C) -> _C:
    """Makes the instances of a class nodes without children: they are all metadata.

    They must be hashable and comparable, as what is static under `jit` is.

    >>> @tree.register_static
    ... class Mode(str): ...
    >>> tree.flatten([Mode("train"), 1.0])
    ([1.0], PyTreeDef([CustomNode(Mode[train], []), *]))
    """
    add_kind(Kind(cls, lambda x: ((), x), lambda x, _: x))
    return cls


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda tree: tuple([getattr(tree, name) for name in names])


def _field_lists(
    cls: type, data: Sequence[str] | None, meta: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    name = getattr(cls, "__name__", repr(cls))
    if (data is None) != (meta is None):
        raise TypeError(
            "tree.register_dataclass: data_fields and meta_fields must both be specified when "
            f"either is specified. Got data_fields={data} meta_fields={meta}."
        )
    if not dataclasses.is_dataclass(cls):
        if data is None or meta is None:
            raise TypeError(
                "tree.register_dataclass: data_fields and meta_fields are required when nodetype "
                f"is not a dataclass. Got nodetype={cls!r} (is @register_dataclass above "
                "@dataclass?)"
            )
        return tuple(data), tuple(meta)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    if data is None or meta is None:
        static = [n for n, f in fields.items() if f.metadata.get("static", False)]
        return tuple(n for n in fields if n not in static), tuple(static)
    given = [*data, *meta]
    all_fields = "must include all dataclass fields of the constructor and no others"
    faults = {
        f"{all_fields}. Missing fields": [n for n in fields if n not in given],
        f"{all_fields}. Unexpected fields": [n for n in given if n not in fields],
        "must not overlap. Overlapping fields": [n for i, n in enumerate(given) if n in given[:i]],
    }
    for fault, at_fault in faults.items():
        if at_fault:
            named = ", ".join(map(repr, at_fault))
            raise ValueError(
                f"tree.register_dataclass: {name}: data_fields and meta_fields {fault}: {{{named}}}"
            )
    return tuple(data), tuple(meta)


class Partial(functools.partial):
    """A `functools.partial` that is a tree: its arguments are children, its function metadata.

    So a function with arrays bound to it passes through `jit` or `vmap`, where a plain function
    could not. A `functools.partial` inside keeps its own arguments to itself.

    >>> half = Partial(pow, 0.5)
    >>> half(2), tree.leaves(half)
    (0.25, [0.5])
    """

    def __new__(cls, func: Callable, /, *args: Any, **keywords: Any) -> "Partial":
        if isinstance(func, functools.partial) and not isinstance(func, Partial):
            func = func.__call__  # functools.partial would take over the arguments of another
        return super().__new__(cls, func, *args, **keywords)


add_kind(
    Kind(
        Partial,
        lambda p: ((p.args, p.keywords), p.func),
        lambda func, xs: Partial(func, *xs[0], **xs[1]),
        lambda func, n: (GetAttrKey("args"), GetAttrKey("keywords")),
    )
)
