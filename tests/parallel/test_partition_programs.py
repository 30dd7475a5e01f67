"""Random programs with random shardings and constraints mean what they mean unsharded."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from funcgrad.core.ir import interpret
from funcgrad.core.sharding import NamedSharding, PartitionSpec
from funcgrad.core.trace import aval_of
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.transforms.derivatives.linear import vjp
from tests.op_samples_base import as_list
from tests.parallel.partitioned import checked, partitioned, run
from tests.parallel.test_partition_ops import MESHES, choices
from tests.random_programs import Drawn, Maker, Rolled, integer_program
from tests.test_random_programs import arrays, directions, same, tell

# Sizes that devices can share.
SHAPES = [(), (4,), (8,), (2, 4), (4, 8), (8, 4), (4, 2, 4), (1, 8), (3, 4)]


def even_program(choose, most=10):
    """A block and its operands, whose axes can be cut."""
    smooth = choose.integer(0, 1) == 1
    shapes = [choose.one_of(SHAPES) for _ in range(choose.integer(1, 3))]
    rng = np.random.default_rng(choose.integer(0, 999))
    args = [rng.uniform(-1.2, 1.2, s) for s in shapes]
    return Maker(choose, args, smooth).block(choose.integer(1, most)), args


def pick(choose, mesh, shape):
    return choose.one_of(choices(mesh, shape))


def with_constraints(choose, block, mesh):
    """The program, of which some values are constrained (the same ones each time it is traced)."""
    seed = choose.integer(0, 999)

    def constrained(*args):
        rolled = random.Random(seed)
        values = list(args)
        for _, fun, at in block.steps:
            x = fun(*(values[i] for i in at))
            if rolled.random() < 0.3:
                cuts = rolled.choice(choices(mesh, aval_of(x).shape))
                regather = rolled.random() < 0.3
                sharding = NamedSharding(mesh, PartitionSpec(*cuts), regather)
                x = sharding_constraint_p.bind(x, sharding=sharding)
            values.append(x)
        return [values[-1]]

    return constrained


def check_sharded(choose, block, args):
    """The program and its gradient, partitioned."""
    mesh = choose.one_of(MESHES)
    fun = with_constraints(choose, block, mesh)
    if choose.integer(0, 1) and args[0].dtype.kind == "f":
        inner, seed = fun, choose.integer(0, 99)

        def fun(*xs):
            outs, back = vjp(lambda *ys: as_list(inner(*ys)), *xs)
            return [*outs, *back(arrays(directions(outs, seed)))]

    specs = [None if choose.integer(0, 4) == 0 else pick(choose, mesh, np.shape(x)) for x in args]
    tell(f"{block}\non {[aval_of(x) for x in args]} cut {specs} over {mesh}")
    built, jaxpr, values = partitioned(fun, args, mesh, specs)
    checked(built)
    tell(f"{jaxpr}\n{built}")
    with np.errstate(all="ignore"):
        want = interpret(jaxpr, np, *map(np.asarray, values))
        same(run(built, values), want, f"{block} cut {specs} over {mesh}")


@given(st.data())
def test_random_programs(data):
    choose = Drawn(data.draw)
    check_sharded(choose, *even_program(choose))


@given(st.data())
def test_random_programs_of_integers(data):
    choose = Drawn(data.draw)
    check_sharded(choose, *integer_program(choose))


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("make", [even_program, integer_program])
def test_seeds(make, part):
    for seed in range(part, 60, 4):
        check_sharded(Rolled(-seed - 1), *make(Rolled(seed), most=14))
