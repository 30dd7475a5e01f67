"""Programs and arrays as text and HTML."""

from __future__ import annotations

import html
from typing import Any

import numpy as np


class Names:
    """Names variables a, b, …, z, ba, … in order of appearance."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}

    def __call__(self, var: Any) -> str:
        if var not in self.names:
            n, name = len(self.names), ""
            while True:
                n, digit = divmod(n, 26)
                name = chr(97 + digit) + name
                if not n:
                    break
            self.names[var] = name
        return self.names[var]


def _is_literal(atom: Any) -> bool:
    return hasattr(atom, "value")


def atom_text(atom: Any, names: Names) -> str:
    """A variable's name, or a literal's value and type."""
    if _is_literal(atom):
        return f"{atom.value.item()}:{atom.aval}"
    return names(atom)


def binder_text(var: Any, names: Names) -> str:
    """A variable with its type, where it is bound."""
    return f"{names(var)}:{var.aval}"


def param_text(value: Any, indent: str) -> str:
    """A parameter of an equation; programs are shown indented below it."""
    if hasattr(value, "eqns"):
        return jaxpr_text(value, indent=indent + "  ")
    if isinstance(value, tuple) and any(hasattr(v, "eqns") for v in value):
        return "(" + ", ".join(param_text(v, indent) for v in value) + ")"
    if isinstance(value, np.dtype):
        return value.name
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"array{list(value.shape)}"
    return str(value)


def eqn_text(eqn: Any, names: Names | None = None, indent: str = "") -> str:
    """One equation: `c:f32[3] = mul a b`."""
    names = names or Names()
    ins = " ".join(atom_text(a, names) for a in eqn.ins)
    params = " ".join(f"{k}={param_text(v, indent)}" for k, v in eqn.params.items())
    outs = " ".join(binder_text(v, names) for v in eqn.outs)
    scope = f"  # {'/'.join(eqn.scopes)}" if eqn.scopes else ""
    head = f"{outs} = {eqn.prim.name}" if outs else eqn.prim.name
    return f"{head}{f'[{params}]' if params else ''} {ins}{scope}".rstrip()


def jaxpr_text(jaxpr: Any, n_consts: int = 0, indent: str = "") -> str:
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


_STYLE = (
    "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;line-height:1.45;"
    "border-collapse:collapse"
)


def _cell(text: str, style: str = "") -> str:
    css = f"text-align:left;padding:1px 8px;white-space:pre;border:0;background:none;{style}"
    return f'<td style="{css}">{html.escape(text)}</td>'


def jaxpr_html(jaxpr: Any, n_consts: int = 0) -> str:
    """A program as a table: result and type, operation, operands, the user's line."""
    names = Names()
    rows = []

    def row(*cells: str, tone: str = "") -> None:
        colours = ("color:#0b6e4f", "color:#888", "color:#9a3412;font-weight:600", "", "color:#888")
        tds = (_cell(c, s) for c, s in zip(cells, colours, strict=True))
        rows.append(f'<tr style="{tone}">{"".join(tds)}</tr>')

    for i, v in enumerate(jaxpr.ins):
        what = "captured" if i < n_consts else "input"
        name = jaxpr.names[i] if jaxpr.names and i >= n_consts else ""
        row(names(v), str(v.aval), what, name, "", tone="background:rgba(128,128,128,.10)")
    for e in jaxpr.eqns:
        outs = " ".join(names(v) for v in e.outs)
        types = " ".join(str(v.aval) for v in e.outs)
        ins = " ".join(atom_text(a, names) for a in e.ins)
        params = ", ".join(f"{k}={param_text(p, '  ')}" for k, p in e.params.items())
        line = e.source.text if e.source else ""
        row(outs, types, e.prim.name, ins + (f"\n[{params}]" if params else ""), line)
    outs = ", ".join(atom_text(a, names) for a in jaxpr.outs)
    row("", "", "return", outs, "", tone="background:rgba(128,128,128,.10)")
    return f'<table style="{_STYLE}">{"".join(rows)}</table>'


def array_html(value: np.ndarray, aval: Any) -> str:
    """An array's type, range and (abridged) elements; small matrices are tinted by magnitude."""
    head = f"<b>{html.escape(str(aval))}</b>"
    real = value.dtype.kind != "c"
    if value.size and real:
        with np.errstate(all="ignore"):
            wide = value.astype(np.float64)
            low, high, mean = np.nanmin(wide), np.nanmax(wide), np.nanmean(wide)
        head += f' <span style="color:#888">min {low:.4g} · max {high:.4g} · mean {mean:.4g}</span>'
    if value.ndim == 2 and value.size and real and max(value.shape) <= 24:
        body = _tinted(value, wide)
    else:
        text = np.array2string(value, separator=", ", threshold=60, edgeitems=3)
        body = f'<pre style="margin:2px 0">{html.escape(text)}</pre>'
    return f'<div style="{_STYLE}">{head}{body}</div>'


def _tinted(value: np.ndarray, wide: np.ndarray) -> str:
    finite = np.where(np.isfinite(wide), np.abs(wide), 0.0)
    top = finite.max() or 1.0
    rows = []
    for shown, size, signed in zip(value, finite, wide, strict=True):
        cells = []
        for v, a, s in zip(shown, size, signed, strict=True):
            rgb = "37,99,235" if s < 0 else "217,119,6"
            text = f"{float(v):.4g}" if value.dtype.kind != "b" else str(bool(v))
            cells.append(
                f'<td style="background:rgba({rgb},{0.75 * a / top:.2f});padding:1px 6px;'
                f'text-align:right;border:0">{text}</td>'
            )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table style="{_STYLE}">{"".join(rows)}</table>'
