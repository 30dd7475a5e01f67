"""Mutable arrays as functions: JAX's `jax.ref`. What a `Ref` is, `core.refs` says."""

from __future__ import annotations

from funcgrad.core.refs import AbstractRef, Index, Ref
from funcgrad.core.types import Value
from funcgrad.transforms.refs import check_ref, empty_ref, free_ref, freeze, new_ref

__all__ = [
    "AbstractRef", "Ref", "addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "set",
    "swap",
]  # fmt: skip


def get(ref: Ref, idx: Index | tuple[Index, ...] = None) -> Value:
    """What a mutable array holds at an index, `ref[idx]`; all of it where idx is None.

    >>> fg.ref.get(fg.new_ref(fnp.arange(5)), slice(1, 3))
    Array([1, 2], dtype=int32)
    """
    return check_ref("get", ref)[... if idx is None else idx]


def set(ref: Ref, idx: Index | tuple[Index, ...], value: Value) -> None:
    """Write to a mutable array, `ref[idx] = value`; all of it where idx is None.

    >>> ref = fg.new_ref(fnp.zeros(3))
    >>> fg.ref.set(ref, 1, 10.0)
    >>> ref
    Ref([ 0., 10.,  0.], dtype=float32)
    """
    check_ref("set", ref)[... if idx is None else idx] = value


def swap(ref: Ref, idx: Index | tuple[Index, ...], value: Value) -> Value:
    """Write to a mutable array; the result is what was there before.

    >>> ref = fg.new_ref(fnp.arange(5))
    >>> fg.ref.swap(ref, 3, 10)
    Array(3, dtype=int32)
    """
    before = get(check_ref("swap", ref), idx)
    set(ref, idx, value)
    return before


def addupdate(ref: Ref, idx: Index | tuple[Index, ...], x: Value) -> None:
    """Add to a mutable array; what the index repeats is added as often, as `x.at[idx].add` does.

    >>> ref = fg.new_ref(fnp.zeros(2))
    >>> fg.ref.addupdate(ref, np.array([0, 0]), 1.0)
    >>> ref
    Ref([2., 0.], dtype=float32)
    """
    check_ref("addupdate", ref).addupdate(x, ... if idx is None else idx)
