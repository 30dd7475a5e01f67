"""PageRank of a random web whose links are cut by rows over devices, and which link matters most.

    python examples/pagerank.py
    python examples/pagerank.py --pages 100000 --links 20 --devices 4

The matrix of links is a `BCSR` with a batch axis of blocks of rows, one a device; what devices
exchange is the vector of ranks. The gradient of a page's rank with respect to all links is a sparse
matrix with their pattern. (Page et al., "The PageRank Citation Ranking", 1999.)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import P, lax, sparse

DAMPING = 0.85


def make_web(pages: int, links: int, blocks: int) -> sparse.BCSR:
    """Where a reader goes from each page (its column) with equal chances: (blocks, rows, pages)."""
    rng = np.random.default_rng(0)
    source = np.repeat(np.arange(pages), links)
    target = np.minimum(rng.zipf(1.3, pages * links) - 1, pages * 10) % pages
    rows = pages // blocks
    parts = []
    for block in range(blocks):
        own = target // rows == block
        order = np.argsort(target[own], kind="stable")
        counts = np.bincount(target[own] - block * rows, minlength=rows)
        parts.append((source[own][order], np.append(0, np.cumsum(counts))))
    nse = max(len(indices) for indices, _ in parts)
    indices = [np.pad(i, (0, nse - len(i)), constant_values=pages) for i, _ in parts]
    indptr = np.stack([ends for _, ends in parts]).astype(np.int32)
    data = fnp.full((blocks, nse), 1 / links)
    places = data, np.stack(indices).astype(np.int32), indptr
    return sparse.BCSR(places, shape=(blocks, rows, pages))


def ranks(web: sparse.BCSR, steps: int, mesh: fg.parallel.Mesh) -> fg.Array:
    """The chance to be on each page after so many steps, from anywhere."""
    pages = web.shape[2]

    @partial(fg.shard_map, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
    def step(block: sparse.BCSR, rank: fg.Array) -> fg.Array:
        return DAMPING * (block @ rank)[0] + (1 - DAMPING) / pages

    start = fnp.full((pages,), 1 / pages)
    return lax.fori_loop(0, steps, lambda _, rank: step(web, rank), start)


def main(argv: Sequence[str] | None = None) -> None:
    """Find the best page, and the link that adds most to its rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--links", type=int, default=8, help="of each page")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--devices", type=int, default=4)
    args = parser.parse_args(argv)
    mesh = fg.make_mesh((args.devices,), ("rows",), devices=fg.virtual_devices(args.devices))
    web = make_web(args.pages - args.pages % args.devices, args.links, args.devices)
    links = int(web.indptr[:, -1].sum())
    print(f"{web}: {links} links, {100 * links / web.size:.2g} % of all that there could be")

    found: Callable = fg.jit(partial(ranks, steps=args.steps, mesh=mesh))
    rank = found(web)
    best = int(fnp.argmax(rank))
    print(f"page {best} has the rank {float(rank[best]):.4f} of {float(rank.sum()):.4f}")

    gradient = fg.jit(sparse.grad(lambda web: found(web)[best]))(web)
    block, place = np.unravel_index(int(fnp.argmax(gradient.data)), gradient.data.shape)
    row = int(np.searchsorted(np.asarray(web.indptr)[block], place, side="right")) - 1
    source, target = int(web.indices[block, place]), int(block) * web.shape[1] + row
    print(f"what matters most to it is the link from page {source} to page {target}")


if __name__ == "__main__":
    main()
