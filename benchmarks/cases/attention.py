"""Attention, forward alone, and forward with its three gradients."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.case import Case, draw, normal
from benchmarks.libraries import gradients


def cases(full: bool) -> Iterator[Case]:
    """Lengths 256 and 1024, with all keys and causal."""
    for length, batch in ((256, 8), (1024, 4)):
        shape = (batch, length, 8, 64) if full else (2, length // 64 + 1, 2, 4)
        for name, causal in {"": False, ", causal": True}.items():
            yield from pair(f"length {length}{name}", shape, causal)


def pair(name: str, shape: tuple[int, ...], causal: bool) -> Iterator[Case]:
    """Forward, and forward and backward."""
    batch, length, heads, width = shape
    flops = 4.0 * batch * heads * length**2 * width / (2 if causal else 1)
    x = normal(*shape)
    yield Case(
        "attention",
        name,
        draw(x, x, x),
        _forward(causal),
        torch=_torch_forward(causal),
        flops=flops,
    )
    # Backward, the scores are computed once more, and there are four products.
    yield Case(
        "attention",
        f"{name}, forward and backward",
        draw(x, x, x, x),
        _backward(causal),
        torch_make=gradients(_torch_loss(causal), 0, 1, 2),
        flops=3.5 * flops,
    )


def _forward(causal: bool):
    return lambda lib, q, k, v: lib.nn.dot_product_attention(q, k, v, is_causal=causal)


def _torch_forward(causal: bool):
    def attention(t, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mixed = t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return mixed.transpose(1, 2)

    return attention


def _backward(causal: bool):
    def both(lib, q, k, v, seed):
        def loss(q, k, v):
            return lib.np.sum(lib.nn.dot_product_attention(q, k, v, is_causal=causal) * seed)

        return lib.value_and_grad(loss, argnums=(0, 1, 2))(q, k, v)

    return both


def _torch_loss(causal: bool):
    attention = _torch_forward(causal)
    return lambda t, q, k, v, seed: t.sum(attention(t, q, k, v) * seed)
