"""autograd's own things by our functions: primitives with rules, vector spaces of pytrees, and
convolutions along chosen axes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.flatten_util import ravel_pytree

VJPS: dict[Callable, dict] = {}  # rules by primitive and argument


class Primitive:
    """A function with the rules that `defvjp` gives it, a `custom_vjp` of its numeric arguments."""

    def __init__(self, fun: Callable):
        self._fun = fun
        functools.update_wrapper(self, fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        places = [i for i, a in enumerate(args) if not isinstance(a, str)]

        def whole(xs: tuple) -> list:
            given = list(args)
            for i, x in zip(places, xs, strict=True):
                given[i] = x
            return given

        def run(*xs: Any) -> Any:
            return self._fun(*whole(xs), **kwargs)

        def forward(*xs: Any) -> tuple:
            ans = run(*xs)
            return ans, (xs, ans)

        def backward(kept: tuple, g: Any) -> tuple:
            xs, ans = kept
            return tuple(self._cotangent(i, ans, whole(xs), kwargs, g) for i in places)

        by_rules = fg.custom_vjp(run)
        by_rules.defvjp(forward, backward, jvp=False)
        return by_rules(*(args[i] for i in places))

    def _cotangent(self, i: int, ans: Any, args: list, kwargs: dict, g: Any) -> Any:
        rules = VJPS.get(self, {})
        if i not in rules:
            raise NotImplementedError(f"VJP of {self.__name__} wrt argnum {i} not defined")
        rule = rules[i]
        if rule is None:
            return fg.tree.map(fnp.zeros_like, args[i])
        return rule(ans, *args, **kwargs)(g)

    # What autograd had before `defvjp`.

    def defgrad(self, rule: Callable, argnum: int = 0) -> None:
        VJPS.setdefault(self, {})[argnum] = rule

    def defvjp(self, rule: Callable, argnum: int = 0) -> None:
        def staged(ans: Any, *args: Any, **kwargs: Any) -> Callable:
            spaces = vspace(args[argnum]), vspace(ans)
            return lambda g: rule(g, ans, *spaces, *args, **kwargs)

        self.defgrad(staged, argnum)

    def defvjp_is_zero(self, argnums: Sequence[int] = (0,)) -> None:
        VJPS.setdefault(self, {}).update(dict.fromkeys(argnums))


def defvjp(fun: Primitive, *rules: Callable | None, argnums: Any = None) -> None:
    """Give a primitive its rules of reverse mode, one an argument."""
    VJPS.setdefault(fun, {}).update(zip(argnums or itertools.count(), rules, strict=False))


class VSpace:
    """The vectors that are pytrees of one structure: those of a value."""

    def __init__(self, value: Any):
        arrays = fg.tree.map(fnp.asarray, value)
        self._flat, self._unravel = ravel_pytree(arrays)
        self.iscomplex = np.iscomplexobj(self._flat)
        self.size = self._flat.size * (1 + self.iscomplex)
        self._kind = fg.tree.structure(value), [(a.shape, a.dtype) for a in fg.tree.leaves(arrays)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VSpace) and self._kind == other._kind

    def __hash__(self) -> int:
        return hash(self._kind[0])

    def add(self, x: Any, y: Any) -> Any:
        return fg.tree.map(lambda a, b: a + b, x, y)

    def scalar_mul(self, x: Any, a: Any) -> Any:
        return fg.tree.map(lambda v: v * a, x)

    def inner_prod(self, x: Any, y: Any) -> Any:
        parts = fg.tree.map(lambda a, b: fnp.real(fnp.vdot(a, b)), x, y)
        return sum(fg.tree.leaves(parts))

    def covector(self, x: Any) -> Any:
        return fg.tree.map(fnp.conj, x)

    def zeros(self) -> Any:
        return self._unravel(fnp.zeros_like(self._flat))

    def ones(self) -> Any:
        return self._unravel(fnp.full_like(self._flat, 1 + 1j if self.iscomplex else 1))

    def randn(self) -> Any:
        rng = np.random.default_rng(self.size)
        parts = [rng.normal(size=self._flat.size) for _ in range(1 + self.iscomplex)]
        flat = parts[0] + 1j * parts[1] if self.iscomplex else parts[0]
        return self._unravel(fnp.asarray(flat, self._flat.dtype))

    def standard_basis(self) -> Iterator[Any]:
        for unit in (1, 1j) if self.iscomplex else (1,):
            for row in np.eye(self._flat.size):
                yield self._unravel(fnp.asarray(unit * row, self._flat.dtype))


def vspace(value: Any) -> VSpace:
    return VSpace(value)


def convolve(a: Any, b: Any, axes: Any = None, dot_axes: Any = ((), ()), mode: str = "full") -> Any:
    """The convolution along pairs of axes, summed over others; the rest of both axes come first."""
    a, b = fnp.asarray(a), fnp.asarray(b)
    axes = [list(range(a.ndim))] * 2 if axes is None else axes
    rest = [[i for i in range(x.ndim) if i not in (*conv, *dot)]
            for x, conv, dot in zip((a, b), axes, dot_axes, strict=True)]  # fmt: skip
    sizes = [(a.shape[i], b.shape[j]) for i, j in zip(*axes, strict=True)]
    if mode == "valid" and any(n < m for n, m in sizes):
        swapped = convolve(b, a, axes[::-1], dot_axes[::-1], mode)
        first, second = len(rest[1]), len(rest[0])
        order = [*range(first, first + second), *range(first), *range(first + second, swapped.ndim)]
        return fnp.transpose(swapped, order)
    ordered = [fnp.transpose(x, (*r, *dot, *conv))
               for x, r, dot, conv in zip((a, b), rest, dot_axes, axes, strict=True)]  # fmt: skip
    spatial = [x.shape[x.ndim - len(sizes) :] for x in ordered]
    dots = int(np.prod([a.shape[i] for i in dot_axes[0]]))
    left, right = (x.reshape(-1, dots, *s) for x, s in zip(ordered, spatial, strict=True))
    pads = {"full": [(m - 1, m - 1) for _, m in sizes], "valid": [(0, 0)] * len(sizes),
            "same": [(m // 2, (m - 1) // 2) for _, m in sizes]}[mode]  # fmt: skip
    turned = fnp.flip(right, tuple(range(2, right.ndim)))
    if not sizes:
        out = left @ turned.T
    else:
        out = lax.conv_general_dilated(left, turned, (1,) * len(sizes), pads)
    heads = [x.shape[: len(r)] for x, r in zip(ordered, rest, strict=True)]
    return out.reshape(*heads[0], *heads[1], *out.shape[2:])


def of_lists(fun: Callable) -> Callable:
    """A function of arrays that takes sequences of numbers, which may be traced, as well."""

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return fun(*(fnp.array(a) if isinstance(a, list | tuple) else a for a in args), **kwargs)

    return wrapped


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """The choice, of Python's own values where the condition is one."""
    if type(condition) is bool and not hasattr(x, "dtype"):
        return x if condition else y
    condition = fnp.array(condition) if isinstance(condition, list) else condition
    return fnp.where(condition) if x is None else fnp.where(condition, x, y)


def quick_grad_check(
    check: Callable, fun: Callable, arg0: Any, extra: Any = (), kwargs: Any = None, **_: Any
) -> None:
    """Check the gradient in the first argument."""
    check(lambda x: fun(x, *extra, **(kwargs or {})))(arg0)
