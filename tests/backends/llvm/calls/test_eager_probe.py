"""What an `impl` does with symbols, and NumPy's inner loops."""

import ctypes

import numpy as np
import pytest

from funcgrad.backends.llvm.calls import eager_probe
from funcgrad.backends.llvm.calls.eager_probe import Found, loop, probe
from funcgrad.ops import base, contract, families
from funcgrad.ops.elementwise import arithmetic, transcendental

X, N = np.ones((2, 3), np.float32), np.ones((2, 3), np.int32)
Y = np.ones((3, 3), np.float32)
PRODUCT = {"dimension_numbers": (((1,), (0,)), ((), ())), "preferred_element_type": None}


@pytest.mark.parametrize(
    ("impl", "operands", "params", "expected"),
    [
        (families.add.impl, (X, X), {}, Found(np.add, (0, 1), False)),
        (arithmetic.neg.impl, (X,), {}, Found(np.negative, (0,), False)),
        (arithmetic.div.impl, (X, X), {}, Found(np.true_divide, (0, 1), False)),
        (arithmetic.div.impl, (N, N), {}, None),
        (transcendental.exp.impl, (X,), {}, Found(np.exp, (0,), False)),
        (arithmetic.square.impl, (X,), {}, Found(np.multiply, (0, 0), False)),
        (base.sum_p.impl, (X,), {"axes": (0, 1)}, Found(np.add, (0,), True)),
        (base.sum_p.impl, (X,), {"axes": (0,)}, None),
        (base.sum_p.impl, (X.astype("float16"),), {"axes": (0, 1)}, None),
        (lambda xp, x, y: xp.subtract(y, x), (X, X), {}, Found(np.subtract, (1, 0), False)),
        (lambda xp, x: xp.add(x, 1), (X,), {}, None),
        (lambda xp, x: xp.where(x > 0, x, 0), (X,), {}, None),
        (lambda xp, x: x, (X,), {}, None),
        (lambda xp, x: xp.sin(xp.cos(x)), (X,), {}, None),
        (lambda xp, x: (xp.sin(x), x)[1], (X,), {}, None),
        (lambda xp, x: x**2, (X,), {}, None),
        (
            lambda xp, x: xp.sin(x.astype("float32", copy=False)),
            (X,),
            {},
            Found(np.sin, (0,), False),
        ),
        (lambda xp, x: xp.sin(x.astype("float64", copy=False)), (X,), {}, None),
        (contract.dot_general_p.impl, (Y, Y), PRODUCT, Found(np.matmul, (0, 1), False)),
        (contract.dot_general_p.impl, (Y.astype("float16"),) * 2, PRODUCT, None),
        (lambda xp, x: xp.modf(x)[0], (X,), {}, None),
        (lambda xp, x: xp.add(x, x, dtype="float64"), (X,), {}, None),
        (lambda xp, x: xp.exp(x) if x else x, (X,), {}, None),
        (lambda xp, x: xp.asarray(x), (X,), {}, None),
        (lambda xp, x: xp.maximum.reduce(x, axis=(0, 1)), (X,), {}, None),
        (lambda xp, x: xp.add.reduce(x, axis=(0, 1), initial=1), (X,), {}, None),
    ],
)
def test_what_an_impl_is(impl, operands, params, expected):
    assert probe(impl, operands, params) == expected


def test_loops_are_those_of_the_dtypes():
    assert loop(np.matmul, [np.dtype("float32")] * 3) is None
    f, d, b = np.dtype("float32"), np.dtype("float64"), np.dtype("bool")
    assert loop(np.less, [f, f, b])
    assert loop(np.less, [f, f, f]) is None
    assert loop(np.add, [f, d, d]) is None
    assert loop(np.add, [f.newbyteorder(), f, f]) is None
    assert loop(np.add, [np.dtype(object)] * 3) is None
    assert loop(np.tanh, [np.dtype("int32")] * 2) is None
    found = loop(np.add, [d, d, d])
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(found.function)
    x, y, out = np.arange(3.0), np.ones(3), np.empty(3)
    pointers = (ctypes.c_void_p * 3)(*(a.ctypes.data for a in (x, y, out)))
    n, steps = (ctypes.c_int64 * 1)(3), (ctypes.c_int64 * 3)(8, 8, 8)
    call(ctypes.addressof(pointers), ctypes.addressof(n), ctypes.addressof(steps), found.data)
    np.testing.assert_array_equal(out, x + y)


def test_functions_in_another_layout_are_noticed(monkeypatch):
    eager_probe.check_layout()

    class Other(ctypes.Structure):
        _fields_ = (("more", ctypes.c_int), *eager_probe._Function._fields_)

    monkeypatch.setattr(eager_probe, "_Function", Other)
    with pytest.raises(ValueError, match="layout"):
        eager_probe.check_layout()
