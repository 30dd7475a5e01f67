"""The headers and the C code of a library, from templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from funcgrad.core.aval import ShapedArray
from funcgrad.export.native.parts import Parts, alignment

_TEMPLATES = Path(__file__).parent / "c"
# Features of processors that C compilers know by these names, too.
_CHECKED = (
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "bmi", "bmi2", "fma", "gfni",
    "vpclmulqdq", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma",
    "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16",
)  # fmt: skip


def sources(name: str, signature: str, parts: Parts, scratch: int, inside: bool) -> dict[str, str]:
    """The texts of the headers and of the C file, by their names.

    scratch: bytes that tasks take beside the program's temporaries
    inside: whether the library holds the weights
    """
    given = {
        "name": name,
        "guard": name.upper(),
        "signature": _commented(signature),
        "num_inputs": len(parts.ins),
        "num_outputs": len(parts.outs),
        "arena_bytes": parts.arena + scratch,
        "program_arena": parts.arena,
        "weights_bytes": len(parts.weights),
        "weights_head": parts.head,
        "weights_digest": hex(_digest(parts.weights[: parts.head])),
        "weights_text": "NULL for those in the library, or the content of a file like it."
        if inside
        else f"the content of {name}.safetensors, such as a mapping of it.",
        "codes": _codes(parts),
        "captured": _numbers(parts.captured),
        "most_constants": max(len(c) for level in parts.levels for c in level.constants),
        "num_captured": len(parts.captured),
        "tables": _tables(name, parts),
        "inside": _inside(name) if inside else "",
        "default_weights": f"{name}_weights" if inside else "NULL",
        "cpu": parts.levels[0].codes[0].cpu,
        "num_sizes": int(bool(parts.size)),
        "size_name": parts.size,
        "size_checks": "\n    ".join(_size_check(name, *each) for each in parts.constraints),
        "blocks": len(parts.levels[0].codes),
        "level_names": ", ".join(f'"{level.name}"' for level in parts.levels),
    }
    templates = {"h": "header.h", "hpp": "header.hpp", "c": "glue.c"}
    return {f"{name}.{end}": _filled(template, given) for end, template in templates.items()}


def for_builds(name: str, kind: str, file: str, signature: str) -> dict[str, str]:
    """What CMake's find_package and pkg-config read, by their names."""
    link = f"-L${{pcfiledir}} -l{name}" if kind == "shared" else f"${{pcfiledir}}/{file} -lm"
    given = {
        "name": name, "cmake_kind": kind.upper(), "file": file, "libs": link,
        "signature": _commented(signature),
    }  # fmt: skip
    templates = {f"{name}Config.cmake": "config.cmake", f"{name}.pc": "package.pc"}
    return {path: _filled(template, given) for path, template in templates.items()}


def module(name: str, signature: str, size: str, inside: bool) -> str:
    """The JavaScript module of a library for WebAssembly."""
    url = "null" if inside else f'"{name}.safetensors"'
    given = {"name": name, "signature": _commented(signature), "weights_url": url,
             "size_name": f'"{size}"' if size else "null"}  # fmt: skip
    return _filled("module.mjs", given)


def _filled(template: str, given: dict) -> str:
    return Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(given)


def _commented(text: str) -> str:
    return text.replace("*/", "* /").replace("→", "->")


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "0"


def _digest(data: bytes) -> int:
    """FNV-1a, as the C code computes it."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def _tables(name: str, parts: Parts) -> str:
    """The types of inputs and outputs, and how they are to lie."""
    sides = (
        ("input", parts.ins, parts.names, parts.in_rows),
        ("output", parts.outs, [f"output{i}" for i in range(len(parts.outs))], parts.out_rows),
    )
    lines = []
    for side, avals, names, in_rows in sides:
        for i, (a, counted) in enumerate(zip(avals, in_rows, strict=True)):
            dims = (-1, *a.shape[1:]) if counted else a.shape
            lines.append(f"static const int64_t {side}_dims{i}[] = {{{_numbers(dims)}}};")
        rows = [_row(side, i, a, n) for i, (a, n) in enumerate(zip(avals, names, strict=True))]
        rows = rows or ["{0}"]
        lines.append(f"static const {name}_tensor {side}s_table[] = {{")
        lines += [f"    {row}," for row in rows]
        aligned = ", ".join(map(str, alignment(avals))) or "1"
        steps = [a.nbytes * counted for a, counted in zip(avals, in_rows, strict=True)]
        lines += [
            "};",
            f"static const size_t {side}_alignment[] = {{{aligned}}};",
            f"static const size_t {side}_step[] = {{{_numbers(steps)}}};",
        ]
    return "\n".join(lines)


def _row(side: str, i: int, aval: ShapedArray, name: str) -> str:
    quoted = "".join(c if c.isalnum() or c in "_[]'. " else "_" for c in name)
    nbytes = aval.size * aval.dtype.itemsize
    return f'{{"{quoted}", "{aval.dtype.name}", {aval.ndim}, {side}_dims{i}, {nbytes}}}'


def _inside(name: str) -> str:
    """The weights in the library, from the file beside."""
    return _filled("inside.c", {"name": name})


def _codes(parts: Parts) -> str:
    """The code of each level of processors."""
    lines, rows = [], []
    for i, level in enumerate(parts.levels):
        lines += [f"static int lacks{i}(void) {{", *_checks(level.features), "    return 0;", "}"]
        codes = []
        for code, constants in zip(level.codes, level.constants, strict=True):
            places = f"{code.prefix}constants"
            lines += [
                f"program {code.prefix}program;",
                f"static const size_t {places}[] = {{{_numbers(constants)}}};",
            ]
            count = code.rows or 1
            codes.append(f"{{{code.prefix}program, {count}, {len(constants)}, {places}}}")
        rows.append(f'    {{"{level.name}", lacks{i}, {{{", ".join(codes)}}}}},')
    return "\n".join([*lines, "static const struct level levels[] = {", *rows, "};"])


def _size_check(name: str, text: str, in_c: str) -> str:
    fails = f'return fail(context, {name}_bad_argument, "the size has to be: {text}");'
    return f"if (!({in_c})) {fails}"


def _checks(features: Sequence[str]) -> list[str]:
    """What tells a processor that lacks features."""
    known = [f for f in _CHECKED if f in features]
    checks = [f'    if (!__builtin_cpu_supports("{f}")) return 1;' for f in known]
    return ["    __builtin_cpu_init();", *checks] if known else []
