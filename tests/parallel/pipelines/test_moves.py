"""Rows that move between ranks."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.parallel import NamedSharding, P, device_put, make_mesh
from funcgrad.parallel.pipelines.moves import moved, plan_rounds


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("each", [1, 2, 3, 5])
def test_rounds_move_each_row_once(ranks, each, rng):
    order = rng.permutation(ranks * each).tolist()
    rounds = plan_rounds(order, ranks)
    assert len(rounds) == each
    found = np.full((ranks, each), -1)
    for sends, to, puts in rounds:
        assert sorted(to) == list(range(ranks))
        for source, target in enumerate(to):
            assert found[target, puts[target]] == -1
            found[target, puts[target]] = source * each + sends[source]
    assert found.reshape(-1).tolist() == order


def test_rows_and_their_derivative(rng):
    mesh = make_mesh((3, 2), ("pp", "x"))
    order = rng.permutation(6).tolist()
    x = rng.normal(size=(6, 4)).astype(np.float32)
    cut = device_put(x, NamedSharding(mesh, P("pp", "x")))
    f = fg.jit(lambda x: moved(x, order, mesh, "pp"))
    got = f(cut)
    np.testing.assert_array_equal(got, x[order])
    assert got.sharding.spec == P("pp", "x")
    slope = fg.jit(fg.grad(lambda v: fnp.sum(moved(v, order, mesh, "pp") * x)))(cut)
    np.testing.assert_array_equal(slope, x[np.argsort(order)])
    assert not any("all_gather" in key for key in f.lower(cut).cost_analysis())


def test_rows_in_order_stay():
    x = {"a": fnp.ones(4)}
    assert moved(x, range(4), make_mesh(2, "pp"), "pp") is x
