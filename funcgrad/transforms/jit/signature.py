"""The arguments of a compiled function's calls: which are static, which donated, their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from funcgrad import tree
from funcgrad.core.trace import Tracer
from funcgrad.core.types import Tree
from funcgrad.errors import ArgumentError
from funcgrad.transforms.arguments import name_of, wraps
from funcgrad.transforms.jit.choice import Choice
from funcgrad.transforms.jit.keys import leaf_or_position, typed
from funcgrad.tree import PyTreeDef


class SortedCall(NamedTuple):
    """A call's arguments, sorted into static and dynamic ones."""

    leaves: list
    in_tree: PyTreeDef
    static: tuple
    args: tuple
    kwargs: dict


class Signature(NamedTuple):
    """A function, and which of its arguments are static and which are donated."""

    fun: Callable
    static: Choice
    donated: Choice

    def sort(self, args: tuple, kwargs: dict) -> SortedCall:
        """A call's arguments; an error for a static one that can't be a key."""
        nums, names = self.static
        if not nums and not names:
            leaves, in_tree = tree.flatten((args, kwargs))
            return SortedCall(leaves, in_tree, (), args, kwargs)
        static: list[tuple[Any, Any]] = [(i, args[i]) for i in sorted(nums) if i < len(args)]
        static += [(k, kwargs[k]) for k in sorted(names) if k in kwargs]
        for key, value in static:
            self._check_static(key, value)
        dynamic_args = tuple(a for i, a in enumerate(args) if i not in nums)
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in names}
        leaves, in_tree = tree.flatten((dynamic_args, dynamic_kwargs))
        keyed = tuple((k, v, typed(v)) for k, v in static)
        return SortedCall(leaves, in_tree, keyed, args, kwargs)

    def _check_static(self, key: int | str, value: object) -> None:
        name = key if isinstance(key, str) else leaf_or_position(self.fun, key)
        if any(isinstance(x, Tracer) for x in tree.leaves(value)):
            raise ArgumentError(
                f"jit of {name_of(self.fun)}: static argument {name} is a tracer "
                f"({value!r}); a static argument must be a Python value, known while tracing"
            )
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                f"jit of {name_of(self.fun)}: static argument {name} must be hashable, got "
                f"{value!r} of {type(value)}; use a tuple or a frozen dataclass"
            ) from None

    def of_dynamic(self, call: SortedCall) -> Callable:
        """The function of dynamic arguments alone."""
        if not call.static:
            return self.fun
        nums, names = self.static
        fixed = {k: v for k, v, _ in call.static}
        n = len(call.args)

        def fun(*dynamic: Any, **named: Any) -> Tree:
            rest = iter(dynamic)
            args = [fixed[i] if i in nums else next(rest) for i in range(n)]
            return self.fun(*args, **named, **{k: v for k, v in fixed.items() if k in names})

        return wraps(self.fun, "static")(fun)

    def leaf_names(self, call: SortedCall) -> Iterable[str]:
        """What users call each leaf of the dynamic arguments."""
        nums, names = self.static
        for i, arg in enumerate(call.args):
            name = leaf_or_position(self.fun, i)
            for path, _ in tree.leaves_with_path(arg) if i not in nums else ():
                yield name + tree.keystr(path)
        for k in sorted(call.kwargs):
            for path, _ in tree.leaves_with_path(call.kwargs[k]) if k not in names else ():
                yield k + tree.keystr(path)

    def donated_leaves(self, call: SortedCall) -> list[bool]:
        """Which leaves of the dynamic arguments are donated."""
        mask: list[bool] = []
        for i, arg in enumerate(call.args):
            if i not in self.static.nums:
                mask += [i in self.donated.nums] * len(tree.leaves(arg))
        for k in sorted(call.kwargs):
            if k not in self.static.names:
                mask += [k in self.donated.names] * len(tree.leaves(call.kwargs[k]))
        return mask
