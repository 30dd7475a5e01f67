"""Values that are others seen in another order: strided views, and views of an array with zeros
around it, which products, attention and joins read where the other one lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeGuard

import numpy as np

from funcgrad.backends.loops.builder import ZERO, Builder, strides_of
from funcgrad.backends.loops.ir import Index, Operand, Value
from funcgrad.backends.lower.primitives import windows_p
from funcgrad.backends.lower.pull import Pull
from funcgrad.backends.lower.rules import RULES
from funcgrad.backends.target import Limits
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.core.views import in_order
from funcgrad.ops.shape import pad_p

DEEP = 24  # equations in a row, after which a chain of inlined values ends
MOST_FRAMED = 3  # axes that a `program.Frame` has


class View(NamedTuple):
    """base[offset + Σ index·stride], with an index in range(n) for each stride.

    frame: if places are counted in the base with zeros around it, the `planes` and `axes` of a
        `program.Frame`
    """

    base: Var
    offset: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    frame: tuple[int, tuple[tuple[int, int, int], ...]] | None = None

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after the other."""
        steps = zip(self.shape, self.strides, strides_of(self.shape), strict=True)
        return all(n == 1 or s == step for n, s, step in steps)

    @property
    def has_pairs(self) -> bool:
        """Whether the two elements of the last axis lie together, as pairs of the base do."""
        steps = [s for n, s in zip(self.shape, self.strides[:-1], strict=False) if n != 1]
        even = not any(s % 2 for s in (self.offset, *steps))
        return even and self.strides[-1] == 1 and self.frame is None

    def serves(self, eqn: Eqn, operand: int) -> bool:
        """Whether a product can read its operand this way: if it doesn't gather, its contracted
        axes are one. Attention reads any strides."""
        if eqn.prim.strided:
            return True
        if eqn.params["gathers"]:
            return True
        if eqn.params["pairs"] and not self.has_pairs:
            return False
        contract = eqn.params["dimension_numbers"][0][operand]
        return merged([(self.shape[i], self.strides[i]) for i in contract]) is not None


def is_pad(eqn: Eqn | None) -> TypeGuard[Eqn]:
    """Whether an equation puts zeros around an array."""
    if eqn is None or eqn.prim is not pad_p or type(eqn.ins[1]) is not Literal:
        return False
    zero = not any(np.asarray(eqn.ins[1].value).tobytes())
    return zero and all(low >= 0 <= high and not gap for low, high, gap in _config(eqn))


def frame_axes(pad: Eqn) -> tuple[int, tuple[tuple[int, int, int], ...]] | None:
    """The planes and axes of a `program.Frame` as a pad's result; None if it has too many."""
    shape, config = pad.ins[0].aval.shape, _config(pad)
    wide = [i for i, pair in enumerate(config) if any(pair)]
    if not wide or not math.prod(shape):
        return None
    inner = math.prod(shape[wide[-1] + 1 :])
    axes = [(n, low, high) for n, (low, high, _) in zip(shape, config, strict=True)]
    axes = axes[wide[0] : wide[-1] + 1]
    axes[-1] = tuple(n * inner for n in axes[-1])  # type: ignore[assignment]
    return (math.prod(shape[: wide[0]]), tuple(axes)) if len(axes) <= MOST_FRAMED else None


def _config(pad: Eqn) -> Sequence[tuple[int, int, int]]:
    return pad.params["padding_config"]


def final_readers(var: Var, readers: Mapping[Atom, list[Eqn | None]]) -> list[Eqn | None]:
    """Who reads a value, or what only views it, as often as they do; None: who is outside."""
    found: list[Eqn | None] = []
    for eqn in readers.get(var, []):
        views = eqn is not None and eqn.prim.view is not None
        found += final_readers(eqn.outs[0], readers) if eqn is not None and views else [eqn]
    return found


def alias_of(atom: Atom, made: Mapping[Var, Eqn]) -> Atom:
    """What an atom is a reshape of, after any number of them."""
    while type(atom) is Var and atom in made:
        eqn = made[atom]
        if eqn.prim.view is not in_order or type(eqn.ins[0]) is Literal:
            break
        atom = eqn.ins[0]
    return atom


def view_of(var: Var, made: Mapping[Var, Eqn]) -> View | None:
    """A variable as a strided view of another one, through ops that only move elements.

    made: the equation that makes each variable, but the program's inputs
    """
    chain: dict[Var, Eqn] = {}
    atom: Atom = var
    while len(chain) < DEEP:
        eqn = made.get(atom)  # type: ignore[arg-type]
        if eqn is None or eqn.prim.view is None:
            break
        chain[eqn.outs[0]] = eqn
        atom = eqn.ins[0]
    view = _strided(var, atom, chain)
    windows = [i for i, e in enumerate(chain.values()) if e.prim is windows_p]
    if view is None and windows:
        # Windows that aren't of memory would have to be written out.
        first = dict(list(chain.items())[: windows[-1] + 1])
        view = _strided(var, list(first.values())[-1].ins[0], first)
    return view


def _strided(var: Var, atom: Atom, chain: dict[Var, Eqn]) -> View | None:
    """A variable as a view of `atom`, of which a chain of equations makes it."""
    if type(atom) is not Var:
        return None
    found: list[Index] = []

    def leaf(v: Var, index: Index) -> Operand:
        found.append(index)
        return Value(v.aval.dtype)

    b = Builder()
    axes = [b.axis(n) if n != 1 else None for n in var.aval.shape]
    at = [ZERO if v is None else Index(0, ((1, v),)) for v in axes]
    Pull(b, RULES, Limits(), chain, leaf, dry=True).read(var, at)
    strides = {v: c for c, v in found[0].terms}
    if not set(strides) <= set(axes):
        return None
    steps = tuple(0 if v is None else strides.get(v, 0) for v in axes)
    return View(atom, found[0].const, steps, var.aval.shape)


def merged(axes: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """Axes (size, stride) as one axis, if their strides allow it."""
    size, step = 1, 1
    for n, s in reversed([a for a in axes if a[0] != 1]):
        if size == 1:
            step = s
        elif s != step * size:
            return None
        size *= n
    return size, step
