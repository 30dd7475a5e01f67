"""How `jit` does attention of sequences that are cut over devices: by bytes, or as a block says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from funcgrad.core.context import scoped
from funcgrad.errors import ArgumentError

Way = Literal["auto", "ring", "zigzag", "heads", "gather"]
WAYS = get_args(Way)


@contextmanager
def sequence_attention(way: Way) -> Iterator[None]:
    """Within the block, how programs for a mesh do `nn.dot_product_attention` of activations that
    are cut along the sequence, and its gradient.

    way: "ring": keys and values go from device to device, as in `ring_attention`; "zigzag": so they
    do, and under a causal mask devices exchange halves of their blocks before and after, so that
    all have the same work, where the last one would have nearly all of it; "heads": places are
    exchanged for heads, as in `ulysses_attention`; "gather": each device fetches all keys and
    values at once; "auto", which holds outside of such a block: what moves the fewest bytes, the
    ring where that is equal. It holds for programs that are traced and compiled within the block.
    Where an attention can't be done in this way (heads that the devices don't divide, windows on
    queries and keys of different lengths), the one of fewest bytes that is possible is taken; with
    a bias, a mask, lengths or a window, "zigzag" is "ring".

    Raises ArgumentError for other ways.

    >>> from funcgrad.parallel import AbstractMesh, NamedSharding, P, sequence_attention
    >>> cut = NamedSharding(AbstractMesh(8, "cp"), P(None, "cp"))
    >>> x = fg.ShapeDtypeStruct((1, 1024, 8, 16), "float32", sharding=cut)
    >>> attend = fg.jit(lambda x: nn.dot_product_attention(x, x, x, is_causal=True))
    >>> attend.lower(x).device_analysis().counts
    {'all_to_all': 1}
    >>> with sequence_attention("ring"):
    ...     attend.lower(x).device_analysis().counts
    {'permute': 7}
    """
    if way not in WAYS:
        known = ", ".join(map(repr, WAYS))
        raise ArgumentError(f"sequence_attention: way must be one of {known}, got {way!r}")
    with scoped(sequences=way):
        yield
