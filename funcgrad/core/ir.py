"""Jaxprs: programs as plain data. A `Jaxpr` is typed inputs, equations in order, and outputs.

Programs are closed: what a function captured is an input like any other, so programs nest (in the
parameters of `jit`, `scan`, `cond`, …) without free variables. After every transformation a program
can be printed, typechecked and evaluated; this module is all there is to know about it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context, source
from funcgrad.core.array import Array, raw
from funcgrad.core.aval import ShapedArray
from funcgrad.core.display import jaxpr_html as show_html
from funcgrad.core.display import jaxpr_text as show
from funcgrad.core.evaluation import check_finite
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.types import ArrayModule, Params, PlainArray, Value
from funcgrad.errors import IRError

_T = TypeVar("_T")


class Var:
    """A variable: bound once, by an input or an equation. Equal only to itself."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var({self.aval})"


class Literal:
    """A scalar constant in place of a variable. `value` is a 0-d numpy array."""

    __slots__ = ("aval", "value")

    def __init__(self, value: np.ndarray, aval: ShapedArray):
        self.value = value
        self.aval = aval

    @property
    def val(self) -> np.ndarray:
        """The value, under JAX's name."""
        return self.value

    def __repr__(self) -> str:
        return f"Literal({self.value.item()}:{self.aval})"


Atom = Var | Literal


class Eqn:
    """One operation of a program: `outs = prim(ins, **params)`."""

    __slots__ = ("ins", "outs", "params", "prim", "scopes", "source")

    def __init__(
        self,
        prim: Primitive,
        ins: Sequence[Atom],
        outs: Sequence[Var],
        params: Params,
        source: source.Source | None = None,
        scopes: tuple[str, ...] = (),
    ):
        self.prim = prim
        self.ins = tuple(ins)
        self.outs = tuple(outs)
        self.params = params
        self.source = source
        self.scopes = scopes

    @property
    def primitive(self) -> Primitive:
        """The op, under JAX's name; `invars` and `outvars` likewise."""
        return self.prim

    @property
    def invars(self) -> list[Atom]:
        """The operands."""
        return list(self.ins)

    @property
    def outvars(self) -> list[Var]:
        """The results."""
        return list(self.outs)

    def replace(self, **changes: Any) -> Eqn:
        """A copy with some fields changed."""
        return Eqn(*(changes.get(f, getattr(self, f)) for f in _EQN_FIELDS))

    def __repr__(self) -> str:
        return show.eqn_text(self)


_EQN_FIELDS = ("prim", "ins", "outs", "params", "source", "scopes")


class Jaxpr:
    """A closed program. `names` are the inputs' names in the user's function, where known."""

    __slots__ = ("__weakref__", "cache", "eqns", "ins", "names", "outs")

    def __init__(
        self,
        ins: Sequence[Var],
        eqns: Sequence[Eqn],
        outs: Sequence[Atom],
        names: Sequence[str] | None = None,
    ):
        self.ins = tuple(ins)
        self.eqns = tuple(eqns)
        self.outs = tuple(outs)
        self.names = tuple(names) if names is not None else None
        # What transformations derived from this program, so that each is derived once.
        self.cache: dict[Hashable, Any] = {}

    @property
    def invars(self) -> list[Var]:
        """The inputs, under JAX's name; `outvars` likewise."""
        return list(self.ins)

    @property
    def outvars(self) -> list[Atom]:
        """The results."""
        return list(self.outs)

    @property
    def constvars(self) -> list[Var]:
        """None: what a program captured are its first inputs. JAX keeps them apart."""
        return []

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the inputs, captured values among them.

        >>> fg.make_jaxpr(lambda x, y: x * y)(1.0, fnp.ones(3)).jaxpr.in_avals
        [f32[], f32[3]]
        """
        return [v.aval for v in self.ins]

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of the results."""
        return [v.aval for v in self.outs]

    @property
    def has_effects(self) -> bool:
        """Whether some equation must run for its effect."""
        if "effects" not in self.cache:
            self.cache["effects"] = any(
                e.prim.effect or any(j.has_effects for j in sub_jaxprs(e)) for e in self.eqns
            )
        return self.cache["effects"]

    @property
    def has_complex(self) -> bool:
        """Whether a value in it, or in a program inside, is complex."""
        if "complex" not in self.cache:
            values = (a for e in self.eqns for a in (*e.ins, *e.outs))
            self.cache["complex"] = any(
                dtypes.is_complex(a.aval.dtype) for a in (*self.ins, *self.outs, *values)
            ) or any(j.has_complex for e in self.eqns for j in sub_jaxprs(e))
        return self.cache["complex"]

    def derive(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """`make()`, computed once a program and key."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def __deepcopy__(self, memo: dict) -> Jaxpr:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a jaxpr can't be pickled, as it names code of this process: pickle the function and "
            "trace it where it is loaded (make_jaxpr)"
        )

    def __repr__(self) -> str:
        return show.jaxpr_text(self)

    def _repr_html_(self) -> str:
        return show_html.jaxpr_html(self)


def sub_jaxprs(eqn: Eqn) -> Iterable[Jaxpr]:
    """The programs in an equation's parameters."""
    for p in eqn.params.values():
        if type(p) is Jaxpr:
            yield p
        elif type(p) is tuple and Jaxpr in map(type, p):
            yield from (q for q in p if type(q) is Jaxpr)


def call_types(what: str, jaxpr: Jaxpr, operands: Sequence[ShapedArray]) -> list[ShapedArray]:
    """The types of a called program's results; its operands must have the types of its inputs."""
    want = jaxpr.in_avals
    if len(operands) != len(want) or not all(map(ShapedArray.matches, operands, want)):
        raise IRError(f"{what}: its program takes {want}, its operands are {list(operands)}")
    return jaxpr.out_avals


def eval_jaxpr(jaxpr: Jaxpr, *args: Value) -> list:
    """Run a program on values or tracers, under the current trace.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> closed = fg.make_jaxpr(lambda x: x + 1)(1.0)
    >>> eval_jaxpr(closed.jaxpr, fnp.float32(2))
    [Array(3., dtype=float32)]
    """
    env: dict[Atom, Value] = dict(zip(jaxpr.ins, args, strict=True))

    def read(atom: Atom) -> Value:
        return env[atom] if type(atom) is Var else literal_value(atom)  # type: ignore[arg-type]

    outer_place = source.placed()
    try:
        for eqn in jaxpr.eqns:
            source.set_place(eqn.source or outer_place)
            ctx = context.current()
            outer = ctx.scopes
            args = tuple(read(a) for a in eqn.ins)
            if eqn.scopes and eqn.scopes != outer:
                with context.scoped(scopes=outer + eqn.scopes):
                    out = eqn.prim.bind(*args, **eqn.params)
            else:
                out = ctx.trace.process(eqn.prim, args, eqn.params)
            if eqn.prim.multiple:
                env.update(zip(eqn.outs, out, strict=True))
            else:
                env[eqn.outs[0]] = out
    finally:
        source.set_place(outer_place)
    return [read(a) for a in jaxpr.outs]


def literal_value(atom: Literal) -> Array:
    """A literal's value as an operand, as weak as the literal."""
    return Array(atom.value, atom.aval.weak_type)


def interpret(jaxpr: Jaxpr, xp: ArrayModule, *values: PlainArray) -> list:
    """Run a program on plain numpy (or CuPy) arrays, op by op: its meaning, without traces."""
    env: dict[Atom, PlainArray] = dict(zip(jaxpr.ins, values, strict=True))

    def read(atom: Atom) -> PlainArray:
        return env[atom] if type(atom) is Var else xp.asarray(atom.value)  # type: ignore[union-attr]

    checking = context.watches_values()
    for eqn in jaxpr.eqns:
        ins = [read(a) for a in eqn.ins]
        out = eqn.prim.impl(xp, *ins, **eqn.params)
        for var, value in zip(eqn.outs, out if eqn.prim.multiple else [out], strict=True):
            value = xp.asarray(value)
            env[var] = value if value.dtype == var.aval.dtype else value.astype(var.aval.dtype)
        if checking:
            check_finite(eqn.prim, ins, [env[v] for v in eqn.outs], eqn.source)
    return [read(a) for a in jaxpr.outs]


def typecheck(jaxpr: Jaxpr) -> None:
    """Check that variables are bound once and before use, and that each op's rule gives the types
    its outputs claim. Raises `IRError`: a fault of the library, found where it was made.

    >>> import funcgrad as fg
    >>> typecheck(fg.make_jaxpr(lambda x: x * 2)(1.0).jaxpr)
    """
    bound: set[Var] = set()

    def bind(var: Var) -> None:
        if var in bound:
            raise IRError(f"variable bound twice: {var}\n{jaxpr}")
        bound.add(var)

    def check_use(atom: Atom, user: object) -> None:
        if isinstance(atom, Var) and atom not in bound:
            raise IRError(f"unbound variable {atom} in {user}\n{jaxpr}")

    for v in jaxpr.ins:
        bind(v)
    for eqn in jaxpr.eqns:
        for a in eqn.ins:
            check_use(a, eqn)
        for sub in sub_jaxprs(eqn):
            # The body of a shard_map knows the mesh axes that it is cut over.
            axes = {a: eqn.params["mesh"].shape[a] for a in eqn.params.get("manual", ())}
            with context.scoped(axes={**context.current().axes, **axes}):
                typecheck(sub)
        got = eqn.prim.abstract(*(a.aval for a in eqn.ins), **eqn.params)
        got = got if eqn.prim.multiple else [got]
        if len(got) != len(eqn.outs) or not all(
            g.matches(v.aval) for g, v in zip(got, eqn.outs, strict=True)
        ):
            raise IRError(f"{eqn.prim} gives {got}, its equation claims {eqn.outs}: {eqn}")
        for v in eqn.outs:
            bind(v)
    for a in jaxpr.outs:
        check_use(a, "the outputs")


def literal(value: Value) -> Literal | None:
    """A Literal for a scalar operand (Python scalar or 0-d array), None for anything else."""
    aval = aval_of(value)
    if aval.shape or aval.dtype == dtypes.float0:
        return None
    return Literal(np.array(raw(value)), aval)
