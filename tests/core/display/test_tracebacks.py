"""What a user sees of a traceback: the own lines, and none of the library's."""

import traceback

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import IRError


def bad(x):
    return x + fnp.ones(7)


def scanned(x):
    return lax.scan(lambda c, _: (bad(c), None), x, None, length=2)[0].sum()


@fg.custom_jvp
def ruled(x):
    return bad(x)


ruled.defjvps(lambda t, out, x: t)


WAYS = {
    "jit": fg.jit(bad),
    "grad": fg.grad(lambda x: bad(x).sum()),
    "vmap": fg.vmap(bad),
    "scan": scanned,
    "cond": lambda x: lax.cond(True, bad, bad, x),
    "while_loop": lambda x: lax.while_loop(lambda c: True, bad, x),
    "checkpoint": fg.checkpoint(bad),
    "custom_jvp": ruled,
    "eval_shape": lambda x: fg.eval_shape(bad, x),
    "jacfwd": fg.jacfwd(bad),
    "all": fg.jit(fg.vmap(fg.grad(scanned))),
}


def names(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("way", WAYS)
def test_only_the_users_frames_are_shown(way, monkeypatch):
    x = fnp.ones((2, 3))
    monkeypatch.setenv("FUNCGRAD_TRACEBACK_FILTERING", "on")
    with pytest.raises(fg.errors.ShapeError) as shown:
        WAYS[way](x)
    assert "bad" in names(shown.value)
    assert all(f.filename == __file__ for f in traceback.extract_tb(shown.value.__traceback__))
    monkeypatch.setenv("FUNCGRAD_TRACEBACK_FILTERING", "off")
    with pytest.raises(fg.errors.ShapeError) as whole:
        WAYS[way](x)
    assert len(names(whole.value)) > len(names(shown.value))
    assert str(whole.value) == str(shown.value)


def test_an_error_of_the_call_itself_ends_at_the_users_line(monkeypatch):
    monkeypatch.setenv("FUNCGRAD_TRACEBACK_FILTERING", "on")
    with pytest.raises(TypeError) as shown:
        fg.grad(lambda x: x)(1)
    assert len(names(shown.value)) == 1


def test_faults_of_the_library_show_all_frames(monkeypatch):
    def fault(*args):
        raise IRError("a fault of the library")

    monkeypatch.setenv("FUNCGRAD_TRACEBACK_FILTERING", "on")
    monkeypatch.setattr("funcgrad.transforms.control.scan.stage_body", fault)
    with pytest.raises(IRError) as shown:
        scanned(fnp.ones(3))
    assert "scan" in names(shown.value)
