"""Compiled code of large eager operations, run by native code: what Python gives, bit for bit."""

import sys
import threading

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.eager import exact, kernel
from funcgrad.core.aval import ShapedArray
from funcgrad.core.eager import large
from funcgrad.core.process import fork
from funcgrad.transforms.precision.casts import narrowed_p
from tests.backends.llvm.calls.test_eager import (
    by_python,
    check_same,
    draw,
    natively,
    nothing_learned,
    pytestmark,
    refuse,
)
from tests.op_checks import by_dtype
from tests.op_samples import ROWS
from tests.op_samples_base import F32, special_operands

__all__ = ["nothing_learned", "pytestmark"]


@pytest.fixture
def compiled(monkeypatch):
    """Large operations are compiled after a few calls, and then at once."""
    monkeypatch.setattr(fork, "beside", lambda work: work())
    monkeypatch.setattr(large, "KEPT_AFTER", 200)
    monkeypatch.setattr(large, "COMPILED_AFTER", 400)
    monkeypatch.setattr(large, "COMPILED_FROM", 8)
    monkeypatch.setattr(large, "LARGE", 8)


def natively_compiled(monkeypatch, function, *args):
    """The result of compiled code that native code calls itself."""
    natively(function, *args)
    with monkeypatch.context() as m:
        m.setattr(large.LargeImpl, "__call__", refuse)
        return natively(function, *args)


COMPILED_CALLS = [
    (fnp.add, ((70_001,), (70_001,))), (fnp.subtract, ((30, 50), (50,))),
    (fnp.true_divide, ((4, 1), (1, 3))), (fnp.sqrt, ((5000,),)), (fnp.less, ((77,), ())),
    (lambda x: x * 2.5, ((5000,),)), (lambda x: 3 - x, ((300, 5),)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("which", range(len(COMPILED_CALLS)))
def test_results_of_compiled_code(compiled, monkeypatch, which, dtype):
    function, shapes = COMPILED_CALLS[which]
    args = [draw(shape, dtype, i) for i, shape in enumerate(shapes)]
    want = by_python(function, *args)
    before = [sys.getrefcount(x) for a in args for x in (a, a._value)]
    got = natively_compiled(monkeypatch, function, *args)
    check_same(got, want)
    assert got._value.flags.owndata
    assert [sys.getrefcount(x) for a in args for x in (a, a._value)] == before


def test_compiled_results_are_in_memory_that_is_kept(compiled, monkeypatch):
    x = draw((1 << 16,), "float32")
    before = fg.memory_summary().in_use
    out = natively_compiled(monkeypatch, fnp.add, x, x)
    assert fg.memory_summary().in_use >= before + out.nbytes
    kept = np.empty(1 << 16, np.float32)  # others' memory is as it was
    assert fg.memory_summary().in_use < before + out.nbytes + kept.nbytes
    del out
    assert fg.memory_summary().in_use == before


def test_compiled_code_leaves_views_and_numbers_that_do_not_fit(compiled, monkeypatch):
    x = draw((20, 30), "int32")
    turned = fnp.swapaxes(x, 0, 1)
    lies = fnp.array(np.ascontiguousarray(turned))
    natively_compiled(monkeypatch, fnp.add, lies, lies)
    same = np.asarray(fnp.add(turned, turned))
    np.testing.assert_array_equal(same, 2 * np.asarray(x).T)
    natively_compiled(monkeypatch, fnp.add, x, 1)
    with pytest.raises(OverflowError):
        fnp.add(x, 1 << 40)


def test_compiled_code_on_several_threads(compiled, monkeypatch):
    x = draw((70_000,), "float32")
    want = natively_compiled(monkeypatch, fnp.multiply, x, x)._value.tobytes()
    wrong = []

    def work():
        for _ in range(50):
            if fnp.multiply(x, x)._value.tobytes() != want:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.sampled(2)
@by_dtype([row for row in ROWS if row.prim.elementwise and not row.prim.multiple])
def test_what_is_exact_gives_the_same_bits(row, dtype):
    """Every operation that says so, derived from what it computes, on odd numbers and typical ones;
    what isn't exact is not compiled."""
    rng, dtype = np.random.default_rng(0), np.dtype(dtype)
    case = row.cases[0]
    typical = [np.asarray(x) for x in case.make(rng, dtype)]
    odd = special_operands(dtype, len(case.args), [a.dtype for a in case.args])
    if row.prim is narrowed_p:  # whose row gives it one operand twice
        typical, odd = typical * 2, odd * 2
    for operands in (typical, odd) if dtype in row.special else (typical,):
        avals = [ShapedArray(x.shape, x.dtype) for x in operands]
        out = row.prim.abstract(*avals, **case.params)
        types = [(x.shape, x.dtype) for x in operands]
        made = kernel(row.prim, types, out, case.params)
        assert (made is None) != exact(row.prim, case.params, [a.dtype for a in avals], out.dtype)
        if made is None:
            return
        with np.errstate(all="ignore"):
            want = np.asarray(row.prim.impl(np, *operands, **case.params))
        got = made[0]([np.ascontiguousarray(x) for x in operands])
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        same = (got == want) & (np.signbit(got) == np.signbit(want)) if got.dtype.kind == "f" else (
            got == want
        )  # fmt: skip
        assert np.all(same | ((got != got) & (want != want)))


def test_exact_operations_are_those_that_round_once():
    found = {
        str(row)
        for row in ROWS
        if row.prim.elementwise and not row.prim.multiple and F32 in row.dtypes
        if exact(row.prim, row.cases[0].params, [F32] * len(row.cases[0].args), F32)
    }
    assert found >= {"add", "sub", "mul", "div", "neg", "abs", "sqrt", "square", "floor"}
    assert not found & {"exp", "sin", "rsqrt", "logistic", "pow", "max", "rem", "erf", "igamma"}
