"""Random keys that are used twice: found where operations are evaluated, and in programs.

Whoever uses up a key marks it, while somebody watches: samplers and `split` bind `name_p` with a
`Use`, an identity of which backends see nothing. So a program tells which of its inputs it uses up,
through loops and branches. After JAX's `jax.experimental.key_reuse`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from funcgrad.core import context, source
from funcgrad.core.array import Array
from funcgrad.core.checks import Checks
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var, sub_jaxprs
from funcgrad.core.primitive import Primitive
from funcgrad.core.types import Params, Value
from funcgrad.errors import KeyReuseError
from funcgrad.ops.barrier import name_p
from funcgrad.ops.base import transpose_p
from funcgrad.ops.shape import reshape_p
from funcgrad.transforms.control.cond import cond_p
from funcgrad.transforms.control.scan import scan_p
from funcgrad.transforms.control.while_loop import while_p

# Which keys of an operand are used: all or none of them, or a mask.
Mask = bool | np.ndarray


class Use(NamedTuple):
    """The mark of a use: by whom; and of which keys, as the shape and the bytes of a mask, where it
    isn't all of them."""

    who: str
    shape: tuple[int, ...] | None = None
    chosen: bytes = b""

    def mask(self, keys: tuple[int, ...]) -> Mask:
        """Which of keys of a shape are used; none where it isn't known."""
        if self.shape is None:
            return True
        if self.shape != keys:
            return False  # a batch of what was marked
        return np.frombuffer(self.chosen, bool).reshape(self.shape)


class Copied(NamedTuple):
    """The mark of a copy, which may be used as if it were another key."""


def used(who: str, words: Value, chosen: np.ndarray | None = None) -> Value:
    """The words of keys, marked as used, or those of them that a mask chooses."""
    mark = Use(who) if chosen is None else Use(who, chosen.shape, chosen.tobytes())
    return name_p.bind(words, name=mark)


def copied(words: Value) -> Value:
    """A copy of the words of keys, as if these were others."""
    return name_p.bind(words + np.uint32(0), name=Copied())


def watching() -> bool:
    """Whether somebody looks for keys that are used twice."""
    checks = context.current().checks
    return checks is not None and checks.keys is not None


class KeyWatch:
    """Which keys were used, by the arrays that hold them."""

    def __init__(self) -> None:
        self._used: dict[int, tuple[weakref.ref, Mask]] = {}

    def watch(self, prim: Primitive, values: Sequence, params: Params) -> None:
        """Note the keys that an operation uses; raise for those that were used before."""
        for x, new in _of_each(prim, values, uses(prim, params, values)):
            if not np.any(new) or not isinstance(x, Array):
                continue
            known = self._used.get(id(x))
            before = known[1] if known is not None and known[0]() is x else False
            if np.any(np.logical_and(before, new)):
                mark = params.get("name")
                who = mark.who if type(mark) is Use else f"a call of {params.get('name', prim)}"
                raise _reused(who, source.current())
            self._used[id(x)] = weakref.ref(x), np.logical_or(before, new)
        if len(self._used) > 4096:
            self._used = {k: v for k, v in self._used.items() if v[0]() is not None}


@contextmanager
def debug_key_reuse(enabled: bool = True) -> Iterator[None]:
    """Within the block, a random key that is used twice raises KeyReuseError: by two samplers, or
    by `split` and another one; also in compiled functions, which are traced anew for such blocks,
    and by a loop that uses the same key in each turn.

    A key is the array that holds it: `random.key(0)`, made twice, is two of them, as is
    `random.clone(key)`. `fold_in` uses none up; `keys[i]` uses up the i-th of keys.

    >>> import funcgrad as fg
    >>> from funcgrad import random
    >>> with fg.debug_key_reuse():
    ...     key = random.key(0)
    ...     x = random.normal(key)
    ...     random.uniform(key)
    Traceback (most recent call last):
    ...
    funcgrad.errors.KeyReuseError: random.uniform: the random key was used before...
    """
    checks = context.current().checks or Checks()
    # Keys of a block around are watched on; what they were used for stays known.
    changed = checks._replace(keys=(checks.keys or KeyWatch()) if enabled else None)
    with context.scoped(checks=None if changed == Checks() else changed):
        yield


def _reused(who: str, place: source.Source | None, why: str = "was used before") -> KeyReuseError:
    where = f" at {place}: {place.text}" if place else ""
    return KeyReuseError(
        f"{who}: the random key {why}{where}\nMake new keys, random.split(key), or say that it is "
        "meant: random.clone(key)."
    )


# ---- programs


def uses(prim: Primitive, params: Params, operands: Sequence) -> list[Mask]:
    """For each operand of an operation, which keys it uses up. Raises for one used twice in it."""
    n = len(operands)
    mark = params.get("name")
    if prim is name_p:
        return [mark.mask(operands[0].shape[:-1]) if type(mark) is Use else False]
    found = _INSIDE.get(prim)
    if found is not None:
        return found(params, n)
    inner = list(sub_jaxprs(Eqn(prim, (), (), params)))
    if len(inner) == 1 and len(inner[0].ins) == n:
        return jaxpr_uses(inner[0])
    return [False] * n


def _of_each(
    prim: Primitive, operands: Sequence, masks: Sequence[Mask]
) -> list[tuple[Value, Mask]]:
    """Operands, and which keys of them an operation uses. Of a branch's captured values it has
    operands of their own: what two branches have both is one, as one of them runs."""
    pairs = [*zip(operands, masks, strict=True)]
    if prim is not cond_p:
        return pairs
    found: dict[int, tuple[Value, Mask]] = {}
    for x, mask in pairs:
        found[id(x)] = x, _any([found[id(x)][1], mask]) if id(x) in found else mask
    return [*found.values()]


def jaxpr_uses(jaxpr: Jaxpr) -> list[Mask]:
    """For each input of a program, which keys it uses up."""
    return jaxpr.derive("key uses", lambda: _found(jaxpr).of(jaxpr.ins))


class _Uses:
    """What of a program's variables is used up."""

    def __init__(self) -> None:
        self.masks: dict[Var, Mask] = {}
        self.moved: dict[Var, Var] = {}  # what holds the same keys in another order

    def source(self, var: Var) -> Var:
        """The first variable that holds the same keys."""
        while var in self.moved:
            var = self.moved[var]
        return var

    def traced_back(self, atoms: Sequence[Atom], masks: Sequence[Mask]) -> tuple[list, list]:
        """Variables and which of their keys are used: those of which all are by the first one that
        holds them, as in another order they have another mask."""
        pairs = zip(atoms, masks, strict=True)
        whole = [type(a) is Var and bool(np.all(m)) for a, m in pairs]
        firsts = [self.source(a) if w else a for a, w in zip(atoms, whole, strict=True)]  # type: ignore[arg-type]
        return firsts, [True if w else m for m, w in zip(masks, whole, strict=True)]

    def of(self, atoms: Sequence[Atom]) -> list[Mask]:
        """Which keys of some variables were used."""
        return [self.masks.get(a, False) if type(a) is Var else False for a in atoms]

    def add(self, eqn: Eqn) -> None:
        """Note what an equation uses."""
        mark = eqn.params.get("name")
        if eqn.prim in (reshape_p, transpose_p) and type(eqn.ins[0]) is Var:
            self.moved[eqn.outs[0]] = eqn.ins[0]
        masks = uses(eqn.prim, eqn.params, _typed(eqn))
        for a, new in _of_each(eqn.prim, *self.traced_back(eqn.ins, masks)):
            if not np.any(new) or type(a) is not Var:
                continue
            before = self.masks.get(a, False)
            if np.any(np.logical_and(before, new)):
                raise _reused(mark.who if type(mark) is Use else str(eqn.prim), eqn.source)
            self.masks[a] = np.logical_or(before, new)


def _typed(eqn: Eqn) -> list:
    return [a.aval for a in eqn.ins]


def _found(jaxpr: Jaxpr) -> _Uses:
    found = _Uses()
    for eqn in jaxpr.eqns:
        found.add(eqn)
    return found


def _turns(jaxpr: Jaxpr, n_consts: int, n_carry: int, what: str) -> list[Mask]:
    """What one turn of a loop uses of constants, carry and elements, when others follow: nothing
    that the next turn has again."""
    found = _found(jaxpr)
    masks = found.of(jaxpr.ins)
    again = [*masks[:n_consts], *found.of(jaxpr.outs[:n_carry])]
    if any(np.any(m) for m in again):
        place = next((e.source for e in jaxpr.eqns if e.prim is name_p), None)
        raise _reused(what, place, "is used in each turn of the loop")
    return masks


def _scan(params: Params, n: int) -> list[Mask]:
    jaxpr, consts, carry = params["jaxpr"], params["n_consts"], params["n_carry"]
    length = params["length"]
    if length < 2:
        masks = jaxpr_uses(jaxpr) if length else [False] * n
    else:
        masks = _turns(jaxpr, consts, carry, "scan")
    shared = consts + carry
    return [*masks[:shared], *(_of_rows(m, length) for m in masks[shared:])]


def _of_rows(mask: Mask, n: int) -> Mask:
    """What is used of n rows, of each of which a mask is."""
    return np.broadcast_to(mask, (n, *np.shape(mask))) if np.ndim(mask) else mask


def _while(params: Params, n: int) -> list[Mask]:
    n_cond, n_body = params["n_cond"], params["n_body"]
    carry = n - n_cond - n_body
    tested = _turns(params["cond_jaxpr"], n_cond + carry, 0, "while_loop")
    body = _turns(params["body_jaxpr"], n_body, carry, "while_loop")
    return [*tested[:n_cond], *body]


def _cond(params: Params, n: int) -> list[Mask]:
    each = [jaxpr_uses(branch) for branch in params["branches"]]
    return [False, *(_any(masks) for masks in zip(*each, strict=True))]


def _any(masks: Sequence[Mask]) -> Mask:
    found: Mask = False
    for m in masks:
        found = np.logical_or(found, m)
    return found


_INSIDE: dict[Primitive, Callable[[Params, int], list[Mask]]] = {
    scan_p: _scan, while_p: _while, cond_p: _cond,
}  # fmt: skip
