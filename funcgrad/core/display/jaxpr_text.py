"""Programs as text; `show_html` and `show_array` are for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from funcgrad.core.types import Param

if TYPE_CHECKING:
    from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var


class Names:
    """Names variables a, b, …, z, ba, … in order of appearance."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}

    def __call__(self, var: Atom) -> str:
        if var not in self.names:
            n, name = len(self.names), ""
            while True:
                n, digit = divmod(n, 26)
                name = chr(97 + digit) + name
                if not n:
                    break
            self.names[var] = name
        return self.names[var]


def _is_literal(atom: Atom) -> TypeGuard[Literal]:
    return hasattr(atom, "value")


def atom_text(atom: Atom, names: Names) -> str:
    """A variable's name, or a literal's value and type."""
    if _is_literal(atom):
        return f"{atom.value.item()}:{atom.aval}"
    return names(atom)


def binder_text(var: Var, names: Names) -> str:
    """A variable with its type, where it is bound."""
    return f"{names(var)}:{var.aval}"


def holds_programs(value: Param) -> bool:
    """Whether a parameter is a program or a tuple with programs."""
    many = isinstance(value, tuple)
    return any(hasattr(v, "eqns") for v in value) if many else hasattr(value, "eqns")


def param_text(value: Param, indent: str) -> str:
    """A parameter of an equation; programs are shown indented below it."""
    if hasattr(value, "eqns"):
        return jaxpr_text(value, indent=indent + "  ")
    if holds_programs(value):
        return "(" + ", ".join(param_text(v, indent) for v in value) + ")"
    if isinstance(value, np.dtype):
        return value.name
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"array{list(value.shape)}"
    return str(value)


def eqn_text(eqn: Eqn, names: Names | None = None, indent: str = "") -> str:
    """One equation: `c:f32[3] = mul a b`."""
    names = names or Names()
    ins = " ".join(atom_text(a, names) for a in eqn.ins)
    # Programs last, where they don't part the short ones; what is None says nothing.
    said = [(k, v) for k, v in eqn.params.items() if v is not None]
    ordered = sorted(said, key=lambda item: holds_programs(item[1]))
    params = " ".join(f"{k}={param_text(v, indent)}" for k, v in ordered)
    outs = " ".join(binder_text(v, names) for v in eqn.outs)
    scope = f"  # {'/'.join(eqn.scopes)}" if eqn.scopes else ""
    head = f"{outs} = {eqn.prim.name}" if outs else eqn.prim.name
    return f"{head}{f'[{params}]' if params else ''} {ins}{scope}".rstrip()


def jaxpr_text(jaxpr: Jaxpr, n_consts: int = 0, indent: str = "") -> str:
    """A whole program in the form `{ lambda captured ; inputs . let equations in outputs }`."""
    names = Names()
    consts = " ".join(binder_text(v, names) for v in jaxpr.ins[:n_consts])
    ins = " ".join(binder_text(v, names) for v in jaxpr.ins[n_consts:])
    head = f"{{ lambda {f'{consts} ' if consts else ''}; {ins} . let"
    inner = indent + "    "
    lines = [f"{inner}{eqn_text(e, names, inner)}" for e in jaxpr.eqns]
    outs = ", ".join(atom_text(a, names) for a in jaxpr.outs)
    comma = "," if len(jaxpr.outs) == 1 else ""
    return "\n".join([head, *lines, f"{indent}  in ({outs}{comma}) }}"])
