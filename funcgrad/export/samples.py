"""Arguments and results that go along with a function, to check it by where it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from funcgrad.errors import FormatError
from funcgrad.export.content import Content
from funcgrad.export.tensors import tensors_from_bytes


class Sample(NamedTuple):
    """Arguments of a call, flat, and the results that it gave when it was saved."""

    args: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]


def samples_in(entries: Mapping[str, bytes], content: Content, found: Any) -> list[Sample]:
    """The samples of a file's entries, of which its program says how many there are."""
    blob = entries.get("samples.safetensors")
    if type(found) is not list or bool(found) != (blob is not None):
        raise FormatError("the file's samples aren't those of its program")
    sides = []
    for sizes in found:
        signature = content.at(sizes).signature if content.is_symbolic else content.signature
        sides.append({"in": signature.in_avals, "out": signature.out_avals})
    types = {
        f"{i}/{part}/{j}": aval
        for i, side in enumerate(sides)
        for part, avals in side.items()
        for j, aval in enumerate(avals)
    }
    arrays = tensors_from_bytes(blob, types) if blob is not None else {}
    return [
        Sample(*(tuple(arrays[f"{i}/{part}/{j}"] for j in range(len(avals)))
                 for part, avals in side.items()))
        for i, side in enumerate(sides)
    ]  # fmt: skip


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest of a result from what it was, relative to its largest magnitude.

    >>> difference(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    0.5
    """
    if np.array_equal(got.view(np.uint8) if got.ndim else got.tobytes(),
                      want.view(np.uint8) if want.ndim else want.tobytes()):  # fmt: skip
        return 0.0
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    apart = np.abs(np.where(same, 0, a - b)).max()
    return float(apart / np.abs(np.where(np.isfinite(b), b, 0)).max(initial=1e-300))
