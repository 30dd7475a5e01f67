"""Text and HTML of programs and arrays: complete, escaped, small, and quiet about odd values."""

import base64
import re
import struct
import zlib
from html.parser import HTMLParser

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.core.display.array_html import png
from funcgrad.core.display.jaxpr_text import Names
from funcgrad.core.settings import named_scope
from funcgrad.ops.base import sum_p
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.transcendental import exp, tanh
from funcgrad.random import key, split
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr

OPEN_ENDED = {"img"}


class Checker(HTMLParser):
    """Raises where tags don't nest."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        if tag not in OPEN_ENDED:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_data(self, data):
        self.text += data


def text_of(shown) -> str:
    checker = Checker()
    checker.feed(shown._repr_html_())
    assert not checker.open
    return checker.text


def program(x):
    with named_scope("layer"):
        y = tanh(mul(x, 2.0))

    def body(c, a):
        return mul(c, a), exp(c)

    return scan(body, sum_p.bind(y, axes=(0,)), y)[0]


X = Array(np.arange(4, dtype=np.float32))


def test_names_go_on_after_z():
    names = Names()
    assert [names(i) for i in range(29)][24:] == ["y", "z", "ba", "bb", "bc"]


def test_text_of_a_program_with_a_program_inside():
    text = repr(make_jaxpr(program)(X))
    assert text.startswith("{ lambda ; a:f32[4] . let\n    b:f32[4] = mul a 2.0:f32[]  # layer\n")
    assert re.search(r"scan\[length=4 .*jaxpr={ lambda ; a:f32\[\] b:f32\[\] \. let\n", text)
    assert text.endswith("in (e,) }")


def test_html_of_a_program():
    text = text_of(make_jaxpr(program)(X))
    for part in ("input", "tanh", "layer", "scan", "length=4", "exp", "return"):
        assert part in text
    assert "y = tanh(mul(x, 2.0))" in text


def test_html_escapes_what_users_write():
    assert "<b>" not in make_jaxpr(lambda x: mul(x, 1.0 if 2 < 3 else 0.0))(X)._repr_html_()
    # The user's line holds '<': it arrives as text.
    assert "2 < 3" in text_of(make_jaxpr(lambda x: mul(x, 1.0 if 2 < 3 else 0.0))(X))


def test_html_of_long_programs_is_cut():
    def long(x):
        for _ in range(500):
            x = mul(x, x)
        return x

    text = text_of(make_jaxpr(long)(X))
    assert "100 more equations" in text
    assert len(make_jaxpr(long)(X)._repr_html_()) < 150_000


def test_html_of_the_stages():
    f = jit(program)
    f(X)
    assert "(f32[4]) → f32[]" in text_of(f)
    assert "tanh" in text_of(f.trace(X))
    lowered = text_of(f.lower(X))
    assert "flops" in lowered
    assert "kernel" in lowered
    assert "define" in text_of(f.lower(X).compile())
    assert "transpose" not in text_of(jit(grad(program)).trace(X))[:20]


ARRAYS = {
    "scalar": np.float32(3.5),
    "few": np.arange(3),
    "curve": np.sin(np.arange(100.0)),
    "constant": np.zeros(50),
    "band": np.arange(10_000.0) % 77,
    "all nan": np.full(20, np.nan),
    "table": np.arange(6.0).reshape(2, 3),
    "heat": np.arange(400.0).reshape(20, 20),
    "large": np.zeros((1000, 3000), np.float32),
    "image": np.zeros((16, 16, 3), np.uint8),
    "images": np.full((5, 16, 16, 3), 0.5, np.float32),
    "stack": np.arange(2 * 8 * 8.0).reshape(2, 8, 8),
    "narrow": np.ones((3, 40, 1)),
    "empty": np.zeros((0, 3)),
    "bool": np.eye(20, dtype=bool),
    "complex": np.arange(40) * 1j,
    "bfloat16": np.ones((20, 20), ml_dtypes.bfloat16),
    "int4": np.ones(20, ml_dtypes.int4),
    "float0": np.zeros((3, 3), [("float0", "V")]),
    "odd": np.array([[np.nan, np.inf], [-np.inf, 1.0]]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_html_of_arrays(name):
    array = Array(np.asarray(ARRAYS[name]))
    assert str(array.aval) in text_of(array)
    assert len(array._repr_html_()) < 60_000


def test_facts_about_arrays():
    text = text_of(Array(np.array([1.0, np.nan, 3.0, np.inf])))
    assert "min 1 · max 3 · mean 2" in text
    assert "1 NaN" in text
    assert "1 inf" in text
    assert "8 kB" in text_of(Array(np.zeros(1000)))


def test_png_holds_the_pixels():
    pixels = np.arange(3 * 5 * 4, dtype=np.uint8).reshape(3, 5, 4)
    data = png(pixels)
    assert struct.unpack(">II", data[16:24]) == (5, 3)
    (length,) = struct.unpack(">I", data[33:37])
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + length]), np.uint8).reshape(3, 21)
    np.testing.assert_array_equal(rows[:, 1:].reshape(pixels.shape), pixels)


def test_pictures_are_inline():
    html = Array(ARRAYS["heat"])._repr_html_()
    (data,) = re.findall(r'src="data:image/png;base64,([^"]*)"', html)
    assert base64.b64decode(data).startswith(b"\x89PNG")


def test_html_of_keys():
    assert "Key" in text_of(key(42))
    assert "keys (3,)" in text_of(split(key(42), 3))
