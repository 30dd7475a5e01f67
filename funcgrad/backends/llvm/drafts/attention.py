"""Attention as this processor runs it: by its formula, or as steps, both passes as one or not."""

from __future__ import annotations

from typing import Any

from funcgrad.backends.drafts import steps
from funcgrad.backends.drafts.drafter import BlockDrafter
from funcgrad.backends.llvm.drafts.cuts import TASKS, cut_of, scratch_size
from funcgrad.backends.lower.attention import given_numbers, kind_of, sizes_of
from funcgrad.backends.rewrites.normalize import by_formula
from funcgrad.core.ir import Atom, Eqn

# Attention of fewer queries or keys fills no register tiles: 16 take twice the time of the formula,
# 32 less (one core).
FEW_PLACES = 32


def rewrite(flat: Any, eqn: Eqn, ins: list[Atom]) -> Any:
    """Attention of few queries or keys by its formula; None for what is a step."""
    if not kind_of(eqn):
        return by_formula(flat, eqn, ins) if eqn.prim.formula else None
    (_, queries, *_), (_, keys, *_) = (x.aval.shape for x in ins[:2])
    return None if min(queries, keys) >= FEW_PLACES else by_formula(flat, eqn, ins)


def is_joined(forward: Eqn) -> bool:
    """Whether both passes may be one: if there are as many key heads as tasks should be, as a task
    has one whole."""
    batch, _, heads, _ = forward.ins[1].aval.shape
    numbers = given_numbers(forward)
    return batch * heads >= TASKS and numbers.bias is None and numbers.mask is None


def draft(d: BlockDrafter, eqn: Eqn) -> bool:
    """Attention as a step, cut into tasks."""
    if not (kind := kind_of(eqn)):
        return False
    cut = cut_of(eqn)
    if kind == "attention":
        return steps.attend(d, eqn, cut=lambda scratch: cut)
    size = scratch_size(sizes_of(eqn), cut.ranges, kind == "attention_joint")
    return steps.attend(d, eqn, size, lambda scratch: cut._replace(scratch=scratch))
