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

    ins, outs, names: of arguments and results
    weights: a safetensors file with all constants and captured arrays
    head: bytes of it that say what it holds
    captured: where captured arrays begin in it
    levels: code, for processors from the least on
    """

    names: tuple[str, ...]
    ins: tuple[ShapedArray, ...]
    outs: tuple[ShapedArray, ...]
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

    exported: the function at any sizes
    codes: for each target
    """
    arrays: dict[str, np.ndarray] = {}
    known: dict[tuple, str] = {}
    for code in (code for each in codes.values() for code in each):
        for c in code.constants:
            if known.setdefault(_key(c), f"constant{len(known)}") not in arrays:
                arrays[known[_key(c)]] = c
    consts = exported.jaxpr.consts
    numbers: dict[int, int] = {}  # of captured arrays, some of which are several inputs
    for c in consts:
        i = numbers.setdefault(id(c), len(numbers))
        arrays[f"captured{i}"] = np.asarray(c.value)
    weights = tensors_to_bytes(arrays)
    places, head = _places(weights)
    levels = [
        Level(target, each, [[places[known[_key(c)]] for c in code.constants] for code in each])
        for target, each in codes.items()
    ]
    return Parts(
        names=exported.arg_names,
        ins=tuple(exported.in_avals),
        outs=tuple(exported.out_avals),
        weights=weights,
        head=head,
        captured=tuple(places[f"captured{numbers[id(c)]}"] for c in consts),
        levels=levels,
    )


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
