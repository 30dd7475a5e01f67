"""Collectives in two parts: between them is other work, and the meaning stays."""

import pytest

import funcgrad.numpy as fnp
from funcgrad.core.sharding import NamedSharding, P
from funcgrad.parallel.programs.overlap import joined, overlapped
from funcgrad.parallel.programs.passes import sums_early
from tests.parallel.models import LAYERS, mlp_args, mlp_step, normal, stacked_step
from tests.parallel.partitioned import counts, partitioned
from tests.parallel.programs.test_passes import CUT, MESH, WHOLE, names, same, with_jaxpr

REGATHER = NamedSharding(MESH, CUT, regather=True)


def fully_sharded():
    specs = [REGATHER] * LAYERS + [CUT] * LAYERS + [CUT, CUT]
    program, _, args = partitioned(mlp_step(), mlp_args(), MESH, specs)
    return with_jaxpr(program, sums_early(program.jaxpr)), args


@pytest.mark.parametrize("ahead", [1, 2])
def test_starts_and_ends(ahead):
    program, args = fully_sharded()
    split = with_jaxpr(program, overlapped(program.jaxpr, ahead))
    found = names(split.jaxpr)
    assert found.count("collective_start") == found.count("collective_done") >= 2 * LAYERS
    same(program, split, args)


@pytest.mark.parametrize("ahead", [1, 2])
def test_few_gathers_are_under_way_at_once(ahead):
    program, _ = fully_sharded()
    flying = most = 0
    for eqn in overlapped(program.jaxpr, ahead).eqns:
        if eqn.params.get("prim") is not None and eqn.params["prim"].name == "all_gather":
            flying += 1
        most = max(most, flying)
        flying -= eqn.prim.name == "collective_done" and eqn.outs[0].aval.shape == (16, 16)
    assert most <= ahead + 1


def test_the_next_gather_starts_before_the_end_of_the_last():
    program, _ = fully_sharded()
    found = [n for n in names(overlapped(program.jaxpr)) if n.startswith(("coll", "dot"))]
    first = found.index("collective_done")
    assert found[first - 1] == "collective_start"


def test_in_loops():
    args = [normal(5, 16, 16), *mlp_args()[-2:]]
    cut = NamedSharding(MESH, P(None, "data"), regather=True)
    program, _, args = partitioned(stacked_step, args, MESH, [cut, CUT, CUT])
    same(program, with_jaxpr(program, overlapped(program.jaxpr)), args)


def test_joined_again():
    program, args = fully_sharded()
    whole = with_jaxpr(program, joined(overlapped(program.jaxpr)))
    assert counts(whole) == counts(program)
    same(program, whole, args)


def test_what_has_nothing_beside_it_stays_whole():
    program, _, _ = partitioned(
        lambda x, y: [fnp.sum(x) * 2 + y], [normal(8), normal(8)], MESH, [CUT, WHOLE]
    )
    assert overlapped(program.jaxpr).eqns == program.jaxpr.eqns
    assert counts(program) == {"psum": 1}
