"""Programs and compiled functions as HTML, for notebooks with light and with dark pages.

A page brings its few style rules along; without them (where a viewer drops styles) what remains is
plain tables and foldable sections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from funcgrad.core.display.jaxpr_text import Names, atom_text, holds_programs, param_text

if TYPE_CHECKING:
    from funcgrad.core.ir import Atom, Eqn, Jaxpr, Var

# Beyond these a notebook gets slow; the text shows everything.
MAX_EQUATIONS, MAX_LINES = 400, 300

# Tripled classes outrank the rules that notebooks have for tables.
_STYLE = """<style>
.fg{--v:#0a7a55;--o:#a63d0f;--l:#1d4ed8;--w:#c81e1e;--q:#767676;--t:rgba(128,128,128,.13);
font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;max-height:36em;overflow:auto}
body[data-jp-theme-light=false] .fg,body.vscode-dark .fg,html[theme=dark] .fg
{--v:#4fc79a;--o:#f0955e;--l:#8ab4ff;--w:#ff7b72;--q:#9a9a9a}
.fg.fg.fg table{border-collapse:collapse;margin:0;font:inherit;border:0}
.fg.fg.fg tr{background:none;border:0}
.fg.fg.fg td{text-align:left;vertical-align:top;padding:0 .7em;white-space:pre;
border:0;max-width:none}
.fg.fg.fg tr.t{background:var(--t)}
.fg .v{color:var(--v)}.fg .q{color:var(--q)}.fg .o{color:var(--o);font-weight:600}
.fg .l{color:var(--l)}.fg .w{color:var(--w)}
.fg.fg.fg .m td{text-align:right;padding:0 .5em}
.fg.fg.fg pre{font:inherit;margin:0;padding:0;background:none;border:0;white-space:pre}
.fg summary{cursor:pointer}.fg .c{display:block;color:var(--l);margin:2px 0}
.fg .z{stroke:var(--q);stroke-width:.5;stroke-dasharray:2 2}
.fg .i{display:inline-block;margin:2px 0;image-rendering:pixelated;border:1px solid var(--t)}
.fg .p{margin-right:4px}
</style>"""


def escape(text: str) -> str:
    """Text as HTML; `html` is loaded when it is used, as its tables take long to import."""
    import html

    return html.escape(text)


def page(body: str) -> str:
    """A notebook's output with the styles that it uses."""
    return f"{_STYLE}<div class=fg>{body}</div>"


def fold(title: str, body: str, opened: bool = False) -> str:
    """A section that opens and closes."""
    return f"<details{' open' if opened else ''}><summary>{title}</summary>{body}</details>"


# ---- programs


def jaxpr_html(jaxpr: Jaxpr, n_consts: int = 0) -> str:
    """A program as a table: variable and type, operation, operands, the user's line."""
    return page(_table(jaxpr, n_consts))


def _table(jaxpr: Jaxpr, n_consts: int = 0) -> str:
    names = Names()
    rows: list[str] = []
    for i, v in enumerate(jaxpr.ins):
        what = "captured" if i < n_consts else "input"
        label = jaxpr.names[i] if jaxpr.names and i >= n_consts else ""
        rows.append(_row("t", _name(names(v)), _type(v), _quiet(what), escape(label), ""))
    line = None
    for e in jaxpr.eqns[:MAX_EQUATIONS]:
        here = e.source.text if e.source else ""
        rows.append(_equation(e, names, here if here != line else ""))
        line = here
    if len(jaxpr.eqns) > MAX_EQUATIONS:
        rest = f"… and {len(jaxpr.eqns) - MAX_EQUATIONS} more equations; print() shows all"
        rows.append(_row("", "", "", "", _quiet(rest), ""))
        for e in jaxpr.eqns[MAX_EQUATIONS:]:
            for v in e.outs:
                names(v)
    outs = " ".join(_atom(a, names) for a in jaxpr.outs)
    rows.append(_row("t", "", "", _quiet("return"), outs, ""))
    return f"<table>{''.join(rows)}</table>"


def _equation(e: Eqn, names: Names, line: str) -> str:
    ins = " ".join(_atom(a, names) for a in e.ins)
    plain = {k: p for k, p in e.params.items() if p is not None and not holds_programs(p)}
    params = " ".join(f"{k}={escape(param_text(p, ''))}" for k, p in plain.items())
    details = f"{ins} {_quiet(params, escaped=True)}" if params else ins
    for key, value in e.params.items():
        programs = value if isinstance(value, tuple) else (value,)
        if holds_programs(value):
            details += "".join(fold(_quiet(key), _table(p)) for p in programs)
    shown = "" if not e.scopes else f" <span class=l>{escape('/'.join(e.scopes))}</span>"
    outs = "\n".join(_name(names(v)) for v in e.outs)
    types = "\n".join(_type(v) for v in e.outs)
    op = f"<span class=o>{escape(e.prim.name)}</span>{shown}"
    place = f' title="{escape(str(e.source))}"' if e.source else ""
    return _row("", outs, types, op, details, f"<span class=q{place}>{escape(line)}</span>")


def _row(kind: str, *cells: str) -> str:
    opened = f"<tr class={kind}>" if kind else "<tr>"
    return f"{opened}{''.join(f'<td>{c}</td>' for c in cells)}</tr>"


def _name(name: str) -> str:
    return f"<span class=v>{name}</span>"


def _type(var: Var) -> str:
    return _quiet(str(var.aval))


def _quiet(text: str, escaped: bool = False) -> str:
    return f"<span class=q>{text if escaped else escape(text)}</span>"


def _atom(atom: Atom, names: Names) -> str:
    kind = "l" if hasattr(atom, "value") else "v"
    return f"<span class={kind}>{escape(atom_text(atom, names))}</span>"


# ---- compiled functions


def program_html(
    title: str,
    facts: Mapping[str, object],
    programs: Sequence[tuple[str, Jaxpr, int]] = (),
    texts: Sequence[tuple[str, str]] = (),
) -> str:
    """A title with facts, then sections: texts of a program's stages, and programs.

    texts: pairs (what, text), the first of them open; programs: (what, jaxpr, number of captured
    values), open where there is one and no text.
    """
    rows = "".join(_row("", _quiet(k), escape(_fact(v))) for k, v in facts.items())
    alone = len(programs) == 1 and not texts
    sections = [fold(_quiet(what), _text(text), not i) for i, (what, text) in enumerate(texts)]
    sections += [fold(_quiet(what), _table(j, n), alone) for what, j, n in programs]
    head = f"<div><b>{escape(title)}</b></div>{f'<table>{rows}</table>' if rows else ''}"
    return page(head + "".join(sections))


def _fact(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _text(text: str) -> str:
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"… and {len(lines) - MAX_LINES} more lines; as_text() gives all"]
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
