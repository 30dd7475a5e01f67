"""Which leaves of a tree of parameters a function uses, where, and along which axes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from funcgrad import tree
from funcgrad.core import source
from funcgrad.core.ir import Eqn
from funcgrad.core.types import Tree, Value
from funcgrad.errors import ArgumentError
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.indexing.gather import gather_p
from funcgrad.transforms.jit.make_jaxpr import eval_shape
from funcgrad.transforms.weights.applied import with_weights
from funcgrad.transforms.weights.follow import Seen, Watcher
from funcgrad.transforms.weights.leaves import named_leaves
from funcgrad.transforms.weights.products import CONTRACTED, FREE, MIXED, Product, Rows
from funcgrad.transforms.weights.weight import Dense, Weight, is_weight

PRODUCT, CONVOLUTION, LOOKUP = "product", "convolution", "lookup"
_OPS = {PRODUCT: dot_general_p, CONVOLUTION: conv_general_dilated_p, LOOKUP: gather_p}


@dataclass(frozen=True)
class Use:
    """A use of a leaf. kind: "product", "convolution", "lookup", or the op before which the leaf
    can't be followed any further. roles: of each of the leaf's axes, whether it is "contracted",
    "batch", "free" or several ("mixed"); empty where it is a loop's, or of size 1."""

    kind: str
    roles: tuple[str, ...]
    where: str

    @property
    def followed(self) -> bool:
        """Whether it is a use that transforms of weights know."""
        return self.kind in _OPS

    @property
    def op(self) -> str:
        """The op's name, as programs print it."""
        prim = _OPS.get(self.kind)
        return self.kind if prim is None else prim.name

    @property
    def contracted(self) -> tuple[int, ...] | None:
        """The leaf's axes that are summed over, as negative numbers; those within a row of a
        lookup. None where an axis is only summed in part."""
        if MIXED in self.roles:
            return None
        n = len(self.roles)
        return tuple(i - n for i, role in enumerate(self.roles) if role == CONTRACTED)


def place() -> str:
    """The user's line at which the program stands."""
    found = source.current()
    return "" if found is None else f" at {found}"


class _Recorder(Watcher):
    def __init__(self, names: Collection[str]):
        self.found: dict[str, list[Use]] = {name: [] for name in names}

    def add(self, seen: Seen, kind: str, roles: tuple[str, ...]) -> None:
        use = Use(kind, roles, place())
        if use not in self.found[seen.name]:
            self.found[seen.name].append(use)

    def product(self, seen: Seen, use: Product, x: Value) -> None:
        self.add(seen, CONVOLUTION if use.is_convolution else PRODUCT, use.roles())

    def rows(self, seen: Seen, use: Rows) -> None:
        n = len(seen.weight.shape)
        # A row is read where another axis would be summed: that axis may have what rows share.
        self.add(seen, LOOKUP, (FREE, *[CONTRACTED] * (n - 1)))

    def lost(self, seen: Seen, eqn: Eqn) -> None:
        self.add(seen, eqn.prim.name, ("",) * len(seen.weight.shape))


def uses(f: Callable, params: Tree, *inputs: Any) -> dict[str, list[Use]]:
    """The uses of each leaf of params in f(params, *inputs), by the leaf's name.

    Leaves and inputs may be arrays, or `ShapeDtypeStruct`s: nothing is computed. Followed are
    transposes, reshapes, conversions, pieces along an axis, elements that a scan runs over, and all
    into the programs of jit, checkpoint, loops, branches and functions with custom rules.

    >>> import funcgrad as fg
    >>> import funcgrad.numpy as fnp
    >>> f = lambda params, x: x @ params["w"].T + params["b"]
    >>> found = uses(f, {"w": fnp.ones((3, 2)), "b": fnp.ones(3)}, fnp.ones((4, 2)))
    >>> found["w"][0].kind, found["w"][0].contracted, found["b"][0].kind
    ('product', (-1,), 'broadcast_in_dim')
    """
    recorder = _Recorder(named_leaves(params))
    watched = with_weights(f, recorder, what="uses")

    def fun(arrays: Tree, given: tuple) -> Tree:
        return watched(tree.map(Dense, arrays), *given)

    eval_shape(fun, tree.map(_shape, params, is_leaf=is_weight), inputs)
    return recorder.found


def _shape(x: Tree) -> Tree:
    return eval_shape(x.dense) if isinstance(x, Weight) else x


class Strict(Watcher):
    """Raises where leaves of these names are used in a way that can't be followed."""

    def __init__(self, what: str, names: Collection[str]):
        self.what = what
        self.names = frozenset(names)

    def lost(self, seen: Seen, eqn: Eqn) -> None:
        if seen.name in self.names:
            lost(self.what, seen.name, eqn.prim.name, place())


def lost(what: str, name: str, op: str, where: str) -> NoReturn:
    """Raise for a leaf that was asked for and that can't be followed."""
    raise ArgumentError(
        f"{what}: the parameter {name} can't be followed through {op}{where}; it may be "
        "transposed, reshaped, converted and cut, on its way to products, convolutions and lookups "
        "of rows. Leave it out of the rules, or write the function so"
    )
