"""Records behave as dataclasses with slots do."""

from __future__ import annotations

import copy

import pytest

from funcgrad.core.record import Record, fresh, replace


class Point(Record):
    x: int
    y: int = 0


class Named(Point):
    name: str = "p"

    @property
    def label(self) -> str:
        return f"{self.name}({self.x}, {self.y})"


class Bag(Record, frozen=False):
    items: list = fresh(factory=list)


class Node(Record, frozen=False, eq=False):
    value: int


def test_fields_by_place_by_name_and_by_default():
    assert repr(Point(1)) == "Point(x=1, y=0)"
    assert Point(1, 2) == Point(1, y=2) == Point(y=2, x=1)
    assert Named(1, 2, "q").label == "q(1, 2)"
    assert Named(1).label == "p(1, 0)"


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "Point: no value for 'x'"),
        ((1, 2, 3), {}, "Point has the fields x, y, got 3 values"),
        ((1,), {"z": 2}, "Point has the fields x, y, got z"),
        ((1,), {"x": 2}, "Point has the fields x, y, got x"),
        ((1, 2), {"x": 2}, "Point has the fields x, y, got x"),
    ],
)
def test_wrong_fields_are_named(args, kwargs, words):
    with pytest.raises(TypeError, match=words):
        Point(*args, **kwargs)


def test_equality_is_of_class_and_fields():
    assert Point(1, 2) != Point(2, 1)
    assert Point(1) != (1, 0)
    assert Point(1) != Named(1)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert len({Point(1), Point(1), Named(1)}) == 2


def test_frozen_ones_cannot_change():
    p = Point(1)
    with pytest.raises(AttributeError, match="x of a Point can't be changed"):
        p.x = 2
    with pytest.raises(AttributeError, match="x of a Point can't be deleted"):
        del p.x
    with pytest.raises(AttributeError):
        p.z = 2


def test_others_can():
    bag = Bag()
    bag.items = [1]
    assert bag == Bag([1])
    assert Bag().items == []
    assert Bag().items is not Bag().items
    with pytest.raises(TypeError, match="unhashable"):
        hash(bag)
    with pytest.raises(AttributeError):
        bag.other = 2


def test_without_equality_each_is_itself():
    node = Node(1)
    node.value = 2
    assert node == node
    assert node != Node(2)
    assert len({node, Node(2)}) == 2


def test_replace_changes_some():
    assert replace(Named(1), y=3) == Named(1, 3)
    assert type(replace(Named(1), y=3)) is Named
    with pytest.raises(TypeError, match="got z"):
        replace(Point(1), z=1)


def test_records_match_by_place():
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_copies_are_equal():
    class Pair(Record):
        first: int
        rest: list

    pair = Pair(1, [2])
    deep = copy.deepcopy(pair)
    assert copy.copy(pair) == deep == pair
    assert deep.rest is not pair.rest
    assert copy.copy(pair).rest is pair.rest
