"""Fewer values between compiled forward and backward programs, and the same results."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.core.ir import eval_jaxpr
from funcgrad.transforms.tape.residuals import fewer_residuals

X = fnp.array(np.random.default_rng(0).standard_normal((3, 4)), "float32")
# Forward programs, of the result and its residuals, and the types of these that are left.
PROGRAMS = {
    "elementwise": (lambda x: (fnp.sin(x), fnp.cos(x), fnp.exp(fnp.cos(x)), x), [(3, 4)]),
    "of the result": (lambda x: (y := fnp.tanh(x), y * y), [(3, 4)]),
    "a sum": (lambda x: (nn.softmax(x), fnp.sum(fnp.exp(x), axis=1, keepdims=True) + x),
              [(3,), (3, 4)]),
    "a product": (lambda x: (x @ fnp.exp(x).T, fnp.exp(x) * 2), [(3, 4)]),
    "views": (lambda x: (fnp.sum(x), fnp.reshape(x, (4, 3)), x.T, fnp.broadcast_to(x, (2, 3, 4))),
              [(3, 4)]),
    "a constant": (lambda x: (x * 2, fnp.full((3, 4), 2.0), 3.0), []),
    "nothing": (lambda x: (x * 2,), []),
}  # fmt: skip


@pytest.mark.parametrize(("fun", "left"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_kept(fun, left):
    forward = fg.make_jaxpr(fun)(X).jaxpr
    backward = fg.make_jaxpr(lambda *given: tuple(g * given[-1][0, 0] for g in given))(
        *(fnp.zeros(a.shape, a.dtype) for a in forward.out_avals[1:]), X
    ).jaxpr
    want = eval_jaxpr(backward, *eval_jaxpr(forward, X)[1:], X)
    lean = fewer_residuals(forward, backward)
    result, *residuals = eval_jaxpr(lean[0], X)
    assert sorted(r.shape for r in residuals) == sorted(left)
    np.testing.assert_array_equal(result, eval_jaxpr(forward, X)[0])
    for got, expected in zip(eval_jaxpr(lean[1], *residuals, X), want, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert len(lean[0].eqns) <= len(forward.eqns)
