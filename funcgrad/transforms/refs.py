"""Mutable arrays: made, among arguments, and programs that touch them as ones with a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from funcgrad import tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr, Var
from funcgrad.core.refs import Ref, check_distinct, held, settled
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Tree, Value, Values
from funcgrad.errors import RefError
from funcgrad.ops.base import zeros
from funcgrad.transforms.arguments import is_arraylike
from funcgrad.tree import PyTreeDef


def new_ref(init_val: Value, *, memory_space: None = None, kind: str | None = None) -> Ref:
    """A mutable array that holds `init_val`, an array or a number.

    Programs read and write it, those of `jit`, `scan`, `while_loop` and `cond` too, as arguments
    and by closing over it; a function that makes its Refs itself is pure, and is transformed like
    any other. A Ref can't be returned, be known to a function by two names, nor be written with
    values that a transformation follows which it was made outside of. memory_space, kind: None, as
    there is one memory and gradients don't accumulate in Refs (JAX's "no_grad_no_remat" is taken).

    >>> total = fg.new_ref(0.0)
    >>> @fg.jit
    ... def add(x):
    ...     total[...] += x
    >>> add(1.0), add(2.0)
    (None, None)
    >>> total[...]
    Array(3., dtype=float32)
    """
    if memory_space is not None:
        raise RefError(f"new_ref: memory_space must be None, got {memory_space!r}")
    if kind not in (None, "no_grad_no_remat"):
        raise RefError(f'new_ref: kind must be None or "no_grad_no_remat", got {kind!r}')
    if not is_arraylike(init_val):
        raise RefError(
            f"new_ref: init_val must be an array or a number, got {init_val!r} of {type(init_val)}"
        )
    return Ref(held(init_val, aval_of(init_val).dtype))


def empty_ref(ty: ShapeDtypeStruct, memory_space: None = None) -> Ref:
    """A mutable array of a shape and dtype; what it holds is to be written first (it is zeros).

    >>> fg.empty_ref(fg.ShapeDtypeStruct((2,), fnp.float32)).shape
    (2,)
    """
    return new_ref(zeros(ShapedArray(ty.shape, ty.dtype)), memory_space=memory_space)


def freeze(ref: Ref) -> Value:
    """What a mutable array holds at last; using it from now on raises.

    >>> ref = fg.new_ref(fnp.arange(3))
    >>> ref[0] = 7
    >>> fg.freeze(ref)
    Array([7, 1, 2], dtype=int32)
    """
    return check_ref("freeze", ref).end("was frozen")


def free_ref(ref: Ref) -> None:
    """Let go of what a mutable array holds; using it from now on raises.

    >>> fg.free_ref(fg.new_ref(fnp.arange(3)))
    """
    check_ref("free_ref", ref).end("was freed")


def check_ref(what: str, ref: Ref) -> Ref:
    """The argument of a function of Refs, which must be one."""
    if type(ref) is not Ref:
        raise RefError(f"{what}: ref must be a Ref, got {ref!r} of {type(ref)}")
    return ref


class Lending:
    """A flat function, some of whose arguments are Refs, as a function of what these hold.

    The function gets Refs made of its arguments. What those that it wrote hold at the end are its
    last results; `written` then has their positions.
    """

    def __init__(self, fun: Callable[..., list], positions: Sequence[int]):
        self.fun = fun
        self.positions = positions
        self.written: list[int] = []

    def __call__(self, *leaves: Any) -> list:
        given = list(leaves)
        refs = [Ref(given[i], lent=True) for i in self.positions]
        for i, ref in zip(self.positions, refs, strict=True):
            given[i] = ref
        outs = self.fun(*given)
        # Under its own trace a Ref is read from its own cell, as long as nobody froze it.
        cells = [ref.cell() for ref in refs]
        self.written = [i for i, c in zip(self.positions, cells, strict=True) if c.written]
        return [*outs, *(c.value for c in cells if c.written)]


@tree.register_static
class Hidden:
    """A Ref as a node of a pytree without leaves: for functions whose leaves are arrays."""

    def __init__(self, ref: Ref):
        self.ref = ref


def hidden(args: Tree) -> Tree:
    """A pytree with its Refs hidden; the same one where it has none."""
    leaves, treedef = tree.flatten(args)
    if not refs_among(leaves):
        return args
    return treedef.unflatten([Hidden(x) if type(x) is Ref else x for x in leaves])


def shown(args: Tree) -> Tree:
    """A pytree with what `hidden` hid.

    >>> ref = fg.new_ref(1.0)
    >>> shown(hidden({"a": ref}))["a"] is ref
    True
    """
    is_hidden = lambda x: type(x) is Hidden  # noqa: E731
    return tree.map(lambda x: x.ref if is_hidden(x) else x, args, is_leaf=is_hidden)


def refs_among(leaves: Values) -> list[int]:
    """The positions of Refs.

    >>> refs_among([1.0, fg.new_ref(2.0)])
    [1]
    """
    return [i for i, x in enumerate(leaves) if type(x) is Ref]


def aval_or_inner(x: Value) -> ShapedArray:
    """The type of a value, or of what a Ref holds."""
    return x.inner_aval if type(x) is Ref else aval_of(x)


class State(NamedTuple):
    """The Refs that a program touches, by their positions among its operands: all of them, and
    those it writes to. What these hold then are its last results."""

    touched: tuple[int, ...]
    written: tuple[int, ...]

    def operands(self, what: str, given: list, names: Sequence[str]) -> list:
        """Operands with what Refs hold in their places."""
        refs = [given[i] for i in self.touched]
        check_distinct(what, refs, [names[i] for i in self.touched])
        lent = {i: given[i].lend() for i in self.written}
        return [lent[i] if i in lent else x.read() if type(x) is Ref else x
                for i, x in enumerate(given)]  # fmt: skip

    def put_back(self, given: list, outs: list) -> list:
        """A program's own results, after what it wrote is in the Refs."""
        n = len(outs) - len(self.written)
        for i, value in zip(self.written, outs[n:], strict=True):
            given[i].write(value)
        return outs[:n]


def state_of(captured: list, leaves: Values, lent: Lending | None, written: list[Ref]) -> State:
    """The state of a program of these operands, whose last results are those of arguments that it
    wrote, then of Refs that it captured."""
    n = len(captured)
    places = {id(x): i for i, x in enumerate(captured)}
    mine = [n + i for i in lent.written] if lent is not None else []
    touched = refs_among(captured) + [n + i for i in refs_among(leaves)]
    return State(tuple(touched), (*mine, *(places[id(r)] for r in written)))


class Body(NamedTuple):
    """The program of a body, the values it captured (its first inputs), its result's structure,
    and the Refs it writes to (whose values are its last results)."""

    jaxpr: Jaxpr
    consts: list
    out_tree: PyTreeDef
    written: list[Ref]

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of what the user's function returns."""
        return self.jaxpr.out_avals[: len(self.jaxpr.outs) - len(self.written)]

    def with_state(self, state: Sequence[Ref], at_in: int, at_out: int) -> tuple[Jaxpr, list]:
        """The program that has what `state` holds among its arguments, after so many, and among
        its results, and the values that it captures beside."""
        if not any(type(c) is Ref for c in self.consts) and not state:
            return self.jaxpr, self.consts
        n, own = len(self.consts), len(self.jaxpr.outs) - len(self.written)
        entering = dict(zip(map(id, self.consts), self.jaxpr.ins, strict=False))
        leaving = dict(zip(map(id, self.written), self.jaxpr.outs[own:], strict=True))
        carried = {id(ref) for ref in state}
        state_ins = [entering.get(id(ref)) or Var(ref.inner_aval) for ref in state]
        state_outs = [leaving.get(id(r), v) for r, v in zip(state, state_ins, strict=True)]
        kept = [c for c in self.consts if id(c) not in carried]
        args, outs = list(self.jaxpr.ins[n:]), list(self.jaxpr.outs[:own])
        args[at_in:at_in] = state_ins
        outs[at_out:at_out] = state_outs
        jaxpr = Jaxpr([*(entering[id(c)] for c in kept), *args], self.jaxpr.eqns, outs)
        return jaxpr, settled(kept)


def union(*bodies: Body) -> list[Ref]:
    """The Refs that any of some bodies writes to."""
    return list({id(ref): ref for body in bodies for ref in body.written}.values())


def closing_over(what: str, args: Tree, *funs: Callable) -> tuple[Tree, tuple[Callable, ...]]:
    """Arguments without Refs, and functions of such arguments that close over the Refs instead."""
    leaves, treedef = tree.flatten(args)
    places = refs_among(leaves)
    if not places:
        return args, funs
    refs = [leaves[i] for i in places]
    check_distinct(what, refs, [f"operand {i}" for i in places])
    at = dict(zip(places, refs, strict=True))
    rest = tuple(x for i, x in enumerate(leaves) if i not in at)

    def closed(fun: Callable) -> Callable:
        def call(*others: Any) -> Tree:
            given = iter(others)
            whole = [at[i] if i in at else next(given) for i in range(len(leaves))]
            return fun(*treedef.unflatten(whole))

        return call

    return rest, tuple(map(closed, funs))
