"""Trees of different shapes in arrays of the same ones, so that unlike stages are rows of one array
and their messages, residuals and gradients have one type.

Values of a dtype lie one behind the other, with zeros up to the length of the longest. Those whose
first axis has a microbatch's rows keep it: what is cut along them over other mesh axes stays so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, TreeError
from funcgrad.parallel.pipelines.derivatives import differentiable
from funcgrad.transforms.arguments import is_arraylike
from funcgrad.tree import PyTreeDef


class Packing(NamedTuple):
    """The arrays in which leaves lie: for each (rows, dtype) how many columns there are; `rows` is
    that of a microbatch, whose leaves keep their first axis. All others are of one row."""

    rows: int
    columns: Mapping[tuple[int, str], int]

    @classmethod
    def of(cls, kinds: Iterable[Sequence[ShapedArray]], rows: int = 0) -> Packing:
        """The packing into which the leaves of any of these kinds fit.

        >>> vector, scalar = ShapedArray((3,), "float32"), ShapedArray((), "float32")
        >>> Packing.of([[vector, scalar], [scalar]]).types
        [f32[1,4]]
        """
        found: dict[tuple[int, str], int] = {}
        for avals in kinds:
            for key, n in cls(rows, {}).lengths(avals).items():
                found[key] = max(found.get(key, 0), n)
        return cls(rows, dict(sorted(found.items())))

    def key(self, aval: ShapedArray) -> tuple[int, str]:
        """Which array a leaf lies in."""
        along = bool(aval.shape) and aval.shape[0] == self.rows
        return (self.rows if along else 1, aval.dtype.name)

    def lengths(self, avals: Sequence[ShapedArray]) -> dict[tuple[int, str], int]:
        """How many columns of each array leaves take."""
        found: dict[tuple[int, str], int] = {}
        for aval in avals:
            key = self.key(aval)
            found[key] = found.get(key, 0) + math.prod(aval.shape) // max(key[0], 1)
        return found

    @property
    def types(self) -> list[ShapedArray]:
        """The arrays' types."""
        return [ShapedArray((r, n), np.dtype(d)) for (r, d), n in self.columns.items()]

    def pack(self, leaves: Sequence[Any]) -> list:
        """The arrays with these leaves in them."""
        parts: dict[tuple[int, str], list] = {key: [] for key in self.columns}
        for leaf in map(fnp.asarray, leaves):
            key = self.key(aval_of(leaf))
            parts[key].append(fnp.reshape(leaf, (key[0], leaf.size // max(key[0], 1))))
        found = []
        for ((rows, dtype), columns), pieces in zip(
            self.columns.items(), parts.values(), strict=True
        ):
            left = columns - sum(p.shape[1] for p in pieces)
            rest = [fnp.zeros((rows, left), dtype)] if left else []
            every = [*pieces, *rest]
            found.append(every[0] if len(every) == 1 else fnp.concatenate(every, axis=1))
        return found

    def unpack(self, arrays: Sequence[Any], avals: Sequence[ShapedArray]) -> list:
        """The leaves of these types that were packed."""
        where = dict(zip(self.columns, arrays, strict=True))
        at = dict.fromkeys(self.columns, 0)
        found = []
        for aval in avals:
            key = self.key(aval)
            end = at[key] + math.prod(aval.shape) // max(key[0], 1)
            found.append(fnp.reshape(where[key][:, at[key] : end], aval.shape))
            at[key] = end
        return found


# ---- weights


class StageTypes(NamedTuple):
    """The structure of a stage's parameters, and the types of their leaves."""

    structure: PyTreeDef
    avals: tuple[ShapedArray, ...]


@tree.register_dataclass
@dataclass(frozen=True)
class PackedStages:
    """Parameters of unlike stages, as `pack_stages` gives them: a pytree of one array a dtype, of
    which row i has those of stage i and then zeros. `unpack` gives them back; so it does of
    gradients, updates, and whatever else has this form."""

    arrays: dict[str, Any]
    stages: tuple[StageTypes, ...] = field(metadata={"static": True})

    def unpack(self) -> tuple:
        """For each stage its pytree.

        >>> from funcgrad.parallel import pack_stages
        >>> pack_stages([{"w": fnp.ones(3)}, (fnp.zeros(2),)]).unpack()[1]
        (Array([0., 0.], dtype=float32),)
        """
        found = []
        for i, own in enumerate(self.stages):
            row = [x[i][None] for x in self.arrays.values()]
            found.append(own.structure.unflatten(self.packing.unpack(row, own.avals)))
        return tuple(found)

    @property
    def packing(self) -> Packing:
        """How a stage's row is packed."""
        return Packing.of([own.avals for own in self.stages])


def pack_stages(params: Sequence[Any]) -> PackedStages:
    """Parameters of unlike stages in one array a dtype, which can be cut so that each rank has its
    own stages' alone: by `P("pp")`, and over another axis, as FSDP does, by `P("pp", "fsdp")`.

    params: for each stage a pytree of floating-point arrays, of any shapes. An array has a row for
    each stage, as long as the longest: stages of equal size waste nothing.

    Raises TreeError where that is no list or tuple, TypeError and DTypeError for other leaves.

    >>> from funcgrad.parallel import pack_stages
    >>> packed = pack_stages([{"w": fnp.ones((2, 3))}, {"w": fnp.ones(4), "b": fnp.zeros(1)}])
    >>> packed.arrays["float32"]
    Array([[1., 1., 1., 1., 1., 1.],
           [0., 1., 1., 1., 1., 0.]], dtype=float32)
    """
    if not isinstance(params, list | tuple) or not params:
        raise TreeError(
            "pack_stages: params must be a list or tuple with a pytree for each stage, got "
            f"{type(params).__name__ if params != () else 'none'}"
        )
    return packed("pack_stages: params", params)


def packed(what: str, params: Sequence[Any]) -> PackedStages:
    """`pack_stages`, with a name for messages."""
    leaves, stages = [], []
    for i, own in enumerate(params):
        for path, leaf in tree.leaves_with_path(own):
            name = f"{what}[{i}]{tree.keystr(path)}"
            if not is_arraylike(leaf):
                raise TypeError(f"{name} must be an array, got {leaf!r} of {type(leaf)}")
            if not differentiable(aval_of(leaf)):
                raise DTypeError(
                    f"{name} is {aval_of(leaf)}: only floats have gradients; let the function "
                    "capture what is none"
                )
        flat, structure = tree.flatten(own)
        leaves.append(flat)
        stages.append(StageTypes(structure, tuple(aval_of(x).strong() for x in flat)))
    packing = Packing.of([s.avals for s in stages])
    rows = [packing.pack(flat) for flat in leaves]
    arrays = {
        dtype: fnp.concatenate([row[i] for row in rows])
        for i, (_, dtype) in enumerate(packing.columns)
    }
    return PackedStages(arrays, tuple(stages))
