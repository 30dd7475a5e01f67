"""Axis mappings: the parser, and that mappings are held to shapes."""

import pytest

from funcgrad.core import dims
from funcgrad.core.aval import ShapedArray
from funcgrad.errors import IRError


def avals(*shapes):
    return [ShapedArray(s, "float32") for s in shapes]


def test_parse():
    d = dims.parse("i k, k j -> i j")
    assert d.ins == (("i", "k"), ("k", "j"))
    assert d.outs == (("i", "j"),)
    assert d.contracted == {"k"}
    assert d.reduction == "sum"
    assert not d.whole


def test_parse_reduction_whole_and_new_axes():
    d = dims.parse("b n! -> b . : max")
    assert d.whole == {"n"}
    assert d.ins == (("b", "n"),)
    assert d.outs == (("b", "."),)
    assert d.reduction == "max"
    assert dims.parse(". i -> i").contracted == set()


def test_parse_scalars_and_several_results():
    d = dims.parse("a, -> a, a")
    assert d.ins == (("a",), ())
    assert d.outs == (("a",), ("a",))
    assert dims.parse("->").ins == ((),)


def test_parse_needs_an_arrow():
    with pytest.raises(IRError, match="needs '->'"):
        dims.parse("i j")


def test_check_accepts_what_fits():
    dims.check(dims.parse("i k, k j -> i j"), avals((2, 3), (3, 4)), avals((2, 4)))
    dims.check(dims.parse("i . -> i j"), avals((2, 1)), avals((2, 5)))
    dims.check(dims.parse(" -> i"), [], avals((2,)))


@pytest.mark.parametrize(
    ("ins", "outs", "words"),
    [
        ([(2, 3), (4, 5)], [(2, 5)], "factor k has sizes 3 and 4"),
        ([(2, 3)], [(2, 5)], "maps 2 values, there are 1"),
        ([(2, 3), (3,)], [(2, 5)], "does not fit"),
        ([(2, 3), (3, 5)], [(2, 6)], "factor j has sizes 5 and 6"),
        ([(2, 3), (3, 5)], [(2, 5), (2,)], "maps 1 values, there are 2"),
    ],
)
def test_check_finds_faults(ins, outs, words):
    with pytest.raises(IRError, match=words):
        dims.check(dims.parse("i k, k j -> i j"), avals(*ins), avals(*outs))


def test_pointwise_leaves_scalars_without_axes():
    assert dims.pointwise(*avals((2, 3), (), (2, 3))) == "a b, , a b -> a b"
    assert dims.pointwise(*avals((), ()), results=2) == ",  -> , "


def test_letters_do_not_repeat():
    names = dims.letters(60)
    assert len(set(names)) == 60
    assert dims.letters(2, start=1) == ["b", "c"]
