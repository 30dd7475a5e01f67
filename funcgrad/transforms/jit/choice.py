"""Which arguments of a function are meant, by position and by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import NamedTuple

from funcgrad.transforms.arguments import name_of

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Choice(NamedTuple):
    """Some of a function's arguments, by position and by name."""

    nums: frozenset[int]
    names: frozenset[str]

    @staticmethod
    def of(
        fun: Callable,
        nums: int | Iterable[int] | None,
        names: str | Iterable[str] | None,
        what: str,
        who: str = "jit",
    ) -> Choice:
        """What `{what}_argnums` and `{what}_argnames` of a transformation choose of a function."""
        nums = {nums} if isinstance(nums, int) else set(nums or ())
        names = {names} if isinstance(names, str) else set(names or ())
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            return Choice(frozenset(nums), frozenset(names))
        positional = [p.name for p in parameters if p.kind in _POSITIONAL]
        nums = {n + len(positional) if n < 0 else n for n in nums}
        takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        takes_any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
        for n in nums:
            if n >= len(positional) and not takes_any:
                raise ValueError(
                    f"{who} of {name_of(fun)}: {what}_argnums={n}, but the function has "
                    f"{len(positional)} positional parameters"
                )
        for name in names:
            if name not in {p.name for p in parameters} and not takes_any_name:
                raise ValueError(
                    f"{who} of {name_of(fun)}: {what}_argnames={name!r} is no parameter of it"
                )
        all_nums = nums | {i for i, name in enumerate(positional) if name in names}
        all_names = names | {positional[n] for n in nums if n < len(positional)}
        return Choice(frozenset(all_nums), frozenset(all_names))
