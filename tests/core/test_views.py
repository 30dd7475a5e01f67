"""Views: where rules say that elements come from is where `impl` takes them."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.aval import ShapedArray
from funcgrad.core.views import repeats, spread
from tests.op_samples import ROWS

VIEWS = [(r, c) for r in ROWS if r.prim.view is not None for c in r.cases]


@pytest.mark.parametrize(("row", "case"), VIEWS, ids=[f"{r}-{i}" for i, (r, _) in enumerate(VIEWS)])
def test_elements_come_from_where_the_rule_says(row, case):
    shape = case.args[0].shape
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    out = np.asarray(row.prim.impl(np, x, **case.params))
    places = row.prim.view(ShapedArray(shape, x.dtype), **case.params)
    if places is None:
        assert np.array_equal(out.ravel(), x.ravel())
        return
    for at in itertools.product(*map(range, out.shape)):
        source = tuple(p.start + sum(step * at[d] for step, d in p.terms) for p in places)
        assert all(0 <= i < n for i, n in zip(source, shape, strict=True))
        assert out[at] == x[source]


def test_all_structural_views_have_samples():
    assert {str(r) for r, _ in VIEWS} >= {
        "broadcast_in_dim", "reshape", "rev", "slice", "stop_gradient", "transpose",
    }  # fmt: skip


SPREAD = {
    "an axis before": (lambda x: fnp.broadcast_to(x, (5, 2, 3)), [1, 2], True),
    "axes after": (lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 1)), [0, 1], True),
    "turned": (lambda x: x.T, [1, 0], False),
    "a part": (lambda x: x[:, 1:], None, False),
    "backwards": (lambda x: x[::-1], None, False),
    "another order": (lambda x: x.reshape(3, 2), None, False),
    "from one": (lambda x: lax.broadcast_in_dim(x, (2, 4), (0, 1)), [0, -1], True),
}


@pytest.mark.parametrize(("fun", "axes", "more"), SPREAD.values(), ids=SPREAD)
def test_how_a_broadcast_spreads(fun, axes, more):
    (eqn,) = fg.make_jaxpr(fun)(np.ones((2, 1 if axes == [0, -1] else 3))).eqns
    assert spread(eqn) == axes
    assert repeats(eqn) == more
