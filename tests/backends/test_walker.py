"""Steps go to the methods of their classes, in order."""

import typing

import pytest

from funcgrad.backends.program import CopyStep, LoopStep, Ref, Step
from funcgrad.backends.walker import _METHODS, Walker


class Copies(Walker):
    def __init__(self):
        self.seen = []

    def copy(self, s):
        self.seen.append(s.nbytes)

    def loop(self, s):
        for _ in range(s.length):
            self.steps(s.body)


def copy(n):
    return CopyStep(Ref("input", 0), Ref("output", 0), n)


def test_steps_are_walked_in_order_and_nested_as_often_as_wanted():
    walker = Copies()
    walker.steps([copy(1), LoopStep(0, 2, (copy(2), copy(3))), copy(4)])
    assert walker.seen == [1, 2, 3, 2, 3, 4]


def test_what_a_target_doesn_t_plan_is_a_fault():
    with pytest.raises(AssertionError):
        Walker().steps([copy(1)])
    assert set(_METHODS) == set(typing.get_args(Step))
    assert all(hasattr(Walker, name) for name in _METHODS.values())
