"""What a C library is made of: compiled code, weights, and where arrays lie in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.export.exported import Exported
from funcgrad.export.native.codes import Code
from funcgrad.export.rows import has_rows
from funcgrad.export.symbolic import SymbolicScope
from funcgrad.export.tensors import tensors_to_bytes

_BLOCK = 64


@dataclass(frozen=True)
class Level:
    """A function's code for one processor: for all sizes, from the most rows to one.

    name: the target, as `aot` takes it
    constants: for each code, where the arrays that it reads begin in the weights
    """

    name: str
    codes: Sequence[Code]
    constants: Sequence[Sequence[int]]

    @property
    def features(self) -> tuple[str, ...]:
        """What the processor has to have."""
        return tuple(dict.fromkeys(f for code in self.codes for f in code.features))


@dataclass(frozen=True)
class Parts:
    """What a library is made of.

    names, ins, outs: of arguments and results; of what has rows, one
    size: what counts the rows; "" for a function whose sizes have no names
    in_rows, out_rows: which have rows
    constraints: pairs of texts, of what holds for the size, and of the same in C, for `size`
    weights: a safetensors file with all constants and captured arrays
    head: bytes of it that say what it holds
    captured: where captured arrays begin in it
    levels: code, for processors from the least on
    """

    names: tuple[str, ...]
    ins: tuple[ShapedArray, ...]
    outs: tuple[ShapedArray, ...]
    size: str
    in_rows: tuple[bool, ...]
    out_rows: tuple[bool, ...]
    constraints: Sequence[tuple[str, str]]
    weights: bytes
    head: int
    captured: tuple[int, ...]
    levels: Sequence[Level]

    @property
    def arena(self) -> int:
        """Bytes of temporaries, without what tasks take beside."""
        return max(arena_of(code) for level in self.levels for code in level.codes)

    @property
    def takes_scratch(self) -> bool:
        """Whether tasks take memory."""
        objects = [o for level in self.levels for code in level.codes for o in code.objects]
        return any(b"fg_scratch_take" in o for o in objects)


def parts_of(exported: Exported, codes: dict[str, list[Code]]) -> Parts:
    """The parts of a function's library.

    codes: for each target, from the most rows to one
    """
    arrays: dict[str, np.ndarray] = {}
    known: dict[tuple, str] = {}
    for code in (code for each in codes.values() for code in each):
        for c in code.constants:
            if known.setdefault(_key(c), f"constant{len(known)}") not in arrays:
                arrays[known[_key(c)]] = c
    one = exported.rows(1) if exported.row_size else exported
    consts = one.jaxpr.consts
    panels = next(iter(codes.values()))[0].panels
    # Of captured arrays, some of which are several inputs.
    keys = [(id(c), panels.get(i)) for i, c in enumerate(consts)]
    numbers: dict[tuple, int] = {}
    for key, c in zip(keys, consts, strict=True):
        laid, array = key[1], np.asarray(c.value)
        name = f"captured{numbers.setdefault(key, len(numbers))}"
        arrays[name] = array if laid is None else laid.of(array)
    weights = tensors_to_bytes(arrays)
    places, head = _places(weights)
    levels = [
        Level(target, each, [[places[known[_key(c)]] for c in code.constants] for code in each])
        for target, each in codes.items()
    ]
    return Parts(
        names=exported.arg_names,
        ins=tuple(one.in_avals),
        outs=tuple(one.out_avals),
        size=exported.row_size or "",
        in_rows=tuple(map(has_rows, exported.in_avals)),
        out_rows=tuple(map(has_rows, exported.out_avals)),
        constraints=_constraints(exported),
        weights=weights,
        head=head,
        captured=tuple(places[f"captured{numbers[key]}"] for key in keys),
        levels=levels,
    )


def _constraints(exported: Exported) -> list[tuple[str, str]]:
    scope, known = SymbolicScope(exported.constraints), {exported.row_size}
    return [
        (text, f"{left} {sign} {right}".replace(str(exported.row_size), "size"))
        for text, (left, sign, right) in zip(scope.constraints, scope.parsed, strict=True)
        if left.symbols | right.symbols <= known
    ]


def arena_of(code: Code) -> int:
    """Bytes of a code's temporaries, in whole blocks."""
    return -(-code.arena // _BLOCK) * _BLOCK


def _key(x: np.ndarray) -> tuple:
    """The same for arrays that are the same."""
    return x.dtype, x.shape, x.tobytes()


def _places(weights: bytes) -> tuple[dict[str, int], int]:
    """Where each array begins in a safetensors file, and where all do."""
    (n,) = struct.unpack_from("<Q", weights)
    entries = json.loads(weights[8 : 8 + n])
    return {name: 8 + n + e["data_offsets"][0] for name, e in entries.items()}, 8 + n


def alignment(avals: Sequence[ShapedArray]) -> list[int]:
    """How arrays have to lie: as a number of their dtype."""
    return [max(1, a.dtype.itemsize // (2 if a.dtype.kind == "c" else 1)) for a in avals]
