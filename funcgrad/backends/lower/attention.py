"""Attention as steps of programs: which operands it has, and which axes these have in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.lower.primitives import key_of
from funcgrad.backends.program import AttentionSizes
from funcgrad.core.ir import Eqn, Var
from funcgrad.transforms.attention.attention import attention_backward_p, attention_p
from funcgrad.transforms.attention.operands import Given, wide_dtype

# The operands with batch, place, head and feature, and where those that may be given begin.
ARRAYS = {
    "attention": (0, 1, 2),
    "attention_backward": (0, 1, 2, 3, 5),
    "attention_joint": (0, 1, 2, 3),
}
GIVEN = {"attention": 3, "attention_backward": 6, "attention_joint": 4}
_KINDS = {attention_p: "attention", attention_backward_p: "attention_backward"}
# How many of the results, the first ones, are written where they are wanted, at any strides.
RESULTS = {"attention": 1, "attention_backward": 3, "attention_joint": 4}


def kind_of(eqn: Eqn) -> str:
    """Which of `ARRAYS` an equation is; "" for others."""
    if key_of(eqn.prim) == "attention_joint":
        return "attention_joint"
    return _KINDS.get(eqn.prim, "")


def given_numbers(eqn: Eqn) -> Given:
    """The numbers of the operands that are given."""
    numbers = range(GIVEN[kind_of(eqn)], len(eqn.ins))
    pairs = [i for i in numbers if eqn.ins[i].aval.ndim == 4]
    masks = [i for i in pairs if eqn.ins[i].aval.dtype == dtypes.BOOL]
    biases = [i for i in pairs if i not in masks]
    lengths = tuple(i for i in numbers if i not in pairs)
    return Given(lengths, next(iter(biases), None), next(iter(masks), None))


def strided(eqn: Eqn) -> tuple[int, ...]:
    """The operands that are read where they lie, at any strides: the others are contiguous."""
    if not kind_of(eqn):
        return ()
    return *ARRAYS[kind_of(eqn)], *(x for x in given_numbers(eqn)[1:] if x is not None)


def strided_results(eqn: Eqn) -> Sequence[Var]:
    """The results that are written at any strides: the others are contiguous."""
    return eqn.outs[: RESULTS.get(kind_of(eqn), 0)]


def sizes_of(eqn: Eqn) -> AttentionSizes:
    """The sizes of an equation's operands."""
    q, k = (a.aval.shape for a in eqn.ins[:2])
    return AttentionSizes(q[0], q[1], k[1], q[2], k[2], q[3])


def spans(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides of a bias or mask: 0 along axes of size 1.

    >>> spans((1, 2, 1, 5), (10, 5, 5, 1))
    (0, 5, 0, 1)
    """
    return tuple(0 if n == 1 else x for n, x in zip(shape, strides, strict=True))


def dtypes_of(eqn: Eqn) -> tuple[np.dtype, np.dtype]:
    """The dtype of the operands, and the one that sums are in."""
    dtype = eqn.ins[0].aval.dtype
    return dtype, wide_dtype(dtype)
