"""A program's host function: one text for all processes, steps that Python runs, waits."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda.host import CALL_WORDS, FIRST, Host
from funcgrad.backends.cuda.kernels.gemms import with_kernels
from funcgrad.backends.cuda.libraries.products import products
from funcgrad.backends.cuda.modules import kernels
from tests.backends.cuda.simulated import numbers, program_of, softmax


def host_of(f, *args):
    program = with_kernels(program_of(f, *args), lambda s: bool(products(s)))
    return Host(program, {id(launch.kernel): launch for launch in kernels(program).launches})


def scanned(x):
    return lax.scan(lambda c, r: (c @ x, softmax(c)), x, x)


def test_the_text_is_the_same_each_time():
    x = numbers(8, 8)
    first, second = host_of(scanned, x), host_of(scanned, x)
    assert first.text == second.text
    assert first.kernels == second.kernels
    assert "phi i64 [0," in first.text
    assert not first.waits


def test_equal_products_share_a_descriptor():
    host = host_of(lambda x: x @ (x @ (x @ x)), numbers(64, 64))
    assert len(host.calls) == 1
    most = FIRST + len(host.kernels) + CALL_WORDS
    assert f"i64 {most - 1}\n" in host.text
    assert f"i64 {most}\n" not in host.text


def test_what_waits():
    x = numbers(8, 8)
    for f in (
        lambda x: lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, x),
        lambda x: lax.cond(x[0, 0] > 0, lambda v: v + 1, softmax, x),
        lambda x: fnp.linalg.svd(x)[0],
        lambda x: fg.pure_callback(lambda v: v, x, x),
    ):
        assert host_of(f, x).waits
    assert [s.prim.name for s in host_of(lambda x: fnp.linalg.svd(x)[0], x).called] == ["svd"]


def test_empty_programs():
    host = host_of(lambda x: x, np.ones(3, np.float32))
    assert not host.kernels
    assert host.text.count("cuMemcpy") == 0
