"""Primitives as objects: they are themselves wherever they are copied to."""

import copy
import pickle
import sys
from dataclasses import replace

import pytest

from funcgrad import lax
from funcgrad.core.primitive import Primitive

PRIMITIVES = {n: x for n in dir(lax) if isinstance(x := getattr(lax, n), Primitive)}


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_copied_and_pickled_by_name(name):
    prim = PRIMITIVES[name]
    for copied in (copy.copy(prim), copy.deepcopy([prim])[0], pickle.loads(pickle.dumps(prim))):
        assert copied is prim


def test_one_without_a_name_cannot_be_pickled():
    with pytest.raises(pickle.PicklingError, match="the primitive sin can't be pickled: no module"):
        pickle.dumps(replace(lax.sin))


def test_pickled_by_a_name_that_others_find(monkeypatch):
    """Not by one that a program gave it, whose module comes first."""
    own = replace(lax.sin)
    for name, prim in (("imported", lax.sin), ("own", own)):
        monkeypatch.setattr(sys.modules["__main__"], name, prim, raising=False)
    monkeypatch.setattr(sys.modules[__name__], "imported", lax.sin, raising=False)
    assert b"funcgrad.ops" in pickle.dumps(lax.sin)
    assert b"__main__" in pickle.dumps(own)
    monkeypatch.setattr(sys.modules[__name__], "elsewhere", own, raising=False)
    assert __name__.encode() in pickle.dumps(own)
    assert pickle.loads(pickle.dumps(own)) is own
