"""Sparse arrays as HTML: type, share of stored elements, and a small picture of the pattern."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np

from funcgrad.core.array import Array
from funcgrad.core.display.array_html import heat_map, size_text
from funcgrad.core.display.jaxpr_html import page

if TYPE_CHECKING:
    from funcgrad.sparse.arrays import BCOO, BCSR, JAXSparse

CELLS = 96  # of a picture, along its longer side


def sparse_html(x: JAXSparse) -> str:
    """An array's type, what is stored, and where: darker where there is more of it."""
    facts = [f"<b>{html.escape(repr(x))}</b>"]
    if not all(isinstance(part, Array) for part in x.tree_flatten()[0]):
        return page(f"<div>{facts[0]}</div>")
    at = _stored(x)  # type: ignore[arg-type]
    sizes = x.shape[x.n_batch : x.n_batch + x.n_sparse]
    count, whole = len(at), max(int(np.prod(x.shape[: x.n_batch + x.n_sparse])), 1)
    nbytes = sum(part.nbytes for part in x.tree_flatten()[0])
    facts.append(f"{count} stored, {100 * count / whole:.3g} % · {size_text(nbytes)}")
    line = f"<div>{facts[0]} <span class=q>{facts[1]}</span></div>"
    return page(line + (_picture(at, sizes) if count and 0 not in sizes and sizes else ""))


def _stored(x: BCOO | BCSR) -> np.ndarray:
    """The indices along sparse axes of what is stored, of all batches."""
    indices = np.asarray(x.indices)
    if hasattr(x, "indptr"):
        ends = np.asarray(x.indptr).reshape(-1, x.indptr.shape[-1])
        place = np.arange(x.nse)
        found = np.stack([np.searchsorted(e[1:], place, side="right") for e in ends])
        rows = np.broadcast_to(found.reshape(*x.indptr.shape[:-1], -1), indices.shape)
        indices = np.stack([rows, indices], axis=-1)
    flat = indices.reshape(-1, indices.shape[-1])
    sizes = x.shape[x.n_batch : x.n_batch + x.n_sparse]
    return flat[((flat >= 0) & (flat < sizes)).all(axis=1)]


def _picture(at: np.ndarray, sizes: tuple[int, ...]) -> str:
    """How much is stored in each part of the last two sparse axes."""
    at, sizes = (
        (at[:, -2:], sizes[-2:]) if len(sizes) > 1 else (np.insert(at, 0, 0, 1), (1, *sizes))
    )
    scale = min(1.0, CELLS / max(sizes))
    cells = tuple(max(1, round(n * scale)) for n in sizes)
    place = [at[:, i].astype(np.int64) * cells[i] // sizes[i] for i in (0, 1)]
    counts = np.bincount(place[0] * cells[1] + place[1], minlength=cells[0] * cells[1])
    return heat_map(np.sqrt(counts).reshape(cells).astype(np.float32))
