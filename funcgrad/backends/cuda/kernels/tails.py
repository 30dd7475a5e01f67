"""What follows a product, done by the product itself: a bias, an activation, rounding.

Where one kernel alone reads a product's sums, element by element, and computes no more than a
`Tail` says, the sums have no memory of their own: cuBLASLt's epilogues do it (so do the kernels
that stand for it). Narrow floats are then rounded once, not after each operation. Gradients of
activations stay kernels: their epilogues took longer on an H200 than a kernel does (docs/cuda.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from funcgrad.backends.cuda.libraries.products import EIGHTS
from funcgrad.backends.drafts.drafter import BlockDrafter
from funcgrad.backends.drafts.tensors import Draft, Tensor, moved
from funcgrad.backends.loops.ir import Const, Kernel, Load, Op, Operand, Store, Value
from funcgrad.backends.loops.scalars import FLOAT32, HALVES
from funcgrad.backends.program import Step, Tail
from funcgrad.core.record import Record, replace

_ROUNDED = (FLOAT32, *HALVES)
# What cuBLASLt writes of products of a dtype that have epilogues; scales are those of 8 bits.
_RESULTS = {
    FLOAT32: (FLOAT32,), **{d: (d, FLOAT32) for d in HALVES}, **dict.fromkeys(EIGHTS, _ROUNDED),
}  # fmt: skip
# In canonical form: factors and terms are sorted, conversions left out, x is the argument.
_RELU = ("maximum", "0.0", "x")
_CUBE = ("multiply", "cube", "x", "x", "x")
_ROOT = ("multiply", ("add", _CUBE, "x"), "root")
_GELU = ("multiply", ("add", ("tanh", _ROOT), "1.0"), "0.5", "x")
_NAMED = {"root": math.sqrt(2 / math.pi), "cube": 0.044715}
_NUMBERS = {
    float(np.asarray(value).astype(dtype)): name for name, value in _NAMED.items()
    for dtype in (np.float64, *_ROUNDED)
}  # fmt: skip


class _Found(Record):
    """A tail as parameters of the kernel that it was: their numbers."""

    out: int
    bias: int | None
    activation: str


def joined(block: BlockDrafter, drafts: list[Draft], results: Sequence[Tensor]) -> list[Draft]:
    """The drafts of a block, products joined with what follows them.

    results: what is read after the block
    """
    out: list[Draft] = []
    waiting: dict[Tensor, Draft] = {}  # products that nobody has read, by their sums
    for i, d in enumerate(drafts):
        product = next((waiting.pop(t.whole) for t in d.reads if t.whole in waiting), None)
        if product is not None:
            sums = product.writes[0]
            later = {t.whole for e in drafts[i + 1 :] for t in e.reads}
            found = _found(product, d)
            if found and sums not in later and not any(t.whole is sums for t in results):
                out.remove(product)
                d = _whole(product, d, found)
        out.append(d)
        if d.product is not None and d.product.tail is None and d.writes[0].base is None:
            waiting[d.writes[0]] = d
    return out


def _found(product: Draft, draft: Draft) -> _Found | None:
    """What a kernel does with a product's sums, if it is a tail of its."""
    step, kernel, sums = product.product, draft.kernel, product.writes[0]
    if step is None or kernel is None or any(t.base is not None for t in draft.writes):
        return None
    found = match(kernel, draft.operands.index(sums)) if sums in draft.operands else None
    if found is None:
        return None
    out, eight = kernel.params[found.out].dtype, step.dtype in EIGHTS
    if out not in _RESULTS.get(step.dtype, ()) or step.axes is not None or step.frame is not None:
        return None
    bias = None if found.bias is None else kernel.params[found.bias]
    row = step.n if step.c_strides[1] == 1 else step.m if step.c_strides[0] == 1 else 0
    if bias is not None and (bias.size != row or bias.dtype != out or (eight and out == FLOAT32)):
        return None
    return found


def _whole(product: Draft, draft: Draft, found: _Found) -> Draft:
    """The product as a draft with its tail."""
    step, (out,) = product.product, draft.writes
    assert step is not None
    dtype = draft.kernel.params[found.out].dtype  # type: ignore[union-attr]
    scales = product.operands[3:]
    bias = None if found.bias is None else draft.operands[found.bias]

    def make(inner: list[tuple[Step, ...]]) -> list[Step]:
        operands = zip(product.operands[:2], product.offsets[:2], strict=True)
        a, b = (moved(t.place, n) for t, n in operands)
        added = None if bias is None else bias.place
        tail = Tail(tuple(s.place for s in scales), added, found.activation)
        return [replace(step, a=a, b=b, c=out.place, out=dtype, tail=tail)]

    reads = [*product.reads, *([] if bias is None else [bias])]
    whole = replace(step, out=dtype, tail=Tail((), None, found.activation))
    return Draft(reads, [out], make, product=whole)


def match(kernel: Kernel, sums: int) -> _Found | None:
    """What a kernel does with its parameter number `sums`, element by element in order, if it is
    no more than a tail."""
    made: dict[Operand, Op | Load] = {}
    stores = [s for s in kernel.body if isinstance(s, Store)]
    for s in kernel.body:
        if not isinstance(s, Op | Load | Store) or getattr(s, "guard", None) is not None:
            return None
        if not isinstance(s, Store):
            made[s.out] = s
    if len(stores) != 1 or not _in_order(kernel, stores[0]):
        return None
    (store,) = stores
    number = {b: i for i, b in enumerate(kernel.params)}
    rounded = (FLOAT32, store.buffer.dtype)
    if any(s.name == "convert" and s.out.dtype not in rounded
           for s in made.values() if isinstance(s, Op)):  # fmt: skip
        return None
    activation, rest = _activation(store.value, made)
    bias, rest = _bias(rest, made, store)
    load = made.get(rest)
    if not isinstance(load, Load) or number[load.buffer] != sums:
        return None
    if _terms(load) != _terms(store):
        return None
    place = None if bias is None else number[bias.buffer]
    return _Found(number[store.buffer], place, activation)


def _in_order(kernel: Kernel, store: Store) -> bool:
    """Whether a kernel writes each element at its own point, in the order of its axes."""
    step, terms = 1, []
    for axis in reversed(kernel.axes):
        terms.append((step, axis.value))
        step *= axis.size
    whole = store.buffer.size == step and kernel.params.count(store.buffer) == 1
    return whole and _terms(store) == (0, frozenset(terms))


def _terms(s: Load | Store) -> tuple:
    return s.index.const, frozenset(s.index.terms)


def _plain(x: Operand, made: Mapping[Operand, Op | Load]) -> Operand:
    """What a value was before it was converted."""
    while isinstance(s := made.get(x), Op) and s.name == "convert":
        x = s.args[0]
    return x


def _two(name: str, x: Operand, made: Mapping) -> tuple[Operand, Operand] | None:
    """The operands of an op of this name, before conversions."""
    s = made.get(_plain(x, made))
    if not isinstance(s, Op) or s.name != name:
        return None
    left, right = (_plain(a, made) for a in s.args)
    return left, right


def _activation(x: Operand, made: Mapping) -> tuple[str, Operand]:
    """The last activation in a value, and its argument; "" and the value if there is none."""
    templates: dict[object, str] = {_RELU: "relu", _GELU: "gelu"}
    for v in made:
        name = templates.get(_canonical(x, made, v))
        if name is not None:
            return name, _plain(v, made)
    return "", _plain(x, made)


def _bias(x: Operand, made: Mapping, store: Store) -> tuple[Load | None, Operand]:
    """What is added that is the same for all rows, and to what."""
    for one, other in _orders(_two("add", x, made)):
        load = made.get(one)
        if isinstance(load, Load) and load.index.const == 0 and load.index.terms:
            within = frozenset((c, v) for c, v in store.index.terms if c < load.buffer.size)
            if frozenset(load.index.terms) == within and load.buffer.size < store.buffer.size:
                return load, other
    return None, x


def _orders(pair: tuple | None) -> Iterator[tuple[Operand, Operand]]:
    if pair is not None:
        yield pair
        yield pair[::-1]


def _canonical(x: Operand, made: Mapping, leaf: Value) -> object:
    """A value's formula in `leaf`: products and sums of sorted operands, without conversions."""
    if x is leaf or _plain(x, made) is _plain(leaf, made):
        return "x"
    x = _plain(x, made)
    if isinstance(x, Const):
        value = float(x.value) if x.dtype.kind in "fV" else math.nan
        return _NUMBERS.get(value, repr(value))
    s = made.get(x)
    if not isinstance(s, Op):
        return "memory"
    parts: list[object] = []
    for part in (_canonical(a, made, leaf) for a in s.args):
        same = isinstance(part, tuple) and part[0] == s.name == "multiply"
        parts += part[1:] if same else [part]  # type: ignore[index]
    if s.name in ("multiply", "add", "maximum"):
        parts.sort(key=str)
    return (s.name, *parts)
