"""`lora`: a function of frozen parameters and adapters, and `lora_merge`, which adds these up."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes, random
from funcgrad.adapters.adapter import Adapted, Adapter, factor_shapes, fingerprint, norm_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError, TreeError
from funcgrad.transforms.weights.applied import with_weights
from funcgrad.transforms.weights.leaves import listed, matching, named_leaves, with_leaves
from funcgrad.transforms.weights.products import BATCH
from funcgrad.transforms.weights.uses import LOOKUP, Strict, Use, lost, uses
from funcgrad.transforms.weights.weight import Weight

KINDS = ("lora", "rslora", "dora")


def lora(
    f: Callable,
    params: Any,
    rules: str | Sequence[str] | None,
    key: Any,
    rank: int = 8,
    alpha: float = 16.0,
    kind: str = "lora",
    *,
    inputs: tuple | None = None,
) -> tuple[Callable, Any, dict[str, Adapter]]:
    """f(params, *inputs) with low-rank adapters: (lf, base, adapters), lf(base, adapters, *inputs).

    rules: regular expressions, searched for in leaves' names ("layers.0.w"): these get adapters.
    None: all that may. `base` is params, whose leaves may be quantized; adapters are a dictionary
    by leaf's name, to differentiate by: grad(lf, argnums=1) computes no gradient of a base weight.

    Before a step lf is f. A product with a weight W becomes x W + s (x A) B (Hu et al., *LoRA*,
    2021), where A is uniform on ±1/√n, of n inputs, and B zero (of lookups A zero and B normal),
    and s is alpha/rank, or alpha/√rank for kind "rslora"; "dora" learns magnitudes, too.

    A matrix's rows are its inputs, and what axes are in front of the last two are a stack of
    matrices. With `inputs`, arrays or shapes that f is called with, its program says which axes are
    which: needed for convolutions and for weights of more axes.

    Raises ArgumentError for a rule that matches nothing, and for a leaf named by one that can't be
    followed to products and lookups; DTypeError where it is no array of floats.

    >>> f = lambda params, x: x @ params["w"] + params["b"]
    >>> params = {"w": fnp.ones((4, 3)), "b": fnp.zeros(3)}
    >>> lf, base, adapters = fg.lora(f, params, "w", random.key(0), rank=2)
    >>> x = fnp.ones((1, 4))
    >>> bool((lf(base, adapters, x) == f(params, x)).all())
    True
    >>> grads = fg.grad(lambda a: fnp.sum(lf(base, a, x)))(adapters)
    >>> grads["w"].a.shape, grads["w"].b.shape
    ((4, 2), (2, 3))
    """
    _check(rank, alpha, kind)
    leaves = named_leaves(params)
    found = None if inputs is None else uses(f, params, *inputs)
    chosen = _chosen(leaves, rules, found)
    adapters = {}
    for name in chosen:
        own = random.fold_in(key, zlib.crc32(name.encode()))
        known = found[name] if found else None
        adapters[name] = _made(leaves[name], known, own, rank, float(alpha), kind)
    watcher = Strict("lora", chosen if rules is not None else ())
    call = with_weights(f, watcher, what="lora")

    def adapted(base: Any, adapters: Mapping[str, Adapter], *inputs: Any, **named: Any) -> Any:
        return call(_joined("lora", base, adapters), *inputs, **named)

    adapted.__name__ = call.__name__
    return adapted, params, adapters


def lora_merge(base: Any, adapters: Mapping[str, Adapter], *, of_another_base: bool = False) -> Any:
    """The parameters of f that do what base and adapters do: each adapter's weight is W + s·AB.

    In float32 products with it agree to rounding; narrower weights lose small updates, so keep the
    base and the adapters. Quantized weights become arrays. of_another_base: add adapters up with
    weights that they weren't made for, too, such as those that the base was quantized from.

    Raises TreeError where an adapter is of no leaf of the base, or was made for other weights than
    the leaf's, and ShapeError where it is of a leaf of another shape.

    >>> params = {"w": fnp.ones((2, 2))}
    >>> lf, base, adapters = fg.lora(lambda p, x: x @ p["w"], params, "w", random.key(0), rank=1)
    >>> fg.lora_merge(base, adapters)["w"].shape
    (2, 2)
    """
    joined = named_leaves(_joined("lora_merge", base, adapters))
    for name, adapter in () if of_another_base else adapters.items():
        found = fingerprint(joined[name].base)
        if found and adapter.base and found != adapter.base:
            raise TreeError(
                f"lora_merge: the adapter of {name!r} was made for other weights (fingerprint "
                f"{adapter.base}) than the base has ({found}): it is one of another base; give "
                "the base that lora gave, or of_another_base=True"
            )
    return with_leaves(base, {name: joined[name].dense() for name in adapters})


def _check(rank: int, alpha: float, kind: str) -> None:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ArgumentError(f"lora: rank must be an integer of at least 1, got {rank!r}")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ArgumentError(f"lora: alpha must be a finite number, got {alpha!r}")
    if kind not in KINDS:
        raise ArgumentError(f"lora: kind must be one of {', '.join(KINDS)}, got {kind!r}")


def _is_matrix(x: Any) -> bool:
    return len(getattr(x, "shape", ())) >= 2 and dtypes.is_float(x.dtype)


def _chosen(
    leaves: Mapping[str, Any], rules: str | Sequence[str] | None, found: dict | None
) -> list[str]:
    if rules is None:
        fits = [name for name, x in leaves.items() if _is_matrix(x)]
        if found is not None:
            fits = [n for n in fits if found[n] and all(u.followed for u in found[n])]
        if not fits:
            raise ArgumentError(
                f"lora: none of the parameters {listed(leaves)} is a matrix that f multiplies with"
            )
        return fits
    chosen = list(matching("lora", leaves, rules))
    for name in chosen:
        x = leaves[name]
        if not _is_matrix(x):
            got = f"{getattr(x, 'dtype', type(x))} of shape {getattr(x, 'shape', ())}"
            raise DTypeError(
                f"lora: the parameter {name} must be an array of floats with two axes or more, got "
                f"{got}; leave it out of the rules"
            )
        for use in (found or {}).get(name, ()):
            if not use.followed:
                lost("lora", name, use.kind, use.where)
    return chosen


def _axes(shape: tuple[int, ...], found: Sequence[Use] | None) -> tuple[tuple, tuple]:
    """The axes that a product sums over, and those of its result."""
    products = [u for u in found or () if u.kind != LOOKUP and u.contracted]
    if not products:
        return (-2,), (-1,)
    use = products[0]
    n, ins = len(use.roles), use.contracted or ()
    outs = [i for i in range(-n, 0) if i not in ins and use.roles[i] != BATCH]
    return ins, tuple(outs)


def _made(
    w: Any, found: Sequence[Use] | None, key: Any, rank: int, alpha: float, kind: str
) -> Adapter:
    shape = tuple(w.shape)
    lookup = bool(found) and any(u.kind == LOOKUP for u in found or ())
    ins, outs = ((-2,), (-1,)) if lookup else _axes(shape, found)
    dtype = "float64" if w.dtype == "float64" else "float32"
    a_shape, b_shape = factor_shapes(shape, ins, outs, rank)
    if lookup:
        a, b = fnp.zeros(a_shape, dtype), random.normal(key, b_shape, dtype)
    else:
        bound = 1 / math.sqrt(math.prod(shape[i] for i in ins))
        a, b = random.uniform(key, a_shape, dtype, -bound, bound), fnp.zeros(b_shape, dtype)
    magnitude = None
    if kind == "dora":
        norm = norm_of(w.dense() if isinstance(w, Weight) else fnp.asarray(w), ins)
        sizes = [n for i, n in zip(range(-len(shape), 0), shape, strict=True) if i not in ins]
        magnitude = norm.reshape(sizes)
    return Adapter(a, b, magnitude, ins, outs, alpha, kind, lookup, fingerprint(w))


def _joined(what: str, base: Any, adapters: Mapping[str, Adapter]) -> Any:
    """The base with each adapter at its weight, checked to be of it."""
    if not isinstance(adapters, Mapping):
        raise TreeError(f"{what}: adapters must be a dictionary by leaf's name, got {adapters!r}")
    leaves = named_leaves(base)
    for name, adapter in adapters.items():
        if name not in leaves:
            raise TreeError(
                f"{what}: there is an adapter of {name!r}, but the base has {listed(leaves)}: they "
                "are adapters of another base"
            )
        if not isinstance(adapter, Adapter):
            raise TreeError(f"{what}: adapters[{name!r}] must be an Adapter, got {adapter!r}")
        shape = tuple(leaves[name].shape)
        have = tuple(adapter.a.shape), tuple(adapter.b.shape)
        fits = len(shape) >= len(adapter.ins) + len(adapter.outs)
        want = factor_shapes(shape, adapter.ins, adapter.outs, adapter.rank) if fits else None
        if have != want:
            raise ShapeError(
                f"{what}: the adapter of {name!r} has factors of shapes {have[0]} and {have[1]}, "
                f"which don't fit the base's weight of shape {shape}: it is one of another base"
            )
    return with_leaves(base, {n: Adapted(leaves[n], adapter) for n, adapter in adapters.items()})
